"""Tests of labels by permutation: which labels of a field make a circuit fail, and by how much.

Inputs come in strata (`Field.strata`): how they are built, such as template and number of
tokens. The null hypothesis is that, within a stratum, labels have nothing to do with the values.
Labels are permuted within strata by whole rows or columns of a grid, never by pairs, because
pairs of a row share their input; nothing is assumed about the columns. A label is compared with
the rest of its strata: the pairs of the other labels there, weighted so that each stratum counts
as it does among the label's own inputs. A stratum of one label is left out. The statistic is the
label's exceedance or percentile minus that of the rest. It is centred and scaled over the
permutations and the observed labels (one of them), together for all labels with as many inputs
in each stratum. Then

    adjusted p of a label = share of the permutations whose largest scaled statistic
                            reaches its own

(Westfall and Young 1993, single-step maxT). The step-down version needs labels that are
exchangeable without the worse ones, which "the rest" contains, and is not used.

Only counts between thresholds are permuted: one threshold for an exceedance, for a percentile
`N_THRESHOLDS` of the pooled values, between which it is interpolated. If every input has a
single pair, tables label x count are drawn given their margins (Patefield 1981): the same
distribution, at a cost that does not depend on the number of pairs.

How much worse a label is, with an interval of its own: `label_effects`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from scipy.special import stdtrit
from scipy.stats import random_table

from mechassay.errors import BadUsage, NonFinite
from mechassay.stats.bootstrap import LEAST
from mechassay.stats.bounds import check_share
from mechassay.stats.distribution import Field
from mechassay.stats.intervals import BLOCK, LEVEL
from mechassay.utils.display import OneLine

N_PERMUTATIONS = 2000
N_THRESHOLDS = 64
ROUNDING = 1e-9

Tables = tuple[Float[np.ndarray, "draws labels bins"], Float[np.ndarray, "draws labels bins"]]
"""Counts of the pairs of each label, and of those it is compared with."""


@dataclass(frozen=True)
class Exceedance:
    """The share of a label's pairs with a value above a threshold."""

    above: float

    def thresholds(self, values: Float[np.ndarray, "n"]) -> Float[np.ndarray, "t"]:
        return np.array([self.above], dtype=float)

    def measure(
        self, counts: Float[np.ndarray, "*lead bins"], thresholds: Float[np.ndarray, "t"]
    ) -> Float[np.ndarray, "*lead"]:
        """From the numbers of values between thresholds; NaN without values."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return counts[..., 1] / counts.sum(axis=-1)


@dataclass(frozen=True)
class HighPercentile:
    """The p-th percentile of a label's pairs."""

    p: float

    def thresholds(self, values: Float[np.ndarray, "n"]) -> Float[np.ndarray, "t"]:
        """Pooled values; half of them have a fifth to five times the share 1 - p above them."""
        check_share("A percentile", self.p)
        if not np.isfinite(values).all():
            raise NonFinite(
                "A test of percentiles needs finite values; infinite ones can be tested by their"
                " exceedance."
            )
        rising = np.sort(values)
        n, half = values.size, N_THRESHOLDS // 2
        near = np.geomspace((1 - self.p) / 5, (1 - self.p) * 5, half) * n
        beyond = np.concatenate([np.geomspace(1, n, half), near.clip(1, n)]).astype(int)
        return np.unique(rising[n - beyond]).astype(float)

    def measure(
        self, counts: Float[np.ndarray, "*lead bins"], thresholds: Float[np.ndarray, "t"]
    ) -> Float[np.ndarray, "*lead"]:
        """Interpolated where the share of values at or below a threshold reaches p; NaN if none."""
        # No value is above the last threshold, so some threshold reaches p.
        below = np.cumsum(counts, axis=-1)[..., :-1]
        wanted = self.p * below[..., -1:]
        place = (below >= wanted * (1 - ROUNDING)).argmax(axis=-1)[..., None]
        before = np.maximum(place - 1, 0)
        low, high = (np.take_along_axis(below, at, axis=-1) for at in (before, place))
        share = np.where(high > low, (wanted - low) / np.where(high > low, high - low, 1), 1.0)
        value = thresholds[before] + share * (thresholds[place] - thresholds[before])
        return np.where(below[..., -1] > 0, value[..., 0], np.nan)


@dataclass(frozen=True, eq=False)
class Comparison:
    """The inputs of a field that can be compared within strata.

    Attributes:
        names: the labels, sorted.
        inputs: how many inputs have each label.
        kept: places of the inputs in strata of two or more labels.
        code, stratum: of the kept inputs: columns and rows of `sizes`.
        sizes: kept inputs of each label in each stratum that is kept.
        n_strata: strata of all inputs.
    """

    names: tuple[str, ...]
    inputs: Int[np.ndarray, "labels"]
    kept: Int[np.ndarray, "kept"]
    code: Int[np.ndarray, "kept"]
    stratum: Int[np.ndarray, "kept"]
    sizes: Int[np.ndarray, "strata labels"]
    n_strata: int

    @staticmethod
    def of(field: Field) -> Comparison:
        """Of a field.

        Raises:
            BadUsage: it has fewer than two labels.
        """
        names, code = np.unique(np.asarray(field.labels), return_inverse=True)
        if len(names) < 2:
            raise BadUsage(
                f"A test of labels needs at least 2 of them; the field {field.name} has"
                f" {len(names)}."
            )
        built = np.zeros(len(code), dtype=np.int64)
        if field.strata is not None:
            built = np.unique(np.asarray(field.strata), return_inverse=True)[1]
        sizes = np.zeros((int(built.max()) + 1, len(names)), dtype=np.int64)
        np.add.at(sizes, (built, code), 1)
        several = (sizes > 0).sum(axis=1) > 1
        kept = np.flatnonzero(several[built])
        stratum = (np.cumsum(several) - 1)[built[kept]]
        return Comparison(
            tuple(map(str, names)),
            np.bincount(code),
            kept,
            code[kept],
            stratum,
            sizes[several],
            len(several),
        )

    @property
    def compared(self) -> Int[np.ndarray, "labels"]:
        """How many inputs of each label are compared with others."""
        return self.sizes.sum(axis=0)

    @property
    def others(self) -> Int[np.ndarray, "strata labels"]:
        """How many inputs of other labels each stratum has."""
        return self.sizes.sum(axis=1, keepdims=True) - self.sizes

    @property
    def weights(self) -> Float[np.ndarray, "strata labels"]:
        """What an input of another label counts in the rest that a label is compared with."""
        return self.sizes / self.others

    def rest(
        self, own: Float[np.ndarray, "draws labels bins"], counts: Float[np.ndarray, "kept bins"]
    ) -> Float[np.ndarray, "draws labels bins"]:
        """Counts of the rest, from the label's own counts weighted by `weights`, in each draw."""
        total = np.zeros((len(self.sizes), counts.shape[1]))
        np.add.at(total, self.stratum, counts)
        return self.weights.T @ total - own


@dataclass(frozen=True, repr=False)
class LabelTest(OneLine):
    """Every label against the rest of its strata.

    Attributes:
        inputs: how many inputs have the label.
        compared: how many of them are in a stratum with other labels.
        value: the statistic of the compared inputs' pairs; NaN without any.
        rest: the statistic of the other labels' pairs, weighted by stratum like the label's own.
        p: one-sided p value of the label by itself.
        adjusted: p value adjusted for all labels of the field.
        n_strata, n_used: strata of all inputs, and those of two or more labels.
    """

    field: str
    labels: tuple[str, ...]
    inputs: Int[np.ndarray, "labels"]
    compared: Int[np.ndarray, "labels"]
    value: Float[np.ndarray, "labels"]
    rest: Float[np.ndarray, "labels"]
    p: Float[np.ndarray, "labels"]
    adjusted: Float[np.ndarray, "labels"]
    n_permutations: int
    n_strata: int
    n_used: int

    def worse(self, alpha: float = 0.05, least: float = 0.0) -> tuple[str, ...]:
        """The labels that are worse than the rest, by `least` or more.

        With probability 1 - alpha there are none, if labels are exchangeable within strata.
        """
        apart = np.nan_to_num(self.value - self.rest, nan=-math.inf)
        worse = (self.adjusted <= alpha) & (apart >= least)
        return tuple(name for name, is_worse in zip(self.labels, worse, strict=True) if is_worse)


def worse_labels(
    values: Float[np.ndarray, "*shape"],
    field: Field,
    statistic: Exceedance | HighPercentile,
    rng: np.random.Generator,
    n_permutations: int = N_PERMUTATIONS,
) -> LabelTest:
    """Test for every label of a field whether its inputs are worse than the rest of their strata.

    Labels are exchangeable within strata if, among inputs built alike, they are independent of
    everything else in the input. A label without defined values, or alone in its strata, shows no
    difference.

    Args:
        values: [clean, corrupted] of a grid, or [pairs]; NaN is left out.
        statistic: a threshold for it must not be chosen by looking at the labels.

    Raises:
        BadUsage: fewer than two labels, labels or strata that do not fit the values, no defined
            values, or no permutations.
        NonFinite: infinite values with `HighPercentile`.
    """
    comparison = Comparison.of(field)
    if n_permutations < 1:
        raise BadUsage(f"A permutation test needs at least 1 permutation; got {n_permutations}.")
    inputs = np.moveaxis(values, field.axis(values), 0).reshape(len(field.labels), -1)
    defined = inputs[~np.isnan(inputs)]
    if not defined.size:
        raise BadUsage("A test of labels needs defined values; all are NaN.")
    thresholds = statistic.thresholds(defined)
    counts = _binned(inputs[comparison.kept], thresholds)
    by_code = np.argsort(comparison.code, kind="stable")
    observed = _by_label(counts[by_code][None], counts, comparison)
    value, rest = (statistic.measure(table[0], thresholds) for table in observed)
    rows = [_apart(value, rest)[None]]
    draw = _drawn_tables if inputs.shape[1] == 1 else _permuted
    for tables in draw(counts, comparison, rng, n_permutations) if len(comparison.kept) else ():
        rows.append(_apart(*(statistic.measure(table, thresholds) for table in tables)))
    p, adjusted = _p_values(np.concatenate(rows), comparison.sizes)
    about = (comparison.inputs, comparison.compared, value, rest, p, adjusted)
    return LabelTest(
        field.name,
        comparison.names,
        *about,
        n_permutations,
        comparison.n_strata,
        len(comparison.sizes),
    )


def _binned(
    inputs: Float[np.ndarray, "inputs pairs"], thresholds: Float[np.ndarray, "t"]
) -> Float[np.ndarray, "inputs bins"]:
    """Each input's values between thresholds; the last bin is above all thresholds."""
    n, bins = len(inputs), len(thresholds) + 1
    place = np.searchsorted(thresholds, inputs, side="left") + np.arange(n)[:, None] * bins
    return np.bincount(place[~np.isnan(inputs)], minlength=n * bins).reshape(n, bins).astype(float)


def _by_label(
    placed: Float[np.ndarray, "draws kept bins"],
    counts: Float[np.ndarray, "kept bins"],
    comparison: Comparison,
) -> Tables:
    """Counts of each label and of its rest, from the inputs placed at the labels, in order."""
    there = np.flatnonzero(comparison.compared)
    own, weighted = (
        np.zeros((len(placed), len(comparison.names), counts.shape[1])) for _ in range(2)
    )
    if len(there):
        order = np.argsort(comparison.code, kind="stable")
        begin = np.searchsorted(comparison.code[order], there)
        weight = comparison.weights[comparison.stratum[order], comparison.code[order]]
        own[:, there] = np.add.reduceat(placed, begin, axis=1)
        weighted[:, there] = np.add.reduceat(placed * weight[:, None], begin, axis=1)
    return own, comparison.rest(weighted, counts)


def _permuted(
    counts: Float[np.ndarray, "kept bins"],
    comparison: Comparison,
    rng: np.random.Generator,
    n_permutations: int,
) -> Iterator[Tables]:
    """Tables label x bin with the labels permuted within strata, in blocks."""
    # Places by stratum, and where in them the places by label are.
    by_stratum = np.argsort(comparison.stratum, kind="stable")
    rank = np.empty_like(by_stratum)
    rank[by_stratum] = np.arange(len(rank))
    slots = rank[np.argsort(comparison.code, kind="stable")]
    step = max(1, BLOCK // counts.size)
    for begin in range(0, n_permutations, step):
        size = (min(step, n_permutations - begin), len(rank))
        # Random numbers that are larger in later strata: their order is random within strata alone.
        shuffled = by_stratum[(rng.random(size) + comparison.stratum[by_stratum]).argsort(axis=1)]
        yield _by_label(counts[shuffled[:, slots]], counts, comparison)


def _drawn_tables(
    counts: Float[np.ndarray, "kept bins"],
    comparison: Comparison,
    rng: np.random.Generator,
    n_permutations: int,
) -> Iterator[Tables]:
    """The same if every input has one value: random tables with the margins of each stratum."""
    # An undefined value is a bin of its own, which is dropped again.
    bins = np.zeros((len(comparison.sizes), counts.shape[1] + 1), dtype=np.int64)
    np.add.at(bins[:, :-1], comparison.stratum, counts.astype(np.int64))
    bins[:, -1] = comparison.sizes.sum(axis=1) - bins.sum(axis=1)
    n_labels = len(comparison.names)
    step = max(1, BLOCK // (n_labels * bins.shape[1]))
    for begin in range(0, n_permutations, step):
        size = min(step, n_permutations - begin)
        own, weighted = (np.zeros((size, n_labels, bins.shape[1])) for _ in range(2))
        for sizes, column, weight in zip(comparison.sizes, bins, comparison.weights, strict=True):
            there, filled = np.flatnonzero(sizes), np.flatnonzero(column)
            table = random_table.rvs(sizes[there], column[filled], size=size, random_state=rng)
            place = np.ix_(np.arange(size), there, filled)
            own[place] += table
            weighted[place] += table * weight[there][:, None]
        yield own[..., :-1], comparison.rest(weighted[..., :-1], counts)


def _apart(
    value: Float[np.ndarray, "*lead"], rest: Float[np.ndarray, "*lead"]
) -> Float[np.ndarray, "*lead"]:
    return np.nan_to_num(value - rest, nan=0.0)


def _p_values(
    draws: Float[np.ndarray, "draws labels"], sizes: Int[np.ndarray, "strata labels"]
) -> tuple[Float[np.ndarray, "labels"], Float[np.ndarray, "labels"]]:
    """Each label's own and adjusted p value; the first draw is the observed one."""
    scaled = np.empty_like(draws)
    alike = np.unique(sizes, axis=1, return_inverse=True)[1].reshape(-1)
    for number in range(int(alike.max()) + 1):
        # Labels of the same sizes have one null distribution; scaled alike, their ties stay ties.
        same = draws[:, alike == number]
        deviation = same.std()
        varies = deviation > ROUNDING * np.abs(same).max()
        scaled[:, alike == number] = (same - same.mean()) / deviation if varies else 0.0
    reached = scaled[0] - ROUNDING
    return (scaled >= reached).mean(axis=0), (scaled.max(axis=1)[:, None] >= reached).mean(axis=0)


@dataclass(frozen=True, eq=False, repr=False)
class LabelEffects(OneLine):
    """Differences of means in the unit of the values; NaN for a label that is alone in its strata.

    Attributes:
        low, high: ends of the intervals; NaN if the label, or the grid's other side, has fewer
            than `stats.bootstrap.LEAST` inputs, or a stratum's rest has no variance to
            estimate.
    """

    labels: tuple[str, ...]
    difference: Float[np.ndarray, "labels"]
    low: Float[np.ndarray, "labels"]
    high: Float[np.ndarray, "labels"]


def label_effects(
    values: Float[np.ndarray, "*shape"], field: Field, level: float = LEVEL
) -> LabelEffects:
    """The difference of every label's mean from the rest of its strata.

    With r_i the mean of input i's pairs, n_ls the inputs of label l in stratum s, n_l their sum
    over strata, and o_ls the mean of r over the inputs of other labels in s,

        D_l = mean over the inputs i of l of d_i,    d_i = r_i - o_ls(i)

    The rest is what `worse_labels` compares the label with. The variance of D_l is the sum of

        inputs of the label   s^2(d_i) / n_l
        inputs of the rest    sum_s (n_ls / n_l)^2 s^2_ls / (inputs of other labels in s)
        the grid's other side sum_j g_j^2 m / (m - 1),
                              g_j = column j's part of D_l beyond the inputs' means

    s^2_ls is the sample variance of r among the other labels' inputs of s, or over all strata
    together if a stratum has a single one. The noise of pairs is part of all three, so the sum
    is rather too large. The interval is Student's, with n_l - 1 degrees of freedom (m - 1 if
    that is less). It is each label's own: for the largest of many differences it is too narrow.

    Args:
        values: [clean, corrupted] of a grid, or [pairs]; NaN is left out, as are inputs without
            others.

    Raises:
        BadUsage: fewer than two labels, labels or strata that do not fit the values, or a level
            that is not between 0 and 1.
    """
    check_share("The confidence", level)
    rows = np.moveaxis(values, field.axis(values), 0).reshape(len(field.labels), -1).astype(float)
    names = Comparison.of(field).names
    known: list[int] = np.flatnonzero(~np.isnan(rows).all(axis=1)).tolist()
    labels = tuple(field.labels[place] for place in known)
    strata = None if field.strata is None else tuple(field.strata[place] for place in known)
    ends = [np.full(len(names), math.nan) for _ in range(3)]
    if len(set(labels)) < 2:
        return LabelEffects(names, *ends)
    comparison = Comparison.of(Field(field.name, labels, field.side, strata))
    rows = rows[known][comparison.kept]
    place, defined = np.searchsorted(names, comparison.names), ~np.isnan(rows)
    difference, variance, freedom = _differences(rows, defined, comparison)
    with np.errstate(invalid="ignore"):
        half = stdtrit(freedom, (1 + level) / 2) * np.sqrt(variance)
    half[freedom + 1 < LEAST] = math.nan
    for column, own in zip(ends, (difference, difference - half, difference + half), strict=True):
        column[place] = own
    return LabelEffects(names, *ends)


def _differences(
    rows: Float[np.ndarray, "kept m"], defined: np.ndarray, comparison: Comparison
) -> tuple[Float[np.ndarray, "labels"], Float[np.ndarray, "labels"], Float[np.ndarray, "labels"]]:
    """D, its variance and its degrees of freedom for every label."""
    n, m = rows.shape
    if not n:
        undefined = np.full(len(comparison.names), math.nan)
        return undefined, undefined, np.zeros(len(comparison.names))
    filled = np.where(defined, rows, 0.0)
    per_row = defined.sum(axis=1)
    mean = filled.sum(axis=1) / per_row
    # Variances are of differences from the common mean, so that nothing cancels.
    mean -= mean.mean()
    own_sum, own_squares = _cells(mean, comparison), _cells(mean**2, comparison)
    others = comparison.others
    with np.errstate(invalid="ignore", divide="ignore"):
        rest = (own_sum.sum(axis=1, keepdims=True) - own_sum) / others
        apart = mean - rest[comparison.stratum, comparison.code]
        count = comparison.compared.astype(float)
        difference = np.bincount(comparison.code, apart, len(count)) / count
        squares = np.bincount(
            comparison.code, (apart - difference[comparison.code]) ** 2, len(count)
        )
        variance = squares / (count - 1) / count + _of_rest(comparison, own_squares, rest)
    if m > 1:
        variance = variance + _of_columns(
            np.where(defined, rows - (filled.sum(axis=1) / per_row)[:, None], 0.0)
            / per_row[:, None],
            comparison,
        )
    return difference, variance, np.minimum(count - 1, m - 1 if m > 1 else math.inf)


def _cells(
    numbers: Float[np.ndarray, "kept"], comparison: Comparison
) -> Float[np.ndarray, "strata labels"]:
    """Sums of numbers over the inputs of each label in each stratum."""
    place = comparison.stratum * len(comparison.names) + comparison.code
    return np.bincount(place, numbers, comparison.sizes.size).reshape(comparison.sizes.shape)


def _of_rest(
    comparison: Comparison,
    own_squares: Float[np.ndarray, "strata labels"],
    rest: Float[np.ndarray, "strata labels"],
) -> Float[np.ndarray, "labels"]:
    """The variance of what the labels are compared with."""
    others = comparison.others
    squares = own_squares.sum(axis=1, keepdims=True) - own_squares - others * rest**2
    squares = np.maximum(np.where(others > 1, squares, 0.0), 0.0)
    together = squares.sum(axis=0) / (others - 1).sum(axis=0)
    per_stratum = np.where(others > 1, squares / np.maximum(others - 1, 1), together)
    return ((comparison.sizes / comparison.compared) ** 2 * per_stratum / others).sum(axis=0)


def _of_columns(
    parts: Float[np.ndarray, "kept m"], comparison: Comparison
) -> Float[np.ndarray, "labels"]:
    """The variance that comes from the other side of the grid."""
    m = parts.shape[1]
    totals = np.zeros((len(comparison.sizes), m))
    np.add.at(totals, comparison.stratum, parts)
    weight = comparison.weights[comparison.stratum, comparison.code]
    own, weighted = (np.zeros((len(comparison.names), m)) for _ in range(2))
    np.add.at(own, comparison.code, parts)
    np.add.at(weighted, comparison.code, parts * weight[:, None])
    compared = np.where(comparison.compared > 0, comparison.compared, math.nan)
    columns = (own - (comparison.weights.T @ totals - weighted)) / compared[:, None]
    return (columns**2).sum(axis=1) * m / (m - 1)
