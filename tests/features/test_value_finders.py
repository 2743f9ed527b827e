"""On Gaussians, finders that look at values do what theory says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from mechassay.errors import BadUsage
from mechassay.features import (
    LDA,
    PCA,
    DiffInMeans,
    KMeans,
    PrincipalAxes,
    Probe,
    RandomDirections,
    principal_angles,
)
from mechassay.features.directions import random_basis
from mechassay.features.finder import Found
from mechassay.features.probe import logistic_weights
from mechassay.interventions.site import Site

D = 8


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


BASIS = random_basis(D, generator(3), torch.float64)
SPREADS = torch.tensor([3.0, 2.0, 1.5, 1.0, 0.8, 0.6, 0.5, 0.4], dtype=torch.float64)
COVARIANCE = BASIS @ torch.diag(SPREADS**2) @ BASIS.T
SHIFT = torch.linspace(-1, 1, D, dtype=torch.float64)


def drawn(
    n: int, means: torch.Tensor, seed: int = 0, covariance: torch.Tensor = COVARIANCE
) -> Found:
    """Values of classes in turn, Gaussian around their means with a common covariance."""
    root = torch.linalg.cholesky(covariance)
    noise = torch.randn(n, D, generator=generator(seed), dtype=torch.float64) @ root.T
    classes = torch.arange(n) % len(means)
    return Found(Site(0), means[classes] + noise, None, classes)


def two(n: int = 20_000, seed: int = 0) -> Found:
    return drawn(n, torch.stack((-SHIFT / 2, SHIFT / 2)), seed)


def direction(finder: Any, values: Found) -> torch.Tensor:
    found = finder.find(values)
    return found.axes if isinstance(found, PrincipalAxes) else found.vectors


def angle(a: torch.Tensor, b: torch.Tensor) -> float:
    columns = [x if x.ndim == 2 else x[:, None] for x in (a, b)]
    return float(principal_angles(*columns).max())


def test_principal_axes_are_those_of_the_covariance() -> None:
    values = drawn(40_000, torch.full((1, D), 7.0, dtype=torch.float64))
    found = PCA(k=3, scaled=True).find(values)
    assert isinstance(found, PrincipalAxes)
    assert angle(found.axes[:, :1], BASIS[:, :1]) < 0.02
    assert angle(found.axes, BASIS[:, :3]) < 0.05
    assert torch.allclose(found.scale, SPREADS[:3], rtol=0.02)
    features = found.encode(values.base)
    assert torch.allclose(features.std(dim=0), torch.ones(3, dtype=torch.float64), atol=1e-6)
    assert float(features.mean(dim=0).abs().max()) < 1e-10
    # Without centring, the first axis of far values is the direction of their mean.
    ones = torch.ones(D, dtype=torch.float64)
    assert angle(direction(PCA(centred=False), values), ones) < 0.05


def test_axes_of_both_runs_and_of_few_values() -> None:
    base, source = drawn(40, SHIFT[None]), drawn(40, -SHIFT[None], seed=1)
    both = Found(base.site, base.base, source.base, base.classes)
    joined = Found(base.site, torch.cat((base.base, source.base)), None, torch.zeros(80).long())
    assert torch.allclose(direction(PCA(k=2, of="both"), both), direction(PCA(k=2), joined))
    few = Found(Site(0), base.base[:4], None, base.classes[:4])
    assert direction(PCA(k=None), few).shape == (D, 3)
    with pytest.raises(BadUsage, match="pca at resid.0@last: 4 values vary along 3 axes; got k=4"):
        PCA(k=4).find(few)


def test_the_mean_difference_is_exact_and_points_to_the_second_class() -> None:
    values = two(101)
    found = direction(DiffInMeans(), values)[:, 0]
    a, b = (values.base[values.classes == i].mean(dim=0) for i in (0, 1))
    assert torch.allclose(found, (b - a) / (b - a).norm(), atol=1e-12)
    moved = Found(values.site, values.base + 100 * SHIFT, None, values.classes)
    assert torch.allclose(direction(DiffInMeans(), moved)[:, 0], found, atol=1e-10)
    swapped = Found(values.site, values.base, None, 1 - values.classes)
    assert torch.allclose(direction(DiffInMeans(), swapped)[:, 0], -found, atol=1e-12)
    with pytest.raises(BadUsage, match="2 classes have 1 directions; got k=2"):
        DiffInMeans(k=2).find(values)


def test_means_of_several_classes_span_their_plane() -> None:
    means = torch.stack([SHIFT, BASIS[:, 0] * 3, -SHIFT - BASIS[:, 0], SHIFT + BASIS[:, 0]])
    values = drawn(40_000, means)
    plane = torch.stack((SHIFT, BASIS[:, 0]), dim=1)
    assert angle(direction(DiffInMeans(k=2), values), plane) < 0.1
    exact = Found(values.site, means, None, torch.arange(4))
    with pytest.raises(BadUsage, match="along fewer than k=3"):
        DiffInMeans(k=3).find(exact)


@pytest.mark.parametrize("finder", [LDA(), LDA(shrinkage=0.0), Probe(l2=1e-6)], ids=repr)
def test_discriminants_whiten_the_mean_difference(finder: Any) -> None:
    wanted = torch.linalg.solve(COVARIANCE, SHIFT)
    found = direction(finder, two())
    assert angle(found, wanted) < 0.1
    assert float(found[:, 0] @ wanted) > 0
    assert angle(direction(DiffInMeans(), two()), wanted) > 0.5


def test_a_probe_with_a_large_penalty_is_the_mean_difference() -> None:
    values = two(2_000)
    assert angle(direction(Probe(l2=1e9), values), direction(DiffInMeans(), values)) < 1e-3


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize(("n", "l2"), [(300, 1e-2), (300, 100.0), (6, 1.0)])
def test_a_probe_is_at_the_optimum(n_classes: int, n: int, l2: float) -> None:
    means = 3 * torch.stack([SHIFT, -SHIFT, BASIS[:, 0]])[:n_classes]
    found = drawn(n, means + 50.0)
    weights, bias = logistic_weights(found.base, found.classes, l2)
    parameters = [weights.clone().requires_grad_(), bias.clone().requires_grad_()]
    scores = found.base @ parameters[0].T + parameters[1]
    logits = torch.cat((torch.zeros_like(scores), scores), dim=1) if n_classes == 2 else scores
    total = torch.nn.functional.cross_entropy(logits, found.classes, reduction="sum")
    (total + l2 / 2 * parameters[0].square().sum()).backward()
    for parameter in parameters:
        assert parameter.grad is not None
        # Of values around 50, n of them.
        assert float(parameter.grad.abs().max()) < 1e-5 * n * 50
    kind: Any = LogisticRegression
    slow = kind(C=1 / l2, tol=1e-12, max_iter=100_000, solver="newton-cholesky")
    centred = (found.base - found.base.mean(dim=0)).numpy()
    slow.fit(centred, found.classes.numpy())
    assert np.allclose(slow.coef_, weights.numpy(), atol=1e-4 * float(weights.abs().max()))


def test_two_means_of_far_clusters_are_their_difference() -> None:
    means = torch.stack((-20 * SHIFT, 20 * SHIFT))
    values = drawn(400, means, covariance=torch.eye(D, dtype=torch.float64))
    assert angle(direction(KMeans(), values), direction(DiffInMeans(), values)) < 1e-9
    assert angle(direction(PCA(), values), SHIFT) < 0.02
    far = torch.stack((20 * SHIFT, 40 * BASIS[:, 0], -20 * SHIFT))
    three = drawn(300, far, covariance=torch.eye(D, dtype=torch.float64))
    assert angle(direction(KMeans(k=2), three), direction(DiffInMeans(k=2), three)) < 1e-9
    same = Found(Site(0), torch.ones(4, D, dtype=torch.float64), None, torch.zeros(4).long())
    with pytest.raises(BadUsage, match="k-means at resid.0@last: 2 clusters need as many values"):
        KMeans().find(same)


def test_random_directions_carry_their_share() -> None:
    values = two(10)
    moved = torch.randn(D, generator=generator(8), dtype=torch.float64)
    shares = []
    for seed in range(300):
        found = direction(RandomDirections(k=2, seed=seed), values)
        shares.append(float((moved @ found).square().sum() / moved.square().sum()))
    assert np.mean(shares) == pytest.approx(2 / D, abs=0.03)
    other = Found(Site(1), values.base, None, values.classes)
    assert angle(direction(RandomDirections(), values), direction(RandomDirections(), other)) > 0.01
    with pytest.raises(BadUsage, match="so k is 1 to 8; got 9"):
        RandomDirections(k=9).find(values)


def test_values_have_to_vary() -> None:
    same = Found(Site(0), torch.ones(4, D, dtype=torch.float64), None, torch.arange(4) % 2)
    refused: list[tuple[Any, str]] = [
        (Probe(), "probe at resid.0@last needs values that vary; all are equal"),
        (DiffInMeans(), "fewer than k=1"),
        (PCA(k=None), "pca at resid.0@last needs values that vary; all 4 are equal"),
        (LDA(), "lda at resid.0@last needs values that vary within their classes; got 4"),
    ]
    for finder, match in refused:
        with pytest.raises(BadUsage, match=match):
            finder.find(same)
    # One value a class.
    alone = Found(Site(0), torch.eye(3, D, dtype=torch.float64), None, torch.arange(3))
    for shrinkage in (None, "auto"):
        with pytest.raises(BadUsage, match="vary within their classes; got 3"):
            LDA(shrinkage=shrinkage).find(alone)
    with pytest.raises(BadUsage, match="l2 above 0; got 0.0"):
        Probe(l2=0.0)
    with pytest.raises(BadUsage, match="shrinkage"):
        LDA(shrinkage="much")
