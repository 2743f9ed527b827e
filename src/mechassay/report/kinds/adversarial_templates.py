"""The table that splits a grid's pairs by template: the same for both prompts, or different."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mechassay.records import Record
from mechassay.report.nats import plain_number, with_interval
from mechassay.report.tables import NOTHING, TextTable
from mechassay.text import share

STATISTICS = ("mean", "99%", "max")
ENDS = ("value", "low", "high")
EMPTY = "empty circuit"
ROUNDED = 5e-4
"""A share below this is shown as none."""


def template_table(records: Sequence[Record]) -> TextTable | None:
    """Every circuit and the empty one, on pairs of the same and of different templates, if any."""
    rows: list[tuple[str, ...]] = []
    for record in records:
        rows += [
            _row(record.method.name, half, "result", _percent(half["left", "mean"]))
            for half in halves(record)
        ]
    if not rows:
        return None
    rows += [_row(EMPTY, half, "control:empty", NOTHING) for half in halves(records[0])]
    columns = ("circuit", "templates", "pairs", *STATISTICS, "left of empty")
    return TextTable.of("By template", columns, rows)


def template_text(records: Sequence[Record]) -> str:
    """What can be said about templates, in a sentence; nothing for pairs that are no grid."""
    args = records[0].task.args
    if "templates" not in args or args["design"] != "grid":
        return ""
    n = args["templates"]
    if n is None:
        return (
            f"The task {records[0].task.name} does not say how its prompts are built, so pairs are"
            " not split by template."
        )
    if n == 1:
        return "All prompts have one template."
    if [half["pairs"] for half in halves(records[0])] == ["same"]:
        return f"Both prompts of every pair have the same of {n} templates."
    return (
        f"The prompts have {n} templates. Pairs of different templates are another population than"
        " those of the same: what the circuit leaves out then carries other words at other places."
    )


def halves(record: Record) -> list[dict[Any, Any]]:
    """What is known of pairs of one template, and of two: rows by what and which statistic."""
    found: dict[str, dict[Any, Any]] = {}
    for row in record.table("templates").rows():
        pairs = str(row["pairs"])
        half = found.setdefault(pairs, {"pairs": pairs, "n": row["n"]})
        half[row["of"], row["statistic"]] = [row[key] for key in ENDS]
    return list(found.values())


def _row(name: str, half: Mapping[Any, Any], of: str, left: str) -> tuple[str, ...]:
    cells = (_cell(half[of, statistic]) for statistic in STATISTICS)
    return (name, half["pairs"], f"{half['n']:,}", *cells, left)


def _cell(found: Sequence[Any]) -> str:
    return with_interval(dict(zip(ENDS, map(plain_number, found), strict=True)))


def _percent(found: Sequence[Any]) -> str:
    value, low, high = map(plain_number, found)
    if math.isnan(value):
        return NOTHING
    if abs(value) < ROUNDED:
        return "≈ 0"
    has_interval = not (math.isnan(low) or math.isnan(high))
    return f"{share(value)} [{share(low)}, {share(high)}]" if has_interval else share(value)
