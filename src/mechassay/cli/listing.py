"""Lists of what there is: a table to read, or JSON for programs."""

from __future__ import annotations

import json as encoder
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Write the list as JSON.")]


def show(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """Print rows that have the same names as JSON, as a table, or as blocks if that is too wide."""
    if as_json:
        typer.echo(encoder.dumps(rows, indent=1, ensure_ascii=False, default=str))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    names = list(rows[0]) if rows else []
    texts = [[_text(row[name]) for name in names] for row in rows]
    console = Console(markup=False, highlight=False)
    width = sum(max(map(len, column)) + 3 for column in zip(names, *texts, strict=True))
    if width > console.width:
        for first, *others in texts:
            console.print(first, style="bold", soft_wrap=True)
            for name, text in zip(names[1:], others, strict=True):
                if text:
                    console.print(f"  {name}: {text}", soft_wrap=True)
        return
    table = Table(*names, box=box.SIMPLE_HEAD)
    for row in texts:
        table.add_row(*row)
    console.print(table)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
