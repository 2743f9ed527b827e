"""What activation patching takes: cells and what is run of each, worked by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from helpers.jobs import SMALL_JOBS
from mechassay.errors import BadUsage
from mechassay.interventions import costs
from mechassay.interventions.job import PatchJob
from mechassay.models.graph import Graph
from mechassay.prompts.batch import Batch
from mechassay.runs.costs import CostStep, ModelSize


def steps_of(job: PatchJob) -> dict[str, CostStep]:
    (part,) = costs.patch_cost(job, job.cells(), "cpu").models
    return {step.name: step for step in part.steps}


@pytest.fixture
def bare(tmp_path: Path) -> str:
    """A config alone, of three layers and two heads."""
    LlamaConfig(
        vocab_size=50,
        hidden_size=12,
        intermediate_size=20,
        num_hidden_layers=3,
        num_attention_heads=2,
    ).save_pretrained(tmp_path / "bare")
    return str(tmp_path / "bare")


def test_what_is_behind_a_site_by_hand() -> None:
    size = ModelSize(1000, 600, 400, Graph(3, 1), 10, 4)
    assert costs.layers_behind(size, 0, "resid") == 2 * 600 * 2 / 3
    assert costs.layers_behind(size, 2, "mlp") == 0
    assert costs.layers_behind(size, 2, "heads") == 2 * 600 / 6


def test_cells_by_hand(bare: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A pair of four tokens that differs in the second: of a layer's streams, those from there on
    # may matter; of the last layer's, the last alone.
    def pair(*_: object, **__: object) -> Batch:
        clean = torch.tensor([[1, 2, 3, 4]])
        other = torch.tensor([[1, 9, 3, 4]])
        return Batch.from_tokens(clean, other, [5], [6])

    monkeypatch.setattr(costs, "sample_pairs", pair)
    job = PatchJob((bare,), ("ioi",), ("resid", "heads"), limit=10)
    (part,) = costs.patch_cost(job, job.cells(), "cpu").models
    body = part.size.body
    _, resid, heads = part.steps
    runs = 2 * 2 * body * 4
    # Layer 0: columns 1, 2, 3 run 3 + 2 + 1 tokens in two layers; layer 1 the same in one.
    of_cells = 6 * 2 * body * 2 / 3 + 6 * 2 * body / 3
    assert resid.operations == pytest.approx(10 * (runs + of_cells))
    # Two heads of each layer, three tokens each, in 2.5, 1.5 and .5 layers.
    assert heads.operations == pytest.approx(10 * (runs + 2 * 3 * 2 * body * 4.5 / 3))


def test_twice_the_pairs_take_twice_as_long_and_no_more_weights() -> None:
    job = replace(SMALL_JOBS["patch"], limit=100)
    once, twice = steps_of(job), steps_of(replace(job, limit=200))
    for part in ("heads", "resid"):
        assert twice[part].operations == pytest.approx(2 * once[part].operations)
    assert twice["load"] == once["load"]


def test_an_objective_of_all_logits_takes_more(bare: str) -> None:
    job = PatchJob((bare,), ("ioi",), objective="logit_diff")
    assert steps_of(replace(job, objective="kl"))["resid"].operations > (
        steps_of(job)["resid"].operations
    )


def test_a_model_whose_config_says_too_little_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    job = PatchJob((str(file),), ("ioi",))
    with pytest.raises(BadUsage, match="known once it is loaded"):
        costs.patch_cost(job, job.cells(), "cpu")
