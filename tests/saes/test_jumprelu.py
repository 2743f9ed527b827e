"""JumpReLU: the estimated gradient of thresholds against a slow formula, and what it does."""

from __future__ import annotations

import math

import pytest
import torch

from mechassay.progress import SILENT
from mechassay.saes import SAESettings, train_sae
from mechassay.saes.learners.jumprelu import JumpReLULearner, jump
from planted_store import N, planted


def test_gradients_are_those_of_the_paper() -> None:
    """Equations 11 and 12, number by number; gradients of pre pass where features are active."""
    drawn = torch.Generator().manual_seed(0)
    pre = torch.rand(40, 6, generator=drawn, dtype=torch.float64).requires_grad_()
    theta = (0.3 + 0.4 * torch.rand(6, generator=drawn, dtype=torch.float64)).requires_grad_()
    by_f, by_active = (torch.randn(40, 6, generator=drawn, dtype=torch.float64) for _ in "ab")
    width = 0.2
    f, active = jump(pre, theta, width)
    ((f * by_f).sum() + (active * by_active).sum()).backward()
    slow, n_inside = [0.0] * 6, 0
    for i in range(40):
        for j in range(6):
            z, t = pre[i, j].item(), theta[j].item()
            assert f[i, j].item() == (z if z > t else 0.0)
            assert active[i, j].item() == (1.0 if z > t else 0.0)
            inside = abs((z - t) / width) <= 0.5
            n_inside += inside
            if inside:
                slow[j] += float(by_f[i, j]) * (-t / width) + float(by_active[i, j]) * (-1 / width)
    assert 20 < n_inside < 120
    assert theta.grad is not None and pre.grad is not None
    assert theta.grad.tolist() == pytest.approx(slow)
    assert torch.equal(pre.grad, by_f * (pre > theta))


def test_the_estimate_is_the_slope_of_the_expected_loss() -> None:
    """pre uniform on [0, 1]: E H(pre - t) = 1 - t, E pre H(pre - t) = (1 - t^2) / 2."""
    pre = torch.linspace(0, 1, 100_001, dtype=torch.float64)[:, None]
    theta = torch.tensor([0.4], dtype=torch.float64, requires_grad=True)
    f, active = jump(pre, theta, 0.1)
    for mean, slope in ((active.mean(), -1.0), (f.mean(), -0.4)):
        [grad] = torch.autograd.grad(mean, theta, retain_graph=True)
        assert float(grad) == pytest.approx(slope, rel=1e-3)


def test_thresholds_begin_where_asked_and_are_kept_in_units_of_values() -> None:
    settings = SAESettings("jumprelu", 8, k=1, threshold=0.25)
    learner = JumpReLULearner(settings, torch.eye(8, 16))
    assert len(learner.parameters()) == 5
    assert learner.log_threshold.tolist() == pytest.approx([math.log(0.25)] * 8)
    assert learner.inference(5.0)["threshold"].tolist() == pytest.approx([0.05] * 8)


def test_l0_makes_features_rarer() -> None:
    store, _ = planted(2000)
    counts: list[float] = []
    for l0 in (0.0, 0.05):
        settings = SAESettings("jumprelu", N, l0=l0, steps=300, batch_size=128, lr=1e-2)
        sae = train_sae(store, settings, progress=SILENT).sae
        assert sae.activation == "jumprelu" and sae.threshold is not None
        counts.append(float((sae.encode(store.held) != 0).double().sum(1).mean()))
    assert counts[1] < 0.6 * counts[0]
