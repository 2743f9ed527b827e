"""Does a metric tell right from wrong? Its values on subjects whose worth is known.

The score is the quantity that decides a variant's verdict: that of its first condition, or the one
that the gauge names in `score` ({"page": "mean_overlap"}); turned so that more is better.

    AUROC    P(score of a right one > that of a wrong one), ties counting half (Mann and Whitney),
             over all worlds at once: one threshold has to do for all of them
    within   the mean over worlds of the AUROC in each: scores of other worlds do not matter
    passes   the share of right and of wrong subjects that meet the published threshold, or ours

An undefined score is no pass, and ranks below all others; how many there are is counted. Intervals
resample worlds, each with all its seeds. Where all worlds agree that is no interval: then it is
Clopper and Pearson's of as many agreements as there are worlds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from mechassay.measurement.catalogue import VARIANTS, Condition, Variant, VariantName
from mechassay.measurement.measurement import Measurement
from mechassay.results.records import Measure, Provenance, Record, Spec, Table
from mechassay.stats.intervals import (
    Estimate,
    clopper_pearson,
    percentile_interval,
    proportion_interval,
)
from mechassay.utils.display import Tabular, html_facts, html_table

N_RESAMPLES = 2000
Tally = Float[np.ndarray, "worlds worlds"]
"""How many right subjects of one world exceed wrong ones of another."""


@dataclass(frozen=True)
class TrialScore:
    """What one variant of a metric says of one subject.

    Attributes:
        world: the ground truth, or the planted values, that the subject belongs to.
        kind: what the subject is: "true", "random edges".
        right: whether it is a right one.
        score: more is better; NaN where it is undefined.
        passed: the verdict; None where there is none.
        has_conditions: whether the variant has any; without them it only reports.
    """

    world: str
    seed: int
    kind: str
    right: bool
    variant: VariantName
    score: float
    passed: bool | None
    has_conditions: bool = True


@dataclass(frozen=True)
class RightFromWrong:
    """How well one variant of a metric tells right subjects from one kind of wrong ones.

    Attributes:
        auroc, within: see the module; NaN without subjects of both sorts.
        passes_right, passes_wrong: shares; NaN where the variant has no conditions.
        n_right, n_wrong: subjects; `undefined_right`, `undefined_wrong`: those without a score.
        quantity: what the score is.
    """

    variant: VariantName
    against: str
    quantity: str
    auroc: Estimate
    within: float
    passes_right: Estimate
    passes_wrong: Estimate
    n_worlds: int
    n_right: int
    n_wrong: int
    undefined_right: int
    undefined_wrong: int


class RightFromWrongTable(Tabular, tuple[RightFromWrong, ...]):
    """One metric against all kinds of wrong subjects, in both variants."""

    def columns(self) -> dict[str, list[Any]]:
        """A row a variant and kind of wrong subjects."""
        names = ("auroc", "passes_right", "passes_wrong")
        ends = {
            f"{name}{end}": [getattr(getattr(x, name), part) for x in self]
            for name in names
            for end, part in (("", "value"), ("_low", "low"), ("_high", "high"))
        }
        plain = ("variant", "against", "quantity", "within", "n_worlds", "n_right", "n_wrong")
        counts = ("undefined_right", "undefined_wrong")
        return {name: [getattr(x, name) for x in self] for name in (*plain, *counts)} | ends

    def __repr__(self) -> str:
        return f"RightFromWrongTable(rows={len(self)})"

    def _repr_html_(self) -> str:
        columns = self.columns()
        rows = [
            [f"{x:.3f}" if isinstance(x, float) else x for x in row]
            for row in zip(*columns.values(), strict=True)
        ]
        return html_facts("Right from wrong", {}, html_table(tuple(columns), rows))


def deciding_quantity(gauge: Any, found: Variant) -> tuple[str, Condition | None] | None:
    """The quantity whose value decides a variant's verdict, and its condition if it has one; None
    if the variant only reports.
    """
    declared: Mapping[str, str] = getattr(gauge, "score", {})
    name = declared.get(found.name)
    for condition in found.conditions:
        if name in (None, condition.quantity):
            return condition.quantity, condition
    return None if name is None else (name, None)


def score_of(gauge: Any, found: Variant) -> float:
    """The score of a variant, more of which is better; NaN where it is undefined, or there is none.

    Of a condition "=" it is less the distance to the threshold.
    """
    decided = deciding_quantity(gauge, found)
    if decided is None:
        return math.nan
    name, condition = decided
    value = found[name]
    if value is None:
        return math.nan
    if condition is not None and condition.sign == "=":
        return -abs(value - condition.threshold)
    falling = (
        found.quantities[name].better == "down" if condition is None else condition.sign == "<"
    )
    return -value if falling else value


def scored(
    gauge: Any, found: Measurement, world: str, seed: int, kind: str, *, right: bool
) -> Iterator[TrialScore]:
    """What both variants say of a subject; nothing of a variant that only reports."""
    for name in VARIANTS:
        part = found.page if name == "page" else found.repaired
        if deciding_quantity(gauge, part) is not None:
            score, conditions = score_of(gauge, part), bool(part.conditions)
            yield TrialScore(world, seed, kind, right, name, score, part.passed, conditions)


def discriminate(
    rows: Sequence[TrialScore], quantities: Mapping[VariantName, str], *, seed: int = 0
) -> RightFromWrongTable:
    """How well each variant tells the right subjects from each kind of wrong ones.

    Args:
        quantities: names of the scores.
        seed: of resampled worlds.
    """
    found: list[RightFromWrong] = []
    for kind in dict.fromkeys(row.kind for row in rows if not row.right):
        for name in VARIANTS:
            mine = [row for row in rows if row.variant == name]
            right = [row for row in mine if row.right]
            wrong = [row for row in mine if row.kind == kind and not row.right]
            if right and wrong:
                found.append(_discrimination(name, kind, quantities[name], right, wrong, seed))
    return RightFromWrongTable(found)


def _discrimination(
    name: VariantName,
    kind: str,
    quantity: str,
    right: Sequence[TrialScore],
    wrong: Sequence[TrialScore],
    seed: int,
) -> RightFromWrong:
    worlds = list(dict.fromkeys(row.world for row in (*right, *wrong)))
    wins, pairs = tallies(right, wrong, worlds)
    own = pairs.diagonal() > 0
    within = wins.diagonal()[own] / pairs.diagonal()[own]
    return RightFromWrong(
        name,
        kind,
        quantity,
        auroc_estimate(wins, pairs, seed),
        float(within.mean()) if len(within) else math.nan,
        _passes(right),
        _passes(wrong),
        len(worlds),
        len(right),
        len(wrong),
        sum(math.isnan(row.score) for row in right),
        sum(math.isnan(row.score) for row in wrong),
    )


def tallies(
    right: Sequence[TrialScore], wrong: Sequence[TrialScore], worlds: Sequence[str]
) -> tuple[Tally, Tally]:
    """How many right subjects of each world exceed wrong ones of each, ties counting half; and how
    many pairs there are.
    """
    x, y = (np.nan_to_num([row.score for row in part], nan=-np.inf) for part in (right, wrong))
    won = (x[:, None] > y).astype(float) + 0.5 * (x[:, None] == y)
    first, second = (_of_worlds(part, worlds).astype(float) for part in (right, wrong))
    return first @ won @ second.T, np.outer(first.sum(1), second.sum(1))


def _of_worlds(
    rows: Sequence[TrialScore], worlds: Sequence[str]
) -> Bool[np.ndarray, "worlds rows"]:
    return np.array([row.world for row in rows])[None] == np.array(worlds)[:, None]


def auroc_estimate(wins: Tally, pairs: Tally, seed: int = 0) -> Estimate:
    """The AUROC with its interval over worlds."""
    if not pairs.sum():
        return Estimate(math.nan)
    value, n = float(wins.sum() / pairs.sum()), len(wins)
    if value in (0.0, 1.0):
        return Estimate(value, *clopper_pearson(value * n, float(n))[:2])
    rng = np.random.default_rng(seed)
    counts = rng.multinomial(n, np.full(n, 1 / n), size=N_RESAMPLES).astype(float)
    top, bottom = (np.einsum("ri,ij,rj->r", counts, each, counts) for each in (wins, pairs))
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high, _ = percentile_interval(top / bottom, n_groups=n)
    return Estimate(value, low, high)


def _passes(rows: Sequence[TrialScore]) -> Estimate:
    """The share that passes; NaN where the variant has no conditions."""
    if not any(row.has_conditions for row in rows):
        return Estimate(math.nan)
    passed = np.array([row.passed is True for row in rows], dtype=float)
    ends = proportion_interval(passed, [row.world for row in rows])
    return Estimate(float(passed.mean()), ends.low, ends.high)


def discrimination_record(
    table: RightFromWrongTable,
    rows: Sequence[TrialScore],
    kind: str,
    specs: Mapping[str, Spec],
    made: Provenance,
    *,
    cell: Mapping[str, str],
    spent: Mapping[str, float] | None = None,
) -> Record:
    """A metric's discriminations as a record: AUROCs as measures (of "result" the repaired ones, of
    "page" the published ones), and tables of everything, and of every subject.
    """
    columns = table.columns()
    told = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    measures = [
        Measure(
            name=f"auroc_{each.against.replace(' ', '_')}",
            of="result" if each.variant == "repaired" else "page",
            value=each.auroc.value,
            low=each.auroc.low,
            high=each.auroc.high,
            n=each.n_right + each.n_wrong,
            n_undefined=each.undefined_right + each.undefined_wrong,
            better="up",
            title=f"AUROC, {each.against}",
            meaning=f"Of {each.quantity}, between right subjects and those of the kind.",
        )
        for each in table
    ]
    keys = ("world", "seed", "kind", "variant")
    subjects = (
        {**{key: getattr(row, key) for key in keys}, "score": row.score, "passed": row.passed}
        for row in rows
    )
    return Record(
        kind=kind,
        cell=dict(cell),
        specs=dict(specs),
        measures=measures,
        tables=[
            Table.of("discrimination", ("variant", "against"), told),
            Table.of("subjects", keys, subjects),
        ],
        spent=dict(spent or {}),
        provenance=made,
    )
