"""How much worse a label is: the mean of its pairs minus that
of the rest of its strata, with an interval.

With r_i the mean of input i's pairs, n_ls the inputs of label l in stratum s, n_l their sum over
strata, and o_ls the mean of r over the inputs of other labels in s,

    D_l = mean over the inputs i of l of d_i,    d_i = r_i - o_ls(i)

The rest is what `label_tests` compares the label with. The variance of D_l has three parts, which
are added:

    inputs of the label   s^2(d_i) / n_l
    inputs of the rest    sum_s (n_ls / n_l)^2 s^2_ls / (inputs of other labels in s)
    the grid's other side sum_j g_j^2 m / (m - 1),
                          g_j = column j's part of D_l beyond the inputs' means

s^2_ls is the sample variance of r among the other labels' inputs of s, or over all strata together
where a stratum has a single one. Pairs are a part of all three, so that the sum is rather too
large. The interval is Student's, with n_l - 1 degrees of freedom (m - 1 if that is less). It is
each label's own: of the largest of many differences it says too much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

from mechassay.stats.bounds import check_share
from mechassay.stats.groups import Field
from mechassay.stats.intervals import LEVEL
from mechassay.stats.label_tests import Comparison
from mechassay.stats.two_way import LEAST


@dataclass(frozen=True, eq=False)
class LabelEffects:
    """Differences of means in the unit of the values; NaN for a label that is alone in its strata.

    Attributes:
        low, high: ends of the intervals; NaN where the label, or the grid's other side, has fewer
            than `bootstrap.LEAST` inputs, or a stratum's rest has no variance to estimate.
    """

    labels: tuple[str, ...]
    difference: Float[np.ndarray, "labels"]
    low: Float[np.ndarray, "labels"]
    high: Float[np.ndarray, "labels"]


def label_effects(
    values: Float[np.ndarray, "*shape"], field: Field, level: float = LEVEL
) -> LabelEffects:
    """The difference of every label's mean from the rest of its strata.

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
    found = Comparison.of(Field(field.name, labels, field.side, strata))
    rows = rows[known][found.kept]
    place, defined = np.searchsorted(names, found.names), ~np.isnan(rows)
    difference, variance, freedom = _differences(rows, defined, found)
    with np.errstate(invalid="ignore"):
        half = stdtrit(freedom, (1 + level) / 2) * np.sqrt(variance)
    half[freedom + 1 < LEAST] = math.nan
    for all_labels, own in zip(
        ends, (difference, difference - half, difference + half), strict=True
    ):
        all_labels[place] = own
    return LabelEffects(names, *ends)


def _differences(
    rows: Float[np.ndarray, "kept m"], defined: np.ndarray, found: Comparison
) -> tuple[Float[np.ndarray, "labels"], Float[np.ndarray, "labels"], Float[np.ndarray, "labels"]]:
    """D, its variance and its degrees of freedom for every label."""
    n, m = rows.shape
    if not n:
        nothing = np.full(len(found.names), math.nan)
        return nothing, nothing.copy(), np.zeros(len(found.names))
    filled = np.where(defined, rows, 0.0)
    per_row = defined.sum(axis=1)
    mean = filled.sum(axis=1) / per_row
    # Variances are of differences from the common mean, so that nothing cancels.
    mean -= mean.mean()
    own_sum, own_squares = _cells(mean, found), _cells(mean**2, found)
    others = found.others
    with np.errstate(invalid="ignore", divide="ignore"):
        rest = (own_sum.sum(axis=1, keepdims=True) - own_sum) / others
        apart = mean - rest[found.stratum, found.code]
        count = found.compared.astype(float)
        difference = np.bincount(found.code, apart, len(count)) / count
        squares = np.bincount(found.code, (apart - difference[found.code]) ** 2, len(count))
        variance = squares / (count - 1) / count + _of_rest(found, own_squares, rest)
    if m > 1:
        variance = variance + _of_columns(
            np.where(defined, rows - (filled.sum(axis=1) / per_row)[:, None], 0.0)
            / per_row[:, None],
            found,
        )
    return difference, variance, np.minimum(count - 1, m - 1 if m > 1 else math.inf)


def _cells(
    numbers: Float[np.ndarray, "kept"], found: Comparison
) -> Float[np.ndarray, "strata labels"]:
    """Sums of numbers over the inputs of each label in each stratum."""
    place = found.stratum * len(found.names) + found.code
    return np.bincount(place, numbers, found.sizes.size).reshape(found.sizes.shape)


def _of_rest(
    found: Comparison,
    own_squares: Float[np.ndarray, "strata labels"],
    rest: Float[np.ndarray, "strata labels"],
) -> Float[np.ndarray, "labels"]:
    """The variance of what the labels are compared with."""
    others = found.others
    squares = own_squares.sum(axis=1, keepdims=True) - own_squares - others * rest**2
    squares = np.maximum(np.where(others > 1, squares, 0.0), 0.0)
    together = squares.sum(axis=0) / (others - 1).sum(axis=0)
    each = np.where(others > 1, squares / np.maximum(others - 1, 1), together)
    return ((found.sizes / found.compared) ** 2 * each / others).sum(axis=0)


def _of_columns(
    parts: Float[np.ndarray, "kept m"], found: Comparison
) -> Float[np.ndarray, "labels"]:
    """The variance that comes from the other side of the grid."""
    m = parts.shape[1]
    totals = np.zeros((len(found.sizes), m))
    np.add.at(totals, found.stratum, parts)
    weight = found.weights[found.stratum, found.code]
    own, weighted = (np.zeros((len(found.names), m)) for _ in range(2))
    np.add.at(own, found.code, parts)
    np.add.at(weighted, found.code, parts * weight[:, None])
    columns = (own - (found.weights.T @ totals - weighted)) / found.compared[:, None]
    return (columns**2).sum(axis=1) * m / (m - 1)
