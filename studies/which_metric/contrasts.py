"""How well measures order scorings as the truth does, their differences from CMA, and the decision.

Within a cell, agreement is Spearman's correlation of a measure with the recovery of the scorings,
or the share of pairs of scorings, `APART` or more apart in recovery, that are ordered right. Cells
of a model are averaged, then models: intervals are Student's, over models, and over families for
the last condition of the rule in plan.md (`decision`). Differences are taken within cells.
Differences of less than `ROUNDED` are ties; a correlation with a constant is undefined, and is left
out and counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import stdtrit
from scipy.stats import rankdata

from studies.which_metric.measures import MEASURES, REFERENCE
from studies.which_metric.truths import family_of

Chosen = Literal["all", "methods", "right signs", "methods and random"]
Target = Literal["auroc", "auprc", "auroc without backups"]
SETS: tuple[Chosen, Chosen] = ("all", "methods")
"""Of the plan; the others stand beside it."""
CHOSEN: Mapping[Chosen, Callable[[str, str], bool]] = {
    "all": lambda label, sort: True,
    "methods": lambda label, sort: sort == "method",
    "right signs": lambda label, sort: not label.startswith("signs"),
    "methods and random": lambda label, sort: sort != "made",
}
"""Which scorings are in a set, by their names and sorts."""
MAIN = "counterfactual"
LEVEL, APART, ROUNDED = 0.95, 0.05, 1e-6
Place = tuple[str, Chosen]
"""A grid, or a measure, and a set of scorings."""
Records = Sequence[Mapping[str, Any]]
Agreement = Callable[[Float[np.ndarray, "scorings"], Float[np.ndarray, "scorings"]], float]


class Mean(NamedTuple):
    """A mean over models or families, the half width of its interval, and how many they are."""

    value: float
    half: float
    n: int

    @property
    def low(self) -> float:
        return self.value - self.half

    @property
    def high(self) -> float:
        return self.value + self.half


def student(values: Iterable[float], level: float = LEVEL) -> Mean:
    """The mean of what is defined, with Student's interval; its width is NaN for one value."""
    defined = np.array([value for value in values if not math.isnan(value)])
    n = len(defined)
    if n < 2:
        return Mean(float(defined[0]) if n else math.nan, math.nan, n)
    quantile = float(stdtrit(n - 1, (1 + level) / 2))
    return Mean(float(defined.mean()), quantile * float(defined.std(ddof=1)) / math.sqrt(n), n)


def spearman(x: Float[np.ndarray, "scorings"], y: Float[np.ndarray, "scorings"]) -> float:
    """Spearman's correlation with mid-ranks; NaN if one of them is constant or undefined."""
    if np.isnan(x).any() or np.isnan(y).any():
        return math.nan
    ranks = [rankdata(_rounded(values)) for values in (x, y)]
    if any(np.ptp(values) == 0 for values in ranks):
        return math.nan
    return float(np.corrcoef(*ranks)[0, 1])


def order(x: Float[np.ndarray, "scorings"], y: Float[np.ndarray, "scorings"]) -> float:
    """The share of pairs, `APART` or more apart in y, that x orders so; a tie is half."""
    apart: Bool[np.ndarray, "scorings scorings"] = y[:, None] - y >= APART - ROUNDED
    if np.isnan(x).any() or np.isnan(y).any() or not apart.any():
        return math.nan
    steps = np.sign(_rounded(x)[:, None] - _rounded(x))
    return float((1 + steps[apart]).mean() / 2)


def ordered_by_gap(
    records: Records, measure: str, low: float, high: float
) -> tuple[list[str], list[float], int]:
    """Of pairs of methods whose measure differs by `low` to `high`, the share ordered as the AUROC.

    Pairs of equal AUROC are left out.

    Returns:
        The model and the share of each record, and how many pairs there are in all.
    """
    models, shares, n = list[str](), list[float](), 0
    for record in records:
        methods = [s for s in record["scorings"].values() if s["sort"] == "method"]
        x = np.array([s["measures"][measure] for s in methods])
        y = _rounded(np.array([s["auroc"] for s in methods]))
        gap = x[:, None] - x
        taken = (gap > low) & (gap <= high) & (y[:, None] != y)
        steps = (y[:, None] > y)[taken]
        models.append(str(record["model"]))
        shares.append(float(steps.mean()) if len(steps) else math.nan)
        n += len(steps)
    return models, shares, n


def _rounded(values: Float[np.ndarray, "scorings"]) -> Float[np.ndarray, "scorings"]:
    return np.round(values / ROUNDED)


@dataclass(frozen=True, eq=False)
class Agreements:
    """Agreement of every measure (columns) in every cell (rows) of a grid."""

    models: tuple[str, ...]
    values: Float[np.ndarray, "cells measures"]

    @property
    def differences(self) -> Agreements:
        """Every measure less the reference."""
        reference = self.values[:, [list(MEASURES).index(REFERENCE)]]
        return Agreements(self.models, self.values - reference)

    def mean(self, measure: str, level: float = LEVEL, *, families: bool = False) -> Mean:
        """Over models, or over families of models."""
        column = self.values[:, list(MEASURES).index(measure)]
        groups, values = averaged(self.models, column.tolist())
        if families:
            _, values = averaged([family_of(name) for name in groups], values)
        return student(values, level)

    @property
    def n_undefined(self) -> Mapping[str, int]:
        """Cells in which a measure's agreement is undefined, for those that have any."""
        counts = np.isnan(self.values).sum(axis=0)
        return {name: int(n) for name, n in zip(MEASURES, counts, strict=True) if n}


def averaged(groups: Sequence[str], values: Sequence[float]) -> tuple[list[str], list[float]]:
    """The mean of what is defined in each group."""
    members: dict[str, list[float]] = {group: [] for group in groups}
    for group, value in zip(groups, values, strict=True):
        if not math.isnan(value):
            members[group].append(value)
    means = [float(np.mean(held)) if held else math.nan for held in members.values()]
    return list(members), means


def agreements(
    records: Records,
    chosen: Chosen = "all",
    target: Target = "auroc",
    how: Agreement = spearman,
) -> Agreements:
    """Agreement with the recovery of scorings, in every record that has a known circuit."""
    counted = [record for record in records if not record["dropped"]]
    rows: list[list[float]] = []
    for record in counted:
        scorings = [
            scoring
            for label, scoring in record["scorings"].items()
            if CHOSEN[chosen](label, scoring["sort"])
        ]
        recovery = np.array([scoring[target] for scoring in scorings])
        columns = np.array([[s["measures"][name] for name in MEASURES] for s in scorings])
        rows.append([how(column, recovery) for column in columns.T])
    values = np.array(rows).reshape(len(counted), len(MEASURES))
    return Agreements(tuple(str(record["model"]) for record in counted), values)


def grids_of(records: Records) -> dict[str, Records]:
    """The records of each grid, in the order in which they come."""
    names = dict.fromkeys(str(record["grid"]) for record in records)
    return {name: [record for record in records if record["grid"] == name] for name in names}


RIVALS = tuple(name for name in MEASURES if name != REFERENCE)
CORRECTED = 1 - (1 - LEVEL) / (len(RIVALS) * len(SETS))
"""The level of one interval where all contrasts of the main grid are to hold together."""


@dataclass(frozen=True)
class Decision:
    """What the rule of plan.md gives.

    Attributes:
        winner: what takes the place of the reference; None if nothing does.
        above: the contrasts of the main grid whose corrected interval is above 0.
        below: by measure, where its 95 % interval lies below 0.
        without_families: contrasts in `above` that do not hold over families.
    """

    winner: str | None
    above: tuple[Place, ...]
    below: Mapping[str, tuple[Place, ...]]
    without_families: tuple[Place, ...]


def decision(records: Records) -> Decision:
    """Whether a measure takes the reference's place, by the rule of plan.md."""
    differences: dict[Place, Agreements] = {
        (grid, chosen): agreements(members, chosen).differences
        for grid, members in grids_of(records).items()
        for chosen in SETS
    }
    below = {
        name: tuple(place for place, table in differences.items() if table.mean(name).high < 0)
        for name in RIVALS
    }
    means: dict[Place, Mean] = {
        (name, chosen): differences[MAIN, chosen].mean(name, CORRECTED)
        for name in RIVALS
        for chosen in SETS
    }
    above = tuple(place for place, mean in means.items() if mean.low > 0)
    alone: tuple[Place, ...] = tuple(
        (name, chosen)
        for name, chosen in above
        if not differences[MAIN, chosen].mean(name, families=True).low > 0
    )
    able = [place for place in above if not below[place[0]] and place not in alone]
    winner = max(able, key=lambda place: means[place].value)[0] if able else None
    return Decision(winner, above, below, alone)
