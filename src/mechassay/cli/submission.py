"""`mechassay leaderboard validate` and `evaluate`: mistakes of a submission, and its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mechassay.cli.command import DeviceOption, executor_of
from mechassay.cli.listing import JsonOption
from mechassay.cli.problems import tell
from mechassay.text import counted

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SUBMISSION",
        help="Folder, archive (.zip, .tar, .tar.gz), one file of data, or"
        " hub:OWNER/NAME[@REVISION].",
    ),
]
TrackOption = Annotated[
    Path | None,
    typer.Option("--track", help="What is evaluated (YAML); the packaged track if not given."),
]


def validate(source: SourceArgument, track: TrackOption = None, json: JsonOption = False) -> None:
    """List every problem of a submission; nothing in it is executed."""
    from tempfile import TemporaryDirectory

    from mechassay.leaderboard.submission import open_submission
    from mechassay.leaderboard.track import BoardTrack

    with TemporaryDirectory() as scratch:
        evaluated = BoardTrack.read(track)
        submission = open_submission(source, Path(scratch) / "submission", evaluated)
        for part in () if json else submission.parts:
            about = " ".join(filter(None, (part.variable, "on", part.task, "with", part.model)))
            typer.echo(f"{part.form} {about}: {part.path}")
            if submission.kind == "circuits" and evaluated.has_adversarial(part.model, part.task):
                graph = evaluated.shape(part.model).graph
                for line in evaluated.adversarial.described(submission.folder / part.path, graph):
                    typer.echo(f"  {line}")
        tell(Path(source), submission.problems, json)


def evaluate(
    source: SourceArgument,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", help="Folder of its results, beside those of other submissions."
        ),
    ],
    track: TrackOption = None,
    private_seed_file: Annotated[
        Path | None,
        typer.Option(
            "--private-seed-file",
            help="Seeds of private examples: lines EPOCH SEED, the last counts. Their runs go"
            " beside this file.",
        ),
    ] = None,
    device: DeviceOption = "cpu",
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="Cells that are done at a time.")
    ] = 1,
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            help="processes, or ray for public cells: the limits are the cluster's then.",
        ),
    ] = "processes",
    address: Annotated[
        str, typer.Option("--address", help="Of the Ray cluster: auto, local, or host:port.")
    ] = "auto",
    num_gpus: Annotated[
        float, typer.Option("--num-gpus", min=0, help="GPUs of each Ray worker.")
    ] = 0.0,
) -> None:
    """Evaluate a submission under a track; the same command goes on where it was.

    Each cell has a process of its own, which is ended at the track's limits of time and memory.
    """
    from mechassay.errors import one_of
    from mechassay.leaderboard.evaluate import TABLES
    from mechassay.leaderboard.evaluate import evaluate as evaluated
    from mechassay.leaderboard.private_split import PRIVATE_RUNS, PrivateSeeds
    from mechassay.leaderboard.track import BoardTrack
    from mechassay.runs.execute import CellLimits, Processes

    rules = BoardTrack.read(track)
    one_of("engine of an evaluation", engine, ("processes", "ray"))
    limits = CellLimits(rules.cell.seconds, rules.cell.memory_gb)
    limited = Processes(workers, limits)
    file = private_seed_file
    seed = None if file is None else PrivateSeeds.read(file).current
    result = evaluated(
        source,
        rules,
        output,
        executor=executor_of(engine, workers, address, num_gpus) if engine == "ray" else limited,
        device=device,
        seed=seed,
        private_folder=None if file is None else file.absolute().parent / PRIVATE_RUNS,
    )
    for problem in result.problems:
        kind = "warning: " if problem.warning else ""
        typer.echo(f"{kind}{problem.path}: {problem.message}", err=True)
    if mistakes := result.problems.errors:
        typer.echo(f"mechassay: {counted(len(mistakes), 'mistake')} in {source}", err=True)
        raise typer.Exit(2)
    typer.echo((output / TABLES).read_text("utf-8"), nl=False)
    for name, failure in result.failures:
        typer.echo(f"mechassay: {name}: {failure.message}", err=True)
    typer.echo(f"Written: {output / TABLES}")
    if result.failures:
        raise typer.Exit(1)
