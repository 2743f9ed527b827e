"""What is wrong with a folder, written for people or as JSON."""

from __future__ import annotations

import json as encoder
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer

from mechassay.submissions import Problem


def tell(folder: Path, found: Sequence[Problem], as_json: bool, what: str = "submission") -> None:
    """Write all problems, and end the command with 1 if one of them is no warning."""
    problems = [problem for problem in found if not problem.warning]
    if as_json:
        told = {"valid": not problems, "problems": [asdict(problem) for problem in found]}
        typer.echo(encoder.dumps(told, indent=1, ensure_ascii=False))
    else:
        for problem in found:
            kind = "warning: " if problem.warning else ""
            typer.echo(f"{kind}{problem.path}: {problem.message}", err=True)
        if problems:
            said = f"{len(problems)} problem{'s' * (len(problems) > 1)} in {folder}"
            typer.echo(said, err=True)
        else:
            typer.echo(f"{folder}: a valid {what}")
    if problems:
        raise typer.Exit(1)
