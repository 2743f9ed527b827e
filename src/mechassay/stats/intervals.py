"""Intervals and areas: numbers in, numbers out, no models.

Intervals are bootstraps over groups: the groups of examples are drawn with replacement, each
with all its examples, and a statistic of means is recomputed from the same per-example values;
nothing is run again. Randomness comes in as a `numpy.random.Generator`.

A `BootstrapEstimate` is a weighted sum of means, or of their absolute values (`FoldedSum`). Of
the latter a percentile interval is wrong near 0: |x| folds the noise of x, so the estimate is too
large, and each resample adds the noise once more. The interval of such a sum inverts a test: it
holds the totals under which a sum as far off as the one at hand is not unusual. A difference of
two such sums has no such test, and bounds the bias of both.

Groups that all agree show no spread. Few of them have no interval rather than one of width 0.

Differences that rounding alone may have made are 0 (`resolved_difference`), so that no share
divides by them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, DTypeLike
from scipy.optimize import root_scalar
from scipy.special import betaincinv, ndtr, ndtri, stdtrit

from mechassay.utils.display import OneLine

N_RESAMPLES = 2000
LEVEL = 0.95
BLOCK = 2**22
"""Numbers that resamples or permutations have in memory at once."""
FEW_GROUPS = 20
"""Fewer independent groups of examples than this support no verdict.

n groups that all agree leave room, at 95 %, for a share 1 - 0.05^(1/n) of groups that do
otherwise: 78 % for 2 groups, 45 % for 5, 14 % for 20. From 20 on, intervals of means cover about
what they promise (docs/areas.md).
"""
AGREE = 1e-12
"""Resamples that differ by less than this part of their size differ by rounding."""
NEAR = 2.0
"""How many standard errors a mean may lie nearer to 0, or farther, when a bias is bounded."""
FAR = 5.0
"""More standard errors than 1 in 20 resamples can be off: sqrt(20) = 4.5 (Chebyshev)."""


class Interval(NamedTuple):
    """A two-sided interval at some level (0.95: covers 95 %)."""

    low: float
    high: float
    level: float = LEVEL

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high


NO_INTERVAL = Interval(math.nan, math.nan)


@dataclass(frozen=True)
class Estimate:
    """A number with the interval it may be in; NaN at both ends where it has none."""

    value: float
    low: float = math.nan
    high: float = math.nan


class Resamples:
    """Resamples of whole groups of examples, the same for every statistic of one object.

    Args:
        groups: the group of each example.
    """

    def __init__(
        self, groups: Sequence[str], rng: np.random.Generator, n_resamples: int = N_RESAMPLES
    ) -> None:
        names, self._member = np.unique(np.asarray(groups), return_inverse=True)
        self.n_groups, self.n_resamples, self._rng = len(names), n_resamples, rng
        self._sizes = np.bincount(self._member, minlength=self.n_groups).astype(float)
        # Kept where they fit: drawing them takes longer than using them.
        self._kept = list(self._drawn(rng)) if n_resamples * self.n_groups <= BLOCK else None

    def _drawn(self, rng: np.random.Generator) -> Iterator[Float[np.ndarray, "block groups"]]:
        """How often each resample has each group."""
        step, shares = max(1, BLOCK // self.n_groups), np.full(self.n_groups, 1 / self.n_groups)
        for begin in range(0, self.n_resamples, step):
            size = min(step, self.n_resamples - begin)
            yield rng.multinomial(self.n_groups, shares, size=size).astype(float)

    def means(self, values: Float[np.ndarray, "k n"]) -> Float[np.ndarray, "resamples k"]:
        """Means of each row of `values` in every resample.

        Groups may differ in size: a resample's mean divides by the examples it drew.
        """
        sums = np.zeros((len(values), self.n_groups))
        for row, line in zip(sums, np.asarray(values, dtype=float), strict=True):
            row += np.bincount(self._member, weights=line, minlength=self.n_groups)
        # A copy of the generator draws the same again.
        blocks = self._drawn(deepcopy(self._rng)) if self._kept is None else self._kept
        return np.concatenate(
            [(counts @ sums.T) / (counts @ self._sizes)[:, None] for counts in blocks]
        )


def resampled_means(
    values: Float[np.ndarray, "k n"],
    groups: Sequence[str],
    rng: np.random.Generator,
    n_resamples: int = N_RESAMPLES,
) -> Float[np.ndarray, "resamples k"]:
    """Means of each row of `values` under resampling of whole groups, see `Resamples`."""
    return Resamples(groups, rng, n_resamples).means(values)


def percentile_interval(
    draws: Float[np.ndarray, "resamples"], level: float = LEVEL, *, n_groups: int | None = None
) -> Interval:
    """The central `level` of the draws; NaN at both ends if any draw is undefined.

    Args:
        n_groups: how many groups were resampled. Tails are then those of Student's distribution for
            so many (the expanded percentile interval of Hesterberg 2015). One group has no
            interval, nor have fewer than `FEW_GROUPS` that agree.
    """
    tail = (1 - level) / 2
    if np.isnan(draws).any():
        return Interval(math.nan, math.nan, level)
    if n_groups is not None:
        if not _enough(draws, n_groups, float(np.abs(draws).max(initial=0.0))):
            return Interval(math.nan, math.nan, level)
        tail = float(ndtr(ndtri(tail) * widening(n_groups, level)))
    low, high = np.quantile(draws, [tail, 1 - tail])
    return Interval(float(low), float(high), level)


def _enough(draws: Float[np.ndarray, "resamples"], n_groups: int, size: float) -> bool:
    """Whether resamples of statistics of this size can say how sure they are."""
    if n_groups >= FEW_GROUPS:
        return True
    spread = draws.max(initial=-math.inf) - draws.min(initial=math.inf)
    return n_groups >= 2 and not spread <= AGREE * size


def proportion_interval(
    right: Float[np.ndarray, "n"], groups: Sequence[str], level: float = LEVEL
) -> Interval:
    """Interval of a proportion of grouped examples.

    Clopper and Pearson's with the effective sample size of Korn and Graubard (1998).
    The effective size n* makes p (1 - p) / n* the variance of the mean over whole groups; it is at
    most n. Where all examples agree the variance says nothing, and n* is the number of groups.
    Unlike a bootstrap, 50 right of 50 do not give an interval of no width. NaN without examples.
    """
    n = len(right)
    if n == 0:
        return Interval(float("nan"), float("nan"), level)
    names, member = np.unique(np.asarray(groups), return_inverse=True)
    p, n_groups = float(np.mean(right)), len(names)
    spread = p * (1 - p)
    if spread == 0 or n_groups == 1:
        size = float(n_groups)
    else:
        residuals = np.bincount(
            member, weights=np.asarray(right, dtype=float) - p, minlength=n_groups
        )
        variance = n_groups / (n_groups - 1) * float(residuals @ residuals) / n**2
        size = min(float(n), spread / variance) if variance > 0 else float(n)
    return clopper_pearson(p * size, size, level)


def clopper_pearson(hits: float, size: float, level: float = LEVEL) -> Interval:
    """Clopper and Pearson's interval of a proportion: `hits` of `size` independent examples."""
    tail = (1 - level) / 2
    low = float(betaincinv(hits, size - hits + 1, tail)) if hits > 0 else 0.0
    high = float(betaincinv(hits + 1, size - hits, 1 - tail)) if size > hits else 1.0
    return Interval(low, high, level)


def student_interval(values: Float[np.ndarray, "n"], level: float = LEVEL) -> Interval:
    """Student's interval of a mean; NaN for fewer than two values, or infinite ones."""
    if values.size < 2 or not np.isfinite(values).all():
        return Interval(math.nan, math.nan, level)
    half = (
        float(stdtrit(values.size - 1, (1 + level) / 2))
        * float(values.std(ddof=1, dtype=float))
        / math.sqrt(values.size)
    )
    mean = float(values.mean(dtype=float))
    return Interval(mean - half, mean + half, level)


def trapezoid(
    y: Float[np.ndarray, "*lead k"], x: Float[np.ndarray, "k"]
) -> Float[np.ndarray, "*lead"]:
    """Area under y over x along the last axis, by the trapezoidal rule."""
    return np.trapezoid(y, x, axis=-1)


@dataclass(frozen=True, eq=False, repr=False)
class BootstrapEstimate(OneLine):
    """A number with the errors that resampling says it may have.

    Attributes:
        value: the statistic of the examples at hand.
        errors: a resample's statistic minus `value`; of absolute values, minus their mean.
        n_groups: how many groups were resampled.
        bias: the least and the most that the value may be too large on average.
        within: the least and the most that the statistic can be.
    """

    value: float
    errors: Float[np.ndarray, "resamples"]
    n_groups: int
    bias: tuple[float, float] = (0.0, 0.0)
    within: tuple[float, float] = (-math.inf, math.inf)

    @property
    def has_interval(self) -> bool:
        """False for an undefined resample, one group, or fewer than `FEW_GROUPS` that agree."""
        if math.isnan(self.value) or np.isnan(self.errors).any():
            return False
        # These statistics are sums of shares, which are of the order of 1 where they cancel.
        return _enough(self.errors, self.n_groups, max(1.0, abs(self.value)))

    @cached_property
    def interval(self) -> Interval:
        """Of the statistic of all examples; NaN without (`has_interval`).

        From the value less the upper quantile of its errors to the value less their lower one (the
        basic bootstrap), widened for few groups by `widening`, and by what the bias may be.
        """
        if not self.has_interval:
            return NO_INTERVAL
        tail = (1 - LEVEL) / 2
        low, high = widening(self.n_groups) * np.quantile(self.errors, [tail, 1 - tail])
        above, below = min(0.0, self.bias[0]), max(0.0, self.bias[1])
        ends = self.value - float(high) - below, self.value - float(low) - above
        least, most = self.within
        return Interval(max(ends[0], least), min(ends[1], most))

    def __sub__(self, other: BootstrapEstimate) -> BootstrapEstimate:
        """The difference of two statistics of the same resamples."""
        return BootstrapEstimate(
            self.value - other.value,
            self.errors - other.errors,
            self.n_groups,
            (self.bias[0] - other.bias[1], self.bias[1] - other.bias[0]),
        )


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class FoldedSum(BootstrapEstimate):
    """The sum of w |x| over means x, with what its interval is made of; see `folded_sum`."""

    means: Float[np.ndarray, "k"]
    draws: Float[np.ndarray, "resamples k"]
    weights: Float[np.ndarray, "k"]

    @cached_property
    def interval(self) -> Interval:
        """Of the sum over all examples; NaN without (`has_interval`).

        It holds a total if the value's distance from it is at most the 95 % quantile of the
        distances that resamples have around means with this total. These are the means at hand,
        all moved to or from 0 by the same number of standard errors. At 0 the test is one-sided,
        as the sum is; far from 0 it has two equal sides.
        """
        if not self.has_interval:
            return NO_INTERVAL
        errors = widening(self.n_groups) * (self.draws - self.means)
        sizes = np.sqrt(np.mean(errors**2, axis=0))

        def total(nearer: float) -> float:
            return float(np.abs(_moved(self.means, nearer * sizes)) @ self.weights)

        def margin(nearer: float) -> float:
            at = total(nearer)
            sums = np.abs(_moved(self.means, nearer * sizes) + errors) @ self.weights
            return float(np.quantile(np.abs(sums - at), LEVEL)) - abs(self.value - at)

        moving = sizes > 0
        all_at_0 = float((np.abs(self.means[moving]) / sizes[moving]).max(initial=0.0))
        nearest = all_at_0
        if margin(all_at_0) < 0:
            nearest = root_scalar(margin, bracket=(0.0, all_at_0), xtol=1e-4, maxiter=500).root
        farthest = root_scalar(margin, bracket=(-FAR, 0.0), xtol=1e-4).root
        return Interval(total(nearest), total(farthest))


def _moved(means: Float[np.ndarray, "k"], nearer: Float[np.ndarray, "k"]) -> Float[np.ndarray, "k"]:
    """Means moved towards 0, not beyond it, or away from it where `nearer` is negative."""
    return np.where(means < 0, -1.0, 1.0) * np.maximum(np.abs(means) - nearer, 0.0)


def widening(n_groups: int, level: float = LEVEL) -> float:
    """By how much errors of resampled means are too small; NaN below two groups.

    sqrt(n / (n - 1)) t / z, with quantiles t of Student's distribution with n - 1 degrees of
    freedom, and z of the normal one.
    """
    if n_groups < 2:
        return math.nan
    tail = (1 - level) / 2
    return math.sqrt(n_groups / (n_groups - 1)) * float(stdtrit(n_groups - 1, tail) / ndtri(tail))


def linear_sum(
    means: Float[np.ndarray, "k"],
    draws: Float[np.ndarray, "resamples k"],
    weights: Float[np.ndarray, "k"],
    n_groups: int,
    *,
    within: tuple[float, float] = (-math.inf, math.inf),
) -> BootstrapEstimate:
    """The sum of w x over means x, given their resamples; `within` is where it can lie."""
    errors = (draws - means) @ weights
    return BootstrapEstimate(float(means @ weights), errors, n_groups, within=within)


def folded_sum(
    means: Float[np.ndarray, "k"],
    draws: Float[np.ndarray, "resamples k"],
    weights: Float[np.ndarray, "k"],
    n_groups: int,
) -> BootstrapEstimate:
    """The sum of w |x| over means x, given their resamples; weights are not negative.

    Noise makes it too large where x is near 0. Nobody knows how near, so the bias is bounded by
    what it would be with all x `NEAR` standard errors farther from 0, and nearer to it.
    """
    errors, sums = draws - means, np.abs(draws) @ weights
    farther, nearer = (
        float((np.abs(moved + errors).mean(axis=0) - np.abs(moved)) @ weights)
        for moved in (_moved(means, by * errors.std(axis=0)) for by in (-NEAR, NEAR))
    )
    return FoldedSum(
        value=float(np.abs(means) @ weights),
        errors=sums - sums.mean(),
        n_groups=n_groups,
        bias=(farther, nearer),
        means=means,
        draws=draws,
        weights=weights,
    )


def independent_mean(
    estimates: Sequence[Estimate], groups: Sequence[str] | None = None
) -> Estimate:
    """Return the mean of estimates whose groups are independent; NaN if there is no estimate.

    With [l_i, u_i] the interval of x_i, that of the mean m of k estimates is [m - d, m + e],

        d = 1/k sqrt( sum over groups g of (sum over i in g of (x_i - l_i))^2 ),

    and e the same with u_i - x_i (recovered variances, Zou and Donner 2008). Estimates of one group
    may have examples in common, so their errors may be equal, and no errors add up to more than
    their half-widths do.

    Args:
        groups: group of each estimate, for example the task; by default every estimate is a group.
    """
    if not estimates:
        return Estimate(math.nan)
    below: dict[str | int, float] = {}
    above: dict[str | int, float] = {}
    for own, group in zip(estimates, groups or range(len(estimates)), strict=True):
        below[group] = below.get(group, 0.0) + (own.value - own.low)
        above[group] = above.get(group, 0.0) + (own.high - own.value)
    n = len(estimates)
    value = sum(own.value for own in estimates) / n
    lower, upper = (math.hypot(*side.values()) / n for side in (below, above))
    return Estimate(value, value - lower, value + upper)


def mean_estimate(estimates: Sequence[BootstrapEstimate]) -> BootstrapEstimate:
    """The mean of several statistics of the same resamples."""
    return BootstrapEstimate(
        float(np.mean([estimate.value for estimate in estimates])),
        np.mean([estimate.errors for estimate in estimates], axis=0),
        estimates[0].n_groups,
        (
            float(np.mean([estimate.bias[0] for estimate in estimates])),
            float(np.mean([estimate.bias[1] for estimate in estimates])),
        ),
        estimates[0].within,
    )


N_GROUP_RESAMPLES = 1000


def example_weights(
    groups: Sequence[str], rng: np.random.Generator, n_resamples: int = N_GROUP_RESAMPLES
) -> tuple[Float[np.ndarray, "resamples n"], int]:
    """How often each resample has each example, and how many groups there are.

    Groups are drawn with replacement, each with all its examples.
    """
    names, member = np.unique(np.asarray(groups), return_inverse=True)
    n = len(names)
    counts = rng.multinomial(n, np.full(n, 1 / n), size=n_resamples).astype(float)
    return counts[:, member], n


def weighted_means(
    weights: Float[np.ndarray, "resamples n"], values: Float[np.ndarray, "n"]
) -> Float[np.ndarray, "resamples"]:
    """The mean of the values in every resample."""
    return weights @ values / weights.sum(axis=1)


WALK = 2.0**7
"""The rounding of a random walk over 2^14 additions, in eps of the size of what is added."""


def resolved_difference(
    a: ArrayLike,
    b: ArrayLike,
    values: Float[np.ndarray, "*runs n"],
    *,
    least: float = 0.0,
    dtype: DTypeLike | None = None,
) -> Any:
    """a - b, and exactly 0 where rounding alone may have made it; NaN stays NaN.

    Two runs that do the same sums in another order differ, although nothing does. A logit is
    the end of a chain of dot products; its error is a random walk of one eps of its size a
    step. Over 2^14 additions, as in 30 blocks of width 576, that is about 2^7 eps. Full and
    empty circuits of equal prompts, which have nothing to differ in, differ by at most 80 eps
    an example in tiny models of five families and in SmolLM2-135M, in float32 and in float64.

    Objectives are differences of logits, or functions of them, so their rounding is that of
    their terms. Only values are stored, and their mean size stands for that of the terms. The
    size of their mean would be too small: values of either sign cancel in it, and their errors
    do not. That errors of many examples cancel in part does not count either, since two
    examples may be the same one.

    The bound is 3e-14 of the values' size in float64 and 2e-5 in float32. Half precision errs
    by percents, which only an interval over examples can tell from an effect; its logits are
    made float32, and the bound is that of float32.

    Args:
        a, b: means of values, or of resamples of them, in any shapes that broadcast.
        values: the numbers that these are means of, of all runs: a row a run, a column an
            example. Of an example the largest in magnitude counts.
        least: the size of the numbers that the values are sums of, where that is known and
            larger: 1 for a divergence near 0, whose terms p log p are of the order of 1.
        dtype: in which the values were computed; else float32 if it holds all of them exactly,
            as it does what was copied from there to float64, and float64 if not.

    Returns:
        float64, in the shape of a - b.
    """
    rows = np.atleast_2d(np.asarray(values, dtype=float))
    if dtype is None:
        with np.errstate(over="ignore"):
            single = np.array_equal(rows, rows.astype(np.float32), equal_nan=True)
        dtype = np.float32 if single else np.float64
    sizes = np.maximum(np.abs(rows).max(axis=0), least)
    difference = np.subtract(a, b, dtype=float)
    below = np.abs(difference) <= WALK * float(np.finfo(dtype).eps) * sizes.mean()
    return np.where(below, 0.0, difference)
