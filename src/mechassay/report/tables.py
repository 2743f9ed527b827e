"""Tables of text: what every page, Markdown file and console table is made of.

A cell is text; an interval after a number, "0.81 [0.77, 0.85]", is set in small print or under it.
Markup that our own code made (`markupsafe.Markup`) enters a page as it is, all else is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup

NOTHING = "–"

RowKind = Literal["", "method", "control", "failure", "more"]


@dataclass(frozen=True)
class Column:
    """A heading, and how its cells are set.

    Attributes:
        optional: left out of a console that is too narrow, the highest number first.
    """

    heading: str
    numeric: bool = True
    optional: int = 0


@dataclass(frozen=True)
class Row:
    """Cells; fewer than there are columns are a message, whose last cell spans the rest.

    Attributes:
        swatch: a colour beside the first cell, as in figures.
    """

    cells: tuple[str, ...]
    kind: RowKind = ""
    swatch: str = ""


@dataclass(frozen=True)
class TextTable:
    """A table whose rows are named by their first cell."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    caption: str = ""

    @staticmethod
    def of(
        title: str,
        headings: Sequence[str],
        rows: Iterable[Sequence[str] | Row],
        *,
        words: bool = False,
        caption: str = "",
        leave_out: Sequence[str] = (),
    ) -> TextTable:
        """A table of plain rows; cells are numbers, but for the first, unless they are words.

        A row with fewer cells than columns is a failure.

        Args:
            leave_out: headings whose columns a narrow console goes without, the first one first.
        """
        n = len(headings)
        optional = {name: len(leave_out) - place for place, name in enumerate(leave_out)}
        columns = tuple(
            Column(name, place > 0 and not words, optional.get(name, 0))
            for place, name in enumerate(headings)
        )
        made = (
            row if isinstance(row, Row) else Row(tuple(row), "failure" if len(row) < n else "")
            for row in rows
        )
        return TextTable(title, columns, tuple(made), caption)

    @property
    def headings(self) -> tuple[str, ...]:
        return tuple(column.heading for column in self.columns)

    @property
    def texts(self) -> tuple[tuple[str, ...], ...]:
        """The cells of all rows."""
        return tuple(row.cells for row in self.rows)

    def markdown(self) -> list[str]:
        """The lines of the table in Markdown."""
        headings = [_one_line(heading) for heading in self.headings]
        lines = ["| " + " | ".join(headings) + " |", "|---" * len(headings) + "|"]
        for row in self.rows:
            padded = [*row.cells, *[""] * (len(headings) - len(row.cells))]
            lines.append("| " + " | ".join(map(_one_line, padded)) + " |")
        return [*lines, *(["", self.caption] if self.caption else [])]


def plain_text(cell: str) -> str:
    """A cell without markup."""
    return cell.striptags() if isinstance(cell, Markup) else cell


def _one_line(cell: str) -> str:
    return " ".join(plain_text(cell).split("\n")).replace("|", "\\|")
