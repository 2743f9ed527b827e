"""How the pairs of an adversarial evaluation were drawn, and what may be concluded from them.

    independent   every pair has a clean and a corrupted input of its own, drawn independently
    matched       every pair has a clean input of its own and a corrupted input made for it
    grid          n clean and m corrupted inputs, drawn independently, each with each

Pairs of the first two are independent draws, of different populations: all combinations, or the
task's own pairs. Their bounds and intervals are exact (`bounds`). Pairs of a grid have the
population of the first, but pairs in a row or a column share an input. Their bounds count the
smaller side of the grid (`grid_bounds`), and their intervals resample rows and columns (`two_way`);
a percentile with fewer than five rows or columns beyond it has no interval. A grid may be
restricted to pairs of one stratum (`partial_grid`). NaN then means "no pair" outside the stratum
and "undefined" inside it, so the part is stated, not read off the values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float

from mechassay.display import OneLine
from mechassay.errors import BadUsage, one_of
from mechassay.stats import bounds
from mechassay.stats import grid_bounds as grid
from mechassay.stats.bounds import UpperBound, check_share
from mechassay.stats.intervals import LEVEL, Interval, clopper_pearson, student_interval
from mechassay.stats.partial_grid import (
    PartialGrid,
    partial_confidence,
    partial_exceedance,
    partial_rank,
)
from mechassay.stats.two_way import N_RESAMPLES, grid_interval, two_way_draws

DesignKind = Literal["grid", "matched", "independent"]
DESIGN_KINDS: tuple[DesignKind, ...] = get_args(DesignKind)


@dataclass(frozen=True)
class Intervals:
    """Two-sided intervals. If the sample is too small: infinite at that end, for a grid NaN."""

    mean: Interval
    percentiles: tuple[Interval, ...]
    exceedance: tuple[Interval, ...]


@dataclass(frozen=True, repr=False)
class Design(OneLine):
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
            rank = grid.grid_rank(*sides, p, level, kind)
            known = rank is not None
            confidence = grid.grid_confidence(*sides, p, rank, kind) if known else math.nan
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
        if fewer than `two_way.LEAST` of the smaller side's inputs lie beyond the percentile, or on
        either side of a threshold.

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
