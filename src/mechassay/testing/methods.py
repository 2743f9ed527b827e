"""What every circuit localization method has to satisfy; method authors may run it on their own.

from mechassay.testing import check_method, tiny

check_method(MyMethod(), model, batch)
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from mechassay.circuits.methods.method import Method, settings
from mechassay.circuits.node_scores import Scores
from mechassay.circuits.scores import EdgeScores
from mechassay.models.model import Model
from mechassay.pairs import Batch


def check_method(method: Method, model: Model, batch: Batch) -> None:
    """Raise AssertionError at the first promise that the method breaks."""
    check_configuration(method)
    before = {
        name: getattr(batch, name).clone()
        for name in ("clean", "counterfactual", "mask", "answers", "foils")
    }
    weights = {name: value.clone() for name, value in model.hf.state_dict().items()}
    state = torch.random.get_rng_state()
    assert 0 <= method.forwards(model.graph, len(batch)) < float("inf")
    scores = method.score(model, batch)
    assert torch.equal(torch.random.get_rng_state(), state), (
        "the global generator was used or seeded"
    )
    for name, value in before.items():
        assert torch.equal(getattr(batch, name), value), f"the batch's {name} was changed"
    for name, value in model.hf.state_dict().items():
        assert torch.equal(value, weights[name]), f"the weight {name} was changed"
    check_scores(scores, model)
    again = method.score(model, batch)
    assert torch.equal(again.values.nan_to_num(9.0), scores.values.nan_to_num(9.0)), (
        "two calls gave different scores"
    )
    assert scores.provenance["method"] == method.name
    assert scores.provenance["n_examples"] == len(batch)


def check_configuration(method: Method) -> None:
    """A frozen dataclass whose repr gives it back, with a name and a version."""
    assert isinstance(method.name, str)
    assert isinstance(method.version, int)
    kind: Any = type(method)
    assert dataclasses.is_dataclass(kind), "methods are dataclasses"
    params: Any = getattr(kind, "__dataclass_params__")  # noqa: B009
    assert params.frozen, "methods are values: frozen dataclasses"
    known: Any = type(method)
    assert eval(repr(method), {known.__name__: known}) == method
    assert known(**settings(method)) == method


def check_scores(scores: Scores, model: Model) -> None:
    """One finite fp32 score for every edge (node, neuron), NaN where there is no edge."""
    assert scores.graph == model.graph
    assert scores.values.dtype == torch.float32
    if not isinstance(scores, EdgeScores):
        assert len(scores.values) == model.graph.n_writers and bool(
            torch.isfinite(scores.values).all()
        )
        return
    assert bool(torch.isfinite(scores.values[model.graph.legal]).all())
    assert bool(scores.values[~model.graph.legal].isnan().all())
