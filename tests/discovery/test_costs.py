"""What a run of circuits takes, from the config alone: weights, chunks, steps."""

from __future__ import annotations

import socket
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from helpers.models import USUAL, families
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.circuits.methods import METHODS
from mechassay.circuits.methods.eap import EAP, EAPIGInputs
from mechassay.circuits.methods.mask_learning import SubnetworkProbing
from mechassay.circuits.methods.method import token_bytes
from mechassay.discovery.costs import circuits_cost, measuring_bytes, scoring_bytes
from mechassay.discovery.job import CircuitsJob
from mechassay.errors import BadUsage
from mechassay.models.forward import Contrast
from mechassay.models.memory import (
    CPU_BUDGET,
    gradient_bytes,
    kept_run_bytes,
    past_bytes,
    token_budget,
)
from mechassay.models.model import make_model, outline
from mechassay.prompts.batch import Batch
from mechassay.runs.costs import Cost, PromptSizes, chunk_tokens, model_size
from mechassay.testing.tiny import build, configs, token_pairs
from mechassay.utils.display import SILENT

CPU = torch.device("cpu")
LLAMA = LlamaConfig(
    vocab_size=50,
    hidden_size=12,
    intermediate_size=20,
    num_hidden_layers=2,
    num_attention_heads=3,
    num_key_value_heads=1,
    tie_word_embeddings=True,
)


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder with a config and nothing else: neither weights nor a tokenizer."""
    folder = tmp_path / "bare"
    LLAMA.save_pretrained(folder)
    return folder


def _cost(folder: Path | str, *methods: str, **fields: Any) -> Cost:
    job = CircuitsJob((str(folder),), ("ioi",), methods=methods or ("eap",), **fields)
    return circuits_cost(job, job.cells(), "cpu")


def test_a_config_alone_says_the_weights_of_the_model(bare: Path) -> None:
    model = outline(str(bare))
    assert model.device.type == "meta"
    own = LlamaForCausalLM(LLAMA)
    assert model.n_parameters == sum(parameter.numel() for parameter in own.parameters())
    # Norms: five of 12; a layer: 2 x 12 x 12 + 2 x 12 x 4 + 3 x 12 x 20.
    size = model_size(model, str(bare))
    assert size.weights == 50 * 12 + 5 * 12 + 2 * (288 + 96 + 720)
    assert size.body == size.weights - 50 * 12
    assert (size.bytes, size.file_bytes) == (4 * size.weights, 0)
    assert size.graph == make_model(own).graph


def test_weights_in_another_dtype_are_held_with_their_file(bare: Path) -> None:
    size = model_size(outline(str(bare), dtype="bfloat16"), str(bare))
    assert (size.bytes, size.file_bytes) == (2 * size.weights, 4 * size.weights)


@pytest.mark.parametrize("name", families(sorted(configs()), quick=USUAL))
def test_every_family_has_an_outline_like_the_model(name: str, tmp_path: Path) -> None:
    configs()[name].save_pretrained(tmp_path)
    whole = make_model(build(name), check=False)
    empty = outline(str(tmp_path))
    assert empty.n_parameters == whole.n_parameters
    assert empty.graph == whole.graph
    for own in (EAP(), EAPIGInputs()):
        assert token_bytes(own, empty.decoder, 9) == token_bytes(own, whole.decoder, 9)


def test_nothing_is_downloaded(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a connection was asked for")

    monkeypatch.setattr(socket.socket, "connect", refused)
    assert _cost(bare).fits


def test_of_a_hub_model_the_config_alone_is_asked_for(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def download(name: str, file: str, **_: Any) -> str:
        asked.append(f"{name}/{file}")
        return str(bare / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    cost = _cost("somebody/model")
    assert asked == ["somebody/model/config.json"]
    assert any("no tokenizer" in note for note in cost.notes)


@pytest.mark.parametrize("n_pairs", [1, 3, 7, 40])
@pytest.mark.parametrize("budget", [1, 5_000, 60_000, CPU_BUDGET])
def test_the_largest_chunk_is_that_of_the_engine(n_pairs: int, budget: int) -> None:
    columns, per_token = 9, 100
    tokens = torch.zeros(n_pairs, columns, dtype=torch.long)
    answers = torch.ones(n_pairs, dtype=torch.long)
    batch = Batch.from_tokens(tokens, tokens, answers, 2 * answers)
    room = max(columns, budget // per_token)
    engine = max(len(rows) * chunk.n_tokens for rows, chunk in batch.chunks(room))
    assert chunk_tokens(per_token, PromptSizes(n_pairs, columns, 1.0), budget) == engine


def test_methods_are_planned_with_the_budget_that_they_run_with(bare: Path) -> None:
    decoder = outline(str(bare)).decoder
    own = EAPIGInputs(steps=3)
    assert own.token_bytes(decoder, 10) == gradient_bytes(decoder, 3, 10)
    budget = token_budget(own.token_bytes(decoder, 10), 10, torch.device("cpu"))
    assert budget == CPU_BUDGET // gradient_bytes(decoder, 3, 10)
    inside = METHODS.make("ensemble") if "ensemble" in METHODS else own
    assert token_bytes(inside, decoder, 10) >= token_bytes(EAP(), decoder, 10)


def test_more_of_anything_is_not_less(bare: Path) -> None:
    decoder = outline(str(bare)).decoder
    few, many = PromptSizes(2, 10, 1.0), PromptSizes(200, 10, 1.0)
    for method in map(METHODS.make, METHODS.names()):
        small, large = (
            scoring_bytes(method, decoder, x, CPU_BUDGET, CPU_BUDGET, CPU) for x in (few, many)
        )
        assert 0 <= small <= large
        assert large <= 2 * CPU_BUDGET + 1e6
    # What a mask is trained on does not fill its chunk: what grows are runs that are kept.
    probing = METHODS.make("subnetwork-probing")
    few, many = (
        scoring_bytes(probing, decoder, PromptSizes(n, 10, 0.5), CPU_BUDGET, CPU_BUDGET, CPU)
        for n in (100, 200)
    )
    assert many - few == pytest.approx(100 * 10 * kept_run_bytes(decoder))
    few = PromptSizes(2, 10, 1.0)
    few_circuits, many_circuits = (
        measuring_bytes(decoder, few, CPU_BUDGET, CPU_BUDGET, n) for n in (1, 9)
    )
    assert few_circuits < many_circuits


def test_long_prompts_hold_a_span_and_what_is_kept_of_all_columns(bare: Path) -> None:
    decoder = outline(str(bare)).decoder
    long, room = PromptSizes(2, 10**6, 1.0), 10**9
    eap = scoring_bytes(EAP(), decoder, long, CPU_BUDGET, room, CPU)
    whole = gradient_bytes(decoder, 1, long.columns) * long.columns
    assert past_bytes(decoder, 1) * long.columns < eap < whole
    ig = scoring_bytes(EAPIGInputs(steps=5), decoder, long, CPU_BUDGET, room, CPU)
    # As many steps come together as what is kept of them leaves room for.
    assert eap <= ig <= eap + room
    circuits = measuring_bytes(decoder, long, CPU_BUDGET, room, 1)
    assert circuits < measuring_bytes(decoder, long, CPU_BUDGET, 10**15, 1)


def test_steps_of_a_run(bare: Path) -> None:
    cost = _cost(bare, "eap", "random")
    names = [step.name for step in cost.models[0].steps]
    assert names == [
        *("load", "eap", "random", "pairs", "controls"),
        *("eap: size", "eap: curves", "random: size", "random: curves"),
    ]
    assert [s.name for s in _cost(bare, "eap", stage="localize").models[0].steps] == ["load", "eap"]
    # Drawing takes no pass; twice the pairs take twice as long.
    seconds = {step.name: step.operations for step in cost.models[0].steps}
    assert seconds["random"] == 0
    double = {s.name: s.operations for s in _cost(bare, "eap", train_limit=200).models[0].steps}
    assert double["eap"] == pytest.approx(2 * seconds["eap"])


def test_what_is_done_already_is_not_counted(bare: Path) -> None:
    job = CircuitsJob((str(bare),), ("ioi",), methods=("eap", "exact"))
    left = circuits_cost(job, job.cells()[:1], "cpu")
    assert {"exact", "exact: curves"}.isdisjoint(step.name for step in left.models[0].steps)


def test_a_file_without_a_config_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(BadUsage, match="known once it is loaded"):
        outline(str(file))


def test_a_gpu_is_said_to_take_longer(bare: Path) -> None:
    cost = replace(_cost(bare), device="cuda", free=10**9)
    # What the process holds in the machine's memory is not the GPU's.
    assert cost.gigabytes < _cost(bare).gigabytes


@pytest.mark.parametrize("what", ["circuits", "masks"])
def test_the_runs_of_one_chunk_are_held_at_a_time(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = make_model(build("llama"), check=False), token_pairs(4)
    made: list[weakref.ref[Contrast]] = []
    run = Contrast.run

    def counted(decoder: Any, chunk: Batch, *width: Any) -> Contrast:
        assert not [old for old in made if old() is not None]
        contrast = run(decoder, chunk, *width)
        made.append(weakref.ref(contrast))
        return contrast

    monkeypatch.setattr(Contrast, "run", staticmethod(counted))
    monkeypatch.setattr("mechassay.models.memory.CPU_BUDGET", 1)
    # A training keeps all runs, where they fit.
    monkeypatch.setattr("mechassay.circuits.methods.mask_learning.may_be_kept", lambda *_: False)
    if what == "circuits":
        evaluate(model, Circuit.full(model.graph), batch, progress=SILENT)
    else:
        SubnetworkProbing(steps=3, batch_size=4).score(model, batch, progress=SILENT)
    assert len(made) == len(batch) * (1 if what == "circuits" else 3)
