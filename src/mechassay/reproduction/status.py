"""What a comparison of a published number with ours is worth: one word, and why.

The first of these that holds:

    not run          there is no number of ours, or the published one cannot be read
    other model      other weights than the published ones ran
    too few to tell  ours is undefined or of fewer examples, or its interval is wider than `WIDTH`
                     of the measure's range and than `SHARE` of the published value
    reproduced       split, definition and n are as published, and the published value, as far as
                     it is rounded, is within the interval
    explained        a page says why the two are no equals: a definition, a fault of public code
    differs          none of these

Too wide an interval would hold any value, so width comes first. The width is allowed by the
published value, not by ours, which could be large because it is wrong. A published value that was
calculated, and not measured on examples, has n = 0, and our interval has no width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

Status = Literal["reproduced", "too few to tell", "other model", "explained", "differs", "not run"]
STATUSES: tuple[Status, ...] = get_args(Status)
WIDTH = 0.1
"""Of the measure's range, how wide an interval may be."""
SHARE = 0.2
"""Of the published value, how wide an interval may be where that is more."""
NEARLY = 1e-9
"""Ends of intervals are sums of floating-point numbers."""


@dataclass(frozen=True)
class Ours:
    """Our number, and in what it is not the published one.

    Attributes:
        low, high: ends of its 95 % interval; those of a calculation are the value.
        n: examples behind it; 0 of a calculation.
        stand_in: the weights that ran in place of the published ones; "" for these.
        deviations: in what split, definition or settings are not as published.
        why_not: why there is no number.
    """

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    n: int = 0
    stand_in: str = ""
    deviations: tuple[str, ...] = ()
    why_not: str = ""


@dataclass(frozen=True)
class StatusAndReason:
    """A status and its reason; the reason is empty where the numbers say it."""

    status: Status
    reason: str = ""


def printed_value(text: str) -> float:
    """The number that a paper prints; NaN where it is none, or not legible."""
    try:
        return float(text.replace(",", "").replace(" ", ""))
    except ValueError:
        return math.nan


def rounding(text: str) -> float:
    """By how much a printed number may be rounded: half a unit of its last digit."""
    return 0.5 * 10.0 ** -len(text.partition(".")[2]) if "." in text else 0.5


def verdict(
    printed: str,
    ours: Ours,
    *,
    n: int | None,
    span: float = math.inf,
    explained: str = "",
) -> StatusAndReason:
    """The status of a comparison, see the module.

    Args:
        printed: the published number as it is printed.
        n: examples behind it; 0 if it was calculated, None if the paper does not say.
        span: of the measure's range.
        explained: what a page says of the difference.
    """
    if ours.why_not:
        return StatusAndReason("not run", ours.why_not)
    if ours.stand_in:
        return StatusAndReason("other model", ours.stand_in)
    value = printed_value(printed)
    if not math.isfinite(value):
        return StatusAndReason("not run", "the published number is not legible")
    few = _too_few(value, ours, n, span)
    if few:
        return StatusAndReason("too few to tell", few)
    unlike = list(ours.deviations)
    if n is None:
        unlike.append("the paper does not say of how many examples")
    elif ours.n > n:
        unlike.append(f"n is {ours.n:,}, published {n:,}")
    slack = rounding(printed) + NEARLY
    if not unlike and ours.low - slack <= value <= ours.high + slack:
        return StatusAndReason("reproduced")
    if explained:
        return StatusAndReason("explained", explained)
    return StatusAndReason("differs", "; ".join(unlike))


def _too_few(value: float, ours: Ours, n: int | None, span: float) -> str:
    """Why a number of ours decides nothing; "" if it does."""
    ends = (ours.low, ours.value, ours.high)
    if not all(map(math.isfinite, ends)) or not ours.low <= ours.value <= ours.high:
        return "undefined" if not math.isfinite(ours.value) else "no interval"
    if n is not None and ours.n < n:
        return f"n is {ours.n:,}, published {n:,}"
    allowed = max(WIDTH * span if math.isfinite(span) else 0.0, SHARE * abs(value))
    width = ours.high - ours.low
    # Half a digit on each side is what rounding alone may hide.
    if width > allowed + NEARLY:
        return f"the interval is {width:.2g} wide, {allowed:.2g} are allowed"
    return ""
