"""`mechassay hub`: push results to a repository of the Hugging Face hub, and pull them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mechassay.utils.display import counted

app = typer.Typer(help="Push results to the Hugging Face hub, and pull them.", no_args_is_help=True)

RepoArgument = Annotated[str, typer.Argument(metavar="OWNER/NAME", help="Repository of the hub.")]


@app.command("push")
def push(
    source: Annotated[
        Path,
        typer.Argument(help="Folder of a run, a board or any other, or one file of data."),
    ],
    repo: RepoArgument,
    license: Annotated[
        str, typer.Option("--license", help="Of the files, as mit or apache-2.0, for the card.")
    ] = "",
    private: Annotated[
        bool, typer.Option("--private", help="Make the repository private, if it is made.")
    ] = False,
    revision: Annotated[
        str | None, typer.Option("--revision", help="Branch; main if not given.")
    ] = None,
) -> None:
    """Push files of data, with a card that their records make; HF_TOKEN or `hf auth login`."""
    from mechassay.hub import push_to_hub

    pushed = push_to_hub(repo, source, license=license, private=private, revision=revision)
    if pushed.left_out:
        names = ", ".join(pushed.left_out[:5])
        typer.echo(f"left out, as no data: {names}{' …' * (len(pushed.left_out) > 5)}", err=True)
    typer.echo(f"{counted(len(pushed.files), 'file')}: {pushed.url}")


@app.command("pull")
def pull(
    repo: RepoArgument,
    folder: Annotated[
        Path | None, typer.Argument(help="New folder; the repository's name if not given.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option("--revision", help="Branch, tag or commit; the newest if none.")
    ] = None,
) -> None:
    """Download the files of data of a repository; a pickle, code or a page in it is not."""
    from mechassay.hub import pull as pulled

    typer.echo(f"Written: {pulled(repo, folder or Path(repo.rpartition('/')[2]), revision)}")
