"""How the pairs of an adversarial evaluation were drawn, and what may be concluded from them.

    independent   every pair has a clean and a corrupted input of its own, drawn independently
    matched       every pair has a clean input of its own and a corrupted input made for it
    grid          n clean and m corrupted inputs, drawn independently, each with each

Pairs of the first two are independent draws, of different populations: all combinations, or the
task's own pairs. What holds for them is exact (`bounds`). The pairs of a grid are draws from the
same population as the first, but pairs in a row or a column share an input: bounds count the
smaller side of the grid (`grid`), intervals resample rows and columns (`bootstrap`), and there are
none where fewer than five rows or columns lie beyond a percentile. A grid may be restricted to
pairs of one stratum (`partial_grid`): its values are NaN elsewhere, which is not undefined but no
pair. Which it is cannot be read off the values, so it is said.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

from mechassay.errors import BadUsage, one_of
from mechassay.stats import bounds
from mechassay.stats import grid_bounds as grid
from mechassay.stats.bounds import UpperBound, check_share
from mechassay.stats.intervals import LEVEL, Interval, clopper_pearson
from mechassay.stats.partial_grid import (
    PartialGrid,
    partial_confidence,
    partial_exceedance,
    partial_rank,
)
from mechassay.stats.two_way import N_RESAMPLES, grid_interval, two_way_draws

DesignKind = Literal["grid", "matched", "independent"]
DESIGN_KINDS: tuple[DesignKind, ...] = get_args(DesignKind)
POPULATIONS = {
    "grid": "every clean input with every corrupted input",
    "independent": "every clean input with every corrupted input",
    "matched": "clean inputs, each with a corrupted input made for it",
}


@dataclass(frozen=True)
class Intervals:
    """Two-sided intervals by design. Where the sample is too small:
    infinite at that end, for a grid NaN at both.
    """

    mean: Interval
    percentiles: tuple[Interval, ...]
    exceedance: tuple[Interval, ...]


@dataclass(frozen=True)
class Design:
    """How pairs were drawn.

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
        """Independent draws that a bound may count:
        all pairs, the smaller side of a grid, or `PartialGrid.units`.
        """
        return min(self.shape) if self.part is None else self.part.units

    @property
    def population(self) -> str:
        """What the results are about, in words."""
        return POPULATIONS[self.kind] + ("" if self.part is None else " of its stratum")

    def upper_bound(
        self,
        values: Float[np.ndarray, "*shape"],
        p: float,
        level: float = LEVEL,
        kind: str | None = None,
    ) -> UpperBound:
        """Upper confidence bound of the p-th percentile: an order statistic of the values.

        It holds whatever the values depend on. NaN counts as larger than every number.

        Args:
            kind: which bound; the tightest one that is valid for the design if not given: exact,
                for a grid shortfall.

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
        if self.part is not None:
            one_of("kind of bound for a part of a grid", kind, ("shortfall",))
            rank = partial_rank(self.part, p, level)
            confidence = math.nan if rank is None else partial_confidence(self.part, p, rank)
            return bounds.bound_at(values[self.part.mask], rank, p, level, kind, confidence)
        rank = grid.grid_rank(self.shape[0], self.shape[1], p, level, kind)
        confidence = (
            math.nan
            if rank is None
            else grid.grid_confidence(self.shape[0], self.shape[1], p, rank, kind)
        )
        return bounds.bound_at(values, rank, p, level, kind, confidence)

    def exceedance_bound(
        self, values: Float[np.ndarray, "*shape"], above: float, level: float = LEVEL
    ) -> float:
        """Upper confidence bound of the probability that a fresh pair's value exceeds `above`;
        NaN counts as exceeding.

        Clopper and Pearson's, for a grid `grid_exceedance`.

        Raises:
            BadUsage: level is not between 0 and 1, or the values do not have the design's shape.
        """
        self._check(values)
        check_share("The confidence", level)
        hits = self.n_values - int((values <= above).sum())
        if self.part is not None:
            return partial_exceedance(self.part, hits, level)
        if self.kind == "grid":
            return grid.grid_exceedance(hits, self.shape[0], self.shape[1], level)
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
        where fewer than `bootstrap.LEAST` of the smaller side's inputs lie beyond the percentile,
        or on either side of a threshold by the share of values there.

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
            hits = [
                float((defined > threshold).mean()) if defined.size else math.nan
                for threshold in above
            ]
            inputs = (self.n_units,)
            return Intervals(
                grid_interval(draws.mean, level, inputs),
                tuple(
                    grid_interval(column, level, inputs, p)
                    for column, p in zip(draws.percentiles.T, percentiles, strict=True)
                ),
                tuple(
                    grid_interval(column, level, inputs, share)
                    for column, share in zip(draws.exceedance.T, hits, strict=True)
                ),
            )
        if not defined.size:
            undefined = Interval(math.nan, math.nan, level)
            return Intervals(undefined, (undefined,) * len(percentiles), (undefined,) * len(above))
        return Intervals(
            _student(defined, level),
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


def _student(values: Float[np.ndarray, "n"], level: float) -> Interval:
    """The interval of a mean by Student's t;
    undefined for fewer than two values or infinite ones.
    """
    if values.size < 2 or not np.isfinite(values).all():
        return Interval(math.nan, math.nan, level)
    half = (
        float(stdtrit(values.size - 1, (1 + level) / 2))
        * float(values.std(ddof=1, dtype=float))
        / math.sqrt(values.size)
    )
    mean = float(values.mean(dtype=float))
    return Interval(mean - half, mean + half, level)
