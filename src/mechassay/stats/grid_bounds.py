"""Bounds for a grid of clean x corrupted inputs, whose pairs are not independent.

Let V_ij = f(X_i, Y_j) for n clean inputs X and m corrupted inputs Y, all drawn independently, N = n
m values and s = min(n, m). Pairs in a row share X_i: a thousand of them may be worth one. What N
values are worth is between s and N independent ones, and without a look at f no more than s can be
promised.

**Averaging** (Hoeffding 1963, section 5). For a set A let F be the share of the N values in A and
theta = P(V in A). If n <= m, F is the mean, over all injections pi of rows into columns, of the
shares F_pi = (1/s) sum_i [V_(i, pi(i)) in A]. No row or column occurs twice in one of them, so s
F_pi is Z ~ Bin(s, theta) - for every pi the same, though not independently. For any convex g, by
Jensen,

    E g(s F) <= E g(Z).

A tail probability is not convex, so the binomial tail itself is NOT a bound, whatever n is put into
it. Two convex functions are used, and Markov's inequality:

    chernoff   g = exp(-lambda z), the best lambda: P(F <= y) <= exp(-s D(y || theta)), y <= theta
    shortfall  g = (c - z)_+, any c > s y:          P(F <= y) <= E(c - Z)_+ / (c - s y)

(hoeffding: the first with 2 (theta - y)^2 <= D). Exponentials are mixtures of such hinges, so the
best hinge is never worse than Chernoff. Solved for y, it says that P(F <= y) <= alpha wherever

    s y <= L = max_c [c - E(c - Z)_+ / alpha],    with    E(c - Z)_+ = sum_{i < c} P(Z <= i),

and L is the mean of the smallest alpha of the binomial: its expected shortfall (Rockafellar and
Uryasev 2000). The maximum is at the smallest c with P(Z <= c) > alpha, an alpha-quantile.

**Percentile**: with A = [x_p, infinity), theta >= 1 - p. The k-th smallest of the N values is below
x_p only if F <= 1 - k/N; hence the smallest k with s (1 - k/N) <= L(1 - p) is a bound. All bounds
fall in theta, so that theta > 1 - p does no harm. **Exceedance**: with A = (t, infinity) and e the
observed share, every theta with s e <= L(theta) is refuted with confidence 1 - alpha; the bound is
the smallest of them.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal, get_args

import numpy as np
from scipy.optimize import root_scalar
from scipy.stats import binom

from mechassay.errors import BadUsage, one_of
from mechassay.stats.bounds import (
    ROUNDING,
    at_most_each,
    by_inequality,
    check_share,
    decimal,
    failure_of,
    first_that,
)

GridKind = Literal["shortfall", "chernoff", "hoeffding"]
GRID_KINDS: tuple[GridKind, ...] = get_args(GridKind)
XTOL = 1e-12


def shortfall(s: int, theta: float, alpha: float) -> float:
    """L, the mean of the smallest `alpha` of Bin(s, theta);
    negative values mean that P(Z = 0) exceeds alpha.

    Args:
        s: the smaller side of the grid.
        theta: probability, 0 <= theta <= 1.
    """
    # Every c gives a valid bound, so that the rounding of the quantile does no harm.
    c = min(s, max(1, int(binom.ppf(alpha, s, theta))))
    return c - float(at_most_each(np.full(c, s), np.arange(c), theta).sum()) / alpha


def grid_rank(
    n_clean: int, n_corrupted: int, p: float, level: float = 0.95, kind: str = "shortfall"
) -> int | None:
    """The smallest rank among all pairs whose order statistic is at least
    the p-th percentile with confidence `level`.

    None if not even the largest value is known to be.

    Raises:
        BadUsage: p or level is not between 0 and 1, or a side of the grid is empty.
        UnknownName: `kind` is none of `GRID_KINDS`.
    """
    check_share("p", p)
    check_share("The confidence", level)
    one_of("kind of bound for a grid", kind, GRID_KINDS)
    s, total, alpha = _smaller(n_clean, n_corrupted), n_clean * n_corrupted, failure_of(level)
    if kind == "shortfall":
        lowest = shortfall(s, float(1 - decimal(p)), alpha)
        return None if lowest < 0 else total - math.floor(total * lowest / s)

    def enough(rank: int) -> bool:
        return by_inequality(s, Fraction(rank, total) - decimal(p), p, kind) <= alpha * ROUNDING

    return (
        first_that(enough, min(total, math.ceil(decimal(p) * total)), total)
        if enough(total)
        else None
    )


def grid_confidence(
    n_clean: int, n_corrupted: int, p: float, rank: int, kind: str = "shortfall"
) -> float:
    """The confidence that the value of that rank among all pairs is at least the p-th percentile;
    0 if nothing is known.

    Raises:
        BadUsage: p is not between 0 and 1, or the rank not between 1 and the number of pairs.
        UnknownName: `kind` is none of `GRID_KINDS`.
    """
    check_share("p", p)
    s, total = _smaller(n_clean, n_corrupted), n_clean * n_corrupted
    if not 1 <= rank <= total:
        raise BadUsage(f"A rank must be between 1 and {total}; got {rank}.")
    one_of("kind of bound for a grid", kind, GRID_KINDS)
    if kind != "shortfall":
        return 1 - by_inequality(s, Fraction(rank, total) - decimal(p), p, kind)
    theta, seen = float(1 - decimal(p)), s * (1 - rank / total)
    # Any c gives a valid bound; those above the mean cannot be the best for an alpha below one
    # half.
    c = np.arange(math.floor(seen) + 1, min(s, math.ceil(s * theta) + 1) + 1)
    if not c.size:
        return 0.0
    below = np.arange(c[-1])
    hinge = np.cumsum(at_most_each(np.full(len(below), s), below, theta))[c - 1]
    return max(0.0, 1 - float((hinge / (c - seen)).min()))


def grid_exceedance(hits: int, n_clean: int, n_corrupted: int, level: float = 0.95) -> float:
    """Upper confidence bound of the probability that a fresh pair is among the hits,
    by the shortfall.

    Args:
        hits: pairs of the grid, of n_clean x n_corrupted.

    Raises:
        BadUsage: level is not between 0 and 1, a side of the grid is empty, or hits are not between
            0 and the number of pairs.
    """
    check_share("The confidence", level)
    s, total, alpha = _smaller(n_clean, n_corrupted), n_clean * n_corrupted, failure_of(level)
    if not 0 <= hits <= total:
        raise BadUsage(f"Hits must be between 0 and the {total} pairs of the grid; got {hits}.")
    if hits == total:
        return 1.0
    share = hits / total
    # The shortfall rises in theta, from below the mean of its lowest part to s.
    found = root_scalar(
        lambda theta: s * share - shortfall(s, theta, alpha), bracket=(share, 1.0), xtol=XTOL
    )
    return min(1.0, float(found.root) + XTOL)


def _smaller(n_clean: int, n_corrupted: int) -> int:
    s = min(n_clean, n_corrupted)
    if s < 1:
        raise BadUsage(
            f"A grid needs at least 1 clean and 1 corrupted input; got {n_clean} and {n_corrupted}."
        )
    return s
