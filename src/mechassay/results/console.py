"""Tables and sentences on a console, whose words are never cut.

A table that is too wide has its intervals under their numbers and its words wrapped at spaces. If
that is not enough, one of few rows and all numbers is turned on its side, and any other goes
without its optional columns, which a line below it names. What is too wide even then is set in
blocks, a line a cell, or, where these would be many, goes without its last columns too.

What is no terminal, a pipe or a file, has room for everything, unless COLUMNS says how wide it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from textwrap import wrap

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from mechassay.results.page import NOTHING, Column, Row, TextTable, plain_text

ENDLESS = 100_000
"""Columns of what is no terminal."""
NARROW = 16
"""Letters of a column of words that is not made narrower."""
CAPTION = (78, 120)
"""Letters of a caption's line: the fewest below a narrow table, the most below a wide one."""
BLOCKS = 12
"""Rows of a table that is set in blocks rather than cut."""
STYLES = {"control": "dim", "more": "dim", "failure": "red"}
_WHOLE = re.compile(r"\[[^\s\[\]]+, [^\s\[\]]+\]|\d %")
_GLUE = "\x1f"


def standard_output() -> Console:
    """The console of a command: as wide as the terminal, COLUMNS, or else as what is printed."""
    console = Console()
    columns = os.environ.get("COLUMNS", "")
    if console.is_terminal or console.is_jupyter or columns.isdigit():
        return console
    return Console(width=ENDLESS)


def print_text(text: str, console: Console, style: str | None = None, indent: str = "") -> None:
    """Print a sentence in lines that end between words; a word that is too long stays whole."""
    for line in text.split("\n"):
        lines = _wrapped(line, console.width, indent)
        console.print("\n".join(lines), style=style, markup=False, highlight=False, soft_wrap=True)


def print_tables(
    tables: Sequence[TextTable], console: Console, elsewhere: str = "the report page"
) -> None:
    """Print tables; rows that are messages stand below.

    Args:
        elsewhere: where columns are that have no room here.
    """
    for place, table in enumerate(tables):
        if place:
            console.print()
        _print(table, console, elsewhere)


def _print(table: TextTable, console: Console, elsewhere: str) -> None:
    n = len(table.columns)
    rows = tuple(
        replace(row, cells=tuple(map(plain_text, row.cells)))
        for row in table.rows
        if len(row.cells) == n
    )
    if table.title:
        print_text(table.title, console, "table.title")
    wide = _print_rows(replace(table, rows=rows), console, elsewhere) if rows else 0
    if table.caption:
        fewest, most = CAPTION
        lines = _wrapped(table.caption, min(max(wide, fewest), most, console.width))
        console.print(
            "\n".join(lines), style="table.caption", markup=False, highlight=False, soft_wrap=True
        )
    for row in table.rows:
        if len(row.cells) < n:
            text = ": ".join(filter(None, map(plain_text, row.cells)))
            print_text(text, console, STYLES.get(row.kind))


def _print_rows(table: TextTable, console: Console, elsewhere: str) -> int:
    """Print the rows that are whole; how wide that is, 0 if they are blocks."""
    every, width = tuple(range(len(table.columns))), console.width
    if layout := _layout(table, every, width) or _layout(_turned(table), None, width):
        return _draw(layout, console)
    layout = _reduced(table, width)
    if layout is None:
        for row in table.rows:
            name, *others = row.cells
            style = STYLES.get(row.kind, "")
            print_text(name or NOTHING, console, f"bold {style}".strip())
            for column, cell in zip(table.columns[1:], others, strict=True):
                if cell:
                    text = f"{column.heading}: {' '.join(cell.split(chr(10)))}"
                    print_text(f"  {text}", console, style or None, "    ")
        return 0
    wide = _draw(layout, console)
    left_out = [table.columns[place].heading for place in every if place not in layout.places]
    rows = [
        tuple(_numbers(*pair, False) for pair in zip(row.cells, table.columns, strict=True))
        for row in table.rows
    ]
    least = sum(_bounds(table.columns, rows)[0]) + _frame(len(table.columns))
    needed = f"a terminal of {least:,} columns"
    print_text(f"Not shown: {'; '.join(left_out)}. See {elsewhere}, or {needed}.", console)
    return wide


# Layouts


@dataclass(frozen=True)
class _Layout:
    """A table that fits: which of its columns, how wide, and their cells in lines.

    Attributes:
        ruled: with lines between the rows, because most take more than two lines.
    """

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    places: tuple[int, ...]
    widths: tuple[int, ...]
    ruled: bool


def _layout(table: TextTable | None, places: Sequence[int] | None, width: int) -> _Layout | None:
    """Some columns of a table as they fit, intervals beside their numbers or under them."""
    if table is None:
        return None
    chosen = tuple(range(len(table.columns)) if places is None else places)
    columns = tuple(table.columns[place] for place in chosen)
    for beside in (True, False):
        rows = [
            tuple(_numbers(row.cells[place], table.columns[place], beside) for place in chosen)
            for row in table.rows
        ]
        widths = _widths(columns, rows, width)
        if not widths:
            continue
        headings = (
            "\n".join(_wrapped(column.heading, room))
            for column, room in zip(columns, widths, strict=True)
        )
        made = [tuple(map(_cell, cells, columns, widths)) for cells in rows]
        heights = [max(cell.count("\n") + 1 for cell in cells) for cells in made]
        return _Layout(
            tuple(
                replace(column, heading=heading)
                for column, heading in zip(columns, headings, strict=True)
            ),
            tuple(replace(row, cells=cells) for row, cells in zip(table.rows, made, strict=True)),
            chosen,
            tuple(widths),
            ruled=sum(heights) > 2 * len(heights),
        )
    return None


def _numbers(cell: str, column: Column, beside: bool) -> str:
    return cell if beside or not column.numeric else cell.replace(" [", "\n[")


def _cell(cell: str, column: Column, width: int) -> str:
    return cell if column.numeric else "\n".join(_wrapped(cell, width))


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """How wide columns are, so that no word is cut; nothing if they do not fit."""
    least, most = _bounds(columns, rows)
    room = width - _frame(len(columns)) - sum(least)
    if room < 0:
        return []
    widths = list(least)
    # Columns that lack little get it first.
    lacking = sorted(range(len(columns)), key=lambda place: most[place] - least[place])
    for done, place in enumerate(lacking):
        more = min(most[place] - least[place], room // (len(lacking) - done))
        widths[place] += more
        room -= more
    return widths


def _bounds(
    columns: Sequence[Column], rows: Sequence[Sequence[str]]
) -> tuple[list[int], list[int]]:
    """The least width of each column, and that from which on it has no use for more."""
    least: list[int] = []
    most: list[int] = []
    for place, column in enumerate(columns):
        cells = [row[place] for row in rows]
        lines = [cell_len(line) for cell in cells for line in cell.split("\n")]
        words = [cell_len(word) for word in _glued(column.heading).split()]
        most.append(max([*lines, cell_len(column.heading)]))
        if column.numeric:
            least.append(max([*lines, *words], default=0))
            continue
        words += [cell_len(word) for cell in cells for word in _glued(cell).split()]
        least.append(max([*words, min(most[-1], NARROW)]))
    return least, most


def _frame(n_columns: int) -> int:
    """Letters of the lines between columns and of the spaces beside them."""
    return 3 * n_columns + 1


def _turned(table: TextTable) -> TextTable | None:
    """Columns as rows, if all but the first are numbers."""
    names, *others = table.columns
    if not all(column.numeric for column in others):
        return None
    columns = (Column("", numeric=False), *(Column(row.cells[0]) for row in table.rows))
    rows = tuple(
        Row((column.heading, *(row.cells[place] for row in table.rows)))
        for place, column in enumerate(others, start=1)
    )
    return TextTable(table.title, (replace(columns[0], heading=names.heading), *columns[1:]), rows)


def _reduced(table: TextTable, width: int) -> _Layout | None:
    """A table without its optional columns; of many rows also without its last ones."""
    left = list(range(len(table.columns)))
    optional = sorted(left, key=lambda place: (table.columns[place].optional, place))
    while len(left) > 2:
        last = optional.pop()
        if not (table.columns[last].optional or len(table.rows) > BLOCKS):
            return None
        left.remove(last)
        if layout := _layout(table, left, width):
            return layout
    return None


def _draw(layout: _Layout, console: Console) -> int:
    """Draw a table; how wide it is."""
    drawn = RichTable(show_lines=layout.ruled)
    for column, width in zip(layout.columns, layout.widths, strict=True):
        justify = "right" if column.numeric else "left"
        drawn.add_column(escape(column.heading), justify=justify, no_wrap=True, width=width)
    for row in layout.rows:
        drawn.add_row(*map(escape, row.cells), style=STYLES.get(row.kind))
    console.print(drawn)
    return sum(layout.widths) + _frame(len(layout.widths))


# Words


def _glued(text: str) -> str:
    """A text whose intervals and percentages are words."""
    return _WHOLE.sub(lambda match: match[0].replace(" ", _GLUE), text)


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """Lines that end between words; spaces at the beginning stay."""
    lines = [
        line
        for part in text.split("\n")
        for line in wrap(
            _glued(part),
            max(width, 1),
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        or [""]
    ]
    return [line.replace(_GLUE, " ") for line in lines]
