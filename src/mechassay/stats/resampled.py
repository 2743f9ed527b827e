"""Several circuits on the same grid of pairs: each one's statistics, and their differences.

Intervals are the two-way cluster bootstrap's (`bootstrap`). For a difference both grids are
resampled with the same rows and
columns: what makes a prompt hard for all circuits cancels. They cover the choice of the grid's
prompts, and not the data that the circuits were found on; for that, find them again on other data
(`over_repeats`). The largest value has no interval: a resample never exceeds it. Nor has a
percentile that too few rows or columns lie beyond (`bootstrap.LEAST`), nor a difference of two
such.

A grid may have no value for some pairs (NaN): they are left out of everything, and what counts in
place of its smaller side is the number of values over the most that one prompt is in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mechassay.errors import BadUsage
from mechassay.stats.design import Design
from mechassay.stats.intervals import LEVEL, Estimate, percentile_interval
from mechassay.stats.two_way import N_RESAMPLES, two_way_draws, two_way_worst, within_reach

PERCENTILES = (0.99,)
WORST = 0.1


@dataclass(frozen=True, eq=False)
class Resampled:
    """Statistics of a grid, and of its resamples.

    Attributes:
        names: "mean", the mean of the worst share ("worst 10%"), a percentile for each one asked
        for ("99%"), "max". shape, seed: of the grid and of its resamples: grids that agree in both
        had the same rows and columns drawn.
        points: of the grid itself; percentiles are interpolated.
        draws: of each resample; there is none of the maximum. NaN throughout for a statistic out of
            the bootstrap's reach.
    """

    names: tuple[str, ...]
    shape: tuple[int, ...]
    seed: int
    points: Float[np.ndarray, "statistics"]
    draws: Float[np.ndarray, "resamples statistics_but_max"]

    @staticmethod
    def of(
        values: Float[np.ndarray, "clean corrupted"],
        seed: int,
        percentiles: Sequence[float] = PERCENTILES,
        worst: float = WORST,
        n_resamples: int = N_RESAMPLES,
    ) -> Resampled:
        """Resample a grid.

        Raises:
            BadUsage: a percentile or the worst share is not between 0 and 1, there are no
                resamples, or no values.
        """
        there = ~np.isnan(values)
        if not there.any():
            raise BadUsage("Statistics of a grid need one value or more; all are NaN.")
        draws = two_way_draws(
            values, np.random.default_rng(seed), percentiles, n_resamples=n_resamples
        )
        tail = two_way_worst(values, np.random.default_rng(seed), worst, n_resamples)
        names = ("mean", f"worst {100 * worst:g}%", *(f"{100 * p:g}%" for p in percentiles), "max")
        known = values[there].astype(float)
        points = [
            known.mean(),
            _worst_mean(known, worst),
            *np.quantile(known, percentiles),
            known.max(),
        ]
        units = known.size / max(int(there.sum(axis=0).max()), int(there.sum(axis=1).max()))
        reached = [within_reach((units,), share) for share in (None, worst, *percentiles)]
        found = np.where(reached, np.column_stack((draws.mean, tail, draws.percentiles)), np.nan)
        return Resampled(names, values.shape, seed, np.array(points, dtype=float), found)

    def minus(self, other: Resampled) -> Resampled:
        """The differences from another circuit's values of the same pairs.

        Raises:
            BadUsage: the two do not have the same statistics of the same resamples.
        """
        ours, theirs = (
            (each.names, each.shape, each.seed, len(each.draws)) for each in (self, other)
        )
        if ours != theirs:
            raise BadUsage(
                f"Differences need the same statistics of the same resamples; got {ours} and"
                f" {theirs}."
            )
        return Resampled(
            self.names, self.shape, self.seed, self.points - other.points, self.draws - other.draws
        )

    def estimates(self, level: float = LEVEL) -> dict[str, Estimate]:
        """Every statistic by name, with its interval where it has one."""
        intervals = [percentile_interval(column, level)[:2] for column in self.draws.T]
        ends = [*intervals, (math.nan, math.nan)]
        return {
            name: Estimate(float(point), *end)
            for name, point, end in zip(self.names, self.points, ends, strict=True)
        }


def _worst_mean(values: Float[np.ndarray, "values"], share: float) -> float:
    """The mean of the largest share of the values, the last of them in part."""
    wanted = share * values.size
    taken = np.clip(wanted - np.arange(values.size), 0, 1)
    return float(np.sort(values)[::-1] @ taken / wanted)


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
    interval = (
        Design("independent", values.shape)
        .intervals(values, np.random.default_rng(0), level=level)
        .mean
    )
    return Estimate(float(values.mean()), interval.low, interval.high)
