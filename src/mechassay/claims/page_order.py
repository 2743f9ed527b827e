"""The order in which a page is read: lines as they were drawn, column by column.

A line is a piece of text that was drawn without a wide gap. A page has two columns if enough wide
lines stand side by side, left and right of one place; the place is the one with most of them. Lines
that cross it, such as a title or a wide caption, cut the page into bands. A band is read left
column first; within a column, lines keep the order in which they were drawn, which is right both
for columns drawn one by one and for lines drawn alternately. A page without such a place keeps the
order of drawing throughout. More than two columns are not told apart, and a table of two wide text
columns looks like a page of two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

SIDE_BY_SIDE = 4
"""Lines with another beside them that make a page one of two columns."""
WIDE = 0.25
"""Share of the text's width that such a line has at least."""
SLACK = 2.0
"""Points by which a line may reach over the place between columns."""


@dataclass(frozen=True)
class PageLine:
    """A piece of a page's text and its box, in points from the page's lower left corner.

    Attributes:
        size: height of its letters, in points.
        goes_on: it stands in one row with the line before, behind a gap.
    """

    text: str
    left: float
    bottom: float
    right: float
    top: float
    size: float = 10.0
    goes_on: bool = False

    @property
    def middle(self) -> float:
        """Its height on the page."""
        return (self.bottom + self.top) / 2


def in_order(lines: Sequence[PageLine]) -> list[PageLine]:
    """The lines in the order in which they are read."""
    place = between_columns(lines)
    if place is None:
        return list(lines)
    crossing = np.array([line.middle for line in lines if _side(line, place) == 2])
    slack = np.array([line.size / 2 for line in lines])

    def key(n: int) -> tuple[int, int, int]:
        above = int((crossing > lines[n].middle + slack[n]).sum())
        return above, _side(lines[n], place), n

    return [lines[n] for n in sorted(range(len(lines)), key=key)]


def between_columns(lines: Sequence[PageLine]) -> float | None:
    """The place between two columns, in points from the left; None if there is none."""
    wide_enough = [line for line in lines if line.text.strip()]
    if len(wide_enough) < 2 * SIDE_BY_SIDE:
        return None
    box = np.array([(each.left, each.right, each.bottom, each.top) for each in wide_enough])
    left, right, bottom, top = box.T
    width = right.max() - left.min()
    wide = right - left >= WIDE * width
    beside = (bottom[:, None] < top[None]) & (bottom[None] < top[:, None])
    best, places = 0, list[float]()
    for place in left.min() + width * np.linspace(0.3, 0.7, 81):
        before, after = wide & (right <= place + SLACK), wide & (left >= place - SLACK)
        n = int((beside[before][:, after]).any(axis=1).sum())
        if n > best:
            best, places = n, []
        if n == best:
            places.append(float(place))
    return places[len(places) // 2] if best >= SIDE_BY_SIDE else None


def _side(line: PageLine, place: float) -> int:
    """0: left of a place, 1: right of it, 2: across."""
    if line.right <= place + SLACK:
        return 0
    return 1 if line.left >= place - SLACK else 2


def page_text(lines: Sequence[PageLine]) -> str:
    """The lines as text; those in one row, that follow each other as drawn, on one line."""
    parts: list[str] = []
    before: PageLine | None = None
    follows = {id(line): id(last) for last, line in pairwise(lines)}
    for line in in_order(lines):
        row = before is not None and line.goes_on and follows.get(id(line)) == id(before)
        if parts:
            parts.append(" " if row else "\n")
        parts.append(line.text.strip())
        before = line
    return "".join(parts)


def title_of(lines: Sequence[PageLine]) -> str:
    """The lines with the largest letters, which on a first page are the title; "" if none.

    The stamp of arXiv, written upwards, is left out, as are single letters.
    """
    shown = [
        line
        for line in lines
        if sum(each.isalpha() for each in line.text) >= 3
        and line.right - line.left > line.top - line.bottom
        and not line.text.lstrip().startswith("arXiv:")
    ]
    if not shown:
        return ""
    largest = max(line.size for line in shown)
    parts = [line.text.strip() for line in shown if line.size > 0.95 * largest]
    # A page in letters of one size has no title that could be told.
    return " ".join(parts) if len(parts) < min(6, len(shown)) else ""
