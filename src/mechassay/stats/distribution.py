"""The distribution of a divergence over pairs: a table with uncertainty, and tables by fields.

As in tables 3 and 7 of Uit de Bos and Garriga-Alonso (2024): count, mean, standard deviation (of
a sample, n - 1), minimum, percentiles and maximum, and the z-score of each, its difference from
the mean in standard deviations. Added are a two-sided interval, an upper confidence bound of
every percentile, and the number of undefined values. The table leaves these out, and the bounds
count them as larger than every number. Minimum and maximum of a sample bound nothing and have
neither interval nor bound. Moments are merged block by block in double precision (Chan, Golub
and LeVeque 1979); values are kept in their own type and sorted once.

What may be concluded depends on how the pairs were drawn (`Design`):

    independent   every pair has a clean and a corrupted input of its own, drawn independently
    matched       every pair has a clean input of its own and a corrupted input made for it
    grid          n clean and m corrupted inputs, drawn independently, each with each

As in the paper's appendix D, `by_fields` has maximum and percentiles by a field of the prompts,
or by several.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from mechassay.errors import BadUsage, one_of
from mechassay.stats import DESIGN_KINDS, bounds
from mechassay.stats.bootstrap import N_RESAMPLES, grid_interval, two_way_draws
from mechassay.stats.bounds import (
    PartialGrid,
    UpperBound,
    check_share,
    partial_confidence,
    partial_exceedance,
    partial_rank,
)
from mechassay.stats.intervals import (
    LEVEL,
    Interval,
    clopper_pearson,
    resolved_difference,
    student_interval,
)
from mechassay.utils.display import OneLine


@dataclass(frozen=True)
class Intervals:
    """Two-sided intervals. If the sample is too small: infinite at that end, for a grid NaN."""

    mean: Interval
    percentiles: tuple[Interval, ...]
    exceedance: tuple[Interval, ...]


@dataclass(frozen=True, repr=False)
class Design(OneLine):
    """How pairs were drawn, and what may be concluded from them.

    Independent and matched pairs are independent draws, of different populations: all
    combinations, or the task's own pairs. Their bounds, and their intervals of percentiles and
    exceedances, are exact (`stats.bounds`); that of the mean is Student's. Pairs of a grid have
    the population of independent pairs, but pairs in a row or a column share an input. Their
    bounds count the smaller side of the grid, and their intervals resample rows and columns
    (`stats.bootstrap`); a percentile with fewer than five rows or columns beyond it has no
    interval. A grid may be restricted to pairs of one stratum (`PartialGrid`). NaN then means
    "no pair" outside the stratum and "undefined" inside it, so the part is stated, not read off
    the values.

    Attributes:
        kind: grid, matched or independent.
        shape: of the values: (clean, corrupted) for a grid, else (pairs,).
        part: which pairs of a grid belong to it, where not all do.

    Raises:
        BadUsage: the shape is not that of the kind, or empty, or not that of the part.
        UnknownName: `kind` is none of the three.
    """

    kind: str
    shape: tuple[int, ...]
    part: PartialGrid | None = None

    def __post_init__(self) -> None:
        one_of("design", self.kind, DESIGN_KINDS)
        wanted = "2 axes (clean, corrupted)" if self.kind == "grid" else "1 axis (pairs)"
        if len(self.shape) != (2 if self.kind == "grid" else 1) or 0 in self.shape:
            raise BadUsage(
                f"Values of the design {self.kind} have {wanted}, none of them empty; got the shape"
                f" {self.shape}."
            )
        if self.part is not None and self.part.shape != self.shape:
            raise BadUsage(
                f"A part is of a grid's prompts, here {self.part.shape}; the {self.kind} has the"
                f" shape {self.shape}."
            )

    @property
    def n_values(self) -> int:
        """Pairs."""
        return math.prod(self.shape) if self.part is None else self.part.n_values

    @property
    def n_units(self) -> int | float:
        """Independent draws: all pairs, the smaller side of a grid, or `PartialGrid.units`."""
        return min(self.shape) if self.part is None else self.part.units

    def upper_bound(
        self,
        values: Float[np.ndarray, "*shape"],
        p: float,
        level: float = LEVEL,
        kind: str | None = None,
    ) -> UpperBound:
        """Upper confidence bound of the p-th percentile: an order statistic of the values.

        It needs no assumption about the values. NaN counts as larger than every number.

        Args:
            kind: which bound; if not given the tightest valid one: exact, for a grid shortfall.

        Raises:
            BadUsage: p or level is not between 0 and 1, or the values do not have the design's
                shape.
            UnknownName: a bound that the design does not have, such as the exact binomial one for a
                grid.
        """
        self._check(values)
        if self.kind != "grid":
            return bounds.upper_bound(values, p, level, kind or "exact")
        kind = kind or "shortfall"
        if self.part is None:
            sides = self.shape[0], self.shape[1]
            rank = bounds.grid_rank(*sides, p, level, kind)
            known = rank is not None
            confidence = bounds.grid_confidence(*sides, p, rank, kind) if known else math.nan
            return bounds.bound_at(values, rank, p, level, kind, confidence)
        one_of("kind of bound for a part of a grid", kind, ("shortfall",))
        rank = partial_rank(self.part, p, level)
        confidence = math.nan if rank is None else partial_confidence(self.part, p, rank)
        return bounds.bound_at(values[self.part.mask], rank, p, level, kind, confidence)

    def exceedance_bound(
        self, values: Float[np.ndarray, "*shape"], above: float, level: float = LEVEL
    ) -> float:
        """Upper confidence bound of the probability that a fresh pair's value exceeds `above`.

        Clopper and Pearson's, for a grid `grid_exceedance`. NaN counts as exceeding.

        Raises:
            BadUsage: level is not between 0 and 1, or the values do not have the design's shape.
        """
        self._check(values)
        check_share("The confidence", level)
        hits = self.n_values - int((values <= above).sum())
        if self.part is not None:
            return partial_exceedance(self.part, hits, level)
        if self.kind == "grid":
            return bounds.grid_exceedance(hits, self.shape[0], self.shape[1], level)
        return clopper_pearson(float(hits), float(values.size), 2 * level - 1).high

    def intervals(
        self,
        values: Float[np.ndarray, "*shape"],
        rng: np.random.Generator,
        percentiles: Sequence[float] = (),
        above: Sequence[float] = (),
        level: float = LEVEL,
        n_resamples: int = N_RESAMPLES,
    ) -> Intervals:
        """Two-sided intervals of the mean, percentiles and exceedances of the defined values.

        Of independent pairs: Student's, between order statistics (exact), Clopper and Pearson's
        (exact). Of a grid: the two-way cluster bootstrap, an approximation. It is NaN at both ends
        if fewer than `stats.bootstrap.LEAST` of the smaller side's inputs lie beyond the
        percentile, or on either side of a threshold.

        Args:
            above: thresholds whose exceedance is asked for.

        Raises:
            BadUsage: a percentile or level is not between 0 and 1, the values do not have the
                design's shape, or no resamples for a grid.
        """
        self._check(values)
        check_share("The confidence", level)
        defined = values[~np.isnan(values)]
        if self.kind == "grid":
            draws = two_way_draws(values, rng, percentiles, above, n_resamples)
            hits = [float((defined > t).mean()) if defined.size else math.nan for t in above]

            def of_grid(
                columns: Float[np.ndarray, "resamples k"], shares: Sequence[float]
            ) -> tuple[Interval, ...]:
                return tuple(
                    grid_interval(column, level, (self.n_units,), share)
                    for column, share in zip(columns.T, shares, strict=True)
                )

            return Intervals(
                grid_interval(draws.mean, level, (self.n_units,)),
                of_grid(draws.percentiles, percentiles),
                of_grid(draws.exceedance, hits),
            )
        if not defined.size:
            undefined = Interval(math.nan, math.nan, level)
            return Intervals(undefined, (undefined,) * len(percentiles), (undefined,) * len(above))
        return Intervals(
            student_interval(defined, level),
            tuple(bounds.order_interval(defined, p, level) for p in percentiles),
            tuple(
                clopper_pearson(float((defined > threshold).sum()), float(defined.size), level)
                for threshold in above
            ),
        )

    def _check(self, values: np.ndarray) -> None:
        if values.shape != self.shape:
            raise BadUsage(
                f"The design {self.kind} has values of shape {self.shape}; got {values.shape}."
            )
        if self.part is not None and not np.isnan(values[~self.part.mask]).all():
            raise BadUsage(
                "A restricted grid has values of pairs of one stratum alone; others must be NaN."
            )


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


GROUP_PERCENTILES = (0.999, 0.9999)
SIDES = ("clean", "corrupted")


@dataclass(frozen=True, repr=False)
class Field(OneLine):
    """A template field of the clean or of the corrupted inputs.

    Attributes:
        name: what the field is called.
        labels: one for every input of that side, in the order of the values.
        side: which axis of a grid; of single pairs both sides have one label a pair.
        strata: how each input is built; labels are compared within a stratum. None: all the same.
    """

    name: str
    labels: Sequence[str]
    side: Literal["clean", "corrupted"] = "clean"
    strata: Sequence[str] | None = None

    def __post_init__(self) -> None:
        one_of("side of a pair", self.side, SIDES)
        if self.strata is not None and len(self.strata) != len(self.labels):
            raise BadUsage(
                f"The field {self.name} has {len(self.labels)} labels and {len(self.strata)}"
                " strata; give one for each input."
            )

    def axis(self, values: np.ndarray) -> int:
        """The axis of the values that the labels belong to.

        Raises:
            BadUsage: the labels are not as many as inputs on that axis, or the values have more
                than two axes.
        """
        if values.ndim not in (1, 2):
            raise BadUsage(
                f"Values have the axes (pairs) or (clean, corrupted); got the shape {values.shape}."
            )
        axis = SIDES.index(self.side) if values.ndim == 2 else 0
        if len(self.labels) != values.shape[axis]:
            raise BadUsage(
                f"The field {self.name} has {len(self.labels)} labels for {values.shape[axis]}"
                " inputs."
            )
        return axis


@dataclass(frozen=True, repr=False)
class GroupTable(OneLine):
    """Statistics by the labels of one or more fields; a cell without defined values is NaN.

    Attributes:
        labels: of each field, sorted.
        count: defined values in each cell; an axis for each field.
        max: largest value in each cell.
        percentiles: interpolated, with a last axis for the percentiles asked for.
    """

    fields: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]
    percents: tuple[float, ...]
    count: Int[np.ndarray, "*cells"]
    max: Float[np.ndarray, "*cells"]
    percentiles: Float[np.ndarray, "*cells p"]


def by_fields(
    values: Float[np.ndarray, "*shape"],
    fields: Sequence[Field],
    percentiles: Sequence[float] = GROUP_PERCENTILES,
) -> GroupTable:
    """Maximum and percentiles of the values by one field, or by several (two make a heat map).

    Appendix D of Uit de Bos and Garriga-Alonso (2024) shows the maximum and high percentiles by
    template field (which object, which place) and by pairs of fields. The largest of many
    groups is large by chance too, and a larger group has a larger maximum:
    `stats.permutation_tests` says which labels are worse than that.

    Args:
        values: [clean, corrupted] of a grid, or [pairs]; NaN is left out.

    Raises:
        BadUsage: no fields, labels that do not fit the values, or percentiles not between 0 and
            1.
    """
    if not fields:
        raise BadUsage("A table by fields needs at least 1 field; got none.")
    for p in percentiles:
        check_share("A percentile", p)
    labels: list[tuple[str, ...]] = []
    # The number of each value's cell, row by row of the table.
    code = np.zeros((1,) * values.ndim, dtype=np.int32)
    for field in fields:
        names, own = np.unique(np.asarray(field.labels), return_inverse=True)
        shape = [1] * values.ndim
        shape[field.axis(values)] = -1
        code = code * len(names) + own.astype(np.int32).reshape(shape)
        labels.append(tuple(map(str, names)))
    sizes = tuple(map(len, labels))
    flat, cell = values.reshape(-1), np.broadcast_to(code, values.shape).reshape(-1)
    defined = ~np.isnan(flat)
    flat, cell = flat[defined], cell[defined]
    count = np.bincount(cell, minlength=math.prod(sizes))
    rising = flat[np.lexsort((flat, cell))]
    begin = np.cumsum(count) - count
    largest, *columns = (
        run_percentiles(rising, begin, count, p).reshape(sizes) for p in (1.0, *percentiles)
    )
    table = np.stack(columns, axis=-1) if columns else np.empty((*sizes, 0))
    names = tuple(field.name for field in fields)
    count = count.reshape(sizes)
    return GroupTable(names, tuple(labels), tuple(percentiles), count, largest, table)
