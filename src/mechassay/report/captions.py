"""What charts show in words, for whoever cannot see them; the tables beside have all numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mechassay.curves import Curve, control_kinds, control_name, labels
from mechassay.records import Record
from mechassay.report.text import measure_text
from mechassay.text import UNDEFINED, share

TOLD = (0.01, 0.1)
"""Circuit sizes at which faithfulness is told, as shares of the edges asked for."""


def faithfulness_text(records: Sequence[Record]) -> str:
    """Faithfulness of every record at two sizes, by value and by magnitude."""
    parts: list[str] = []
    for by in ("value", "magnitude"):
        told = [
            f"{name} {said}"
            for record, name in zip(records, labels(records), strict=True)
            if (said := _told(Curve.of(record, by)))
        ]
        if told:
            parts.append(f"Edges ranked by {by}: {'; '.join(told)}.")
    return " ".join(["Faithfulness f over circuit size, on a log axis.", *parts])


def _told(curve: Curve) -> str:
    told: list[str] = []
    for size in TOLD:
        at = [place for place, each in enumerate(curve.fractions) if math.isclose(each, size)]
        told += [f"f = {_f(float(curve.f[place]))} at {share(size)}" for place in at]
    return ", ".join(told)


def _f(value: float) -> str:
    return UNDEFINED if math.isnan(value) else f"{value:.2f}"


def areas_text(records: Sequence[Record]) -> str:
    """CPR and CMD of every record and of its random rankings."""
    told: dict[str, None] = {}
    for record, name in zip(records, labels(records), strict=True):
        told[f"{name}: {_areas(record, 'result')}"] = None
    for record in records:
        for kind in control_kinds(record):
            told[f"{control_name(kind)}: {_areas(record, f'control:{kind}')}"] = None
    return f"Areas with their intervals. {'; '.join(told)}."


def _areas(record: Record, of: str) -> str:
    return ", ".join(
        f"{area.upper()} {measure_text(record, area, of) or UNDEFINED}" for area in ("cpr", "cmd")
    )
