"""Intervals and areas: numbers in, numbers out, no models.

Intervals are percentile bootstraps over groups: the groups of examples are drawn with
replacement, each with all its examples, and a statistic of means is recomputed from the same
per-example values; nothing is run again. Randomness comes in as a `numpy.random.Generator`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.stats import beta  # pyright: ignore[reportMissingTypeStubs] - scipy ships none

N_RESAMPLES = 2000
LEVEL = 0.95
BLOCK = 2**22


class Interval(NamedTuple):
    """A two-sided interval at some level (0.95: covers 95 %)."""

    low: float
    high: float
    level: float = LEVEL

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high


def resampled_means(
    values: Float[np.ndarray, "k n"], groups: Sequence[str], rng: np.random.Generator, n_resamples: int = N_RESAMPLES
) -> Float[np.ndarray, "resamples k"]:
    """Means of each row of `values` under resampling of whole groups.

    Groups may differ in size: a resample's mean divides by the examples it drew.
    """
    names, member = np.unique(np.asarray(groups), return_inverse=True)
    sizes = np.bincount(member, minlength=len(names)).astype(float)
    sums = np.zeros((len(values), len(names)))
    for row, line in zip(sums, np.asarray(values, dtype=float), strict=True):
        row += np.bincount(member, weights=line, minlength=len(names))
    means = np.empty((n_resamples, len(values)))
    step = max(1, BLOCK // len(names))
    for begin in range(0, n_resamples, step):
        counts = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=min(step, n_resamples - begin))
        means[begin : begin + step] = (counts @ sums.T) / (counts @ sizes)[:, None]
    return means


def percentile_interval(draws: Float[np.ndarray, "resamples"], level: float = LEVEL) -> Interval:
    """The central `level` of the draws; NaN at both ends if any draw is undefined."""
    if np.isnan(draws).any():
        return Interval(float("nan"), float("nan"), level)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(low), float(high), level)


def mean_interval(values: Float[np.ndarray, "n"], groups: Sequence[str], rng: np.random.Generator) -> Interval:
    """Bootstrap interval of a mean."""
    return percentile_interval(resampled_means(np.asarray(values)[None], groups, rng)[:, 0])


def proportion_interval(right: Float[np.ndarray, "n"], groups: Sequence[str], level: float = LEVEL) -> Interval:
    """Interval of a proportion of grouped examples: Clopper and Pearson's with the effective sample size of Korn and Graubard (1998).

    The effective size n* makes p (1 - p) / n* the variance of the mean over whole groups; it is at
    most n. Where all examples agree the variance says nothing, and n* is the number of groups. Unlike a
    bootstrap, 50 right of 50 do not give an interval of no width. NaN without examples.
    """
    n = len(right)
    if n == 0:
        return Interval(float("nan"), float("nan"), level)
    names, member = np.unique(np.asarray(groups), return_inverse=True)
    p, n_groups = float(np.mean(right)), len(names)
    spread = p * (1 - p)
    if spread == 0 or n_groups == 1:
        size = float(n_groups)
    else:
        residuals = np.bincount(member, weights=np.asarray(right, dtype=float) - p, minlength=n_groups)
        variance = n_groups / (n_groups - 1) * float(residuals @ residuals) / n**2
        size = min(float(n), spread / variance) if variance > 0 else float(n)
    return clopper_pearson(p * size, size, level)


def clopper_pearson(hits: float, size: float, level: float = LEVEL) -> Interval:
    """Clopper and Pearson's interval of a proportion: `hits` of `size` independent examples."""
    tail = (1 - level) / 2
    low = float(beta.ppf(tail, hits, size - hits + 1)) if hits > 0 else 0.0
    high = float(beta.ppf(1 - tail, hits + 1, size - hits)) if size > hits else 1.0
    return Interval(low, high, level)


def trapezoid(y: Float[np.ndarray, "*lead k"], x: Float[np.ndarray, "k"]) -> Float[np.ndarray, "*lead"]:
    """Area under y over x along the last axis, by the trapezoidal rule."""
    return np.trapezoid(y, x, axis=-1)
