"""GIM's backward rules: the forward stays, identity rules change nothing,
and each rule is what autograd on a surrogate says.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mechassay.circuits import EAP, NAP, EAPIGInputs, evaluate
from mechassay.circuits.circuit import Circuit
from mechassay.errors import UnknownName
from mechassay.models.decoder import Norm
from mechassay.models.gradient_rules import BackwardRules, backward_model, with_rules
from mechassay.progress import SILENT
from mechassay.testing.tiny import Subject, subject

IDENTITY = BackwardRules(freeze_norm=False, temperature=1.0, q=1.0, k=1.0, v=1.0, gate=1.0, up=1.0)


@pytest.fixture(scope="module", params=["gpt2", "neox", "qwen3", "gemma2"])
def case(request: pytest.FixtureRequest) -> Subject:
    return subject(request.param, torch.float64)


def test_the_forward_pass_is_the_same(case: Subject) -> None:
    gim = backward_model(case.model, "gim")
    for circuit in (Circuit.full(case.model.graph), Circuit.empty(case.model.graph)):
        ours, plain = (
            evaluate(model, circuit, case.batch, progress=SILENT) for model in (gim, case.model)
        )
        torch.testing.assert_close(
            torch.from_numpy(ours), torch.from_numpy(plain), atol=1e-10, rtol=1e-10
        )


def test_rules_that_change_nothing_change_nothing(case: Subject) -> None:
    same = replace(case.model, decoder=with_rules(case.model.decoder, IDENTITY))
    for method in (EAP(), EAPIGInputs(steps=2), NAP()):
        ours, plain = (
            method.score(model, case.batch, progress=SILENT).values.nan_to_num()
            for model in (same, case.model)
        )
        torch.testing.assert_close(ours, plain, atol=1e-7, rtol=1e-6)


def test_node_scores_are_sums_of_edge_scores_under_gim_too(case: Subject) -> None:
    """The hand-written Jacobians of edges and the gradients of nodes follow the same rules,
    or this breaks.
    """
    edges = EAP(backward="gim").score(case.model, case.batch, progress=SILENT)
    nodes = NAP(level="node", backward="gim").score(case.model, case.batch, progress=SILENT)
    torch.testing.assert_close(edges.values.nan_to_num().sum(1), nodes.values, atol=1e-5, rtol=1e-4)
    plain = EAP().score(case.model, case.batch, progress=SILENT)
    assert not torch.allclose(edges.values.nan_to_num(), plain.values.nan_to_num(), rtol=1e-2)


@pytest.mark.parametrize("centred", [True, False])
def test_a_frozen_norm_is_linear_to_its_gradient(centred: bool) -> None:
    weight = torch.tensor([1.0, 2.0, 0.5, -1.0], dtype=torch.float64)
    norm = Norm(weight, None, 1e-6, centred, frozen=True)
    x = torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(norm(x), replace(norm, frozen=False)(x), atol=1e-12, rtol=1e-12)
    (gradient,) = torch.autograd.grad(
        (norm(x) * torch.tensor([1.0, 0, 0, 0], dtype=torch.float64)).sum(), x
    )
    scale = (x - x.mean() if centred else x).detach().square().mean().add(1e-6).rsqrt()
    by_hand = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64) - (0.25 if centred else 0.0)
    torch.testing.assert_close(gradient, by_hand * scale)


def test_the_softmax_is_differentiated_at_a_higher_temperature() -> None:
    decoder = with_rules(subject("gpt2", torch.float64).model.decoder, BackwardRules())
    softmax = decoder.layers[0].attention.softmax
    assert softmax is not None
    x = torch.tensor([[2.0, 0.0, -1.0]], dtype=torch.float64, requires_grad=True)
    g = torch.tensor([[1.0, 3.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(softmax(x), x.softmax(-1))
    (gradient,) = torch.autograd.grad((softmax(x) * g).sum(), x)
    at = (x / 2).softmax(-1)
    torch.testing.assert_close(gradient, at * (g - (g * at).sum()))


def test_unknown_rules() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'gim'"):
        EAP(backward="gimm")
