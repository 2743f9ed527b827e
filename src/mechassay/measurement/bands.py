"""Reading tables: what a published table says of a value, and where it says nothing.

A scale reads one quantity, or several together; its bands are ranges with words. Published tables
write "0.5-0.8" beside "> 0.8", so a value may stand on the edge of bands, or in a gap between them.
A `Reading` says which.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from mechassay.errors import BadUsage

Where = Literal["inside", "edge", "gap", "undefined"]
ANY = "any"
_BOUND = re.compile(r"(?P<sign>[<>=])\s*(?P<number>-?[\d.]+)$")
_BETWEEN = re.compile(r"(?P<low>-?[\d.]+)\s*\.\.\s*(?P<high>-?[\d.]+)$")


@dataclass(frozen=True)
class Range:
    """Values between two bounds, of which neither is certain to belong to it."""

    low: float = -math.inf
    high: float = math.inf

    @staticmethod
    def parse(text: str) -> Range:
        """From "> 0.5", "< 0.2", "0.2 .. 0.5", "= 0" or "any".

        Raises:
            BadUsage: it is none of these.
        """
        text = text.strip()
        if text == ANY:
            return Range()
        if (between := _BETWEEN.match(text)) is not None:
            return Range(float(between["low"]), float(between["high"]))
        bound = _BOUND.match(text)
        if bound is None:
            raise BadUsage(f"A range is > x, < x, = x, x .. y or any; got {text!r}.")
        number = float(bound["number"])
        low = number if bound["sign"] in ">=" else -math.inf
        high = number if bound["sign"] in "<=" else math.inf
        return Range(low, high)

    def holds(self, value: float) -> bool:
        """Whether a value is in it, its bounds included."""
        return self.low <= value <= self.high

    def bounds(self, value: float) -> bool:
        """Whether a value is one of its bounds; a range of one value has none."""
        return self.low < self.high and value in (self.low, self.high)


@dataclass(frozen=True)
class Band:
    """A range for each quantity of the scale, and what it says."""

    ranges: tuple[Range, ...]
    says: str


@dataclass(frozen=True)
class Reading:
    """What a scale says of values.

    Attributes:
        of: the quantities.
        at: inside one band; on the edge of some; in a gap, of which the table says nothing; or
            undefined, as a quantity is.
        says: the words of the bands that hold, or why none does.
    """

    of: tuple[str, ...]
    at: Where
    says: str


@dataclass(frozen=True)
class BandScale:
    """Bands of one quantity, or of several together.

    Attributes:
        remark: it does not claim to cover all values: outside of its bands it says nothing.
        loose: the table says low and high without a number.
    """

    of: tuple[str, ...]
    bands: tuple[Band, ...]
    remark: bool = False
    loose: bool = False

    @staticmethod
    def parse(
        of: Sequence[str],
        bands: Mapping[str, str],
        *,
        remark: bool = False,
        loose: bool = False,
    ) -> BandScale:
        """From texts of ranges; those of several quantities are parted by ";".

        Raises:
            BadUsage: what is no range, or not one a quantity.
        """
        made: list[Band] = []
        for text, says in bands.items():
            ranges = tuple(map(Range.parse, str(text).split(";")))
            if len(ranges) != len(of):
                raise BadUsage(f"A band of {', '.join(of)} has {len(of)} ranges; got {text!r}.")
            made.append(Band(ranges, says))
        return BandScale(tuple(of), tuple(made), remark, loose)

    def read(self, values: Mapping[str, float | None]) -> Reading | None:
        """What it says of values; None where a remark does not apply."""
        found = [values.get(name) for name in self.of]
        known = [x for x in found if x is not None and not math.isnan(x)]
        if len(known) < len(found):
            lacking = [name for name, x in zip(self.of, found, strict=True) if x is None]
            return (
                None
                if self.remark
                else Reading(self.of, "undefined", f"{', '.join(lacking) or 'it'} is undefined")
            )
        holding = [
            band
            for band in self.bands
            if all(r.holds(x) for r, x in zip(band.ranges, known, strict=True))
        ]
        said = "; ".join(band.says for band in holding)
        told = f"{said} (low and high: by the pass threshold)" if self.loose and said else said
        on_edge = any(
            r.bounds(x) for band in holding for r, x in zip(band.ranges, known, strict=True)
        )
        if not holding:
            gap = "the table says nothing of such a value"
            return None if self.remark else Reading(self.of, "gap", gap)
        if on_edge:
            return Reading(self.of, "edge", f"on the edge of: {told}")
        return Reading(self.of, "inside", told)
