"""Names and facts of records in words: what tables and pages share."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from mechassay.records import Record
from mechassay.text import interval

CHANCE_DECIMALS = 2
"""Decimals of the share of chance, and the fewest of what is compared with it."""

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
