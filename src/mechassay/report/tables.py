"""Tables of text as Markdown, as one HTML file, and on the console:
what pages about many cells share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich.console import Console
from rich.markup import escape
from rich.table import Table

NOTHING = "–"


@dataclass(frozen=True)
class Grid:
    """A table as text: a heading for each column, and rows whose first cell is their name.

    A row with fewer cells than there are columns is a message: its last cell spans the rest. In a
    table of `words` cells are set as text, else as numbers.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: bool = False


def grids_page(
    title: str,
    grids: Sequence[Grid],
    figures: Sequence[str | None],
    reading: Mapping[str, str],
    facts: Sequence[Mapping[str, str]],
) -> str:
    """One HTML file that needs nothing else.

    Args:
        figures: an SVG of ours for each grid, or None; it enters the page as it is.
        reading: how to read the page, by term.
        facts: what was run, a row each; all have the same keys.
    """
    environment = Environment(
        loader=PackageLoader("mechassay.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawn = [None if figure is None else Markup(figure) for figure in figures]
    parts = list(zip(grids, drawn, strict=True))
    return environment.get_template("grids.html").render(
        title=title, parts=parts, reading=list(reading.items()), facts=list(facts)
    )


def grids_markdown(grids: Sequence[Grid], facts: Sequence[Mapping[str, str]]) -> str:
    """The same tables in Markdown."""
    lines: list[str] = []
    for grid in grids:
        lines += [f"## {grid.title}", "", *_table(grid.columns, grid.rows), ""]
    if facts:
        lines += [
            "## What was run",
            "",
            *_table(tuple(facts[0]), [tuple(row.values()) for row in facts]),
        ]
    return "\n".join(lines).rstrip() + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for row in rows:
        padded = [*row, *[""] * (len(columns) - len(row))]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in padded) + " |")
    return lines


def print_grids(grids: Sequence[Grid], console: Console) -> None:
    """Print the tables; intervals go under their numbers."""
    for grid in grids:
        table = Table(*map(escape, grid.columns), title=escape(grid.title), title_justify="left")
        for row in grid.rows:
            table.add_row(*(escape(cell.replace(" [", "\n[")) for cell in row))
        console.print(table)
