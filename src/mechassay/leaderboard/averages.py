"""Average and score of a row over k places, with intervals made of those of its cells.

    average    m = the mean of the numbers x_i
    score      the mean of s(x_i), s(x) = 1 / (1 + e^-x) where higher is better, and 1 / (1 + e^x)
               where lower is: a better row has a higher score
    mib-2025   the score as MIB's board has it: 1 / (1 + e^-x) whichever way is better, so that of a
               column where lower is better it is lower for the better row

With [l_i, u_i] the interval of x_i, that of the mean goes from m - d to m + e,

    d = 1/k sqrt( sum over groups g of (sum over i in g of (x_i - l_i))^2 ),

and e the same with u_i - x_i (recovered variances, Zou and Donner 2008). The score's is made of
s(l_i) and s(u_i), as s is monotone. A group is the places of one task. They may have examples in
common, so that their errors may be equal, and no errors add up to more than their half-widths do.
Examples of two tasks are drawn apart. A row that lacks a place or a number has neither average nor
score, and one that lacks an interval anywhere has none here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from mechassay.errors import BadUsage, one_of
from mechassay.leaderboard.rules import Better
from mechassay.stats.intervals import Estimate

ScoreFormula = Literal["repaired", "mib-2025"]


@dataclass(frozen=True)
class RowSummary:
    """What a row has over places.

    Attributes:
        lacks: why there is no number, or no interval; "" if there is one.
    """

    average: Estimate
    score: Estimate
    lacks: str = ""


def sigmoid(value: float) -> float:
    """1 / (1 + e^-x); NaN of NaN."""
    return float(0.5 * (1 + np.tanh(value / 2)))


def summarised(
    numbers: Sequence[Estimate],
    tasks: Sequence[str],
    better: Better,
    formula: ScoreFormula = "repaired",
) -> RowSummary:
    """Average and score of numbers, one a place.

    Args:
        numbers: NaN where a row has none.
        tasks: whose examples each was measured on.

    Raises:
        BadUsage: not a task for each number. UnknownName: no such formula.
    """
    one_of("formula of a score", formula, get_args(ScoreFormula))
    if len(numbers) != len(tasks):
        raise BadUsage(f"Every number has a task; got {len(numbers)} and {len(tasks)}.")
    sign = -1.0 if better == "down" and formula == "repaired" else 1.0
    scores = [_scored(each, sign) for each in numbers]
    return RowSummary(mean_of(numbers, tasks), mean_of(scores, tasks), _lacking(numbers))


def mean_of(numbers: Sequence[Estimate], groups: Sequence[str]) -> Estimate:
    """The mean of numbers, with the interval that the module describes; NaN without any."""
    if not numbers:
        return Estimate(math.nan)
    value = float(np.mean([each.value for each in numbers]))
    if math.isnan(value):
        return Estimate(math.nan)
    _, member = np.unique(np.asarray(groups), return_inverse=True)
    below = np.bincount(member, weights=[each.value - each.low for each in numbers])
    above = np.bincount(member, weights=[each.high - each.value for each in numbers])
    lower, upper = (float(np.hypot.reduce(side)) / len(numbers) for side in (below, above))
    return Estimate(value, value - lower, value + upper)


def _scored(each: Estimate, sign: float) -> Estimate:
    low, high = sorted((sigmoid(sign * each.low), sigmoid(sign * each.high)))
    return Estimate(sigmoid(sign * each.value), low, high)


def _lacking(numbers: Sequence[Estimate]) -> str:
    if not numbers:
        return "no place is shown"
    if n := sum(math.isnan(each.value) for each in numbers):
        return f"lacks {n} of {len(numbers)} places"
    n = sum(math.isnan(each.low + each.high) for each in numbers)
    return f"no interval: {n} of {len(numbers)} numbers have none" if n else ""
