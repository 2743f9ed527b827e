"""The verdict on records of one setting: a sentence for each of CPR and CMD.

It claims no more than intervals do. "More than random ones" means that the difference from random
rankings over the same examples is above 0, for either kind of them, and that the CPR itself is;
"closer than random ones", that the difference of the CMD is below 0, and the CMD itself below 1. A
method is the best by the area that its sentence is about.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mechassay.circuits.differences import AreaName
from mechassay.curves import (
    CONTROL,
    Curve,
    control_kinds,
    control_name,
    is_random,
    labels,
    random_curves,
)
from mechassay.records import Measure, Record
from mechassay.report.text import measure_text, objective
from mechassay.text import interval, number, share

SMALL = 0.2
"""Circuits up to this share of the edges count as small."""
BY: dict[AreaName, str] = {"cpr": "value", "cmd": "magnitude"}
"""The ranking that an area is of."""
WORDS: dict[AreaName, tuple[str, str, str]] = {
    "cpr": (
        "recover more of {} than random ones",
        "recover less of {} than random ones",
        "cannot be told from random ones in how much of {} they recover",
    ),
    "cmd": (
        "stay closer to {} than random ones",
        "stray farther from {} than random ones",
        "cannot be told from random ones in how close they stay to {}",
    ),
}
"""What is said of an area that is better than that of random rankings, worse, or unresolved."""


def verdicts(records: Sequence[Record]) -> list[str]:
    """A sentence for CPR and one for CMD; one alone where faithfulness is undefined."""
    areas: tuple[AreaName, ...] = ("cpr", "cmd")
    return [*dict.fromkeys(verdict(records, area) for area in areas), *_caution(records)]


def verdict(records: Sequence[Record], area: AreaName = "cpr") -> str:
    """One sentence on records of one setting: is the best circuit better than random ones?"""
    tried = [record for record in records if not is_random(record)] or list(records)
    defined = [record for record in tried if not math.isnan(record.value(area))]
    if not defined:
        return _undefined(tried[0])
    best = max(defined, key=lambda record: _worth(area, record.value(area)))
    name = labels(records)[list(records).index(best)]
    among = f" (the best of {len(tried)} methods by {area.upper()})" if len(tried) > 1 else ""
    return f"{_data(best)}, circuits found by {name}{among} {_compared(best, area)}"


def ends_text(record: Record) -> str:
    """m(N), m(0) and their difference in words; empty where the record does not have them."""
    full, empty = (record.measure("objective", f"control:{end}") for end in ("full", "empty"))
    between = record.measure("denominator", "control:full")
    if full is None or empty is None or between is None:
        return ""
    low, high = between.low, between.high
    return (
        f"The mean of {_whose(record)} is m(N) = {number(full.value, low, high)} for the whole"
        f" model and m(0) = {number(empty.value, low, high)} for the empty circuit; m(N) − m(0) ="
        f" {interval(full.value - empty.value, low, high)}."
    )


def _worth(area: AreaName, value: float) -> float:
    """A number that is higher where the area is better, and 0 for the empty circuit."""
    return value if area == "cpr" else 1 - value


def _data(record: Record) -> str:
    split = record.task.args.get("split")
    of = f" of {record.task.name}" if record.task.name else ""
    return f"On {record.n:,} {f'{split} ' if split else ''}pairs{of}"


def _whose(record: Record) -> str:
    whose = f"{record.model.name}'s" if record.model.name else "the"
    return f"{whose} {objective(record)}"


def _compared(record: Record, area: AreaName) -> str:
    """What the best method's area is worth beside random rankings and the empty circuit."""
    found = record.measure(area)
    controls = {kind: record.measure(area, f"{CONTROL}{kind}") for kind in control_kinds(record)}
    beside = {kind: measure for kind, measure in controls.items() if measure is not None}
    own, whose = f"{area.upper()} {measure_text(record, area)}", _whose(record)
    if found is None or not beside:
        return f"have {own} of {whose}; there is no random control to compare with."
    control = " and ".join(
        f"{interval(m.value, m.low, m.high)} of {control_name(kind)}{_seeds(record, kind)}"
        for kind, m in beside.items()
    )
    gains = [_gain(record.measure(area, f"difference:{kind}"), area) for kind in beside]
    least = [low for low, _ in gains]
    if record.metric.args.get("profile") == "strict":
        # In that profile the empty circuit is worth 0; random ones may do harm.
        least.append(min(_worth(area, found.low), _worth(area, found.high)))
    if any(math.isnan(low) for low in least):
        return f"reach {own} of {whose}, without an interval, against {control}."
    better, worse, unresolved = (words.format(whose) for words in WORDS[area])
    if all(low > 0 for low in least):
        return f"{better}{_where(record, area)}: {own} against {control}."
    if any(high < 0 for _, high in gains):
        return f"{worse}: {own} against {control}."
    return f"{unresolved}: {own} against {control}."


def _gain(less: Measure | None, area: AreaName) -> tuple[float, float]:
    """The interval of how much better than a control the area is."""
    if less is None:
        return math.nan, math.nan
    return (less.low, less.high) if area == "cpr" else (-less.high, -less.low)


def _seeds(record: Record, kind: str) -> str:
    seeds = len(random_curves(record, kind))
    return f" ({seeds} seed{'s' * (seeds != 1)})" if seeds else ""


def _where(record: Record, area: AreaName) -> str:
    """At which small sizes the interval of f is better than all random rankings' intervals."""
    curve = Curve.of(record, BY[area])
    kinds = control_kinds(record)
    controls = [control for kind in kinds for control in random_curves(record, kind).values()]
    small = curve.fractions <= SMALL
    if not controls or not small.any():
        return ""
    least, _ = _worth_of(curve, area)
    most = np.max([_worth_of(control, area)[1] for control in controls], axis=0)
    above, n_small = int((least > most)[small].sum()), int(small.sum())
    if above == n_small:
        return f" at every size up to {share(SMALL)}"
    at = f" and at {above}" if above else ", but at none"
    return f" overall{at} of the {n_small} sizes up to {share(SMALL)}"


def _worth_of(curve: Curve, area: AreaName) -> tuple[np.ndarray, np.ndarray]:
    """The least and the most that f may be worth at every size: itself, or its nearness to 1."""
    if area == "cpr":
        return curve.low, curve.high
    ends = np.abs(np.stack([1 - curve.low, 1 - curve.high]))
    nearest = np.where((curve.low <= 1) & (curve.high >= 1), 0.0, ends.min(axis=0))
    return -ends.max(axis=0), -nearest


def _denominator(record: Record) -> tuple[float, float]:
    found = record.measure("denominator", "control:full")
    return (math.nan, math.nan) if found is None else (found.low, found.high)


def _caution(records: Sequence[Record]) -> list[str]:
    low, high = _denominator(records[0])
    if not low <= 0 <= high or all(math.isnan(record.value("cpr")) for record in records):
        return []
    return [
        "These numbers mean little: the full model cannot be told from the empty circuit"
        f" (difference [{low:.3g}, {high:.3g}])."
    ]


def _undefined(record: Record) -> str:
    low, high = _denominator(record)
    why = f" (difference [{low:.3g}, {high:.3g}])" if not math.isnan(low) else ""
    return (
        f"{_data(record)}, faithfulness is undefined: {_whose(record)} cannot be told from that of"
        f" the empty circuit{why}."
    )
