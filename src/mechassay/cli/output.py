"""What commands write: lists as a table or as JSON, sentences, and what is wrong with a folder."""

from __future__ import annotations

import json as encoder
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from mechassay.utils.files import Problem

JsonOption = Annotated[bool, typer.Option("--json", help="Write the list as JSON.")]


def show(rows: Sequence[Mapping[str, Any]], as_json: bool, leave_out: Sequence[str] = ()) -> None:
    """Print rows that have the same names, as JSON or as a table.

    Args:
        leave_out: names whose columns a narrow terminal goes without, the first one first.
    """
    if as_json:
        typer.echo(encoder.dumps(rows, indent=1, ensure_ascii=False, default=str))
        return
    from mechassay.results.console import print_tables, standard_output
    from mechassay.results.page import TextTable

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
    from mechassay.results.console import print_text, standard_output

    print_text(text, standard_output())


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={part}" for name, part in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def tell(folder: Path, every: Sequence[Problem], as_json: bool, what: str = "submission") -> None:
    """Write all problems, and end the command with 1 if one of them is no warning."""
    problems = [problem for problem in every if not problem.warning]
    if as_json:
        summary = {"valid": not problems, "problems": [asdict(problem) for problem in every]}
        typer.echo(encoder.dumps(summary, indent=1, ensure_ascii=False))
    else:
        for problem in every:
            kind = "warning: " if problem.warning else ""
            typer.echo(f"{kind}{problem.path}: {problem.message}", err=True)
        if problems:
            heading = f"{len(problems)} problem{'s' * (len(problems) > 1)} in {folder}"
            typer.echo(heading, err=True)
        else:
            typer.echo(f"{folder}: a valid {what}")
    if problems:
        raise typer.Exit(1)
