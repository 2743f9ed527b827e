"""The table that splits a grid's pairs by template:
same for both prompts, or different (`stats.resampled`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mechassay.records import Record
from mechassay.report.nats import nats, plain_number
from mechassay.report.tables import NOTHING, Grid
from mechassay.report.text import share

STATISTICS = ("mean", "99%", "max")
EMPTY = "empty circuit"
ROUNDED = 5e-4
"""A share below this is shown as none."""


def split_grid(records: Sequence[Record]) -> Grid | None:
    """Every circuit and the empty one, on pairs of the same and of different templates;
    None where there is nothing to split.
    """
    rows: list[tuple[str, ...]] = []
    for record in records:
        rows += [
            _row(record.method.name, half, "circuit", _percent(half["left"]))
            for half in _halves(record)
        ]
    if not rows:
        return None
    rows += [_row(EMPTY, half, "empty", NOTHING) for half in _halves(records[0])]
    return Grid(
        "By template", ("circuit", "templates", "pairs", *STATISTICS, "left of empty"), tuple(rows)
    )


def split_text(records: Sequence[Record]) -> str:
    """What can be said about templates, in a sentence; nothing for pairs that are no grid."""
    found = records[0].curves.get("split")
    if found is None or records[0].task.args["design"] != "grid":
        return ""
    if found["templates"] is None:
        return (
            f"The task {records[0].task.name} does not say how its prompts are built, so pairs are"
            " not split by template."
        )
    if found["templates"] == 1:
        return "All prompts have one template."
    kinds = [half["pairs"] for half in found["halves"]]
    if kinds == ["same"]:
        return f"Both prompts of every pair have the same of {found['templates']} templates."
    return (
        f"The prompts have {found['templates']} templates. Pairs of different templates are another"
        " population than those of the same: what the circuit leaves out then carries other words"
        " at other places."
    )


def _halves(record: Record) -> list[Mapping[str, Any]]:
    return list(record.curves.get("split", {}).get("halves", []))


def _row(name: str, half: Mapping[str, Any], which: str, left: str) -> tuple[str, ...]:
    return (
        name,
        half["pairs"],
        f"{half['n']:,}",
        *(_cell(half[which][statistic]) for statistic in STATISTICS),
        left,
    )


def _cell(found: Sequence[Any]) -> str:
    value, low, high = map(plain_number, found)
    return (
        nats(value)
        if math.isnan(low) or math.isnan(high)
        else f"{nats(value)} [{nats(low)}, {nats(high)}]"
    )


def _percent(found: Sequence[Any]) -> str:
    value, low, high = map(plain_number, found)
    if math.isnan(value):
        return NOTHING
    if abs(value) < ROUNDED:
        return "≈ 0"
    return (
        share(value)
        if math.isnan(low) or math.isnan(high)
        else f"{share(value)} [{share(low)}, {share(high)}]"
    )
