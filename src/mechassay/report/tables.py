"""Tables of text: what every page, Markdown file and console table is made of.

A cell is text; an interval after a number, "0.81 [0.77, 0.85]", is set in small print or under it.
Markup that our own code made (`markupsafe.Markup`) enters a page as it is, all else is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from markupsafe import Markup
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

NOTHING = "–"
WIDE = 160
"""Characters from which intervals stand beside their numbers on a console."""

RowKind = Literal["", "method", "control", "failure", "more"]
STYLES = {"control": "dim", "more": "dim", "failure": "red"}


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
    ) -> TextTable:
        """A table of plain rows; cells are numbers, but for the first, unless they are words.

        A row with fewer cells than columns is a failure.
        """
        n = len(headings)
        columns = tuple(
            Column(name, place > 0 and not words) for place, name in enumerate(headings)
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


def print_tables(tables: Sequence[TextTable], console: Console) -> None:
    """Print tables. What does not fit is left out if it is optional; messages stand below."""
    for table in tables:
        _print(table, console)


def _print(table: TextTable, console: Console) -> None:
    beside = console.width >= WIDE
    whole = [row for row in table.rows if len(row.cells) == len(table.columns)]
    texts = [[plain_text(cell) for cell in row.cells] for row in whole]
    cells = [[text if beside else text.replace(" [", "\n[") for text in row] for row in texts]
    shown, fits = _fitting(table.columns, cells, console.width)
    caption = escape(table.caption) if table.caption else None
    drawn = RichTable(title=escape(table.title) or None, title_justify="left", caption=caption)
    for column in (table.columns[place] for place in shown):
        drawn.add_column(
            escape(column.heading),
            justify="right" if column.numeric else "left",
            no_wrap=column.numeric and fits,
            overflow="fold",
        )
    for row, texts in zip(whole, cells, strict=True):
        drawn.add_row(*(escape(texts[place]) for place in shown), style=STYLES.get(row.kind))
    if whole:
        console.print(drawn)
    for row in table.rows:
        if len(row.cells) < len(table.columns):
            said = ": ".join(filter(None, map(plain_text, row.cells)))
            console.print(said, style=STYLES.get(row.kind), markup=False, highlight=False)


def _fitting(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int
) -> tuple[list[int], bool]:
    """The columns that a console shows, in their order, and whether they fit."""
    texts = [(column.heading, *(row[n] for row in cells)) for n, column in enumerate(columns)]
    widths = [max(len(line) for text in held for line in text.split("\n")) for held in texts]
    shown = list(range(len(columns)))
    while sum(widths[place] + 3 for place in shown) + 1 > width:
        last = max(shown, key=lambda place: (columns[place].optional, place))
        if not columns[last].optional:
            return shown, False
        shown.remove(last)
    return shown, True
