"""Statistics of circuits on the same grid of pairs: each circuit's, differences, and ratios.

Intervals are those of the two-way cluster bootstrap (`two_way`). For a difference or a ratio both
grids are resampled with the same rows and columns, so what makes a prompt hard for all circuits
cancels. Intervals cover the choice of the grid's prompts, not the data the circuits were found on;
for that, find them again on other data (`over_repeats`). The largest value has no interval, nor
has a percentile with too few rows or columns beyond it (`two_way.LEAST`). NaN is no pair.

A grid over several templates is two populations (`split_by`), same and different templates. Each
has its own statistics, and the share of the empty circuit's mean that is left,

    left = mean KL(M(x) || C(x, x~)) / mean KL(M(x) || M(x~)).

At 1 the circuit explains nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from mechassay.display import OneLine
from mechassay.errors import BadUsage
from mechassay.stats.intervals import LEVEL, Estimate, percentile_interval, student_interval
from mechassay.stats.partial_grid import outside, reach
from mechassay.stats.rounding import resolved_difference
from mechassay.stats.two_way import N_RESAMPLES, two_way_draws, two_way_worst, within_reach

PERCENTILES = (0.99,)
WORST = 0.1
SAME, DIFFERENT = "same", "different"


@dataclass(frozen=True, eq=False, repr=False)
class Resampled(OneLine):
    """Statistics of a grid, and of its resamples.

    Attributes:
        names: "mean", the mean of the worst share ("worst 10%"), percentiles ("99%"), "max".
        shape, seed: of the grid and of its resamples. Grids that agree in both have the same rows
            and columns drawn.
        points: of the grid itself; percentiles are interpolated.
        draws: of each resample, except the maximum; NaN throughout where there is no interval.
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
        worst: float | None = WORST,
        n_resamples: int = N_RESAMPLES,
    ) -> Resampled:
        """Resample a grid.

        Args:
            worst: share of the pairs; None leaves the mean of the worst share out.

        Raises:
            BadUsage: a percentile or the worst share is not between 0 and 1, there are no
                resamples, or no values.
        """
        pairs = ~np.isnan(values)
        if not pairs.any():
            raise BadUsage("Statistics of a grid need one value or more; all are NaN.")
        draws = two_way_draws(values, np.random.default_rng(seed), percentiles, (), n_resamples)
        known = values[pairs].astype(float)
        names, points, columns = ["mean"], [known.mean()], [draws.mean]
        if worst is not None:
            names.append(f"worst {100 * worst:g}%")
            points.append(_worst_mean(known, worst))
            # In the same state, the generator draws the same rows and columns.
            columns.append(two_way_worst(values, np.random.default_rng(seed), worst, n_resamples))
        names += [*(f"{100 * p:g}%" for p in percentiles), "max"]
        points += [*np.quantile(known, percentiles), known.max()]
        shares = (None, *(() if worst is None else (worst,)), *percentiles)
        reached = [within_reach((reach(pairs),), share) for share in shares]
        resamples = np.where(reached, np.column_stack((*columns, draws.percentiles)), np.nan)
        return Resampled(tuple(names), values.shape, seed, np.array(points, dtype=float), resamples)

    def minus(self, other: Resampled) -> Resampled:
        """The differences from another circuit's values of the same pairs.

        Raises:
            BadUsage: the two do not have the same statistics of the same resamples.
        """
        ours, theirs = ((one.names, one.shape, one.seed, len(one.draws)) for one in (self, other))
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


def over_repeats(estimates: Sequence[Estimate], level: float = LEVEL) -> Estimate:
    """The mean over independent repeats with Student's interval; of one repeat, its own estimate.

    Raises:
        BadUsage: no repeats.
    """
    if not estimates:
        raise BadUsage("A mean over repeats needs at least 1; got none.")
    if len(estimates) == 1:
        return estimates[0]
    values = np.array([estimate.value for estimate in estimates])
    interval = student_interval(values[~np.isnan(values)], level)
    return Estimate(float(values.mean()), interval.low, interval.high)


@dataclass(frozen=True)
class Half:
    """The pairs of a grid whose prompts have the same label, or different ones.

    Attributes:
        pairs: same or different.
        n: pairs.
        circuit, empty: mean, 99th percentile and maximum in nats, each with low and high, NaN where
            there is no interval.
        left: mean of the circuit over that of the empty one, low and high.
    """

    pairs: str
    n: int
    circuit: dict[str, tuple[float, float, float]]
    empty: dict[str, tuple[float, float, float]]
    left: tuple[float, float, float]


def split_by(
    values: Float[np.ndarray, "clean corrupted"],
    empty: Float[np.ndarray, "clean corrupted"],
    clean: Sequence[str],
    corrupted: Sequence[str],
    seed: int,
    n_resamples: int = N_RESAMPLES,
    level: float = LEVEL,
) -> list[Half]:
    """The pairs whose prompts have the same label, and the others; without pairs, no half.

    Args:
        values, empty: of a circuit and of the empty one; NaN is no pair.
        clean, corrupted: a label of every prompt of each side.
        seed: of the resampling.
    """
    same = np.asarray(clean)[:, None] == np.asarray(corrupted)[None, :]
    pairs = ~np.isnan(values)
    halves = ((SAME, same & pairs), (DIFFERENT, ~same & pairs))
    return [
        _half(name, mask, (values, empty), seed, n_resamples, level)
        for name, mask in halves
        if mask.any()
    ]


def _half(
    name: str,
    mask: Bool[np.ndarray, "clean corrupted"],
    grids: tuple[np.ndarray, np.ndarray],
    seed: int,
    n_resamples: int,
    level: float,
) -> Half:
    ours, theirs = (
        Resampled.of(outside(grid, mask), seed, worst=None, n_resamples=n_resamples)
        for grid in grids
    )
    circuit, empty = (
        {name: (one.value, one.low, one.high) for name, one in part.estimates(level).items()}
        for part in (ours, theirs)
    )
    means = np.append(theirs.draws[:, 0], theirs.points[0])
    # Divergences are sums of terms of about a nat, in the type of their grid.
    means = resolved_difference(means, 0.0, theirs.points[:1], least=1.0, dtype=grids[1].dtype)
    left = np.append(ours.draws[:, 0], ours.points[0]) / np.where(means > 0, means, np.nan)
    ratio = percentile_interval(left[:-1], level)
    return Half(name, int(mask.sum()), circuit, empty, (float(left[-1]), ratio.low, ratio.high))
