"""`mechassay leaderboard`: boards of runs as pages, and any cell recomputed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mechassay.cli.board_repository import check_change, init
from mechassay.cli.command import DeviceOption
from mechassay.cli.submission import evaluate, validate
from mechassay.text import counted

if TYPE_CHECKING:
    from mechassay.leaderboard.recomputation import Recomputation

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
    exchange: Annotated[
        bool, typer.Option("--exchange", help="Write the formats of other boards too.")
    ] = False,
    artefacts: Annotated[
        bool,
        typer.Option(
            "--artefacts/--no-artefacts", help="Keep what computes the cells again in the folder."
        ),
    ] = True,
) -> None:
    """Make the boards of all runs in a folder: pages that need no server, JSON and CSV."""
    from mechassay.leaderboard.exchange import write_exchange
    from mechassay.leaderboard.folder import BoardsFolder
    from mechassay.leaderboard.reported import read_mib_results

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
        if exchange:
            written = write_exchange(board, output / "exchange" / name, runs)
            n = sum(map(len, written.files.values()))
            left = counted(written.left_out, "undefined number")
            typer.echo(f"  {counted(n, 'file')} for others; {left} left out")
    typer.echo(f"Written: {page}")


@app.command("seed")
def seed(
    file: Annotated[Path, typer.Argument(help="File of private seeds; made if there is none.")],
    epoch: Annotated[str, typer.Argument(help="Name of the time in which it holds, as 2026-11.")],
) -> None:
    """Draw the seed of private examples that holds from now on; those before it stay."""
    from mechassay.leaderboard.private_split import add_seed

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
    from mechassay.leaderboard.recomputation import drawn_cells
    from mechassay.leaderboard.stored import StoredBoards

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
        each.full_id
        for each in cells
        if not _recompute_one(
            each.board, each.full_id, runs, output, anew, device, static, exits=False
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
    from mechassay.leaderboard.folder import write_recomputation
    from mechassay.leaderboard.plans import made_on_board
    from mechassay.leaderboard.recomputation import TOLERANCE, made_in_runs, recompute_made
    from mechassay.leaderboard.rules import rules_of
    from mechassay.leaderboard.stored import StoredBoards

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
