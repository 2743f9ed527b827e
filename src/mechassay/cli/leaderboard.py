"""`mechassay leaderboard`: boards of runs as pages, submissions, and any cell recomputed.

`build` makes the boards of all runs in a folder, `recompute` computes a cell again and compares
all results of its record, and `seed` draws the seed of private examples. `validate` and
`evaluate` give the mistakes of a submission, and its numbers. `init` and `check-change` are for
a board that is a git repository.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mechassay.cli.command import DeviceOption
from mechassay.cli.output import JsonOption, tell
from mechassay.utils.display import counted

if TYPE_CHECKING:
    from mechassay.leaderboard.recomputation import Recomputation


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
    from mechassay.leaderboard.repository import read_change

    change = read_change(base, head, repository, files=files, megabytes=megabytes)
    # A line that begins with a path of others could be a command to the CI that logs it.
    for problem in change.problems.short():
        typer.echo(f"mechassay: {problem.path}: {problem.message}", err=True)
    if change.problems:
        raise typer.Exit(2)
    for note in change.notes:
        typer.echo(f"note: {note}", err=True)
    typer.echo(change.name)


SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SUBMISSION",
        help="Folder, or hub:OWNER/NAME[@REVISION].",
    ),
]
TrackOption = Annotated[
    Path | None,
    typer.Option("--track", help="What is evaluated (YAML, or mib); packaged models if not given."),
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
    from mechassay.cli.execution import executor_of
    from mechassay.errors import one_of
    from mechassay.leaderboard.evaluate import PRIVATE_RUNS, TABLES, PrivateSeeds
    from mechassay.leaderboard.evaluate import evaluate as evaluated
    from mechassay.leaderboard.track import BoardTrack
    from mechassay.runs.executors import CellLimits, Processes

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


app = typer.Typer(help="Boards of runs, and any cell of them again.", no_args_is_help=True)
app.command("validate")(validate)
app.command("evaluate")(evaluate)
app.command("init")(init)
app.command("check-change")(check_change)

RunsOption = Annotated[Path, typer.Option("--runs", help="Folder of the runs that boards read.")]


@app.command("build")
def build(
    runs: Annotated[Path, typer.Argument(help="Folder of runs: all below it are read.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder of the pages.")] = Path(
        "board"
    ),
    reported: Annotated[
        list[Path] | None,
        typer.Option("--reported", help="Results of MIB's board (.json), as reported."),
    ] = None,
    mib_results: Annotated[
        bool,
        typer.Option(
            "--mib-results",
            help="Also write results of MIB's circuit board to OUTPUT/mib, one .json per row.",
        ),
    ] = False,
    artefacts: Annotated[
        bool,
        typer.Option(
            "--artefacts/--no-artefacts", help="Keep what computes the cells again in the folder."
        ),
    ] = True,
) -> None:
    """Make the boards of all runs in a folder: pages that need no server, JSON and CSV."""
    from mechassay.leaderboard.folder import BoardsFolder
    from mechassay.leaderboard.mib_results import read_mib_results, write_mib_results

    numbers = [cell for path in reported or () for cell in read_mib_results(path)]
    boards = BoardsFolder.of(runs, output, numbers)
    lacking = boards.keep_artefacts() if artefacts else ()
    page = boards.write()
    for text in boards.unreadable:
        typer.echo(f"warning: {text}", err=True)
    for text in lacking:
        typer.echo(f"warning: computed again from its run alone: {text}", err=True)
    for name, board in boards.boards.items():
        cells = counted(len(board.cells), "cell")
        typer.echo(f"{name}: {counted(len(board.rows()), 'row')}, {cells}")
    if mib_results:
        circuits = boards.boards.get("circuits")
        written = write_mib_results(circuits, runs, output / "mib") if circuits else ()
        typer.echo(f"MIB results: {counted(len(written), 'file')} in {output / 'mib'}")
    typer.echo(f"Written: {page}")


@app.command("seed")
def seed(
    file: Annotated[Path, typer.Argument(help="File of private seeds; made if there is none.")],
    epoch: Annotated[str, typer.Argument(help="Name of the time in which it holds, as 2026-11.")],
) -> None:
    """Draw the seed of private examples that holds from now on; those before it stay."""
    from mechassay.leaderboard.evaluate import add_seed

    n = add_seed(file, epoch)
    typer.echo(f"{file}: {epoch} holds now, the last of {n}. Only its owner can read it.")


@app.command("recompute")
def recompute(
    board: Annotated[str, typer.Argument(help="Board, as circuits.")] = "",
    cell: Annotated[
        str, typer.Argument(help="Cell: ROW/MODEL/TASK/COLUMN, as its page says.")
    ] = "",
    runs: RunsOption = Path("runs"),
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder of the boards' pages: --board, or board."),
    ] = None,
    anew: Annotated[
        bool, typer.Option("--anew", help="Let the method find its scores again.")
    ] = False,
    device: DeviceOption = "cpu",
    static: Annotated[
        Path | None,
        typer.Option("--board", help="Folder of a static board; nothing else is read."),
    ] = None,
    drawn: Annotated[
        int | None,
        typer.Option("--drawn", min=0, help="Seed: of each submission one cell that it draws."),
    ] = None,
) -> None:
    """Compute a cell again from what the method found, and compare all results of its record."""
    from mechassay.errors import BadUsage
    from mechassay.leaderboard.folder import StoredBoards
    from mechassay.leaderboard.recomputation import drawn_cells

    if drawn is None and not (board and cell):
        raise BadUsage("A BOARD and a CELL, or --drawn SEED for one of each submission, is needed.")
    if drawn is not None and (board or cell or static is None):
        raise BadUsage("--drawn SEED needs the --board folder that it draws cells of, no CELL.")
    if drawn is None:
        _recompute_one(board, cell, runs, output, anew, device, static)
        return
    assert static is not None
    cells = drawn_cells(StoredBoards.read(static).cells, drawn)
    if not cells:
        typer.echo("The board has no submission with a public cell.")
    differing = [
        board_cell.full_id
        for board_cell in cells
        if not _recompute_one(
            board_cell.board, board_cell.full_id, runs, output, anew, device, static, exits=False
        ).agrees
    ]
    if differing:
        typer.echo(f"mechassay: {counted(len(differing), 'cell')} of {len(cells)} DIFFER", err=True)
        raise typer.Exit(1)


def _recompute_one(
    board: str,
    name: str,
    runs: Path,
    output: Path | None,
    anew: bool,
    device: str,
    static: Path | None,
    *,
    exits: bool = True,
) -> Recomputation:
    """Compute a cell again, keep what came of it, and print it; exit with 1 if it differs."""
    from tempfile import TemporaryDirectory

    from mechassay.leaderboard.board import Board
    from mechassay.leaderboard.cells import read_cells
    from mechassay.leaderboard.folder import StoredBoards, write_recomputation
    from mechassay.leaderboard.plans import made_on_board
    from mechassay.leaderboard.recomputation import TOLERANCE, made_in_runs, recompute_made
    from mechassay.leaderboard.rules import rules_of

    with TemporaryDirectory() as folder:
        if static is not None:
            cell = StoredBoards.read(static).find(board, name)
            made = made_on_board(cell, static, Path(folder) / "files")
        else:
            rules = rules_of(board)
            cell = Board.of(rules, read_cells(rules, runs)[0]).find(name)
            made, _ = made_in_runs(cell, runs)
        again = recompute_made(cell, made, Path(folder) / "run", anew=anew, device=device)
    write_recomputation(output or static or Path("board"), again)
    typer.echo(f"{again.cell}: {again.stored:.9g} on the board, {again.again:.9g} again")
    word = "agrees" if again.agrees else "DIFFERS"
    largest = f"largest difference {again.largest:.1g}"
    where = f"first in {again.differs}" if again.differs else largest
    typer.echo(f"{word}: {again.n} results, {where} (allowed {TOLERANCE:g}); {again.seconds:.0f} s")
    if exits and not again.agrees:
        raise typer.Exit(1)
    return again
