"""The forward with real-valued masks: against the compiled one,
the dense definition, attribution and finite differences.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mechassay.circuits import EAP, Random, ablate, evaluate
from mechassay.errors import GraphMismatch
from mechassay.models.constants import constants_of
from mechassay.models.masked_forward import masked_readout
from mechassay.models.reference import ReferenceModel, exact_precision
from mechassay.models.trace import Contrast, constant_trace
from mechassay.objectives import LogitDiff
from mechassay.progress import SILENT
from mechassay.testing.tiny import Subject, subject


@pytest.fixture(scope="module", params=["gpt2", "neox", "qwen2", "gemma2"])
def case(request: pytest.FixtureRequest) -> Subject:
    return subject(request.param, torch.float64)


def values(case: Subject, mask: Tensor) -> Tensor:
    contrast = Contrast.run(case.model.decoder, case.batch)
    return LogitDiff()(masked_readout(case.model.decoder, contrast, mask), case.batch)


def test_binary_masks_equal_the_compiled_forward(case: Subject) -> None:
    scores = Random(seed=2).draw(case.model.graph)
    circuits = [scores.top(p) for p in (0.0, 0.1, 0.5, 0.9, 1.0)]
    fast = evaluate(case.model, circuits, case.batch, progress=SILENT)
    for circuit, expected in zip(circuits, fast, strict=True):
        got = values(case, circuit.edges.double()[None])
        torch.testing.assert_close(
            got, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9
        )


def test_binary_masks_equal_the_compiled_forward_under_constants(case: Subject) -> None:
    """The compiled forward prunes; a mask is used as it is."""
    batch = ablate(case.model, case.batch, "positional-mean", progress=SILENT)
    circuit = Random(seed=5).draw(case.model.graph).top(0.3).pruned()
    assert len(circuit)
    (expected,) = evaluate(case.model, [circuit], batch, progress=SILENT)
    contrast = Contrast.run(case.model.decoder, batch)
    got = LogitDiff()(
        masked_readout(case.model.decoder, contrast, circuit.edges.double()[None]), batch
    )
    torch.testing.assert_close(
        got, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9
    )


def test_real_masks_equal_the_dense_definition(case: Subject) -> None:
    model, batch = case.model, case.batch
    mask = (
        torch.rand(
            model.graph.legal.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64
        )
        * 1.5
    )
    with exact_precision(model.hf), torch.no_grad():
        reference = ReferenceModel(model.hf, model.graph)
        slow = reference.run(
            batch.clean, batch.mask, reference.record(batch.counterfactual, batch.mask), mask
        )
    fast = masked_readout(model.decoder, Contrast.run(model.decoder, batch), mask[None]).all()
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-9)


def test_the_slope_at_the_full_circuit_is_eap(case: Subject) -> None:
    """Mean over examples, with its sign: the drop when the coefficient falls from 1."""
    legal = case.model.graph.legal
    mask = legal.double()[None].requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(values(case, mask).mean(), mask)
    eap = EAP().score(case.model, case.batch, progress=SILENT).values
    # Scores are stored in fp32.
    torch.testing.assert_close(slope[0][legal].float(), eap[legal], rtol=1e-6, atol=1e-7)
    assert float(slope[0][legal].abs().max()) > 1e-2


def test_a_mask_for_each_example(case: Subject) -> None:
    generator = torch.Generator().manual_seed(4)
    masks = torch.rand(
        len(case.batch), *case.model.graph.legal.shape, generator=generator, dtype=torch.float64
    )
    together = values(case, masks)
    for row in range(len(masks)):
        torch.testing.assert_close(
            together[row], values(case, masks[row : row + 1])[row], rtol=0, atol=1e-10
        )


def test_gradients_reach_constants() -> None:
    """The derivative of a masked run by a mean's entry, against a central difference."""
    case = subject("gemma2", torch.float64)
    model = case.model
    batch = ablate(model, case.batch, "mean", progress=SILENT)
    known = Contrast.run(model.decoder, batch)
    mask = model.graph.legal.double()[None] * 0.6
    assert constants_of(batch) is not None
    values, z = constants_of(batch), constants_of(batch).z

    def objective(z: Tensor) -> Tensor:
        contrast = Contrast(
            batch,
            known.ctx,
            0,
            known.clean,
            constant_trace(model.decoder, replace(values, z=z), known.ctx),
        )
        return LogitDiff()(masked_readout(model.decoder, contrast, mask), batch).mean()

    leaf = z.clone().requires_grad_()
    (slope,) = torch.autograd.grad(objective(leaf), leaf)
    step = torch.zeros_like(z)
    step[1, 2, 0, 3] = 1e-5
    numeric = (objective(z + step) - objective(z - step)) / 2e-5
    torch.testing.assert_close(slope[1, 2, 0, 3], numeric, rtol=1e-5, atol=1e-8)
    assert abs(float(numeric)) > 1e-5


def test_foreign_masks_are_refused() -> None:
    case = subject("gpt2")
    with pytest.raises(GraphMismatch, match=r"needs shape \[1 or 3, 16, 40\]; got \[2, 16, 40\]"):
        values(case, torch.ones(2, 16, 40))
