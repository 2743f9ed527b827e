"""Numbers and names as short texts.

A number is rounded to what its interval supports: two digits of the interval's half-width if it
begins with 1, 2 or 3, else one (the rule of the Particle Data Group).
"""

from __future__ import annotations

import math
import re

UNDEFINED = "undefined"


def number(value: float, low: float = math.nan, high: float = math.nan) -> str:
    """A value to the precision its interval supports; two decimals where there is no interval."""
    if not math.isfinite(value):
        return UNDEFINED if math.isnan(value) else f"{value}"
    return _fixed(value, _decimals(low, high))


def interval(value: float, low: float, high: float, *, least: int = 0) -> str:
    """A value and its interval, with at least so many decimals: `1.97 [1.71, 2.20]`."""
    if not (math.isfinite(value) and math.isfinite(low) and math.isfinite(high)):
        return number(value, low, high)
    decimals = max(least, _decimals(low, high))
    shown = _fixed(value, decimals)
    return f"{shown} [{_fixed(low, decimals)}, {_fixed(high, decimals)}]"


def shortened(text: str, most: int, keep: int | None = None) -> str:
    """A text without its middle where it is longer than `most` letters.

    Args:
        keep: letters of its beginning that stay; half of `most` if not given.
    """
    if len(text) <= most:
        return text
    keep = most // 2 if keep is None else keep
    return f"{text[:keep]}…{text[len(text) - (most - 1 - keep) :]}"


def first_sentence(text: str) -> str:
    """What a docstring begins with, in one line."""
    line = " ".join(text.partition("\n\n")[0].split())
    found = re.match(r".*?[.?!](?=\s|$)", line)
    return found[0] if found else line


def counted(n: int, one: str, many: str = "") -> str:
    """How many there are of something: `1 row`, `2,000 rows`.

    Args:
        one: what one of them is called.
        many: what several are called; `one` with an s if not given.
    """
    return f"{n:,} {one if n == 1 else many or one + 's'}"


def share(fraction: float) -> str:
    """A fraction as a percentage: `0.1 %`, in which lines do not break."""
    return f"{100 * fraction:.3g}\u00a0%"


def _decimals(low: float, high: float) -> int:
    half = (high - low) / 2
    if not math.isfinite(half) or half <= 0:
        return 2
    power = math.floor(math.log10(half))
    digits = 2 if half / 10**power < 3.55 else 1
    return min(max(digits - 1 - power, 0), 3)


def _fixed(value: float, decimals: int) -> str:
    text = f"{value:.{decimals}f}"
    return text.lstrip("-") if float(text) == 0 else text
