"""Estimates as measures of a record."""

from __future__ import annotations

from typing import Literal

from mechassay.records import Measure
from mechassay.stats.intervals import Estimate


def measured(
    name: str,
    title: str,
    of: str,
    found: Estimate,
    n: int,
    meaning: str,
    *,
    better: Literal["up", "down", ""] = "up",
    unit: str = "",
) -> Measure:
    """An estimate from `n` examples, with its interval."""
    return Measure(
        name=name,
        of=of,
        value=found.value,
        low=found.low,
        high=found.high,
        n=n,
        better=better,
        unit=unit,
        title=title,
        meaning=meaning,
    )
