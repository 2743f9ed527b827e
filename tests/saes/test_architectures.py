"""The trained architectures: settings, sparse codes against dense ones, JumpReLU's gradients."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from helpers.planted import N as N_PLANTED
from helpers.planted import planted
from mechassay.errors import BadUsage, UnknownName
from mechassay.saes import SAESettings, train_sae
from mechassay.saes.architectures import JumpReLULearner, Places, jump, read_at, write
from mechassay.utils.display import SILENT

B, D, N = 7, 5, 11


def test_the_learning_rate_rises_and_falls() -> None:
    settings = SAESettings(steps=100, warmup=0.1, decay=0.2)
    assert settings.rate(0) == pytest.approx(0.1) and settings.rate(9) == pytest.approx(1.0)
    assert settings.rate(50) == 1.0 and settings.rate(90) == pytest.approx(0.5)
    assert SAESettings(steps=10, warmup=0.0, decay=0.0).rate(0) == 1.0


def test_mistaken_settings_are_one_line() -> None:
    with pytest.raises(UnknownName, match="architecture of SAE training"):
        SAESettings(architecture=cast(Any, "gated"))
    for settings, match in (
        ({"k": 0}, "got k=0"),
        ({"steps": 0}, "steps of at least 1"),
        ({"lr": 0.0}, "lr above 0"),
        ({"l0": -1.0}, "l0 of at least 0"),
        ({"bandwidth": 0.0}, "bandwidth above 0"),
        ({"warmup": 2.0}, "warmup of at least 0 and at most 1"),
    ):
        with pytest.raises((BadUsage, UnknownName), match=match):
            SAESettings(**cast(dict[str, Any], settings))


def made(*shape: int, seed: int = 0) -> Tensor:
    drawn = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=drawn, dtype=torch.float64)


def places_of(mask: Tensor) -> Places:
    rows, features = mask.nonzero(as_tuple=True)
    return Places(rows, features, *mask.shape)


def test_gradients_are_those_of_the_dense_code() -> None:
    """One row has no feature, one feature no row."""
    x, mask = made(B, D), made(B, N, seed=1) > 0.3
    mask[2], mask[:, 4] = False, False
    given = [made(N, D, seed=2), made(N, seed=3), made(D, seed=4), made(N, D, seed=5)]
    target = made(B, D, seed=6)
    encoder, b_enc, b_dec, decoder = dense = [each.clone().requires_grad_() for each in given]
    f = (((x - b_dec) @ encoder.mT + b_enc) * mask).relu()
    whole = f @ decoder + b_dec
    (whole - target).square().sum().backward()

    encoder, b_enc, b_dec, decoder = sparse = [each.clone().requires_grad_() for each in given]
    places = places_of(mask)
    with torch.no_grad():
        found = ((x - b_dec) @ encoder.mT + b_enc)[mask]
    values = read_at(x, encoder, b_enc, b_dec, found, places).relu()
    decoded = write(values, decoder, places) + b_dec
    (decoded - target).square().sum().backward()
    assert torch.allclose(decoded, whole)
    for one, two in zip(sparse, dense, strict=True):
        assert one.grad is not None and two.grad is not None
        assert torch.allclose(one.grad, two.grad), (one.grad - two.grad).abs().max()


def test_a_code_by_hand() -> None:
    """Rows 0 and 2 of three: 2 a, and a + 3 c."""
    decoder = torch.tensor([[1.0, 0.0], [5.0, 5.0], [0.0, 1.0]])
    places = Places(torch.tensor([0, 2, 2]), torch.tensor([0, 0, 2]), 3, 3)
    decoded = write(torch.tensor([2.0, 1.0, 3.0]), decoder, places)
    assert decoded.tolist() == [[2, 0], [0, 0], [1, 3]]
    assert places.row_offsets.tolist() == [0, 1, 1]


def test_an_empty_code_is_zero_and_has_no_gradient() -> None:
    places = places_of(torch.zeros(B, N, dtype=torch.bool))
    decoder = made(N, D).requires_grad_()
    encoder, zeros = made(N, D).requires_grad_(), torch.zeros(N, dtype=torch.float64)
    bias = torch.zeros(D, dtype=torch.float64)
    none = torch.zeros(0, dtype=torch.float64)
    values = read_at(made(B, D), encoder, zeros, bias, none, places)
    decoded = write(values, decoder, places)
    assert torch.equal(decoded, torch.zeros(B, D, dtype=torch.float64))
    decoded.sum().backward()
    for each in (decoder, encoder):
        assert each.grad is not None and not each.grad.any()


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
        settings = SAESettings("jumprelu", N_PLANTED, l0=l0, steps=300, batch_size=128, lr=1e-2)
        sae = train_sae(store, settings, progress=SILENT).sae
        assert sae.activation == "jumprelu" and sae.threshold is not None
        counts.append(float((sae.encode(store.held) != 0).double().sum(1).mean()))
    assert counts[1] < 0.6 * counts[0]
