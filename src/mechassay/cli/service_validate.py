"""`mechassay leaderboard validate`: what is wrong with a submission, before it is handed in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mechassay.cli.listing import JsonOption
from mechassay.cli.problems import tell


def validate(
    source: Annotated[
        str,
        typer.Argument(
            help="Submission: a folder, an archive (.zip, .tar, .tar.gz), one file of data, or"
            " hub:OWNER/NAME[@REVISION]."
        ),
    ],
    track: Annotated[
        Path | None,
        typer.Option("--track", help="File of what is evaluated; that of this package if none."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List every problem of a submission; nothing in it is executed."""
    from tempfile import TemporaryDirectory

    from mechassay.service.bundle import open_bundle
    from mechassay.service.track import ServiceTrack

    with TemporaryDirectory() as scratch:
        evaluated = ServiceTrack.read(track)
        bundle = open_bundle(source, Path(scratch) / "submission", evaluated)
        for part in () if json else bundle.parts:
            about = " ".join(filter(None, (part.variable, "on", part.task, "with", part.model)))
            typer.echo(f"{part.form} {about}: {part.path}")
            if bundle.kind == "circuits" and evaluated.has_adversarial(part.model, part.task):
                graph = evaluated.shape(part.model).graph
                for line in evaluated.adversarial.told(bundle.folder / part.path, graph):
                    typer.echo(f"  {line}")
        tell(Path(source), bundle.problems, json)
