"""Ours against numbers of the public code, on a tiny GPT-2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import GPT2Config, GPT2LMHeadModel

import mechassay as ma
from helpers.tiny_models import quiet_model
from mechassay.circuits import EdgeScores, evaluate, faithfulness_curve
from mechassay.circuits.methods.method import AnyMethod
from mechassay.models.model import Model, make_model
from mechassay.prompts.batch import Batch

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    return json.loads((GOLDEN / "gpt2_tiny.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def model(golden: dict[str, Any]) -> Model:
    hf = quiet_model(GPT2LMHeadModel, GPT2Config(**golden["config"]))
    hf.load_state_dict(load_file(GOLDEN / "gpt2_tiny.safetensors"))
    return make_model(hf)


@pytest.fixture(scope="module")
def batch(golden: dict[str, Any]) -> Batch:
    labels = torch.tensor(golden["labels"])
    return Batch.from_tokens(golden["clean"], golden["corrupted"], labels[:, 0], labels[:, 1])


METHODS = {
    "eap": ma.circuits.EAP(),
    "eap_ig_inputs_5": ma.circuits.EAPIGInputs(steps=5, points="left"),
    "eap_ig_activations_5": ma.circuits.EAPIGActivations(steps=5, reading="mib-2025"),
    "clean_corrupted": ma.circuits.CleanCorrupted(),
    "exact": ma.circuits.ExactPatching(),
}


@pytest.mark.parametrize("name", METHODS)
def test_scores(name: str, golden: dict[str, Any], model: Model, batch: Batch) -> None:
    method: AnyMethod = METHODS[name]
    scores = method.score(model, batch)
    ours = torch.stack([scores.values[scores.graph.index(edge)] for edge in golden["edges"]])
    theirs = torch.tensor(golden["scores"][name])
    # Relative to the size of the scores; fp32 on both sides, so a small score carries the rounding
    # of large terms.
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5 * float(theirs.abs().max()))


def test_graph_has_their_edges(golden: dict[str, Any], model: Model) -> None:
    assert sorted(ma.circuits.Circuit.full(model.graph).names()) == sorted(golden["edges"])


def test_baselines(golden: dict[str, Any], model: Model, batch: Batch) -> None:
    full, empty = ma.circuits.Circuit.full(model.graph), ma.circuits.Circuit.empty(model.graph)
    np.testing.assert_allclose(evaluate(model, full, batch), golden["baseline_clean"], atol=2e-5)
    np.testing.assert_allclose(
        evaluate(model, empty, batch), golden["baseline_corrupted"], atol=2e-5
    )


@pytest.fixture(scope="module")
def their_scores(golden: dict[str, Any], model: Model) -> EdgeScores:
    values = torch.full((model.graph.n_writers, model.graph.n_readers), float("nan"))
    for edge, score in zip(golden["edges"], golden["scores"]["eap_ig_inputs_5"], strict=True):
        values[model.graph.index(edge)] = score
    return EdgeScores(model.graph, values)


def test_circuits_and_their_metric(
    golden: dict[str, Any], model: Model, batch: Batch, their_scores: EdgeScores
) -> None:
    for key, expected in golden["eval"].items():
        _, ranked, n = key.split("|")
        circuit = their_scores.top(
            int(n.removeprefix("n=")), by="magnitude" if ranked == "abs=True" else "value"
        ).pruned()
        assert set(circuit.names()) == set(expected["kept"]), key
        assert circuit.weighted_edge_count() == expected["weighted_edge_count"]
        np.testing.assert_allclose(
            evaluate(model, circuit, batch), expected["per_example"], atol=3e-5, err_msg=key
        )


@pytest.mark.parametrize(
    ("by", "key"), [("value", "area|abs=False"), ("magnitude", "area|abs=True")]
)
def test_areas(
    by: Any, key: str, golden: dict[str, Any], model: Model, batch: Batch, their_scores: EdgeScores
) -> None:
    sweep = faithfulness_curve(model, their_scores, batch, profile="mib-2025").sweeps[by]
    expected = golden[key]
    np.testing.assert_allclose(sweep.faithfulness, expected["faithfulness"], atol=1e-4)
    assert list(sweep.n_edges_kept) == expected["weighted_edge_counts"]
    assert sweep.cpr.value == pytest.approx(expected["cpr"], rel=1e-4)
    assert sweep.cmd.value == pytest.approx(expected["cmd"], rel=1e-4)


def test_strict_profile_calls_this_denominator_undefined(
    model: Model, batch: Batch, their_scores: EdgeScores
) -> None:
    curve = faithfulness_curve(model, their_scores, batch, profile="strict")
    assert np.isnan(curve.cpr)
    assert np.isnan(curve.cmd)
    assert curve.n_undefined == 10
    assert str(curve).startswith("No verdict: ")
