"""Lists of what there is: a table to read, or JSON for programs."""

from __future__ import annotations

import json as encoder
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

JsonOption = Annotated[bool, typer.Option("--json", help="Write the list as JSON.")]


def show(rows: Sequence[Mapping[str, Any]], as_json: bool, leave_out: Sequence[str] = ()) -> None:
    """Print rows that have the same names, as JSON or as a table.

    Args:
        leave_out: names whose columns a narrow terminal goes without, the first one first.
    """
    if as_json:
        typer.echo(encoder.dumps(rows, indent=1, ensure_ascii=False, default=str))
        return
    from mechassay.report.console import print_tables, standard_output
    from mechassay.report.tables import TextTable

    names = tuple(rows[0]) if rows else ()
    texts = [tuple(map(_text, row.values())) for row in rows]
    table = TextTable.of("", names, texts, words=True, leave_out=leave_out)
    print_tables([table], standard_output(), "--json")


def show_columns(
    columns: Mapping[str, Sequence[Any]], as_json: bool, leave_out: Sequence[str] = ()
) -> None:
    """Print columns of one length; see `show`."""
    rows = zip(*columns.values(), strict=True)
    show([dict(zip(columns, row, strict=True)) for row in rows], as_json, leave_out)


def say(text: str) -> None:
    """Print a sentence, in lines that end between words."""
    from mechassay.report.console import print_text, standard_output

    print_text(text, standard_output())


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
