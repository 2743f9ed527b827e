"""The table of a divergence's distribution: tables 3 and 7 of Uit de Bos and Garriga-Alonso
(2024), with their uncertainty.

Count, mean, standard deviation (of a sample, n - 1), minimum, percentiles and maximum; the z-score
of a value is its difference from the mean in standard deviations. Beside the paper's columns stand
a two-sided interval, an upper confidence bound of every percentile (`design`), and the number of
undefined values, which the rest of the table leaves out and the bounds count as larger than every
number. Minimum and maximum of a sample bound nothing and have neither.

Values may come in blocks. Moments are merged block by block in double precision (Chan, Golub and
LeVeque 1979); the values are kept in the type they come in and sorted once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mechassay.errors import BadUsage
from mechassay.stats.bounds import check_share
from mechassay.stats.design import Design
from mechassay.stats.intervals import LEVEL, Interval
from mechassay.stats.percentiles import run_percentiles
from mechassay.stats.two_way import N_RESAMPLES

PERCENTILES = (0.25, 0.5, 0.75, 0.95, 0.99, 0.999, 0.9999)
STEP = 2**20


@dataclass(frozen=True)
class Row:
    """A statistic of the values.

    Attributes:
        name: as in the paper: mean, std, min, 25%, ..., max.
        z: its difference from the mean in standard deviations; NaN for mean and std.
        low: end of its interval; NaN where it has none, as a percentile that too few inputs of a
            grid lie beyond.
        bound: upper confidence bound of a percentile, infinite if the pairs are too few; NaN where
            there is none.
    """

    name: str
    value: float
    z: float
    low: float
    high: float
    bound: float


@dataclass(frozen=True)
class Summary:
    """The table; `level` is the confidence of each interval and of each bound by itself."""

    design: Design
    level: float
    count: int
    n_undefined: int
    rows: tuple[Row, ...]

    def __getitem__(self, name: str) -> Row:
        """The row of that name; KeyError if there is none."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)


def summarise(
    values: Float[np.ndarray, "..."] | Iterable[Float[np.ndarray, "..."]],
    design: str | Design,
    rng: np.random.Generator,
    percentiles: Sequence[float] = PERCENTILES,
    level: float = LEVEL,
    n_resamples: int = N_RESAMPLES,
) -> Summary:
    """Summarise the divergences of pairs.

    Args:
        values: of all pairs, [clean, corrupted] for a grid, else [pairs]; or blocks of them, joined
            along their first axis.
        design: grid, matched or independent; or with all that is known of it.
        rng: for the bootstrap of a grid.

    Raises:
        BadUsage: no values, a shape that is not the design's, percentiles or level not between 0
            and 1, or no resamples for a grid.
        UnknownName: `design` is none of the three.
    """
    for share in (*percentiles, level):
        check_share("A percentile or level", share)
    whole = values if isinstance(values, np.ndarray) else _joined(values)
    drawn = Design(design, whole.shape) if isinstance(design, str) else design
    flat = whole.reshape(-1)
    rising = np.sort(flat)
    count, mean, std = moments(flat)
    rising = rising[:count]
    found = drawn.intervals(whole, rng, percentiles, level=level, n_resamples=n_resamples)

    def row(
        name: str, value: float, interval: Interval | None = None, bound: float = math.nan
    ) -> Row:
        low, high = (math.nan, math.nan) if interval is None else interval[:2]
        return Row(name, value, z_score(value, mean, std), low, high, bound)

    rows = [
        Row("mean", mean, math.nan, found.mean.low, found.mean.high, math.nan),
        Row("std", std, *(math.nan,) * 4),
    ]
    rows.append(row("min", _percentile(rising, 0.0)))
    for p, interval in zip(percentiles, found.percentiles, strict=True):
        rows.append(
            row(
                f"{100 * p:g}%",
                _percentile(rising, p),
                interval,
                drawn.upper_bound(whole, p, level).value,
            )
        )
    rows.append(row("max", _percentile(rising, 1.0)))
    return Summary(drawn, level, count, drawn.n_values - count, tuple(rows))


def z_score(value: float, mean: float, std: float) -> float:
    """(value - mean) / std; NaN without spread."""
    return (value - mean) / std if std > 0 and math.isfinite(std) else math.nan


def moments(values: Float[np.ndarray, "n"]) -> tuple[int, float, float]:
    """Number, mean and sample standard deviation of the values that are not NaN,
    in double precision.

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


def _percentile(rising: Float[np.ndarray, "n"], p: float) -> float:
    return float(run_percentiles(rising, np.array([0]), np.array([rising.size]), p)[0])


def _joined(blocks: Iterable[np.ndarray]) -> np.ndarray:
    found = list(blocks)
    if not found:
        raise BadUsage("A summary needs at least 1 block of values; got none.")
    return np.concatenate(found)
