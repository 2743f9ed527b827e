"""Options of the commands that run the leaderboard's service, and what they make of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from mechassay.service.database import Database

FolderOption = Annotated[
    Path,
    typer.Option(
        "--folder", envvar="MECHASSAY_FOLDER", help="Folder of the service: all that is not said."
    ),
]
DatabaseOption = Annotated[
    str,
    typer.Option(
        "--database",
        envvar="MECHASSAY_DATABASE",
        help="sqlite:///FILE or postgresql://USER:PASSWORD@HOST/NAME; one with a password belongs"
        " into the environment, where no list of processes shows it. If not said: a file in the"
        " folder.",
    ),
]
StoreOption = Annotated[
    str,
    typer.Option(
        "--store",
        envvar="MECHASSAY_STORE",
        help="A folder or s3://BUCKET/PREFIX. If not said: a folder in the folder.",
    ),
]

TrackOption = Annotated[
    Path | None,
    typer.Option("--track", help="What is evaluated (YAML). If not said: the packaged track."),
]
SeedFileOption = Annotated[
    Path | None,
    typer.Option(
        "--private-seed-file", help="Seeds of private examples: lines EPOCH SEED, the last counts."
    ),
]


def opened(folder: Path, database: str, *, new: bool = True) -> Database:
    """The service's database, with the tables of this version.

    Args:
        new: whether one is made where there is none.

    Raises:
        MissingExtra: what the service needs is not installed.
        BadUsage: an address of another kind, or tables of a newer version, or none.
        DatabaseAway: it does not answer.
    """
    from mechassay.service.database import Database
    from mechassay.service.settings import ServiceSettings

    found = Database(ServiceSettings(folder, database).database)
    found.upgrade(new=new)
    return found
