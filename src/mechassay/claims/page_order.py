"""The order in which a page is read: lines as they were drawn, column by column.

A line is a piece of text that was drawn without a wide gap. A page has two columns if enough wide
lines stand side by side, left and right of one place; the place is the one with most of them. It
has three if there are two such places, and at least half as many lines have lines of both other
columns beside them. Lines that cross a place, such as a title or a wide caption, cut the page into
bands. A band is read column by column from the left; within a column, lines keep the order in which
they were drawn, which is right both for columns drawn one by one and for lines drawn alternately. A
page without such a place keeps the order of drawing throughout. More than three columns are not
told apart, and a table of two or three wide text columns looks like a page of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

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
    places = between_columns(lines)
    if not places:
        return list(lines)
    across = len(places) + 1
    crossing = np.array([line.middle for line in lines if _column(line, places) == across])
    slack = np.array([line.size / 2 for line in lines])

    def key(n: int) -> tuple[int, int, int]:
        above = int((crossing > lines[n].middle + slack[n]).sum())
        return above, _column(lines[n], places), n

    return [lines[n] for n in sorted(range(len(lines)), key=key)]


def between_columns(lines: Sequence[PageLine]) -> tuple[float, ...]:
    """The places between columns, in points from the left: none, one of two columns, or two."""
    wide_enough = [line for line in lines if line.text.strip()]
    if len(wide_enough) < 2 * SIDE_BY_SIDE:
        return ()
    box = np.array([(each.left, each.right, each.bottom, each.top) for each in wide_enough])
    left, right, bottom, top = box.T
    width = right.max() - left.min()
    wide = right - left >= WIDE * width
    beside = (bottom[:, None] < top[None]) & (bottom[None] < top[:, None])
    places = left.min() + width * np.linspace(0.3, 0.7, 81)
    before = [wide & (right <= place + SLACK) for place in places]
    after = [wide & (left >= place - SLACK) for place in places]
    two = [
        int(beside[own][:, other].any(axis=1).sum())
        for own, other in zip(before, after, strict=True)
    ]
    if max(two) < SIDE_BY_SIDE:
        return ()
    three: dict[tuple[int, int], int] = {}
    for a, b in combinations([n for n, count in enumerate(two) if 2 * count >= max(two)], 2):
        middle = after[a] & before[b]
        if middle.any():
            rows = beside[before[a]]
            both = rows[:, middle].any(axis=1) & rows[:, after[b]].any(axis=1)
            three[a, b] = int(both.sum())
    most = max(three.values(), default=0)
    if most >= SIDE_BY_SIDE and 2 * most >= max(two):
        # Places in one gap are as good as each other, whichever the other gap's is.
        firsts, seconds = zip(*(pair for pair, n in three.items() if n == most), strict=True)
        first, second = (sorted(set(gap)) for gap in (firsts, seconds))
        return float(places[first[len(first) // 2]]), float(places[second[len(second) // 2]])
    best = [n for n, count in enumerate(two) if count == max(two)]
    return (float(places[best[len(best) // 2]]),)


def _column(line: PageLine, places: Sequence[float]) -> int:
    """The column of a line, from the left; one more than the last if it lies across a place."""
    edges = [-np.inf, *places, np.inf]
    for column, (begin, end) in enumerate(pairwise(edges)):
        if line.left >= begin - SLACK and line.right <= end + SLACK:
            return column
    return len(places) + 1


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
