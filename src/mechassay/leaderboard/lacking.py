"""Why a record has no number, or no interval of it, in words with what would be needed.

percentile's bound      one needs an order statistic that is likely enough above the percentile:
                        log(0.05) / log(p) inputs of each side of a grid, or pairs
percentile's interval   on a grid at least `two_way.LEAST` inputs beyond the percentile; of
                        independent pairs, an order statistic at either end
any other number        which of its examples are undefined
"""

from __future__ import annotations

import math
from functools import cache

from mechassay.records import Measure, Record
from mechassay.stats.bounds import decimal, first_that, smallest_rank
from mechassay.stats.grid_bounds import grid_rank
from mechassay.stats.intervals import LEVEL
from mechassay.stats.two_way import LEAST

BOUND = "bound "
MOST = 10**6


def why_lacking(record: Record, measure: Measure) -> str:
    """Why a measure of a record is undefined or has no interval; "" if it lacks nothing, or if the
    record does not tell.
    """
    undefined = math.isnan(measure.value)
    is_bound = measure.name.startswith(BOUND)
    if not undefined and (is_bound or math.isfinite(measure.low + measure.high)):
        return ""  # A bound is an end of an interval itself.
    if undefined and measure.n_undefined:
        return f"{measure.n_undefined:,} of {measure.n:,} examples are undefined"
    p = _percentile(measure.name.removeprefix(BOUND))
    if p is None:
        return ""
    return _of_percentile(record, p, is_bound)


def _of_percentile(record: Record, p: float, is_bound: bool) -> str:
    given = record.specs["task"].args if "task" in record.specs else {}
    if given.get("population") is True:
        return "no interval: these are all pairs that exist"
    what = "a bound" if is_bound else "an interval"
    if given.get("same"):
        return f"too few pairs of one stratum for {what}"
    if given.get("design") == "grid":
        needed = grid_for_bound(p) if is_bound else grid_for_interval(p)
        sides = f"{given.get('n_clean')} × {given.get('n_corrupted')}"
        return f"{what} needs {needed} × {needed} prompts, here {sides}"
    level = LEVEL if is_bound else (1 + LEVEL) / 2
    return f"{what} needs {pairs_for(p, level):,} pairs"


@cache
def grid_for_bound(p: float) -> int:
    """Prompts that each side of a grid needs for a bound of the percentile p."""
    return first_that(lambda n: grid_rank(n, n, p, LEVEL) is not None, 1, MOST)


def grid_for_interval(p: float) -> int:
    """Prompts that each side of a grid needs for an interval of the percentile p."""
    return math.ceil(LEAST / min(decimal(p), 1 - decimal(p)))


@cache
def pairs_for(p: float, level: float) -> int:
    """Independent pairs that a bound of the percentile p needs at a level."""
    return first_that(lambda n: smallest_rank(n, p, level) is not None, 1, MOST)


def _percentile(name: str) -> float | None:
    """The share that the name of a percentile says: 0.99 of "99%"."""
    number = name.removesuffix("%")
    if number == name:
        return None
    try:
        share = float(decimal(float(number)) / 100)
    except ValueError:
        return None
    return share if 0 < share < 1 else None
