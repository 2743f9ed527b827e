"""Lists of what there is: a table to read, or JSON for programs."""

from __future__ import annotations

import json as encoder
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Write the list as JSON.")]


def show(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print rows that have the same names as a table, or all of them as JSON."""
    if as_json:
        typer.echo(encoder.dumps(rows, indent=1, ensure_ascii=False, default=str))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for place, name in enumerate(rows[0] if rows else ()):
        table.add_column(name, no_wrap=not place)
    for row in rows:
        table.add_row(*map(_text, row.values()))
    Console(markup=False, highlight=False).print(table)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
