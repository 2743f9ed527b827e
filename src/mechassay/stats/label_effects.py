"""How much worse a label is: its mean minus that of the rest of its strata, with an interval.

With r_i the mean of input i's pairs, n_ls the inputs of label l in stratum s, n_l their sum over
strata, and o_ls the mean of r over the inputs of other labels in s,

    D_l = mean over the inputs i of l of d_i,    d_i = r_i - o_ls(i)

The rest is what `label_tests` compares the label with. The variance of D_l is the sum of

    inputs of the label   s^2(d_i) / n_l
    inputs of the rest    sum_s (n_ls / n_l)^2 s^2_ls / (inputs of other labels in s)
    the grid's other side sum_j g_j^2 m / (m - 1),
                          g_j = column j's part of D_l beyond the inputs' means

s^2_ls is the sample variance of r among the other labels' inputs of s, or over all strata together
if a stratum has a single one. The noise of pairs is part of all three, so the sum is rather too
large. The interval is Student's, with n_l - 1 degrees of freedom (m - 1 if that is less). It is
each label's own: for the largest of many differences it is too narrow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

from mechassay.display import OneLine
from mechassay.stats.bounds import check_share
from mechassay.stats.groups import Field
from mechassay.stats.intervals import LEVEL
from mechassay.stats.label_tests import Comparison
from mechassay.stats.two_way import LEAST


@dataclass(frozen=True, eq=False, repr=False)
class LabelEffects(OneLine):
    """Differences of means in the unit of the values; NaN for a label that is alone in its strata.

    Attributes:
        low, high: ends of the intervals; NaN if the label, or the grid's other side, has fewer
            than `two_way.LEAST` inputs, or a stratum's rest has no variance to estimate.
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
    columns = (own - (comparison.weights.T @ totals - weighted)) / comparison.compared[:, None]
    return (columns**2).sum(axis=1) * m / (m - 1)
