"""The two-way cluster bootstrap of a grid: rows and columns are drawn anew, never single pairs.

The pigeonhole bootstrap (McCullagh 2000; Owen 2007): a resample draws n of the n rows and m of the
m columns with replacement, independently. Pair (i, j) then counts w_i u_j times, how often its row
and column were drawn. If noise of single pairs outweighs rows and columns, the variance is up to
three times too large (Owen, theorem 3); it is never much too small. Unlike the bounds of
`grid_bounds` its intervals are approximations. For a percentile with few rows or columns beyond it
some 95 % intervals cover less than half of the time, so there is none (`LEAST`).

No grid is copied. Means and exceedances of all resamples are two matrix products, w V and the row
sums of (w V) * u. For percentiles the values are sorted once, from the largest down. A resample
gathers the weights of as many of them as its smallest percentile needs, and sums blocks of them.
Work: O(B n m) multiplications, for percentile p O(B n m (1 - p)) gathered weights; memory O(n m + B
(n + m)).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from mechassay.errors import BadUsage
from mechassay.stats.bounds import check_share
from mechassay.stats.intervals import Interval, percentile_interval

BLOCK = 1024
N_RESAMPLES = 1000
LEAST = 5
"""Fewest rows and columns on either side of a statistic that has an interval: in simulated grids,
95 % intervals covered the truth in 90 to 96 % with 5 to 10, and in 67 to 85 % with 1."""


@dataclass(frozen=True)
class GridDraws:
    """Statistics of the resampled grids; NaN if a resample has no defined value.

    Attributes:
        mean: NaN throughout if a value is infinite.
        percentiles: the smallest value with at least the share p of the weight at or below it; a
            column for each p.
        exceedance: share of the weight above a threshold, a column for each.
    """

    mean: Float[np.ndarray, "resamples"]
    percentiles: Float[np.ndarray, "resamples p"]
    exceedance: Float[np.ndarray, "resamples t"]


def two_way_draws(
    values: Float[np.ndarray, "clean corrupted"],
    rng: np.random.Generator,
    percentiles: Sequence[float] = (),
    above: Sequence[float] = (),
    n_resamples: int = N_RESAMPLES,
) -> GridDraws:
    """Resample the rows and columns of a grid; NaN values are left out.

    Raises:
        BadUsage: a percentile is not between 0 and 1, or there are no resamples.
    """
    if n_resamples < 1:
        raise BadUsage(f"A bootstrap needs at least 1 resample; got {n_resamples}.")
    for p in percentiles:
        check_share("A percentile", p)
    defined = ~np.isnan(values)
    rows, columns = (_times_drawn(n, n_resamples, rng) for n in values.shape)
    total = _weigh(rows, defined, columns)
    sums = (
        _weigh(rows, np.where(defined, values, 0), columns)
        if np.isfinite(values[defined]).all()
        else np.full(n_resamples, np.nan)
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        over = [_weigh(rows, values > threshold, columns) / total for threshold in above]
        mean = sums / total
    none = np.empty((n_resamples, 0))
    tails = _percentiles(values, rows, columns, total, percentiles) if percentiles else none
    return GridDraws(mean, tails, np.stack(over, axis=1) if over else none)


def within_reach(shape: tuple[int | float, ...], share: float | None = None) -> bool:
    """Whether a grid has `LEAST` rows and columns on either side of a statistic.

    Args:
        shape: (clean, corrupted), or what counts in their place (`PartialGrid.units`).
        share: the percentile, or share of exceedances; a mean if not given. NaN is out of reach.
    """
    beyond = min(shape) * (1.0 if share is None else min(share, 1 - share))
    # 50 inputs have 5 beyond the percentile 0.9, though 1 - 0.9 is below 0.1 in floating point.
    return beyond >= LEAST * (1 - 1e-9)


def grid_interval(
    draws: Float[np.ndarray, "resamples"],
    level: float,
    shape: tuple[int | float, ...],
    share: float | None = None,
) -> Interval:
    """The central `level` of a statistic's resamples; NaN if it is not `within_reach`."""
    return percentile_interval(draws if within_reach(shape, share) else np.full(1, np.nan), level)


def two_way_worst(
    values: Float[np.ndarray, "clean corrupted"],
    rng: np.random.Generator,
    share: float,
    n_resamples: int = N_RESAMPLES,
) -> Float[np.ndarray, "resamples"]:
    """The mean of the worst share of each resampled grid's weight; NaN values are left out.

    With a generator in the same state as for `two_way_draws`, rows and columns are the same.

    Raises:
        BadUsage: the share is not between 0 and 1.
    """
    check_share("The worst share", share)
    rows, columns = (_times_drawn(n, n_resamples, rng) for n in values.shape)
    falling, row, column = _falling(values)
    falling = falling.astype(float)
    means = np.full(n_resamples, np.nan)
    for draw in range(n_resamples):
        weights = rows[draw, row].astype(float) * columns[draw, column]
        wanted = share * weights.sum()
        if wanted:
            ends = np.cumsum(weights)
            means[draw] = np.clip(wanted - (ends - weights), 0, weights) @ falling / wanted
    return means


def _falling(
    values: Float[np.ndarray, "clean corrupted"],
) -> tuple[Float[np.ndarray, "n"], Int[np.ndarray, "n"], Int[np.ndarray, "n"]]:
    """The defined values from the largest down, with their rows and columns."""
    order = np.argsort(values, axis=None)[: int((~np.isnan(values)).sum())][::-1]
    row, column = np.divmod(order, values.shape[1])
    return values.reshape(-1)[order], row, column


def _times_drawn(
    n: int, n_resamples: int, rng: np.random.Generator
) -> Float[np.ndarray, "resamples n"]:
    return rng.multinomial(n, np.full(n, 1 / n), size=n_resamples).astype(np.float32)


def _weigh(
    rows: Float[np.ndarray, "resamples clean"],
    grid: np.ndarray,
    columns: Float[np.ndarray, "resamples corrupted"],
) -> Float[np.ndarray, "resamples"]:
    """The weighted sum of a grid for every resample, in fp32 over rows and fp64 over columns."""
    # Counts stay exact: a resample's row weights add up to the number of rows, far below 2^24.
    return np.einsum("bm,bm->b", rows @ grid.astype(np.float32), columns, dtype=np.float64)


def _percentiles(
    values: Float[np.ndarray, "clean corrupted"],
    rows: Float[np.ndarray, "resamples clean"],
    columns: Float[np.ndarray, "resamples corrupted"],
    total: Float[np.ndarray, "resamples"],
    percentiles: Sequence[float],
) -> Float[np.ndarray, "resamples p"]:
    falling, row, column = _falling(values)
    draws = np.full((len(rows), len(percentiles)), np.nan)
    if not falling.size:
        return draws
    # Weight that may lie above the percentile, but not all; the slack keeps whole numbers whole.
    allowed = np.minimum(
        (1 - np.asarray(percentiles) + 1e-9) * total[:, None], total[:, None] - 0.5
    )
    n = len(falling)
    first = min(n, round(1.5 * (1 - min(percentiles)) * n) + BLOCK)
    for draw in np.flatnonzero(total > 0):
        taken = first
        while True:
            weights = rows[draw][row[:taken]] * columns[draw][column[:taken]]
            ends = np.cumsum(np.add.reduceat(weights, np.arange(0, taken, BLOCK)), dtype=np.float64)
            if ends[-1] > allowed[draw].max():
                break
            taken = min(2 * taken, n)
        draws[draw] = falling[_first_above(weights, ends, allowed[draw])]
    return draws


def _first_above(
    weights: Float[np.ndarray, "taken"],
    ends: Float[np.ndarray, "blocks"],
    allowed: Float[np.ndarray, "p"],
) -> Int[np.ndarray, "p"]:
    """The first places at which the cumulative weight exceeds what is allowed."""
    places = np.empty(len(allowed), dtype=np.int64)
    for i, most in enumerate(allowed):
        block = int(np.searchsorted(ends, most, side="right"))
        before = ends[block - 1] if block else 0.0
        inside = before + np.cumsum(weights[block * BLOCK : (block + 1) * BLOCK], dtype=np.float64)
        places[i] = block * BLOCK + np.searchsorted(inside, most, side="right")
    return places
