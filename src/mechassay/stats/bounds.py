"""Upper confidence bounds of a percentile: of independent draws, of a grid, and of a part of it.

From Proposition 2.1 and Corollary 2.2 of Uit de Bos and Garriga-Alonso (2024), "Adversarial
Circuit Evaluation". Let X_(1) <= ... <= X_(n) be n independent draws and x_p a p-th percentile:
P(X < x_p) <= p. The order statistic X_(k) is below x_p only if at least k draws are, so with Y ~
Bin(n, p)

    P(X_(k) >= x_p) >= P(Y <= k - 1),

with equality if X is continuous; ties only help. `level` is the paper's delta, the confidence
asked for. In the proposition k = ceil((p + epsilon) n), where epsilon is a margin with p +
epsilon < 1. Three ways to compute the confidence, and the number of draws that it needs
(`required_n`):

    exact       P(Y <= k - 1)
    chernoff    1 - exp(-n D(p + epsilon || p)),   D the divergence of Bernoulli distributions
    hoeffding   1 - exp(-2 n epsilon^2)

(the paper's proof of the last lacks the factor 2; its equation and table have it). p, level and
epsilon are read as the decimals they are written as, so that ranks are rounded exactly.

Pairs of a grid of n clean and m corrupted inputs are not independent: N values are worth between
min(n, m) and N independent ones, and without a look at the values no more than min(n, m) can be
promised. Their bounds average over injections of rows into columns (`shortfall`). Those of pairs
of one stratum are sums over the strata (`PartialGrid`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.optimize import root_scalar
from scipy.special import betaincc
from scipy.stats import binom

from mechassay.errors import BadUsage, one_of
from mechassay.stats.intervals import Interval
from mechassay.utils.display import OneLine

Kind = Literal["exact", "chernoff", "hoeffding"]
KINDS: tuple[Kind, ...] = get_args(Kind)
ROUNDING = 1 + 1e-12
"""Failure probabilities are compared up to this factor,
which is above the error of the incomplete beta function.
"""
MAX_DRAWS = 10**8
"""How far the exact search goes."""
MAX_COUNT = 2**53
"""How far a formula goes: above it floating-point numbers leave out whole ones,
and n would have digits that are made up.
"""
SERIES = tuple((-1) ** k / (k * (k - 1)) for k in range(2, 12))


class SampleSize(NamedTuple):
    """Numbers of independent draws.

    Attributes:
        smallest: the smallest n for which the statement holds.
        always: the smallest n from which on it holds for every n.
    """

    smallest: int
    always: int


@dataclass(frozen=True)
class UpperBound:
    """An upper confidence bound of the p-th percentile.

    Attributes:
        value: the order statistic of that rank; infinity if no order statistic is a bound, NaN if
            the rank falls on an undefined value.
        rank: from 1, the smallest value; None if the draws are too few.
        n: values.
        confidence: what the method guarantees for this rank, at least `level`; NaN without a rank.
    """

    value: float
    rank: int | None
    n: int
    p: float
    level: float
    kind: str
    confidence: float

    def __str__(self) -> str:
        text = f"percentile {100 * self.p:g}, confidence {self.level:g}, {self.kind}"
        if self.rank is None:
            return f"{text}: no bound, {self.n:,} values are too few"
        return f"{text}: at most {self.value:.6g} (value {self.rank:,} of {self.n:,})"


def upper_bound(
    values: Float[np.ndarray, "*shape"], p: float, level: float = 0.95, kind: str = "exact"
) -> UpperBound:
    """The smallest order statistic that is at least the p-th percentile with confidence `level`.

    Given draws no epsilon is needed: the smallest rank k is taken whose confidence reaches
    `level`, with k/n for p + epsilon by the inequalities of Chernoff and Hoeffding.

    The largest value is taken only where its rank is asked for: with too few values the bound
    is infinite. NaN counts as larger than every number, so undefined values cannot lower the
    bound.

    Args:
        values: independent draws.

    Raises:
        BadUsage: p or level is not between 0 and 1, or there are no values.
        UnknownName: `kind` is none of `KINDS`.
    """
    rank = smallest_rank(values.size, p, level, kind)
    return bound_at(
        values,
        rank,
        p,
        level,
        kind,
        math.nan if rank is None else rank_confidence(values.size, rank, p, kind),
    )


def bound_at(
    values: Float[np.ndarray, "*shape"],
    rank: int | None,
    p: float,
    level: float,
    kind: str,
    confidence: float = math.nan,
) -> UpperBound:
    """The order statistic of a rank that is known to give a bound, or no bound."""
    value = math.inf if rank is None else float(np.partition(values, rank - 1, axis=None)[rank - 1])
    return UpperBound(value, rank, values.size, p, level, kind, confidence)


def smallest_rank(n: int, p: float, level: float, kind: str = "exact") -> int | None:
    """The smallest rank whose order statistic is a bound with confidence `level`;
    None if not even the largest value is.

    Raises:
        BadUsage: p or level is not between 0 and 1, or n is below 1.
        UnknownName: `kind` is none of `KINDS`.
    """
    _check(p, level, kind)
    _check_n(n)

    def enough(rank: int) -> bool:
        return _rank_failure(n, rank, p, kind) <= failure_of(level) * ROUNDING

    # Below n p no rank has a positive confidence by the inequalities; the exact one needs no such
    # start.
    low = 1 if kind == "exact" else min(n, math.ceil(decimal(p) * n))
    return first_that(enough, low, n) if enough(n) else None


def order_interval(values: Float[np.ndarray, "*shape"], p: float, level: float = 0.95) -> Interval:
    """The exact two-sided interval of the p-th percentile between two order statistics;
    infinite at an end that needs more values.

    The lower end is the largest X_(l) with P(Y <= l - 1) <= (1 - level) / 2, the upper one an
    `upper_bound`.

    Args:
        values: independent draws without NaN.

    Raises:
        BadUsage: p or level is not between 0 and 1, or there are no values.
    """
    high, n = smallest_rank(values.size, p, (1 + level) / 2), values.size

    def too_high(rank: int) -> bool:
        return rank > n or at_most(n, rank - 1, p) > (1 - level) / 2 * ROUNDING

    low = first_that(too_high, 1, n + 1) - 1
    places = [rank - 1 for rank in (low, high) if rank]
    sorted_parts = np.partition(values, places, axis=None) if places else values
    return Interval(
        float(sorted_parts[low - 1]) if low else -math.inf,
        float(sorted_parts[high - 1]) if high else math.inf,
        level,
    )


def rank_confidence(n: int, rank: int, p: float, kind: str = "exact") -> float:
    """The confidence that the order statistic of that rank is at least the p-th percentile,
    by one of the three ways.

    Raises:
        BadUsage: p is not between 0 and 1, or the rank not between 1 and n.
        UnknownName: `kind` is none of `KINDS`.
    """
    _check(p, 0.5, kind)
    if not 1 <= rank <= n:
        raise BadUsage(f"A rank must be between 1 and n = {n}; got {rank}.")
    return 1 - _rank_failure(n, rank, p, kind)


def confidence(n: int, p: float, epsilon: float, kind: str = "exact") -> float:
    """The confidence of Proposition 2.1 (exact) or Corollary 2.2 for n draws,
    p and the margin epsilon.

    Raises:
        BadUsage: p is not between 0 and 1, epsilon not between 0 and 1 - p, or n below 1.
        UnknownName: `kind` is none of `KINDS`.
    """
    _check(p, 0.5, kind)
    _check_n(n)
    _check_epsilon(p, epsilon)
    if kind == "exact":
        return rank_confidence(n, margin_rank(n, p, epsilon), p)
    return 1 - by_inequality(n, decimal(epsilon), p, kind)


def margin_rank(n: int, p: float, epsilon: float) -> int:
    """The proposition's rank ceil((p + epsilon) n), rounded as decimals."""
    return math.ceil((decimal(p) + decimal(epsilon)) * n)


def required_n(
    p: float, level: float, epsilon: float, kind: str = "exact", *, block: int = 2**18
) -> SampleSize:
    """How many draws Proposition 2.1 or Corollary 2.2 needs for confidence `level`.

    By the inequalities the confidence grows with n, and both numbers are the same.

    Args:
        block: teeth of the exact search that are in memory together.

    Raises:
        BadUsage: p or level is not between 0 and 1, epsilon not between 0 and 1 - p, or so small
            that an inequality needs more than `MAX_COUNT` draws, or, for the exact search,
            Chernoff's more than `MAX_DRAWS`.
        UnknownName: `kind` is none of `KINDS`.
    """
    _check(p, level, kind)
    _check_epsilon(p, epsilon)
    rate = 2 * epsilon**2 if kind == "hoeffding" else _divergence(float(decimal(epsilon)), p)
    needed = -math.log(failure_of(level)) / ROUNDING
    if kind == "exact" and needed > rate * MAX_DRAWS:
        raise BadUsage(
            f"epsilon = {epsilon:g} is too small for the exact search, which goes up to"
            f" {MAX_DRAWS:.0e} draws. The Chernoff bound's n is enough."
        )
    if needed > rate * MAX_COUNT:
        raise BadUsage(
            f"epsilon = {epsilon:g} is too small: the {kind} bound would need more than"
            f" {MAX_COUNT:.0e} draws."
        )
    n = max(1, math.ceil(needed / rate))
    return _exact_n(p, level, epsilon, n, block) if kind == "exact" else SampleSize(n, n)


def _exact_n(p: float, level: float, epsilon: float, enough: int, block: int) -> SampleSize:
    """Both exact numbers, given an n from which on the statement holds, such as Chernoff's.

    The exact confidence is a saw in n: it rises while j stays the same and falls where j steps, at
    ceil(j / b). So the smallest n is in the first tooth whose last n holds, and the last n that
    fails in the last tooth whose first n fails. (The paper doubled n until it held, then bisected;
    on a saw this finds some tooth between the two.)
    """
    b, q = 1 - decimal(p) - decimal(epsilon), float(1 - decimal(p))
    n_teeth = int(b * enough) + 1
    # Python's whole numbers where those of 64 bits would overflow.
    kind = np.int64 if (n_teeth + 1) * b.denominator < 2**63 else object

    def starts(first: int, end: int) -> Int[np.ndarray, "k"]:
        teeth = np.arange(first, end + 1).astype(kind)
        return np.maximum(-(-teeth * b.denominator // b.numerator), 1).astype(np.int64)

    def hold(n: Int[np.ndarray, "k"], teeth: Int[np.ndarray, "k"]) -> np.ndarray:
        return at_most_each(n, teeth, q) <= failure_of(level) * ROUNDING

    def holds(n: int) -> bool:
        return at_most(n, int(b * n), q) <= failure_of(level) * ROUNDING

    smallest, last_failure = 0, 0
    for first in range(0, n_teeth, block):
        teeth = np.arange(first, min(first + block, n_teeth))
        edges = starts(first, first + len(teeth))
        holding = np.flatnonzero(hold(edges[1:] - 1, teeth)) if not smallest else []
        if len(holding):
            smallest = first_that(holds, int(edges[holding[0]]), int(edges[holding[0] + 1]) - 1)
        failing = np.flatnonzero(~hold(edges[:-1], teeth))
        if failing.size:
            begin, end = int(edges[failing[-1]]), int(edges[failing[-1] + 1])
            last_failure = first_that(holds, begin, end) - 1
    return SampleSize(smallest, last_failure + 1)


def at_most(n: int, j: int, q: float) -> float:
    """P(Z <= j) for Z ~ Bin(n, q) and 0 <= j < n, with a relative error of about 1e-14.

    Confidences are computed for the draws not below x_p, Z = n - Y ~ Bin(n, q), q = 1 - p: the
    proposition fails if Z <= j = floor(b n), b = 1 - p - epsilon; q and b keep their digits
    when p = 0.9999.
    """
    return float(betaincc(j + 1.0, float(n - j), q))


def at_most_each(
    n: Int[np.ndarray, "k"], j: Int[np.ndarray, "k"], q: float
) -> Float[np.ndarray, "k"]:
    """`at_most` for many n and j."""
    return np.asarray(betaincc(j + 1.0, n - j + 0.0, q), dtype=float)


def _rank_failure(n: int, rank: int, p: float, kind: str) -> float:
    if kind == "exact":
        return at_most(n, n - rank, float(1 - decimal(p)))
    return by_inequality(n, Fraction(rank, n) - decimal(p), p, kind)


def by_inequality(n: int, margin: Fraction, p: float, kind: str) -> float:
    """exp(-n D(p + margin || p)) or exp(-2 n margin^2); 1 for a margin that is not positive."""
    d = float(margin)
    if d <= 0:
        return 1.0
    return math.exp(-n * (_divergence(d, p) if kind == "chernoff" else 2 * d * d))


def _divergence(d: float, p: float) -> float:
    """D(p + d || p) of Bernoulli distributions, taken on the side of the small numbers."""
    q = float(1 - decimal(p))
    # Now D(q + d || q) for -q <= d <= 0; written in d, because it is of second order in it.
    d = -min(d, q)
    return q * _excess(d / q) + (1 - q) * _excess(-d / (1 - q))


def _excess(u: float) -> float:
    """(1 + u) ln(1 + u) - u for u >= -1, by its series where the terms nearly cancel."""
    if abs(u) < 0.01:
        return u * u * sum(term * u**k for k, term in enumerate(SERIES))
    return (1 + u) * math.log1p(u) - u if u > -1 else 1.0


def first_that(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest number in [low, high] that holds, where all after it do and `high` does."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return high


def decimal(number: float) -> Fraction:
    """The decimal that a float is written as: 0.95 is 19/20."""
    return Fraction(str(float(number)))


def failure_of(level: float) -> float:
    """1 - level, rounded once."""
    return float(1 - decimal(level))


def check_share(name: str, value: float) -> None:
    """Refuse what is not strictly between 0 and 1, NaN too."""
    if not 0 < value < 1:
        raise BadUsage(f"{name} must be between 0 and 1, both excluded; got {value:g}.")


def _check(p: float, level: float, kind: str) -> None:
    check_share("p", p)
    check_share("The confidence", level)
    one_of("kind of bound", kind, KINDS)


def _check_n(n: int) -> None:
    if n < 1:
        raise BadUsage(f"A bound needs at least 1 draw; got {n}.")


def _check_epsilon(p: float, epsilon: float) -> None:
    if not (epsilon > 0 and math.isfinite(epsilon) and decimal(p) + decimal(epsilon) < 1):
        raise BadUsage(
            f"epsilon must be above 0 and below 1 - p = {float(1 - decimal(p)):g}; got {epsilon:g}."
        )


GridKind = Literal["shortfall", "chernoff", "hoeffding"]
GRID_KINDS: tuple[GridKind, ...] = get_args(GridKind)
XTOL = 1e-12


def shortfall(s: int, theta: float, alpha: float) -> float:
    """L, the mean of the smallest `alpha` of Bin(s, theta); negative if P(Z = 0) exceeds alpha.

    Let V_ij = f(X_i, Y_j) for n clean inputs X and m corrupted inputs Y, all drawn
    independently, N = n m, and s = min(n, m). Pairs in a row share X_i: a thousand may be worth
    one.

    **Averaging** (Hoeffding 1963, section 5). For a set A let F be the share of the N values in
    A and theta = P(V in A). If n <= m, F is the mean, over all injections pi of rows into
    columns, of F_pi = (1/s) sum_i [V_(i, pi(i)) in A]. These use no row or column twice, so s
    F_pi is Z ~ Bin(s, theta), though not independently for different pi. By Jensen, E g(s F) <=
    E g(Z) for any convex g. A tail probability is not convex, so the binomial tail itself is
    NOT a bound. Markov's inequality with two convex functions is:

        chernoff    g = exp(-lambda z)    P(F <= y) <= exp(-s D(y || theta)), y <= theta
        shortfall   g = (c - z)_+         P(F <= y) <= E(c - Z)_+ / (c - s y)

    with the best lambda, and any c > s y (hoeffding: the first with 2 (theta - y)^2 <= D).
    Exponentials are mixtures of such hinges, so the best hinge is never worse than Chernoff.
    Solved for y: P(F <= y) <= alpha if s y <= L, the mean of the smallest alpha of the binomial
    (its expected shortfall, Rockafellar and Uryasev 2000),

        L = max_c [c - E(c - Z)_+ / alpha],    E(c - Z)_+ = sum_{i < c} P(Z <= i),

    with the maximum at an alpha-quantile. See `grid_rank` and `grid_exceedance` for its use.

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
    """The smallest rank whose value, among all pairs, bounds the p-th percentile from above.

    With A = [x_p, infinity), theta >= 1 - p. The k-th smallest value is below x_p only if F <= 1 -
    k/N, so the smallest k with s (1 - k/N) <= L(1 - p) is a bound with confidence `level`. Bounds
    fall in theta, so theta > 1 - p does no harm. None if not even the largest value is one.

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
    """The confidence that the value of that rank is at least the p-th percentile; 0 if unknown.

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
    theta = float(1 - decimal(p))
    return hinge_confidence(s, theta, s * theta, s * (1 - rank / total))


def hinge_confidence(n: int, theta: float, mean: float, seen: float) -> float:
    """1 - the best hinge bound on P(Bin(n, theta) <= seen); `mean` is n theta."""
    # Any c gives a valid bound; one above the mean is never the best for an alpha below one half.
    c = np.arange(math.floor(seen) + 1, min(n, math.ceil(mean) + 1) + 1)
    if not c.size:
        return 0.0
    below = np.arange(c[-1])
    hinge = np.cumsum(at_most_each(np.full(len(below), n), below, theta))[c - 1]
    return max(0.0, 1 - float((hinge / (c - seen)).min()))


def grid_exceedance(hits: int, n_clean: int, n_corrupted: int, level: float = 0.95) -> float:
    """Upper confidence bound of the probability that a fresh pair is a hit, by the shortfall.

    With e the observed share, every theta with s e <= L(theta) is refuted with confidence `level`;
    the bound is the smallest of them.

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
    return smallest_refuted(lambda theta: s * share - shortfall(s, theta, alpha), share)


def smallest_refuted(excess: Callable[[float], float], share: float) -> float:
    """The root in theta, from the observed share to 1, of what exceeds the rising shortfall."""
    theta = root_scalar(excess, bracket=(share, 1.0), xtol=XTOL)
    return min(1.0, float(theta.root) + XTOL)


def _smaller(n_clean: int, n_corrupted: int) -> int:
    s = min(n_clean, n_corrupted)
    if s < 1:
        raise BadUsage(
            f"A grid needs at least 1 clean and 1 corrupted input; got {n_clean} and {n_corrupted}."
        )
    return s


@dataclass(frozen=True, eq=False, repr=False)
class PartialGrid(OneLine):
    """The stratum of every prompt of a grid, as a number.

    A part of a grid: the pairs whose two prompts are of one stratum, such as one template. The
    stratum of a prompt is the values of some of its fields. What is left of a grid is a whole
    grid for each stratum s: n_s clean with m_s corrupted prompts, w_s = n_s m_s / sum n m of
    the values.

    **Bounds** hold given the strata of the sample: for the population in which stratum s has
    the share w_s and both prompts are drawn independently within it. Let F be the share of the
    values in a set, theta its mean, and k_s = min(n_s, m_s). By averaging (`shortfall`), for
    the mean of any convex function, the share in block s is at most Bin(k_s, theta_s) / k_s.
    Blocks share no prompt, so F is at most the sum of w_s / k_s Bin(k_s, theta_s). Let K be the
    smallest k_s / w_s, and N = sum k_s. A variable in [0, 1/K] is at most the one with its mean
    that is 0 or 1/K, and a sum of N of these is at most a binomial one (Hoeffding 1956). So
    with Z ~ Bin(N, theta K / N)

        E g(K F) <= E g(Z),    P(F <= y) <= alpha    where K y <= the shortfall of Z.

    K is the number of values over the most that one prompt is in. For one block K = N = min(n,
    m), and the bound is the grid's.

    **Intervals** resample all rows and columns (`stats.bootstrap`), so strata get other shares,
    as in another sample. They are about pairs drawn as these were, given that their strata
    agree, and count K inputs. Pairs of different strata have intervals by the same rule, and no
    bounds.

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
