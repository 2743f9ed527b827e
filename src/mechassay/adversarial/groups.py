"""Which values of a template field make a circuit fail: tables by field, and a test of every label against the rest.

Appendix D of Uit de Bos and Garriga-Alonso (2024) looks at the maximum and at high percentiles by template
field (which object, which place) and by pairs of fields. `by_fields` makes these tables. The largest
of many groups is large by chance too, and a larger group has a larger maximum; `worse_labels` says which
labels are worse than that.

**The test.** Under the null hypothesis the label of a field has nothing to do with how badly its input fares: the
inputs are exchangeable between labels. Labels are permuted between inputs, whole rows or columns of a grid,
never between pairs: pairs of a row share their input, and permuting them apart would make a bad input a bad
label. Columns stay as they are, so that nothing is assumed about them. The statistic of a label is
its exceedance or its high percentile, minus that of the pairs of all other labels. Labels differ in size, so
each statistic is centred and scaled by the mean and deviation, over the permutations and the observed labels
(which are one of them), of all labels with as many inputs. The largest over the labels then gives adjusted p values

    adjusted p of a label = share of the permutations whose largest scaled statistic reaches the label's own

(Westfall and Young 1993, single-step maxT): the probability that any label is called worse though none
is, is at most alpha, for every number of inputs and permutations. The step-down version is not used: it
needs that the labels left over are exchangeable among themselves, and "the rest" that each is compared with contains the worse ones.

Only counts between thresholds are permuted: for an exceedance one threshold, for a percentile
`N_THRESHOLDS` of the pooled values, most of them near it; a percentile in the test is interpolated between
the nearest two. Where every input has a single pair, the tables label x count are drawn directly, given their
margins (Patefield 1981): that is the same distribution, at a cost that does not depend on the number of pairs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int
from scipy.stats import random_table  # pyright: ignore[reportMissingTypeStubs] - scipy ships none

from mechassay.adversarial.bounds import check_share
from mechassay.adversarial.percentiles import run_percentiles
from mechassay.errors import BadUsage, NonFinite, UnknownName

PERCENTILES = (0.999, 0.9999)
N_PERMUTATIONS = 2000
N_THRESHOLDS = 64
BLOCK = 2**22
ROUNDING = 1e-9
SIDES = ("clean", "corrupted")


@dataclass(frozen=True)
class Field:
    """A template field of the clean or of the corrupted inputs.

    Attributes:
        name: what the field is called.
        labels: one for every input of that side, in the order of the values.
        side: which axis of a grid; of single pairs both sides have one label a pair.
    """

    name: str
    labels: Sequence[str]
    side: Literal["clean", "corrupted"] = "clean"

    def __post_init__(self) -> None:
        if self.side not in SIDES:
            raise UnknownName("side of a pair", self.side, SIDES)

    def axis(self, values: np.ndarray) -> int:
        """The axis of the values that the labels belong to.

        Raises:
            BadUsage: the labels are not as many as inputs on that axis, or the values have more than two axes.
        """
        if values.ndim not in (1, 2):
            raise BadUsage(f"Values have the axes (pairs) or (clean, corrupted); got the shape {values.shape}.")
        axis = SIDES.index(self.side) if values.ndim == 2 else 0
        if len(self.labels) != values.shape[axis]:
            raise BadUsage(f"The field {self.name} has {len(self.labels)} labels for {values.shape[axis]} inputs.")
        return axis


@dataclass(frozen=True)
class GroupTable:
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


def by_fields(values: Float[np.ndarray, "*shape"], fields: Sequence[Field], percentiles: Sequence[float] = PERCENTILES) -> GroupTable:
    """Maximum and percentiles of the values by one field, or by several together (two make a heat map).

    Args:
        values: [clean, corrupted] of a grid, or [pairs]; NaN is left out.

    Raises:
        BadUsage: no fields, labels that do not fit the values, or percentiles not between 0 and 1.
    """
    if not fields:
        raise BadUsage("A table by fields needs at least 1 field; got none.")
    for p in percentiles:
        check_share("A percentile", p)
    labels: list[tuple[str, ...]] = []
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
    largest, *found = (run_percentiles(rising, begin, count, p).reshape(sizes) for p in (1.0, *percentiles))
    table = np.stack(found, axis=-1) if found else np.empty((*sizes, 0))
    return GroupTable(tuple(field.name for field in fields), tuple(labels), tuple(percentiles), count.reshape(sizes), largest, table)


@dataclass(frozen=True)
class Exceedance:
    """The share of a label's pairs with a value above a threshold."""

    above: float

    def thresholds(self, values: Float[np.ndarray, "n"]) -> Float[np.ndarray, "t"]:
        return np.array([self.above], dtype=float)

    def measure(self, counts: Int[np.ndarray, "*lead bins"], thresholds: Float[np.ndarray, "t"]) -> Float[np.ndarray, "*lead"]:
        """From the numbers of values between thresholds; NaN without values."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return counts[..., 1] / counts.sum(axis=-1)


@dataclass(frozen=True)
class HighPercentile:
    """The p-th percentile of a label's pairs."""

    p: float

    def thresholds(self, values: Float[np.ndarray, "n"]) -> Float[np.ndarray, "t"]:
        """Pooled values, from the smallest to the largest; half of them have a fifth to five times the share 1 - p above them."""
        check_share("A percentile", self.p)
        if not np.isfinite(values).all():
            raise NonFinite("A test of percentiles needs finite values; infinite ones can be tested by their exceedance.")
        rising = np.sort(values)
        n, half = values.size, N_THRESHOLDS // 2
        near = np.geomspace((1 - self.p) / 5, (1 - self.p) * 5, half) * n
        beyond = np.concatenate([np.geomspace(1, n, half), near.clip(1, n)]).astype(int)
        return np.unique(rising[n - beyond]).astype(float)

    def measure(self, counts: Int[np.ndarray, "*lead bins"], thresholds: Float[np.ndarray, "t"]) -> Float[np.ndarray, "*lead"]:
        """Interpolated between the thresholds that have less, and not less, than the share p at or below them; NaN without values."""
        # No value is above the last threshold, which is the largest of all; so there is always a place.
        below = np.cumsum(counts, axis=-1)[..., :-1]
        wanted = self.p * below[..., -1:]
        place = (below >= wanted * (1 - ROUNDING)).argmax(axis=-1)[..., None]
        before = np.maximum(place - 1, 0)
        low, high = (np.take_along_axis(below, at, axis=-1) for at in (before, place))
        share = np.where(high > low, (wanted - low) / np.where(high > low, high - low, 1), 1.0)
        found = thresholds[before] + share * (thresholds[place] - thresholds[before])
        return np.where(below[..., -1] > 0, found[..., 0], np.nan)


@dataclass(frozen=True)
class LabelTest:
    """Every label against the rest.

    Attributes:
        inputs: how many inputs have the label.
        value: the statistic of the label's pairs.
        rest: the statistic of all other pairs.
        p: one-sided p value of the label by itself.
        adjusted: p value adjusted for all labels of the field.
    """

    field: str
    labels: tuple[str, ...]
    inputs: Int[np.ndarray, "labels"]
    value: Float[np.ndarray, "labels"]
    rest: Float[np.ndarray, "labels"]
    p: Float[np.ndarray, "labels"]
    adjusted: Float[np.ndarray, "labels"]
    n_permutations: int

    def worse(self, alpha: float = 0.05) -> tuple[str, ...]:
        """The labels that are worse than the rest; with probability 1 - alpha none if the field does not matter."""
        return tuple(label for label, p in zip(self.labels, self.adjusted, strict=True) if p <= alpha)


def worse_labels(
    values: Float[np.ndarray, "*shape"],
    field: Field,
    statistic: Exceedance | HighPercentile,
    rng: np.random.Generator,
    n_permutations: int = N_PERMUTATIONS,
) -> LabelTest:
    """Test for every label of a field whether its inputs are worse than those of all other labels together.

    Inputs are exchangeable if their labels were drawn independently of their other fields. A label without defined
    values shows no difference.

    Args:
        values: [clean, corrupted] of a grid, or [pairs]; NaN is left out.
        statistic: a threshold for it must not be chosen by looking at the labels.

    Raises:
        BadUsage: fewer than two labels, labels that do not fit the values, no defined values, or no permutations.
        NonFinite: infinite values with `HighPercentile`.
    """
    names, code = np.unique(np.asarray(field.labels), return_inverse=True)
    if len(names) < 2:
        raise BadUsage(f"A test of labels needs at least 2 of them; the field {field.name} has {len(names)}.")
    if n_permutations < 1:
        raise BadUsage(f"A permutation test needs at least 1 permutation; got {n_permutations}.")
    inputs = np.moveaxis(values, field.axis(values), 0).reshape(len(code), -1)
    defined = inputs[~np.isnan(inputs)]
    if not defined.size:
        raise BadUsage("A test of labels needs defined values; all are NaN.")
    thresholds = statistic.thresholds(defined)
    counts = _binned(inputs, thresholds)
    total = counts.sum(axis=0)
    observed = _by_label(counts[None], code, len(names))[0]
    value, rest = statistic.measure(observed, thresholds), statistic.measure(total - observed, thresholds)
    rows = [_apart(value, rest)[None]]
    draw = _drawn_tables(counts, code, rng, n_permutations) if inputs.shape[1] == 1 else _permuted(counts, code, rng, n_permutations)
    for tables in draw:
        rows.append(_apart(statistic.measure(tables, thresholds), statistic.measure(total - tables, thresholds)))
    sizes = np.bincount(code)
    p, adjusted = _p_values(np.concatenate(rows), sizes)
    return LabelTest(field.name, tuple(map(str, names)), sizes, value, rest, p, adjusted, n_permutations)


def _binned(inputs: Float[np.ndarray, "inputs pairs"], thresholds: Float[np.ndarray, "t"]) -> Int[np.ndarray, "inputs bins"]:
    """For each input how many of its values lie between thresholds; the last bin is above all of them."""
    n, bins = len(inputs), len(thresholds) + 1
    place = np.searchsorted(thresholds, inputs, side="left") + np.arange(n)[:, None] * bins
    return np.bincount(place[~np.isnan(inputs)], minlength=n * bins).reshape(n, bins)


def _by_label(
    counts: Int[np.ndarray, "draws inputs bins"], code: Int[np.ndarray, "inputs"], n: int
) -> Int[np.ndarray, "draws labels bins"]:
    """Sums of counts over the inputs of each label."""
    order = np.argsort(code, kind="stable")
    return np.add.reduceat(counts[:, order], np.searchsorted(code[order], np.arange(n)), axis=1)


def _permuted(
    counts: Int[np.ndarray, "inputs bins"], code: Int[np.ndarray, "inputs"], rng: np.random.Generator, n_permutations: int
) -> Iterator[Int[np.ndarray, "draws labels bins"]]:
    """Tables label x bin with the labels permuted, in blocks."""
    n, ordered = len(code), np.sort(code)
    step = max(1, BLOCK // counts.size)
    for begin in range(0, n_permutations, step):
        places = rng.permuted(np.tile(np.arange(n), (min(step, n_permutations - begin), 1)), axis=1)
        yield _by_label(counts[places], ordered, int(code.max()) + 1)


def _drawn_tables(
    counts: Int[np.ndarray, "inputs bins"], code: Int[np.ndarray, "inputs"], rng: np.random.Generator, n_permutations: int
) -> Iterator[Int[np.ndarray, "draws labels bins"]]:
    """The same where every input has one value: a table label x bin with the margins of the observed one, in blocks."""
    # An undefined value is a bin of its own, which is dropped again.
    bins = np.concatenate([counts.sum(axis=0), [len(code) - counts.sum()]])
    filled = bins > 0
    sizes = np.bincount(code)
    step = max(1, BLOCK // (len(sizes) * len(bins)))
    for begin in range(0, n_permutations, step):
        tables = np.zeros((min(step, n_permutations - begin), len(sizes), len(bins)), dtype=np.int64)
        tables[..., filled] = random_table.rvs(sizes, bins[filled], size=len(tables), random_state=rng)
        yield tables[..., :-1]


def _apart(value: Float[np.ndarray, "*lead"], rest: Float[np.ndarray, "*lead"]) -> Float[np.ndarray, "*lead"]:
    return np.nan_to_num(value - rest, nan=0.0)


def _p_values(
    draws: Float[np.ndarray, "draws labels"], inputs: Int[np.ndarray, "labels"]
) -> tuple[Float[np.ndarray, "labels"], Float[np.ndarray, "labels"]]:
    """Each label's own and adjusted p values from its statistic in all draws, of which the first is the observed one."""
    scaled = np.empty_like(draws)
    for size in np.unique(inputs):
        # Labels of one size have one null distribution; scaled alike, their ties stay ties.
        same = draws[:, inputs == size]
        deviation = same.std()
        varies = deviation > ROUNDING * np.abs(same).max()
        scaled[:, inputs == size] = (same - same.mean()) / deviation if varies else 0.0
    reached = scaled[0] - ROUNDING
    return (scaled >= reached).mean(axis=0), (scaled.max(axis=1)[:, None] >= reached).mean(axis=0)
