"""Other devices and precisions give what the CPU gives in fp32, as far as they can.

In bf16 a number has eight bits: logits agree to a few hundredths of their spread, scores in
direction. Only tests marked `gpu` need one; the others show that the test itself works.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from families import families
from mechassay.circuits import EdgeScores
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.faithfulness import evaluate
from mechassay.circuits.methods import METHODS
from mechassay.interventions.intervene import intervene
from mechassay.interventions.intervention import Add, Interchange, Intervention
from mechassay.interventions.patch import patch
from mechassay.interventions.site import sites
from mechassay.interventions.steering import generate
from mechassay.interventions.sweep import sweep
from mechassay.models.model import Model, make_model
from mechassay.progress import SILENT
from mechassay.testing.tiny import build, token_pairs

WHERE = [
    pytest.param("cpu", torch.bfloat16, id="cpu-bf16"),
    pytest.param("cuda", torch.float32, id="cuda-fp32", marks=pytest.mark.gpu),
    pytest.param("cuda", torch.bfloat16, id="cuda-bf16", marks=pytest.mark.gpu),
]
SETTINGS: dict[str, dict[str, Any]] = {
    "acdc": {"threshold": 0.5},
    "edge-pruning": {"steps": 4},
    "subnetwork-probing": {"steps": 4},
    "ugs": {"steps": 4, "batch_size": 2, "samples": 2},
}


def pair(family: str, device: str, dtype: torch.dtype) -> tuple[Model, Model]:
    """The model on the CPU in fp32, and the one to compare with it."""
    return make_model(build(family)), make_model(build(family, dtype).to(device), check=False)


def spread(ours: Tensor, reference: Tensor) -> float:
    """The largest difference in standard deviations of the reference."""
    return float((ours.double().cpu() - reference.double()).abs().max() / reference.double().std())


def differ(ours: Tensor, reference: Tensor) -> float:
    """The root mean square difference in standard deviations of the reference."""
    off = ours.double().cpu() - reference.double()
    return float(off.square().mean().sqrt() / reference.double().std())


def cosine(ours: EdgeScores, reference: EdgeScores) -> float:
    legal = reference.graph.legal
    pair = [scores.values.cpu().double()[legal] for scores in (ours, reference)]
    return float(torch.nn.functional.cosine_similarity(*pair, dim=0))


@pytest.mark.parametrize(("device", "dtype"), WHERE)
@pytest.mark.parametrize("family", families())
def test_runs_scores_and_circuits(family: str, device: str, dtype: torch.dtype) -> None:
    reference, model = pair(family, device, dtype)
    exact = dtype == torch.float32
    batch = token_pairs()
    logits = [
        each.run(each.batch(batch))[0].readout(each.decoder).all() for each in (model, reference)
    ]
    assert spread(*logits) < (1e-4 if exact else 0.3)
    for name in ("eap", "eap-ig-inputs", "exact"):
        scores = [
            METHODS.make(name).score(each, batch, progress=SILENT) for each in (model, reference)
        ]
        assert cosine(*scores) > (0.9999 if exact else 0.9), name
        assert scores[0].values.isfinite().any()
    circuits = [Circuit.empty(reference.graph), scores[1].top(0.2, by="magnitude")]
    values = [evaluate(each, circuits, batch, progress=SILENT) for each in (model, reference)]
    assert spread(*map(torch.from_numpy, values)) < (1e-3 if exact else 0.5)


@pytest.mark.parametrize(("device", "dtype"), WHERE)
@pytest.mark.parametrize("family", families())
def test_interventions(family: str, device: str, dtype: torch.dtype) -> None:
    reference, model = pair(family, device, dtype)
    exact = dtype == torch.float32
    batch, v = token_pairs(), torch.linspace(-3, 3, model.decoder.d_model)
    maps = [patch(each, batch, progress=SILENT).values for each in (model, reference)]
    real = ~np.isnan(maps[1])
    assert differ(*(torch.from_numpy(x[real]) for x in maps)) < (1e-3 if exact else 0.3)
    heads = [patch(each, batch, parts="heads", progress=SILENT) for each in (model, reference)]
    assert differ(*(torch.from_numpy(x.values) for x in heads)) < (1e-3 if exact else 0.3)
    plan: dict[str, Intervention] = {"resid.0@last": Interchange(), "mlp.1@all": Add(v)}
    said = [intervene(each, batch, plan).logits for each in (model, reference)]
    assert differ(*said) < (1e-3 if exact else 0.3)
    swept = [
        sweep(each, batch, sites(each, parts=("resid", "mlp")), progress=SILENT).log_odds
        for each in (model, reference)
    ]
    assert differ(*map(torch.from_numpy, swept)) < (1e-3 if exact else 0.3)
    if exact:
        prompts = [[5, 8, 13], [3, 1, 4, 1]]
        written = [
            generate(each, prompts, {"resid.1@all": Add(v)}, n=4, progress=SILENT).tokens
            for each in (model, reference)
        ]
        assert written[0] == written[1]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", METHODS.names())
def test_every_method_runs_on_a_gpu(name: str, dtype: torch.dtype) -> None:
    _, model = pair("gemma2", "cuda", dtype)
    scores = METHODS.load(name)(**SETTINGS.get(name, {})).score(
        model, token_pairs(), progress=SILENT
    )
    assert scores.values.isfinite().any()
