"""Plans on a device: everything moves, once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from mechassay.models.circuit_compiler import Plan, compile_circuit
from mechassay.models.circuit_forward import run_circuit
from mechassay.models.forward import Contrast
from mechassay.models.model import Model
from mechassay.testing.tiny import Subject, subject


@pytest.fixture(scope="module", params=["gpt2", "gemma2"])
def case(request: pytest.FixtureRequest) -> Subject:
    return subject(request.param, dtype=torch.float64)


def half_a_circuit(model: Model) -> Plan:
    generator = torch.Generator().manual_seed(2)
    graph = model.graph
    edges = (torch.rand(graph.legal.shape, generator=generator) < 0.5) & graph.legal
    neurons = torch.rand(graph.n_writers, model.decoder.d_model, generator=generator) < 0.7
    return compile_circuit(graph, edges, neurons, post_norm=model.decoder.has_post_norm)


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from tensors(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors(getattr(value, field.name))


def test_every_tensor_moves_and_numbers_change_their_dtype(case: Subject) -> None:
    plan = half_a_circuit(case.model)
    moved = plan.to(torch.device("meta"), torch.bfloat16)
    before, after = list(tensors(plan)), list(tensors(moved))
    assert len(before) == len(after) > 20
    for old, new in zip(before, after, strict=True):
        assert new.device.type == "meta" and new.shape == old.shape
        assert new.dtype == (torch.bfloat16 if old.is_floating_point() else old.dtype)
    assert moved.to(torch.device("meta"), torch.bfloat16) is moved
    exact = tensors(plan.to(torch.device("cpu"), torch.float64))
    assert all(torch.equal(old.to(new), new) for old, new in zip(before, exact, strict=True))


def test_a_plan_runs_the_same_moved_beforehand_or_not(case: Subject) -> None:
    model = case.model
    contrast = Contrast.run(model.decoder, case.batch)
    plan = half_a_circuit(model)
    assert plan.to(torch.device("cpu"), torch.float32) is plan
    logits = [
        run_circuit(model.decoder, contrast, each).all()
        for each in (plan, plan.to(model.device, model.dtype))
    ]
    assert torch.equal(logits[0], logits[1])
