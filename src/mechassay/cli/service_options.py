"""Where the parts of the leaderboard's service are: options that its commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

FolderOption = Annotated[
    Path,
    typer.Option("--folder", help="Of everything of the service that has no place of its own."),
]
DatabaseOption = Annotated[
    str,
    typer.Option(
        "--database",
        envvar="MECHASSAY_DATABASE",
        show_envvar=True,
        help="sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME; a file in the folder if not"
        " given. Others see what is typed: name a password in the environment.",
    ),
]
StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="MECHASSAY_STORE",
        help="Folder, or s3://BUCKET/PREFIX, of uploads and records; in the folder if not given.",
    ),
]
TrackOption = Annotated[
    Path | None,
    typer.Option("--track", help="What is evaluated (YAML); the packaged track if not given."),
]
SeedFileOption = Annotated[
    Path | None,
    typer.Option(
        "--private-seed-file", help="Seeds of private examples: lines EPOCH SEED, the last counts."
    ),
]
