"""Several circuits on the same grid of pairs: each one's statistics, and their differences.

Intervals are the two-way cluster bootstrap's (`bootstrap`). For a difference both grids are resampled with the same rows and
columns: what makes a prompt hard for all circuits cancels. They cover the choice of the grid's prompts, and not the
data that the circuits were found on; for that, find them again on other data (`over_repeats`). The largest value
has no interval: a resample never exceeds it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mechassay.adversarial.bootstrap import N_RESAMPLES, two_way_draws
from mechassay.adversarial.design import Design
from mechassay.errors import BadUsage
from mechassay.stats import LEVEL, percentile_interval

PERCENTILES = (0.95, 0.99)


@dataclass(frozen=True)
class Estimate:
    """A statistic of a grid, or a difference of two; its ends are NaN where it has no interval."""

    value: float
    low: float = math.nan
    high: float = math.nan


def statistics(
    values: Float[np.ndarray, "clean corrupted"],
    seed: int,
    percentiles: Sequence[float] = PERCENTILES,
    *,
    minus: Float[np.ndarray, "clean corrupted"] | None = None,
    level: float = LEVEL,
    n_resamples: int = N_RESAMPLES,
) -> dict[str, Estimate]:
    """Mean, percentiles (interpolated) and maximum of a grid, by name: "mean", "95%", ..., "max".

    Args:
        seed: of the resamples; the same seed draws the same rows and columns of any grid of that shape.
        minus: the same pairs' values of another circuit: its statistics are subtracted.

    Raises:
        BadUsage: grids of different shapes, or a percentile not between 0 and 1.
    """
    if minus is not None and minus.shape != values.shape:
        raise BadUsage(f"Grids of the same pairs have one shape; got {values.shape} and {minus.shape}.")
    points, draws = _of(values, seed, percentiles, n_resamples)
    if minus is not None:
        other_points, other_draws = _of(minus, seed, percentiles, n_resamples)
        points, draws = points - other_points, draws - other_draws
    names = ("mean", *(f"{100 * p:g}%" for p in percentiles))
    found = {
        name: Estimate(float(point), *percentile_interval(column, level)[:2])
        for name, point, column in zip(names, points, draws.T, strict=True)
    }
    largest = float(values.max()) - (0.0 if minus is None else float(minus.max()))
    return {**found, "max": Estimate(largest)}


def over_repeats(found: Sequence[Estimate], level: float = LEVEL) -> Estimate:
    """The mean over independent repeats with Student's interval; of one repeat, its own estimate.

    Raises:
        BadUsage: no repeats.
    """
    if not found:
        raise BadUsage("A mean over repeats needs at least 1; got none.")
    if len(found) == 1:
        return found[0]
    values = np.array([each.value for each in found])
    interval = Design("independent", values.shape).intervals(values, np.random.default_rng(0), level=level).mean
    return Estimate(float(values.mean()), interval.low, interval.high)


def _of(
    values: Float[np.ndarray, "clean corrupted"], seed: int, percentiles: Sequence[float], n_resamples: int
) -> tuple[Float[np.ndarray, "k"], Float[np.ndarray, "resamples k"]]:
    draws = two_way_draws(values, np.random.default_rng(seed), percentiles, n_resamples=n_resamples)
    points = [values.mean(dtype=float), *np.quantile(values.astype(float), percentiles)]
    return np.array(points), np.column_stack((draws.mean, draws.percentiles))
