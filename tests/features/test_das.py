"""Distributed alignment search against losses, directions and logits of pyvene 0.1.8."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig, LlamaForCausalLM

from helpers.tiny_models import quiet_model
from mechassay.features import DAS, Fit
from mechassay.interventions.intervene import BaseRun, Branch, Change
from mechassay.models.model import Model, make_model
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.utils.display import SILENT

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return json.loads((GOLDEN / "llama_das.json").read_text())


@pytest.fixture(scope="module")
def tensors() -> dict[str, torch.Tensor]:
    return load_file(GOLDEN / "llama_das.safetensors")


@pytest.fixture(scope="module")
def model(golden: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Model:
    hf = quiet_model(LlamaForCausalLM, LlamaConfig(**golden["config"]))
    weights = {k[6:]: v for k, v in tensors.items() if k.startswith("model.")}
    hf.load_state_dict(weights, strict=True)
    return make_model(hf.double().requires_grad_(False))


@pytest.fixture(scope="module")
def batch(golden: dict[str, Any]) -> InterchangeBatch:
    columns = {f"c{site['column']}": site["column"] for site in golden["sites"]}
    return InterchangeBatch.from_tokens(
        base=golden["base"], source=golden["source"], labels=golden["labels"], columns=columns
    )


def names(golden: dict[str, Any]) -> dict[str, str]:
    """Our sites, and the names of theirs."""
    return {
        f"resid.{site['layer']}@c{site['column']}": f"resid.{site['layer']}@{site['column']}"
        for site in golden["sites"]
    }


@pytest.fixture(scope="module")
def fit(
    golden: dict[str, Any], tensors: dict[str, Any], model: Model, batch: InterchangeBatch
) -> Fit:
    das = DAS(
        k=golden["k"], lr=golden["lr"], steps=golden["steps"], batch_size=6, optimizer="adamw"
    )
    init = {ours: tensors[f"basis.{theirs}"] for ours, theirs in names(golden).items()}
    return das.fit(model, batch, list(init), init=init, progress=SILENT)


def test_losses_of_all_sites_in_one_stack(golden: dict[str, Any], fit: Fit) -> None:
    theirs = torch.tensor([site["losses"] for site in golden["sites"]], dtype=torch.float64).T
    assert fit.losses.shape == theirs.shape == (25, 4)
    assert float((fit.losses - theirs).abs().max()) < 1e-9


def test_directions_and_logits_at_the_end(
    golden: dict[str, Any],
    tensors: dict[str, torch.Tensor],
    model: Model,
    batch: InterchangeBatch,
    fit: Fit,
) -> None:
    run = BaseRun.of(model, batch.base, batch.base_mask)
    other = BaseRun.of(model, batch.source, batch.source_mask)
    rows = torch.arange(len(batch))
    for site, (ours, theirs) in zip(fit.sites, names(golden).items(), strict=True):
        assert float((fit.directions(ours) - tensors[f"directions.{theirs}"]).abs().max()) < 1e-7
        column, beside = batch.column(str(site.position))
        source = other.values(site, rows, beside)
        features = fit.features(ours)

        def new(values: torch.Tensor, source: Any = source, features: Any = features) -> Any:
            return features.change(values, source)

        (final,) = run.run([Branch(rows, (Change(site, rows, column, new),))])
        logits = model.decoder.readout(final[:, 0]).all()
        assert float((logits - tensors[f"logits.{theirs}"]).abs().max()) < 1e-9
