"""`mechassay leaderboard retry`: what failed waits again. For whoever runs the service."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from mechassay.cli.service import DatabaseOption, FolderOption, opened
from mechassay.cli.service_site import SubmissionArgument


def retry(
    submission: SubmissionArgument,
    cells: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CELL",
            help="Of these alone, as `leaderboard status` names them; all that failed if not said.",
        ),
    ] = None,
    folder: FolderOption = Path("service"),
    database: DatabaseOption = "",
) -> None:
    """Let failed and skipped cells wait again, and a submission whose check came to no end.

    Cells that are done keep their records. The submission is off the board until all have ended.
    """
    with closing(opened(folder, database, new=False)) as db:
        from mechassay.service.retry import retry as again

        found = again(db, submission, cells or ())
    if found.check:
        said = "it is received again, for a check anew"
    elif found.cells:
        said = "1 cell waits again" if found.cells == 1 else f"{found.cells} cells wait again"
    elif found.state == "refused":
        said = "nothing to retry: it was refused for what its report says"
    else:
        said = f"nothing to retry: no cell{' of these' if cells else ''} has failed or was skipped"
    typer.echo(f"{submission}: {said}.")
