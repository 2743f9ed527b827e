"""The causal models of IOI in English: logits by hand under every intervention, and prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers.tiny_gguf import real
from mechassay.circuits.circuit import Circuit
from mechassay.errors import MechassayError, UnknownName
from mechassay.models.families import decode
from mechassay.models.graph import Graph
from mechassay.models.sources import made_truth_folder
from mechassay.truth import training
from mechassay.truth.ground_truth import load_truth
from mechassay.truth.tasks import CAUSAL, words_of
from mechassay.truth.text_ioi import PEOPLE, SAME_PEOPLE, CausalTextIOI, Redundant, TextIOI
from mechassay.truth.training import (
    N_HEADS,
    Prompts,
    copy_heads,
    make_from_recipe,
    trainable,
    untrained,
)
from mechassay.truth.verification import Verification
from mechassay.utils.display import SILENT

NAMES = tuple(name for name in CAUSAL.names() if name.startswith("truth-text-ioi"))
TASK = TextIOI()


def tokens(text: str) -> np.ndarray:
    number = {word: place for place, word in enumerate(TASK.vocabulary)}
    return np.array([[number[word] for word in words_of(text)]])


KATE = tokens("When Kate and Paul went to the store, Paul gave a book to")
PAUL = tokens("While Paul and Kate sat at the park, Kate passed a ring to")
EMMA = tokens("After Emma and Jack came to the farm, Jack handed a key to")


def named(logits: np.ndarray) -> dict[str, float]:
    """The logits that are not 0, by name."""
    return {PEOPLE[n]: float(x) for n, x in enumerate(logits[0]) if x != 0}


def causal(name: str) -> CausalTextIOI:
    made = CAUSAL.make(name)
    assert isinstance(made, CausalTextIOI)
    return made


def test_there_are_two_of_interpbench_s_size() -> None:
    assert len(NAMES) == 2
    for name in NAMES:
        own = causal(name)
        assert (own.n_layers, own.width, N_HEADS) == (6, 64, 4)
        assert sum(own.weights.values()) == 8
        graph = Graph(own.n_layers, N_HEADS)
        Circuit.from_names(graph, [*own.edges, *own.constant_edges, *own.free_edges])


@pytest.mark.parametrize("name", NAMES)
def test_without_an_intervention_the_answer_has_eight(name: str) -> None:
    own = causal(name)
    assert named(own.logits(KATE, PAUL, None)) == {"Kate": 8.0}
    assert own.answers(KATE, PAUL, None)[0, PEOPLE.index("Kate")]


@pytest.mark.parametrize("name", NAMES)
def test_the_repeated_name_of_the_other_prompt_turns_the_answer(name: str) -> None:
    own = causal(name)
    assert named(own.logits(KATE, PAUL, own.duplicate)) == {"Paul": 8.0}
    # A name that is not there inhibits none.
    assert np.isnan(own.logits(KATE, EMMA, own.duplicate)).all()


def test_movers_share() -> None:
    shared = causal("truth-text-ioi-redundant")
    assert named(shared.logits(KATE, EMMA, "a4.h1")) == {"Kate": 3.0, "Emma": 5.0}
    assert named(shared.logits(KATE, PAUL, "a2.h3")) == {"Paul": 8.0}


def test_prompts_have_one_length_and_a_counterfactual_about_the_same_people() -> None:
    lengths, other_order = set[int](), 0
    for example in TASK.examples("test", limit=60):
        lengths.add(len(words_of(example.prompt.text)))
        other = example.counterfactuals[SAME_PEOPLE]
        assert other.answers != example.prompt.answers
        people = {example.prompt.part("name_A"), example.prompt.part("name_B")}
        assert {other.part("name_A"), other.part("name_B")} == people
        other_order += other.part("name_A") != example.prompt.part("name_A")
    assert lengths == {14} and 35 < other_order < 55


@pytest.mark.real
def test_each_word_is_one_token_of_smollm2() -> None:
    tokenizer: Any = real()
    for example in TASK.examples("train", limit=40):
        text = example.prompt.text
        assert len(tokenizer(text)["input_ids"]) == len(words_of(text))
        assert len(tokenizer(example.prompt.answers[0])["input_ids"]) == 1


def test_a_few_steps_lower_the_loss() -> None:
    own = causal("truth-text-ioi-redundant")
    model = untrained(own, 0)
    decoder = decode(model)
    optimiser = torch.optim.Adam(trainable(decoder), lr=3e-3, betas=(0.9, 0.98))
    prompts, losses = Prompts(own, 0, 300), list[float]()
    for step in range(6):
        optimiser.zero_grad()
        loss = prompts.loss(decoder, 24, step)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


def written(model: Any, layer: int, head: int) -> torch.Tensor:
    """What a head writes for one random stream, with its own rows and no positions."""
    block, width = model.model.layers[layer], 16
    rows = slice(head * width, (head + 1) * width)
    stream = torch.randn(14, 64, generator=torch.Generator().manual_seed(1))
    normed, attention = block.input_layernorm(stream), block.self_attn
    query, key, value = (
        normed @ getattr(attention, f"{part}_proj").weight[rows].T for part in "qkv"
    )
    pattern = (query @ key.T / width**0.5).softmax(dim=-1)
    return pattern @ value @ attention.o_proj.weight[:, rows].T


def test_heads_begin_as_copies_that_write_a_share_of_the_same() -> None:
    model = untrained(causal("truth-text-ioi-redundant"), 0).requires_grad_(False)
    gains = torch.Generator().manual_seed(2)
    for layer in model.model.layers:
        layer.input_layernorm.weight.copy_(0.5 + torch.rand(64, generator=gains))
    mover, other = written(model, 4, 1), written(model, 4, 2)
    copy_heads(model, causal("truth-text-ioi-redundant"))
    torch.testing.assert_close(written(model, 4, 1), 5 / 8 * mover)
    torch.testing.assert_close(written(model, 5, 0), 3 / 8 * mover)
    torch.testing.assert_close(written(model, 4, 2), other, atol=0, rtol=0)


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Recipes of two steps a phase, made in a cache of their own, verified by one ablation."""
    monkeypatch.setenv("MECHASSAY_CACHE", str(tmp_path))
    phases = ({"steps": 2, "batch_size": 8, "pool": 50},) * 2
    monkeypatch.setattr(CausalTextIOI, "recipe", phases)
    monkeypatch.setattr(Redundant, "recipe", phases[1:])
    monkeypatch.setattr(training, "MADE_ON", 4)
    monkeypatch.setattr(training, "ABLATIONS", ("counterfactual",))
    return tmp_path


def test_a_model_whose_circuit_does_not_hold_is_not_kept(short: Path) -> None:
    with pytest.raises(MechassayError, match="truth-text-ioi: the circuit does not hold"):
        make_from_recipe("truth-text-ioi", progress=SILENT)
    made = made_truth_folder("truth-text-ioi")
    assert not made.exists() and short in made.parents
    with pytest.raises(UnknownName):
        make_from_recipe("truth-ioi", progress=SILENT)


@pytest.mark.slow
def test_one_whose_circuit_holds_is_made_once_with_what_it_begins_with(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Verification, "holds", True)
    folder = make_from_recipe("truth-text-ioi-redundant", progress=SILENT)
    plain = made_truth_folder("truth-text-ioi")
    assert folder == made_truth_folder("truth-text-ioi-redundant") and plain.is_dir()
    assert sorted(path.name for path in folder.parent.iterdir()) == [plain.name, folder.name]
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert make_from_recipe("truth-text-ioi-redundant", progress=SILENT) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert load_truth("truth-text-ioi-redundant").task.name == TASK.name
