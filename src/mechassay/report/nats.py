"""Numbers of adversarial runs, in nats, as text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from mechassay.records import Record
from mechassay.report.tables import NOTHING

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


Numbers = dict[str, float]


def summary(record: Record, of: str = "result") -> dict[str, Numbers]:
    """The numbers of each statistic of a distribution, by its name."""
    keys = ("value", "z", "low", "high", "bound")
    return {
        str(row["statistic"]): {key: plain_number(row[key]) for key in keys}
        for row in record.table("summary").where(of=of).rows()
    }
