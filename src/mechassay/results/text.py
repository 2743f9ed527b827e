"""Records in words: names and facts, numbers in nats, and what charts show.

Tables and pages share these texts. Numbers of adversarial runs are in nats. The captions of
charts are for whoever cannot see them; the tables beside have all numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mechassay.results.curves import Curve, control_kinds, control_name, labels
from mechassay.results.page import NOTHING
from mechassay.results.records import Record
from mechassay.utils.display import UNDEFINED, interval, number, share

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
    measure = record.measure(name, of)
    return (
        "" if measure is None else interval(measure.value, measure.low, measure.high, least=least)
    )


def chance_text(chance: float) -> str:
    """What guessing would get right."""
    return f"{chance:.{CHANCE_DECIMALS}f}"


def seconds(record: Record) -> float:
    """All time spent on the record, by the clock; NaN if none was noted."""
    names = [key for key in record.spent if key.endswith("seconds") and "cpu" not in key]
    known = [record.spent[key] for key in names if not math.isnan(record.spent[key])]
    return math.fsum(known) if known else math.nan


def kept_at(record: Record, fraction: float = 0.01) -> str:
    """Edges left of those asked for at one of the record's sizes; empty if it has no such size."""
    if record.has_table("curve"):
        points = record.table("curve").where(of="result", ranking="value", fraction=fraction)
        for row in points.rows():
            return f"{row['kept']:,} of {row['asked']:,}"
    return ""


# Names


FOUND_ON = ("train_split", "train_limit")
"""Arguments of a task that say on which pairs circuits were found; all are measured on others."""


def settings(records: Sequence[Record]) -> list[list[Record]]:
    """Records that can be compared, together: those of one model, task, objective and profile."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        specs = [
            spec.model_dump(mode="json") for spec in (record.model, record.task, record.metric)
        ]
        # A file of scores says itself on which pairs they were found, a method has the run's.
        for name in FOUND_ON:
            specs[1]["args"].pop(name, None)
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


ROUNDING = 2e-5
"""Divergences in single precision are exact up to about this many nats."""


def nats(value: Any) -> str:
    """Three digits, zeros at the end too; a dash where undefined; what is rounding as such."""
    number = plain_number(value)
    if math.isnan(number):
        return NOTHING
    if abs(number) < ROUNDING:
        return "≈ 0"
    return f"{number:#.3g}".rstrip(".") if abs(number) < 999.5 else f"{number:.0f}"


def with_interval(row: Mapping[str, float], name: str = "value") -> str:
    """A number and its interval, from `low` to `high`; an end that needs more pairs is a dash."""
    ends = [nats(row[end]) if math.isfinite(row[end]) else NOTHING for end in ("low", "high")]
    if math.isnan(row["low"]) and math.isnan(row["high"]):
        return nats(row[name])
    return f"{nats(row[name])} [{ends[0]}, {ends[1]}]"


def plain_number(value: Any) -> float:
    """A number as tables hold it: None is undefined."""
    return math.nan if value is None else float(value)


def number_or_dash(value: float) -> str:
    """Return a number as text, or a dash if it is undefined."""
    return NOTHING if math.isnan(value) else number(value)


Numbers = dict[str, float]


def summary(record: Record, of: str = "result") -> dict[str, Numbers]:
    """The numbers of each statistic of a distribution, by its name."""
    keys = ("value", "z", "low", "high", "bound")
    return {
        str(row["statistic"]): {key: plain_number(row[key]) for key in keys}
        for row in record.table("summary").where(of=of).rows()
    }


SIZES_PRINTED = (0.01, 0.1)
"""Circuit sizes at which faithfulness is told, as shares of the edges asked for."""


def faithfulness_text(records: Sequence[Record]) -> str:
    """Faithfulness of every record at two sizes, by value and by magnitude."""
    parts: list[str] = []
    for by in ("value", "magnitude"):
        texts = [
            f"{name} {text}"
            for record, name in zip(records, labels(records), strict=True)
            if (text := _curve_text(Curve.of(record, by)))
        ]
        if texts:
            parts.append(f"Edges ranked by {by}: {'; '.join(texts)}.")
    return " ".join(["Faithfulness f over circuit size, on a log axis.", *parts])


def _curve_text(curve: Curve) -> str:
    texts: list[str] = []
    for size in SIZES_PRINTED:
        at = [
            place for place, fraction in enumerate(curve.fractions) if math.isclose(fraction, size)
        ]
        texts += [f"f = {_f(float(curve.f[place]))} at {share(size)}" for place in at]
    return ", ".join(texts)


def _f(value: float) -> str:
    return UNDEFINED if math.isnan(value) else f"{value:.2f}"


def areas_text(records: Sequence[Record]) -> str:
    """CPR and CMD of every record and of its random rankings."""
    lines: dict[str, None] = {}
    for record, name in zip(records, labels(records), strict=True):
        lines[f"{name}: {_areas(record, 'result')}"] = None
    for record in records:
        for kind in control_kinds(record):
            lines[f"{control_name(kind)}: {_areas(record, f'control:{kind}')}"] = None
    return f"Areas with their intervals. {'; '.join(lines)}."


def _areas(record: Record, of: str) -> str:
    return ", ".join(
        f"{area.upper()} {measure_text(record, area, of) or UNDEFINED}" for area in ("cpr", "cmd")
    )
