"""The table of a divergence's distribution, with its uncertainty.

As in tables 3 and 7 of Uit de Bos and Garriga-Alonso (2024): count, mean, standard deviation (of a
sample, n - 1), minimum, percentiles and maximum, and the z-score of each, its difference from the
mean in standard deviations. Added are a two-sided interval, an upper confidence bound of every
percentile (`design`), and the number of undefined values. The table leaves these out, and the
bounds count them as larger than every number. Minimum and maximum of a sample bound nothing and
have neither interval nor bound.

Moments are merged block by block in double precision (Chan, Golub and LeVeque 1979); values are
kept in their own type and sorted once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from mechassay.display import OneLine
from mechassay.errors import BadUsage
from mechassay.stats.bounds import check_share
from mechassay.stats.design import Design
from mechassay.stats.intervals import LEVEL, Interval
from mechassay.stats.rounding import resolved_difference
from mechassay.stats.two_way import N_RESAMPLES

PERCENTILES = (0.25, 0.5, 0.75, 0.95, 0.99, 0.999, 0.9999)
STEP = 2**20


@dataclass(frozen=True)
class SummaryRow:
    """A statistic of the values.

    Attributes:
        name: as in the paper: mean, std, min, 25%, ..., max.
        z: its difference from the mean in standard deviations; NaN for mean and std.
        low, high: its interval; NaN if there is none, as with too few inputs beyond a percentile.
        bound: upper confidence bound of a percentile, infinite if the pairs are too few; else NaN.
    """

    name: str
    value: float
    z: float
    low: float
    high: float
    bound: float


@dataclass(frozen=True, repr=False)
class Summary(OneLine):
    """The table; `level` is the confidence of each interval and of each bound by itself."""

    design: Design
    level: float
    count: int
    n_undefined: int
    rows: tuple[SummaryRow, ...]

    def __getitem__(self, name: str) -> SummaryRow:
        """The row of that name; KeyError if there is none."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)


def summarise(
    values: Float[np.ndarray, "..."],
    design: str | Design,
    rng: np.random.Generator,
    percentiles: Sequence[float] = PERCENTILES,
    level: float = LEVEL,
    n_resamples: int = N_RESAMPLES,
) -> Summary:
    """Summarise the divergences of pairs.

    Args:
        values: of all pairs, [clean, corrupted] for a grid, else [pairs].
        design: grid, matched or independent; or with all that is known of it.
        rng: for the bootstrap of a grid.

    Raises:
        BadUsage: no values, a shape that is not the design's, percentiles or level not between 0
            and 1, or no resamples for a grid.
        UnknownName: `design` is none of the three.
    """
    for share in (*percentiles, level):
        check_share("A percentile or level", share)
    drawn = Design(design, values.shape) if isinstance(design, str) else design
    flat = values.reshape(-1)
    count, mean, std = moments(flat)
    rising = np.sort(flat)[:count]
    intervals = drawn.intervals(values, rng, percentiles, level=level, n_resamples=n_resamples)

    def row(
        name: str, value: float, interval: Interval | None = None, bound: float = math.nan
    ) -> SummaryRow:
        low, high = (math.nan, math.nan) if interval is None else interval[:2]
        return SummaryRow(name, value, z_score(value, mean, std), low, high, bound)

    rows = [
        SummaryRow("mean", mean, math.nan, intervals.mean.low, intervals.mean.high, math.nan),
        SummaryRow("std", std, *(math.nan,) * 4),
        row("min", _percentile(rising, 0.0)),
    ]
    for p, interval in zip(percentiles, intervals.percentiles, strict=True):
        bound = drawn.upper_bound(values, p, level).value
        rows.append(row(f"{100 * p:g}%", _percentile(rising, p), interval, bound))
    rows.append(row("max", _percentile(rising, 1.0)))
    return Summary(drawn, level, count, drawn.n_values - count, tuple(rows))


def z_score(value: float, mean: float, std: float) -> float:
    """(value - mean) / std; NaN without spread, or where it may be rounding alone."""
    spread = float(resolved_difference(std, 0.0, np.array([mean])))
    return (value - mean) / std if spread > 0 and math.isfinite(std) else math.nan


def moments(values: Float[np.ndarray, "n"]) -> tuple[int, float, float]:
    """Number, mean and sample standard deviation of the values but NaN, in double precision.

    With infinite values the mean is infinite and the deviation undefined; both are NaN where they
    do not exist.
    """
    count, mean, squares = 0, math.nan, math.nan
    for begin in range(0, values.size, STEP):
        block = values[begin : begin + STEP]
        block = block[~np.isnan(block)].astype(float)
        if not block.size:
            continue
        with np.errstate(invalid="ignore"):
            own = float(block.mean())
            own_squares = float(((block - own) ** 2).sum())
        if count == 0:
            count, mean, squares = block.size, own, own_squares
            continue
        apart, both = own - mean, count + block.size
        squares += own_squares + apart**2 * count * block.size / both
        mean, count = (mean * count + own * block.size) / both, both
    return count, mean, math.sqrt(squares / (count - 1)) if count > 1 else math.nan


def run_percentiles(
    rising: Float[np.ndarray, "n"],
    begin: Int[np.ndarray, "*cells"],
    count: Int[np.ndarray, "*cells"],
    p: float,
) -> Float[np.ndarray, "*cells"]:
    """The percentile p, 0 <= p <= 1, of each run rising[begin : begin + count]; NaN of empty runs.

    The percentile p of c sorted values lies at the place (c - 1) p, counted from 0, on the line
    between its two neighbours: the usual definition of numpy and pandas, and of the paper's tables.
    It estimates the population's percentile; it is no bound of it.

    Args:
        rising: values, sorted within each run.
    """
    place = np.maximum(count - 1, 0) * p
    low = place.astype(np.int64)
    share = place - low
    full = count > 0
    first = np.where(full, begin, 0)
    left = rising[first + low].astype(float) if rising.size else np.zeros(np.shape(begin))
    right = (
        rising[first + np.minimum(low + 1, np.maximum(count - 1, 0))].astype(float)
        if rising.size
        else left
    )
    # Between equal values nothing is interpolated, so that infinite ones stay what they are.
    with np.errstate(invalid="ignore"):
        between = np.where((share == 0) | (left == right), left, left + (right - left) * share)
    return np.where(full, between, np.nan)


def expected_maximum(values: Float[np.ndarray, "*shape"], draws: int) -> float:
    """The expected maximum of n of the N values, drawn without replacement.

    The j-th largest is the maximum with probability

    P_j = C(N - j, n - 1) / C(N, n),    P_1 = n / N,    P_(j + 1) = P_j (N - j - n + 1) / (N - j).

    More draws than values are all of them.

    Raises:
        BadUsage: no draws, or no values.
    """
    if draws < 1 or not values.size:
        raise BadUsage(
            f"An expected maximum needs at least 1 draw of at least 1 value; got {draws} of"
            f" {values.size}."
        )
    falling = np.sort(values, axis=None)[::-1].astype(float)
    total, n = falling.size, min(draws, falling.size)
    j = np.arange(1, total - n + 1)
    shares = n / total * np.cumprod(np.concatenate(([1.0], (total - j - n + 1) / (total - j))))
    return float(shares @ falling[: len(shares)])


def _percentile(rising: Float[np.ndarray, "n"], p: float) -> float:
    return float(run_percentiles(rising, np.array([0]), np.array([rising.size]), p)[0])
