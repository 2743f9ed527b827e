"""A part of a grid: the pairs whose two prompts are of one stratum, such as one template.

The stratum of a prompt is the values of some of its fields. What is left of a grid is a whole grid
for each stratum s: n_s clean with m_s corrupted prompts, w_s = n_s m_s / sum n m of the values.

**Bounds** hold given the strata of the sample: for the population in which stratum s has the share
w_s and both prompts are drawn independently within it. Let F be the share of the values in a set,
theta its mean, and k_s = min(n_s, m_s). By averaging (`grid_bounds`), for the mean of any convex
function, the share in block s is at most Bin(k_s, theta_s) / k_s. Blocks share no prompt, so F is
at most the sum of w_s / k_s Bin(k_s, theta_s). Let K be the smallest k_s / w_s, and N = sum k_s. A
variable in [0, 1/K] is at most the one with its mean that is 0 or 1/K, and a sum of N of these is
at most a binomial one (Hoeffding 1956). So with Z ~ Bin(N, theta K / N)

    E g(K F) <= E g(Z),    P(F <= y) <= alpha    where K y <= the shortfall of Z.

K is the number of values over the most that one prompt is in. For one block K = N = min(n, m), and
the bound is the grid's.

**Intervals** resample all rows and columns (`two_way`), so strata get other shares, as in another
sample. They are about pairs drawn as these were, given that their strata agree, and count K inputs.
Pairs of different strata have intervals by the same rule, and no bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from mechassay.display import OneLine
from mechassay.errors import BadUsage
from mechassay.stats.bounds import check_share, decimal, failure_of
from mechassay.stats.grid_bounds import hinge_confidence, shortfall, smallest_refuted


@dataclass(frozen=True, eq=False, repr=False)
class PartialGrid(OneLine):
    """The stratum of every prompt of a grid, as a number.

    Attributes:
        clean, corrupted: of the prompts of each side, in their order.

    Raises:
        BadUsage: no clean prompt has the stratum of a corrupted one.
    """

    clean: Int[np.ndarray, "clean"]
    corrupted: Int[np.ndarray, "corrupted"]

    def __post_init__(self) -> None:
        if not np.isin(self.clean, self.corrupted).any():
            raise BadUsage(
                "No clean prompt of the grid is of the stratum of a corrupted one: there are no"
                " pairs."
            )

    @staticmethod
    def of(clean: Sequence[Any], corrupted: Sequence[Any]) -> PartialGrid:
        """From a label of every prompt, anything that can be a key."""
        numbers: dict[Any, int] = {}
        codes = [
            np.array([numbers.setdefault(label, len(numbers)) for label in side], dtype=np.int64)
            for side in (clean, corrupted)
        ]
        return PartialGrid(*codes)

    @property
    def shape(self) -> tuple[int, int]:
        """Clean and corrupted prompts."""
        return len(self.clean), len(self.corrupted)

    @cached_property
    def mask(self) -> Bool[np.ndarray, "clean corrupted"]:
        """Which pairs there are."""
        return self.clean[:, None] == self.corrupted[None, :]

    def blocks(self) -> list[tuple[Int[np.ndarray, "rows"], Int[np.ndarray, "columns"]]]:
        """The prompts of each stratum that both sides have, in the order of their numbers."""
        both = np.intersect1d(self.clean, self.corrupted).tolist()
        return [
            (np.flatnonzero(self.clean == stratum), np.flatnonzero(self.corrupted == stratum))
            for stratum in both
        ]

    @cached_property
    def sides(self) -> Int[np.ndarray, "blocks 2"]:
        """n_s and m_s of every block."""
        both, ours = np.unique(self.clean, return_counts=True)
        others, theirs = np.unique(self.corrupted, return_counts=True)
        _, mine, yours = np.intersect1d(both, others, return_indices=True)
        return np.stack([ours[mine], theirs[yours]], axis=1)

    @property
    def n_values(self) -> int:
        """Pairs."""
        return int(self.sides.prod(axis=1).sum())

    @property
    def n_draws(self) -> int:
        """N, the most disjoint pairs."""
        return int(self.sides.min(axis=1).sum())

    @property
    def units(self) -> float:
        """K, the independent pairs that bounds and intervals count."""
        return self.n_values / int(self.sides.max())

    def select(self, rows: Sequence[int], columns: Sequence[int]) -> PartialGrid:
        """The strata of some prompts, in that order."""
        return PartialGrid(self.clean[list(rows)], self.corrupted[list(columns)])


def reach(mask: Bool[np.ndarray, "clean corrupted"]) -> float:
    """A part's pairs over the most that one prompt is in, in place of a grid's smaller side."""
    most = max(int(mask.sum(axis=0).max()), int(mask.sum(axis=1).max()))
    return int(mask.sum()) / most if most else 0.0


def partial_rank(strata: PartialGrid, p: float, level: float = 0.95) -> int | None:
    """The smallest rank whose value, among all pairs, bounds the p-th percentile from above.

    None if with confidence `level` not even the largest value does.

    Raises:
        BadUsage: p or level is not between 0 and 1.
    """
    check_share("p", p)
    check_share("The confidence", level)
    total = strata.n_values
    lowest = _lowest(strata, float(1 - decimal(p)), failure_of(level))
    return None if lowest < 0 else total - math.floor(total * lowest / strata.units)


def partial_confidence(strata: PartialGrid, p: float, rank: int) -> float:
    """The confidence that the value of that rank is at least the p-th percentile; 0 if unknown.

    Raises:
        BadUsage: p is not between 0 and 1, or the rank not between 1 and the number of pairs.
    """
    check_share("p", p)
    total, n = strata.n_values, strata.n_draws
    if not 1 <= rank <= total:
        raise BadUsage(f"A rank must be between 1 and {total}; got {rank}.")
    mean, seen = float(1 - decimal(p)) * strata.units, strata.units * (1 - rank / total)
    return hinge_confidence(n, mean / n, mean, seen)


def partial_exceedance(strata: PartialGrid, hits: int, level: float = 0.95) -> float:
    """Upper confidence bound of the probability that a fresh pair is a hit.

    Args:
        hits: pairs, of all in the strata.

    Raises:
        BadUsage: level is not between 0 and 1, or hits are not between 0 and the number of pairs.
    """
    check_share("The confidence", level)
    total, alpha = strata.n_values, failure_of(level)
    if not 0 <= hits <= total:
        raise BadUsage(f"Hits must be between 0 and the {total} pairs of the part; got {hits}.")
    if hits == total:
        return 1.0
    seen = strata.units * hits / total
    # If even at theta = 1 the shortfall is below what was seen, nothing is refuted.
    if _lowest(strata, 1.0, alpha) <= seen:
        return 1.0
    return smallest_refuted(lambda theta: seen - _lowest(strata, theta, alpha), hits / total)


def _lowest(strata: PartialGrid, theta: float, alpha: float) -> float:
    """The value below which K F lies with a probability of at most alpha."""
    return shortfall(strata.n_draws, theta * strata.units / strata.n_draws, alpha)


def outside(
    values: Float[np.ndarray, "clean corrupted"], mask: Bool[np.ndarray, "clean corrupted"]
) -> Float[np.ndarray, "clean corrupted"]:
    """The values of some pairs; NaN at the others."""
    return np.where(mask, values, np.nan)
