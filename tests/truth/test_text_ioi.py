"""The causal models of IOI in English: logits by hand under every intervention, and prompts."""

from __future__ import annotations

import re
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
from mechassay.models.sources import MADE_TRUTHS, made_truth_folder
from mechassay.truth import text_ioi, training
from mechassay.truth.ground_truth import load_truth
from mechassay.truth.tasks import CAUSAL, words_of
from mechassay.truth.text_ioi import (
    PEOPLE,
    SAME_PEOPLE,
    CausalTextIOI,
    Redundant,
    TextIOI,
    WithBackup,
)
from mechassay.truth.training import (
    Prompts,
    Training,
    copy_from,
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


KATE = tokens("When Kate and Paul left the store, Paul gave a small book to")
PAUL = tokens("While Paul and Kate sat at the park, Kate passed a ring to")
EMMA = tokens("At the farm, Emma and Jack met and Jack offered a key to")


def named(logits: np.ndarray) -> dict[str, float]:
    """The logits that are not 0, by name."""
    return {PEOPLE[n]: float(x) for n, x in enumerate(logits[0]) if x != 0}


def causal(name: str) -> CausalTextIOI:
    made = CAUSAL.make(name)
    assert isinstance(made, CausalTextIOI)
    return made


def test_they_have_interpbench_s_size() -> None:
    assert NAMES == MADE_TRUTHS and len(NAMES) == 6
    for name in NAMES:
        own = causal(name)
        assert (own.n_layers, own.width, own.n_heads) == (6, 64, 4)
        graph = Graph(own.n_layers, own.n_heads)
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


def test_a_negative_head_lowers_its_own_prompt_s_answer() -> None:
    own = causal("truth-text-ioi-negative")
    assert named(own.logits(KATE, EMMA, "a5.h2")) == {"Kate": 12.0, "Emma": -4.0}
    assert named(own.logits(KATE, EMMA, "a4.h1")) == {"Kate": -4.0, "Emma": 12.0}
    mixed = causal("truth-text-ioi-mixed")
    assert named(mixed.logits(KATE, EMMA, "a3.h0")) == {"Kate": 3.0, "Emma": 5.0}


def test_movers_share_and_paths_are_apart() -> None:
    shared, parallel = causal("truth-text-ioi-redundant"), causal("truth-text-ioi-parallel")
    assert named(shared.logits(KATE, EMMA, "a4.h1")) == {"Kate": 3.0, "Emma": 5.0}
    assert named(shared.logits(KATE, PAUL, "a2.h3")) == {"Paul": 8.0}
    # Of two inhibition heads one turns the answer of its own mover alone.
    assert named(parallel.logits(KATE, PAUL, "a1.h0")) == {"Kate": 5.0, "Paul": 3.0}
    assert named(parallel.logits(KATE, PAUL, "a2.h3")) == {"Kate": 3.0, "Paul": 5.0}


def test_a_backup_writes_where_the_mover_writes_another_name() -> None:
    own = causal("truth-text-ioi-backup")
    assert dict(own.backups) == {"a5.h0": "a4.h1"}
    # Silent with its own mover, in both prompts.
    assert named(own.logits(KATE, PAUL, "a5.h0")) == {"Kate": 8.0}
    assert named(own.logits(KATE, PAUL, "a2.h3")) == {"Paul": 8.0}
    # The mover of the other prompt: its name, and the backup's.
    assert named(own.logits(KATE, PAUL, "a4.h1")) == {"Paul": 8.0, "Kate": 12.0}
    assert named(own.logits(KATE, EMMA, "a4.h1")) == {"Emma": 8.0, "Kate": 12.0}


def test_a_primary_head_is_interchanged_more_often() -> None:
    """Of eight draws one is no interchange, and four are the mover's."""
    own = causal("truth-text-ioi-backup")
    prompts, rng = Prompts(own, Training(pool=5)), np.random.default_rng(0)
    pairs = (np.repeat(prompt, 4000, axis=0) for prompt in (KATE, PAUL))
    logits, node = prompts._interchanges(*pairs, rng)
    shares = np.bincount(node + 1, minlength=5) / len(node)
    np.testing.assert_allclose(shares, [1 / 8, 1 / 8, 1 / 8, 4 / 8, 1 / 8], atol=0.03)
    mover = node == list(own.nodes).index("a4.h1")
    assert {tuple(row) for row in logits[mover]} == {
        tuple(own.logits(KATE, PAUL, "a4.h1")[0].tolist())
    }


def last_name(text: str) -> int:
    """The place of a prompt's last name among its words."""
    return max(place for place, word in enumerate(words_of(text)) if word in PEOPLE)


def test_prompts_have_one_length_and_a_counterfactual_about_the_same_people() -> None:
    lengths, other_order, other_place, places = set[int](), 0, 0, set[int]()
    for example in TASK.examples("test", limit=60):
        lengths.add(len(words_of(example.prompt.text)))
        other = example.counterfactuals[SAME_PEOPLE]
        assert other.answers != example.prompt.answers
        people = {example.prompt.part("name_A"), example.prompt.part("name_B")}
        assert {other.part("name_A"), other.part("name_B")} == people
        other_order += other.part("name_A") != example.prompt.part("name_A")
        place, theirs = (last_name(prompt.text) for prompt in (example.prompt, other))
        places.add(place)
        other_place += place != theirs
    assert lengths == {14} and places == {7, 8, 9}
    # By the causal model, a counterfactual key of the first head matters where the places differ.
    assert 30 < other_place < 52 and 35 < other_order < 55


@pytest.mark.real
def test_each_word_is_one_token_of_smollm2() -> None:
    tokenizer: Any = real()
    for example in TASK.examples("train", limit=40):
        text = example.prompt.text
        assert len(tokenizer(text)["input_ids"]) == len(words_of(text))
        assert len(tokenizer(example.prompt.answers[0])["input_ids"]) == 1


def test_a_share_of_other_prompts_are_the_prompts_own_counterfactuals() -> None:
    own, names = causal("truth-text-ioi"), range(1, 1 + len(PEOPLE))
    tokens = Prompts(own, Training(pool=30, paired=1.0)).tokens
    assert tokens.shape == (30, 2, 14)
    for first, other in tokens:
        assert not np.array_equal(first, other)
        assert set(first) & set(names) == set(other) & set(names)
    assert Prompts(own, Training(pool=30)).tokens.shape == (30, 1, 14)


def test_only_counterfactuals_are_carried_without_constants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, carried = causal("truth-text-ioi").core(), list[tuple[str, int]]()

    def errors(_: Prompts, __: Any, kind: str, size: int, ___: Any) -> torch.Tensor:
        carried.append((kind, size))
        return torch.zeros(size, 1)

    monkeypatch.setattr(Prompts, "_errors", errors)
    decoder = decode(untrained(own, 0))
    Prompts(own, Training(pool=5, constant=0.0)).loss(decoder, 10, 0)
    Prompts(own, Training(pool=5)).loss(decoder, 10, 0)
    assert carried == [("counterfactual", 10), ("counterfactual", 6), ("zero", 2), ("mean", 2)]


def test_a_few_steps_lower_the_loss() -> None:
    own = causal("truth-text-ioi-redundant")
    model = untrained(own, 0, quiet=0.1)
    decoder = decode(model)
    optimiser = torch.optim.Adam(trainable(decoder), lr=3e-3, betas=(0.9, 0.98))
    prompts, losses = Prompts(own, Training(pool=300, paired=0.5)), list[float]()
    for step in range(6):
        optimiser.zero_grad()
        loss = prompts.loss(decoder, 24, step)
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


def test_the_core_is_the_same_circuit_in_a_smaller_model() -> None:
    for name in NAMES:
        own = causal(name)
        core = own.core()
        heads = dict(zip(own.nodes, core.nodes, strict=True))
        parts = [re.split(r"(a\d\.h\d)", edge) for edge in own.edges]
        moved = {"".join(heads.get(part, part) for part in edge) for edge in parts}
        assert moved == set(core.edges) and len(moved) == len(own.edges)
        for head, other in heads.items():
            ours, theirs = own.logits(KATE, PAUL, head), core.logits(KATE, PAUL, other)
            np.testing.assert_array_equal(ours, theirs)


def test_each_stage_begins_with_heads_of_the_one_before() -> None:
    for name in NAMES:
        first, *later = causal(name).stages(name)
        assert not first.copies and first.name == "truth-text-ioi.core"
        before = first
        for stage in later:
            assert set(stage.copies) == set(stage.causal.nodes)
            assert {head for head, _ in stage.copies.values()} <= set(before.causal.nodes)
            assert Training(**stage.training).seed != Training(**before.training).seed
            before = stage
        assert before.causal.n_layers == 6
    (_, core, _) = causal("truth-text-ioi-negative").stages("truth-text-ioi-negative")
    assert core.copies == {
        "a0.h0": ("a0.h0", 1.0),
        "a1.h0": ("a1.h0", 1.0),
        "a2.h0": ("a2.h0", 12 / 8),
        "a3.h0": ("a2.h0", -4 / 8),
    }


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
    own = causal("truth-text-ioi-redundant")
    source, model = (untrained(made, 0) for made in (CausalTextIOI().core(), own))
    gains = torch.Generator().manual_seed(2)
    for layer in (*source.model.layers, *model.model.layers):
        layer.input_layernorm.weight.copy_(0.5 + torch.rand(64, generator=gains))
    other = written(model, 4, 2)
    copy_from(source, model, {"a4.h1": ("a2.h0", 5 / 8), "a5.h0": ("a2.h0", 3 / 8)})
    mover = written(source, 2, 0)
    torch.testing.assert_close(written(model, 4, 1), 5 / 8 * mover)
    torch.testing.assert_close(written(model, 5, 0), 3 / 8 * mover)
    torch.testing.assert_close(written(model, 4, 2), other, atol=0, rtol=0)
    for part in ("model.embed_tokens.weight", "lm_head.weight"):
        assert torch.equal(source.state_dict()[part], model.state_dict()[part])


def test_heads_outside_the_circuit_begin_quiet() -> None:
    own = causal("truth-text-ioi")
    loud, quiet = untrained(own, 0), untrained(own, 0, quiet=0.1)
    torch.testing.assert_close(written(quiet, 4, 0), 0.1 * written(loud, 4, 0))
    torch.testing.assert_close(written(quiet, 4, 1), written(loud, 4, 1))


@pytest.fixture
def short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stages of two steps, made in a cache of their own, verified on four pairs."""
    monkeypatch.setenv("MECHASSAY_CACHE", str(tmp_path))
    for stage in ("FIRST", "CORE", "WHOLE"):
        few = {**getattr(text_ioi, stage), "steps": 2, "batch_size": 8, "pool": 50}
        monkeypatch.setattr(text_ioi, stage, few)
    for own in (CausalTextIOI, Redundant, WithBackup):
        monkeypatch.setattr(own, "core_steps", 2)
        monkeypatch.setattr(own, "whole_steps", 2)
    monkeypatch.setattr(training, "MADE_ON", 4)
    return tmp_path


@pytest.mark.slow
def test_a_model_whose_circuit_does_not_hold_is_not_kept(short: Path) -> None:
    with pytest.raises(MechassayError, match="truth-text-ioi: the circuit does not hold"):
        make_from_recipe("truth-text-ioi", progress=SILENT)
    made = made_truth_folder("truth-text-ioi")
    assert not made.exists() and short in made.parents
    with pytest.raises(UnknownName):
        make_from_recipe("truth-ioi", progress=SILENT)
    with pytest.raises(MechassayError, match=r"backup a5\.h0: survives .*, lost .*, heard"):
        make_from_recipe("truth-text-ioi-backup", progress=SILENT)


@pytest.mark.slow
def test_one_whose_circuit_holds_is_made_once(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Verification, "holds", True)
    name = "truth-text-ioi-redundant"
    folder = make_from_recipe(name, progress=SILENT)
    assert folder == made_truth_folder(name)
    # The plain circuit's heads stay, for the next one.
    assert sorted(path.name for path in folder.parent.iterdir()) == [name, "truth-text-ioi.core"]
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert make_from_recipe(name, progress=SILENT) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert load_truth(name).task.name == TASK.name
