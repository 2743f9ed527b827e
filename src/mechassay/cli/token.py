"""`mechassay leaderboard token`: who may submit. For whoever runs the service."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from mechassay.cli.service import DatabaseOption, FolderOption, opened

app = typer.Typer(help="Tokens of submitters: add, list, withdraw.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="Name of the submitter, as the board shows it.")]
SERVICE = Path("service")


@app.command("add")
def add(
    name: NameArgument,
    admin: Annotated[
        bool, typer.Option("--admin", help="May withdraw what others submitted; has no limits.")
    ] = False,
    folder: FolderOption = SERVICE,
    database: DatabaseOption = "",
) -> None:
    """Make a token for a submitter. It is printed once, and stored nowhere."""
    with closing(opened(folder, database)) as db:
        from mechassay.service.tokens import new_token

        token = new_token(db, name, admin=admin)
    typer.echo(f"The token of {name}. It cannot be shown again:", err=True)
    typer.echo(token)


@app.command("list")
def list_them(folder: FolderOption = SERVICE, database: DatabaseOption = "") -> None:
    """List submitters, and whether their tokens are good."""
    with closing(opened(folder, database)) as db:
        from mechassay.service.tokens import submitters

        found = submitters(db)
    for each in found:
        state = f"withdrawn {each.withdrawn:%Y-%m-%d}" if each.withdrawn else "good"
        admin = "  administrator" if each.admin else ""
        typer.echo(f"{each.name}  since {each.created:%Y-%m-%d}  {state}{admin}")
    if not found:
        typer.echo("There is no submitter yet: mechassay leaderboard token add NAME", err=True)


@app.command("withdraw")
def withdraw(
    name: NameArgument, folder: FolderOption = SERVICE, database: DatabaseOption = ""
) -> None:
    """Make a submitter's token worthless. What was submitted stays; a new token can be added."""
    with closing(opened(folder, database, new=False)) as db:
        from mechassay.service.tokens import withdraw_token

        withdraw_token(db, name)
    typer.echo(f"The token of {name} is worthless now.")
