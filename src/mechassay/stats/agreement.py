"""Agreement of raters on an ordinal scale, from counts alone.

    exact       Σ o_ii / n
    kappa       1 - Σ v_ij o_ij / Σ v_ij e_ij,  e from the margins of both raters; weighted with
                v_ij = (i - j)² (Cohen 1968), unweighted with v_ij = 1 for i ≠ j (Cohen 1960)
    alpha       1 - Σ v_ij o_ij / Σ v_ij e_ij,  o the coincidences of all raters, each unit's pairs
                divided by its raters less one, e from the margins of o, v_ij of ordinal data:
                (Σ_{g=i}^{j} n_g - (n_i + n_j) / 2)²            (Krippendorff 2019, chapter 12)

Counts add over units, so a bootstrap is a product of matrices. A statistic is undefined (NaN)
without units, and where all units have one category: agreement by chance is then certain.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import binomtest


def confusion(
    first: Int[np.ndarray, "units"], second: Int[np.ndarray, "units"], k: int
) -> Float[np.ndarray, "k k"]:
    """How often the first rater says i where the second says j; -1 is nothing, and left out."""
    both = (first >= 0) & (second >= 0)
    counts = np.zeros((k, k))
    np.add.at(counts, (first[both], second[both]), 1.0)
    return counts


def exact_share(counts: Float[np.ndarray, "*lead k k"]) -> Float[np.ndarray, "*lead"]:
    """The share of units on which both raters agree."""
    return ratio(np.trace(counts, axis1=-2, axis2=-1), counts.sum(axis=(-2, -1)))


def weighted_kappa(counts: Float[np.ndarray, "*lead k k"]) -> Float[np.ndarray, "*lead"]:
    """Cohen's kappa with quadratic weights, of tables of counts."""
    places = np.arange(counts.shape[-1], dtype=float)
    return _kappa(counts, (places[:, None] - places) ** 2)


def unweighted_kappa(counts: Float[np.ndarray, "*lead k k"]) -> Float[np.ndarray, "*lead"]:
    """Cohen's kappa: every disagreement counts the same."""
    return _kappa(counts, 1 - np.eye(counts.shape[-1]))


def _kappa(
    counts: Float[np.ndarray, "*lead k k"], weights: Float[np.ndarray, "k k"]
) -> Float[np.ndarray, "*lead"]:
    total = counts.sum(axis=(-2, -1))
    expected = counts.sum(axis=-1)[..., :, None] * counts.sum(axis=-2)[..., None, :]
    observed = (weights * counts).sum(axis=(-2, -1)) * total
    return np.asarray(1 - ratio(observed, (weights * expected).sum(axis=(-2, -1))))


def sign_test(one_way: int, other_way: int) -> float:
    """The two-sided p of so many differences each way, if both ways were as likely; NaN of none.

    Of pairs of yes and no it is the exact form of McNemar's test.
    """
    n = one_way + other_way
    return float(binomtest(one_way, n).pvalue) if n else float("nan")


def coincidences(ratings: Int[np.ndarray, "raters units"], k: int) -> Float[np.ndarray, "k k"]:
    """How often two raters of one unit say i and j; -1 is nothing.

    A unit with m ratings counts m: each of its ordered pairs is 1 / (m - 1). One rating is no pair.
    """
    said = (ratings[..., None] == np.arange(k)).sum(axis=0).astype(float)
    said = said[said.sum(axis=1) > 1]
    pairs = said[:, :, None] * said[:, None, :]
    pairs[:, np.arange(k), np.arange(k)] -= said
    return (pairs / (said.sum(axis=1) - 1)[:, None, None]).sum(axis=0)


def ordinal_alpha(counts: Float[np.ndarray, "*lead k k"]) -> Float[np.ndarray, "*lead"]:
    """Krippendorff's alpha of ordinal data, of tables of coincidences."""
    margins = counts.sum(axis=-1)
    below = np.cumsum(margins, axis=-1) - margins / 2
    weights = (below[..., :, None] - below[..., None, :]) ** 2
    total = margins.sum(axis=-1)
    same = np.eye(counts.shape[-1]) * margins[..., None, :]
    expected = margins[..., :, None] * margins[..., None, :] - same
    observed = (weights * counts).sum(axis=(-2, -1)) * (total - 1)
    return np.asarray(1 - ratio(observed, (weights * expected).sum(axis=(-2, -1))))


def ratio(top: Any, bottom: Any) -> Float[np.ndarray, "*lead"]:
    """One by the other; NaN where the other is not above 0."""
    top, bottom = np.asarray(top, dtype=float), np.asarray(bottom, dtype=float)
    found = np.full(bottom.shape, np.nan)
    np.divide(top, bottom, out=found, where=bottom > 0)
    return found


def kappas_by_chance(
    n: int,
    true: float,
    shares: Float[np.ndarray, "k"],
    rng: np.random.Generator,
    n_draws: int = 20_000,
) -> Float[np.ndarray, "draws"]:
    """Weighted kappas that n units show of two raters whose kappa is `true`.

    Both have the margins `shares`; the second repeats the first with probability `true`, and else
    draws its own. Then kappa is `true`, whatever its weights.
    """
    same = np.diag(shares) * true + np.outer(shares, shares) * (1 - true)
    k = len(shares)
    draws = rng.multinomial(n, same.ravel(), size=n_draws).reshape(n_draws, k, k)
    return weighted_kappa(draws.astype(float))
