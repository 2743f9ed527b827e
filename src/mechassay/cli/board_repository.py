"""`mechassay leaderboard init` and `check-change`: a board that is a git repository."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def init(
    folder: Annotated[Path, typer.Argument(help="Folder of the repository; new or empty.")],
) -> None:
    """Write the repository of a board, to which others hand in by pull request."""
    from mechassay.leaderboard.repository import write_repository

    written = write_repository(folder)
    for name in written:
        typer.echo(name)
    typer.echo(f"{folder}: read OPERATING.md next; then git init, commit and push.", err=True)


def check_change(
    base: Annotated[str, typer.Argument(help="Revision of the board's branch, as main.")],
    head: Annotated[str, typer.Argument(help="Revision of what is handed in.")],
    repository: Annotated[
        Path, typer.Option("--repository", help="Folder of the clone; bare is enough.")
    ] = Path(),
    files: Annotated[
        int, typer.Option("--files", min=1, help="How many files a submission may have.")
    ] = 2000,
    megabytes: Annotated[
        float, typer.Option("--megabytes", min=0, help="How large all of them may be.")
    ] = 2000.0,
) -> None:
    """Refuse a change that touches more than submissions/NAME/ of one NAME; prints the NAME."""
    from mechassay.leaderboard.change import read_change

    change = read_change(base, head, repository, files=files, megabytes=megabytes)
    # A line that begins with a path of others could be a command to the CI that logs it.
    for problem in change.problems.short():
        typer.echo(f"mechassay: {problem.path}: {problem.message}", err=True)
    if change.problems:
        raise typer.Exit(2)
    for note in change.notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(change.name)
