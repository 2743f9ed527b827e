"""Names and findings of records in words: what tables, figures and pages share.

The verdict claims no more
than intervals do: "more than random" means that the difference from random rankings over the same
examples is above 0, for either kind of them, and that the CPR itself is.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import numpy as np

from mechassay.curves import (
    CONTROL,
    Curve,
    control_kinds,
    control_name,
    is_random,
    labels,
    random_curves,
)
from mechassay.records import Record
from mechassay.text import interval, share

CHANCE_DECIMALS = 2
"""Decimals of the share of chance, and the fewest of what is compared with it."""
SMALL = 0.2
"""Circuits up to this share of the edges count as small in the verdict."""

OBJECTIVES = {
    "logit_diff": "logit difference",
    "prob_diff": "probability difference",
    "cross_entropy": "cross-entropy",
    "kl": "KL divergence",
    "js": "Jensen-Shannon divergence",
}


# Parts of records


def measure_text(record: Record, name: str, of: str = "result", *, least: int = 0) -> str:
    """A measure and its interval, with at least so many decimals; empty if there is none."""
    found = record.measure(name, of)
    return "" if found is None else interval(found.value, found.low, found.high, least=least)


def chance_text(chance: float) -> str:
    """What guessing would get right."""
    return f"{chance:.{CHANCE_DECIMALS}f}"


def seconds(record: Record) -> float:
    """All time spent on the record; NaN if none was noted."""
    spent = [value for key, value in record.realised.items() if key.endswith("seconds")]
    known = [value for value in spent if not math.isnan(value)]
    return math.fsum(known) if known else math.nan


def kept_at(record: Record, fraction: float = 0.01) -> str:
    """Edges left of those asked for at one of the record's sizes; empty if it has no such size."""
    if record.has_table("curve"):
        found = record.table("curve").where(of="result", ranking="value", fraction=fraction)
        for row in found.rows():
            return f"{row['kept']:,} of {row['asked']:,}"
    return ""


# Names


def settings(records: Sequence[Record]) -> list[list[Record]]:
    """Records that can be compared, together: those of one model, task, objective and profile."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        specs = [
            spec.model_dump(mode="json") for spec in (record.model, record.task, record.metric)
        ]
        asked = {role: name for role, name in record.cell.items() if role != "method"}
        key = json.dumps([*specs, asked], sort_keys=True)
        groups.setdefault(key, []).append(record)
    return list(groups.values())


def setting_name(record: Record) -> str:
    """What a group of `settings` is called."""
    name, split = record.cell.get("task", record.task.name), record.task.args.get("split", "")
    task = " ".join(filter(None, (name, str(split))))
    profile = record.metric.args.get("profile", "strict")
    return f"{record.model.name}, {task}, {objective(record)} ({profile})"


def objective(record: Record) -> str:
    """The objective in words."""
    return OBJECTIVES.get(record.metric.name, record.metric.name)


# The verdict


def verdict(records: Sequence[Record]) -> str:
    """One sentence on records of one setting: is the best circuit better than random ones?"""
    tried = [record for record in records if not is_random(record)] or list(records)
    defined = [record for record in tried if not math.isnan(record.value("cpr"))]
    if not defined:
        return _undefined(tried[0])
    best = max(defined, key=lambda record: record.value("cpr"))
    name = labels(records)[list(records).index(best)]
    among = f" (the best of {len(tried)} methods by CPR)" if len(tried) > 1 else ""
    subject = f"{_data(best)}, circuits found by {name}{among}"
    return f"{subject} {_compared(best)}{_caution(best)}"


def _data(record: Record) -> str:
    split = record.task.args.get("split")
    of = f" of {record.task.name}" if record.task.name else ""
    return f"On {record.n:,} {f'{split} ' if split else ''}pairs{of}"


def _whose(record: Record) -> str:
    whose = f"{record.model.name}'s" if record.model.name else "the"
    return f"{whose} {objective(record)}"


def _compared(record: Record) -> str:
    """What the best method's CPR is worth beside random rankings and the empty circuit (0)."""
    found = record.measure("cpr")
    controls = {kind: record.measure("cpr", f"{CONTROL}{kind}") for kind in control_kinds(record)}
    beside = {kind: measure for kind, measure in controls.items() if measure is not None}
    own, what = f"CPR {measure_text(record, 'cpr')}", f"of {_whose(record)}"
    if found is None or not beside:
        return f"recover {what} with {own}; there is no random control to compare with."
    control = " and ".join(
        f"{interval(m.value, m.low, m.high)} of {control_name(kind)}{_seeds(record, kind)}"
        for kind, m in beside.items()
    )
    gains = [record.measure("cpr", f"difference:{kind}") for kind in beside]
    above = [(math.nan, math.nan) if gain is None else (gain.low, gain.high) for gain in gains]
    least = [low for low, _ in above]
    if record.metric.args.get("profile") == "strict":
        # In that profile the empty circuit is worth 0; random ones may do harm.
        least.append(found.low)
    if any(math.isnan(low) for low in least):
        return f"reach {own} {what}, without an interval, against {control}."
    if all(low > 0 for low in least):
        return f"recover more {what} than random ones{_where(record)}: {own} against {control}."
    if any(high < 0 for _, high in above):
        return f"recover less {what} than random ones: {own} against {control}."
    return (
        f"cannot be told from random ones in how much {what} they recover: {own} against {control}."
    )


def _seeds(record: Record, kind: str) -> str:
    seeds = len(random_curves(record, kind))
    return f" ({seeds} seed{'s' * (seeds != 1)})" if seeds else ""


def _where(record: Record) -> str:
    """At which small sizes the interval of f lies above the random rankings' intervals."""
    curve = Curve.of(record)
    kinds = control_kinds(record)
    controls = [control for kind in kinds for control in random_curves(record, kind).values()]
    small = curve.fractions <= SMALL
    if not controls or not small.any():
        return ""
    highest = np.max([control.high for control in controls], axis=0)
    above, n_small = int((curve.low > highest)[small].sum()), int(small.sum())
    if above == n_small:
        return f" at every size up to {share(SMALL)}"
    at = f" and at {above}" if above else ", but at none"
    return f" overall{at} of the {n_small} sizes up to {share(SMALL)}"


def _denominator(record: Record) -> tuple[float, float]:
    found = record.measure("denominator", "control:full")
    return (math.nan, math.nan) if found is None else (found.low, found.high)


def _caution(record: Record) -> str:
    low, high = _denominator(record)
    if not low <= 0 <= high:
        return ""
    said = "These numbers mean little: the full model cannot be told from the empty circuit"
    return f" {said} (difference [{low:.3g}, {high:.3g}])."


def _undefined(record: Record) -> str:
    low, high = _denominator(record)
    why = f" (difference [{low:.3g}, {high:.3g}])" if not math.isnan(low) else ""
    return (
        f"{_data(record)}, faithfulness is undefined: {_whose(record)} cannot be told from that of"
        f" the empty circuit{why}."
    )
