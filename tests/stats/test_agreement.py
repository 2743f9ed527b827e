"""Agreement: worked by hand, published examples, independent implementations, simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from mechassay.stats.agreement import (
    coincidences,
    confusion,
    exact_share,
    kappas_by_chance,
    ordinal_alpha,
    sign_test,
    unweighted_kappa,
    weighted_kappa,
)

# Krippendorff's worked example (2011, section C): four observers, twelve units, missing data.
REFERENCE = (
    np.array(
        [
            [1, 2, 3, 3, 2, 1, 4, 1, 2, 0, 0, 0],
            [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, 0, 3],
            [0, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, 0],
            [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, 0],
        ]
    )
    - 1
)


def slow_alpha(ratings: np.ndarray, k: int) -> float:
    """Of all pairs, one by one; the differences are summed over the categories between."""
    pairs = [
        (a, b, (unit >= 0).sum() - 1)
        for unit in ratings.T
        for i, a in enumerate(unit)
        for j, b in enumerate(unit)
        if i != j and a >= 0 and b >= 0
    ]
    n = [sum(1 / m for a, _, m in pairs if a == c) for c in range(k)]

    def far(a: int, b: int) -> float:
        low, high = min(a, b), max(a, b)
        return (sum(n[low : high + 1]) - (n[low] + n[high]) / 2) ** 2

    observed = sum(far(a, b) / m for a, b, m in pairs) / sum(n)
    expected = sum(n[a] * (n[b] - (a == b)) * far(a, b) for a in range(k) for b in range(k)) / (
        sum(n) * (sum(n) - 1)
    )
    return 1 - observed / expected


def test_kappa_by_hand() -> None:
    """Two of four agree; one is off by two steps, one by one."""
    counts = confusion(np.array([0, 1, 2, 2]), np.array([0, 1, 0, 1]), 3)
    assert exact_share(counts) == 0.5
    # Observed (4 + 1) / 4; expected over the margins (1, 1, 2) and (2, 2, 0): 26 / 16.
    expected = sum(
        a * b * (i - j) ** 2 for i, a in enumerate((1, 1, 2)) for j, b in enumerate((2, 2, 0))
    )
    assert weighted_kappa(counts) == pytest.approx(1 - 5 * 4 / expected)


def test_kappa_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        first, second = rng.integers(0, 3, (2, 40))
        expected = cohen_kappa_score(first, second, labels=[0, 1, 2], weights="quadratic")
        assert weighted_kappa(confusion(first, second, 3)) == pytest.approx(expected)
        plain = cohen_kappa_score(first, second, labels=[0, 1, 2])
        assert unweighted_kappa(confusion(first, second, 3)) == pytest.approx(plain)


def test_sign_test_by_hand() -> None:
    assert sign_test(4, 0) == sign_test(0, 4) == 0.125
    assert sign_test(3, 0) == 0.25 and sign_test(1, 1) == 1
    assert sign_test(5, 1) == pytest.approx(2 * (1 + 6) / 2**6)
    assert math.isnan(sign_test(0, 0))


def test_alpha_of_the_published_example() -> None:
    assert ordinal_alpha(coincidences(REFERENCE, 5)) == pytest.approx(0.815, abs=5e-4)
    assert coincidences(REFERENCE, 5).sum() == 40


def test_alpha_is_that_of_all_pairs_one_by_one() -> None:
    rng = np.random.default_rng(1)
    for raters in (2, 3, 5):
        ratings = rng.integers(-1, 3, (raters, 30))
        fast = ordinal_alpha(coincidences(ratings, 3))
        assert fast == pytest.approx(slow_alpha(ratings, 3))


def test_perfect_reversed_and_constant() -> None:
    up = np.array([0, 1, 2, 0, 1, 2])
    assert weighted_kappa(confusion(up, up, 3)) == 1
    assert weighted_kappa(confusion(up, 2 - up, 3)) == pytest.approx(-1)
    assert ordinal_alpha(coincidences(np.stack([up, up]), 3)) == 1
    same = np.ones(6, dtype=int)
    assert math.isnan(weighted_kappa(confusion(same, same, 3)))
    assert math.isnan(ordinal_alpha(coincidences(np.stack([same, same]), 3)))


def test_nothing_is_undefined() -> None:
    nothing = np.full(4, -1)
    counts = confusion(nothing, np.arange(4) % 3, 3)
    assert counts.sum() == 0
    assert math.isnan(exact_share(counts)) and math.isnan(weighted_kappa(counts))
    assert math.isnan(ordinal_alpha(coincidences(np.stack([nothing, nothing]), 3)))


def test_tables_together_are_tables_one_by_one() -> None:
    counts = np.random.default_rng(2).integers(0, 5, (4, 3, 3)).astype(float)
    counts += counts.transpose(0, 2, 1)
    for function in (exact_share, weighted_kappa, unweighted_kappa, ordinal_alpha):
        assert function(counts) == pytest.approx([float(function(each)) for each in counts])


def test_raters_who_throw_coins_agree_by_chance() -> None:
    rng = np.random.default_rng(3)
    first, second = rng.integers(0, 3, (2, 20_000))
    assert weighted_kappa(confusion(first, second, 3)) == pytest.approx(0, abs=0.03)
    assert ordinal_alpha(coincidences(np.stack([first, second]), 3)) == pytest.approx(0, abs=0.03)


@pytest.mark.parametrize(("n", "low", "high"), [(27, 0.12, 0.80), (189, 0.37, 0.62)])
def test_one_paper_cannot_validate_a_rater(n: int, low: float, high: float) -> None:
    """A true kappa of .5 is read as anything between these, in 95 of 100 papers."""
    shares = np.array([0.4, 0.2, 0.4])
    rng = np.random.default_rng(0)
    found = kappas_by_chance(n, 0.5, shares, rng)
    assert np.quantile(found, [0.025, 0.975]) == pytest.approx([low, high], abs=0.015)
    # The same raters, drawn one by one.
    first = rng.choice(3, (2000, n), p=shares)
    own = rng.choice(3, (2000, n), p=shares)
    second = np.where(rng.random((2000, n)) < 0.5, first, own)
    slow = [float(weighted_kappa(confusion(a, b, 3))) for a, b in zip(first, second, strict=True)]
    assert np.quantile(slow, [0.025, 0.975]) == pytest.approx([low, high], abs=0.05)
    many = kappas_by_chance(10**6, 0.5, shares, rng, 10)
    assert float(many.mean()) == pytest.approx(0.5, abs=0.01)
