"""`mechassay leaderboard`: boards of runs as pages, and any cell recomputed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mechassay.cli import token
from mechassay.cli.command import DeviceOption
from mechassay.cli.service_retry import retry
from mechassay.cli.service_site import (
    TokenFileOption,
    export,
    recompute_from,
    rows_and_cells,
    serve,
    status,
    submit,
    tell,
    withdraw,
)
from mechassay.cli.service_validate import validate
from mechassay.cli.service_worker import worker
from mechassay.text import counted

if TYPE_CHECKING:
    from mechassay.leaderboard.cells import BoardCell
    from mechassay.leaderboard.recomputation import MadeRecord

app = typer.Typer(help="Boards of runs, and any cell of them again.", no_args_is_help=True)
app.add_typer(token.app, name="token")
for each in (validate, serve, worker, retry, submit, status, withdraw, export):
    app.command(each.__name__)(each)

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

    cells = [cell for path in reported or () for cell in read_mib_results(path)]
    boards = BoardsFolder.of(runs, output, cells)
    lacking = boards.keep_artefacts() if artefacts else ()
    page = boards.write()
    for text in boards.unreadable:
        typer.echo(f"warning: {text}", err=True)
    for text in lacking:
        typer.echo(f"warning: computed again from its run alone: {text}", err=True)
    for name, board in boards.boards.items():
        typer.echo(f"{name}: {rows_and_cells(board)}")
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
    from mechassay.service.settings import add_seed

    n = add_seed(file, epoch)
    typer.echo(f"{file}: {epoch} holds now, the last of {n}. Only its owner can read it.")


@app.command("recompute")
def recompute(
    board: Annotated[str, typer.Argument(help="Board, as circuits.")],
    cell: Annotated[str, typer.Argument(help="Cell: ROW/MODEL/TASK/COLUMN, as its page says.")],
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
    server: Annotated[
        str, typer.Option("--server", help="Service whose board it is; no folder of runs is read.")
    ] = "",
    token_file: TokenFileOption = None,
) -> None:
    """Compute a cell again from what the method found, and compare all results of its record.

    With a token, a service is told what came of it.
    """
    if server:
        recompute_from(server, token_file, board, cell, device)
        return
    from tempfile import TemporaryDirectory

    from mechassay.leaderboard.folder import write_recomputation
    from mechassay.leaderboard.recomputation import made_in_runs, recompute_made

    with TemporaryDirectory() as folder:
        if static is not None:
            found, made = made_here(static, board, cell, Path(folder) / "files")
        else:
            found = found_in_runs(runs, board, cell)
            made, _ = made_in_runs(found, runs)
        told = recompute_made(found, made, Path(folder) / "run", anew=anew, device=device)
    write_recomputation(output or static or Path("board"), told)
    tell(told)


def found_in_runs(runs: Path, board: str, name: str) -> BoardCell:
    """A cell of the board of a folder of runs, by its name."""
    from mechassay.leaderboard.board import Board
    from mechassay.leaderboard.cells import read_cells
    from mechassay.leaderboard.rules import rules_of

    rules = rules_of(board)
    return Board.of(rules, read_cells(rules, runs)[0]).find(name)


def made_here(static: Path, board: str, name: str, folder: Path) -> tuple[BoardCell, MadeRecord]:
    """A cell of a static board, with what computes it again: of a run, or of a submission.

    Args:
        folder: an empty one, for the files.
    """
    from mechassay.leaderboard.plans import made_on_board
    from mechassay.leaderboard.stored import StoredBoards

    stored = StoredBoards.read(static)
    cell = stored.find(board, name)
    if not (cell.submission or stored.exported):
        return cell, made_on_board(cell, static, folder)
    from mechassay.service.recomputing import exported_cell, exported_models, made_by_submission

    if not cell.submission:
        return cell, made_on_board(cell, static, folder, exported_models(static))
    return cell, made_by_submission(exported_cell(stored, cell), folder)
