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


def trapezoid(y: Float[np.ndarray, "*lead k"], x: Float[np.ndarray, "k"]) -> Float[np.ndarray, "*lead"]:
    """Area under y over x along the last axis, by the trapezoidal rule."""
    return np.trapezoid(y, x, axis=-1)
