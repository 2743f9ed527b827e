"""`mechassay leaderboard serve`, `submit`, `status`, `withdraw`, `export`: server and client."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mechassay.cli.service import DatabaseOption, FolderOption, StoreOption, TrackOption
from mechassay.text import counted

if TYPE_CHECKING:
    from mechassay.leaderboard.board import Board
    from mechassay.leaderboard.recomputation import Recomputation

ServerOption = Annotated[
    str,
    typer.Option(
        "--server", envvar="MECHASSAY_SERVER", show_envvar=True, help="Address of the service."
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option("--token-file", help="File with the token; else MECHASSAY_TOKEN has it."),
]
BoardOption = Annotated[
    Path | None,
    typer.Option("--board", help="Folder of a static board, shown beside the submissions."),
]
SubmissionArgument = Annotated[str, typer.Argument(help="Id of the submission.")]
DEFAULT_SERVER = "http://127.0.0.1:8000"


def serve(
    folder: FolderOption = Path("service"),
    database: DatabaseOption = "",
    store: StoreOption = "",
    track: TrackOption = None,
    host: Annotated[str, typer.Option("--host", help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: a free one.")] = 8000,
    address: Annotated[
        str, typer.Option("--address", help="At which others reach it, for commands on pages.")
    ] = "",
    board: BoardOption = None,
    a_day: Annotated[
        int, typer.Option("--a-day", min=1, help="Submissions of one submitter in 24 hours.")
    ] = 20,
    at_once: Annotated[
        int, typer.Option("--at-once", min=1, help="Of these, not evaluated yet.")
    ] = 5,
) -> None:
    """Serve the boards and take submissions; `leaderboard worker` evaluates them."""
    import logging
    import socket

    from mechassay.errors import BadUsage, MissingExtra

    try:
        import uvicorn
    except ImportError:
        raise MissingExtra("The leaderboard's service", "uvicorn", "server") from None
    from mechassay.service.app import create_app
    from mechassay.service.settings import ServiceLimits, ServiceSettings

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
        except OSError as error:
            raise BadUsage(f"{host}:{port} cannot be listened at ({error.strerror}).") from None
        shown = f"[{host}]" if ":" in host else host
        own = f"http://{shown}:{listening.getsockname()[1]}"
        limits = ServiceLimits(a_day, at_once)
        settings = ServiceSettings(folder, database, store, track, limits=limits, board=board)
        app = create_app(settings, address or own)
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, lifespan="on"
        )
        typer.echo(f"Serving {own}")
        uvicorn.Server(config).run(sockets=[listening])


def submit(
    source: Annotated[
        str, typer.Argument(help="Folder, archive, one file of data, or hub:ID of the hub.")
    ],
    server: ServerOption = DEFAULT_SERVER,
    token_file: TokenFileOption = None,
    name: Annotated[
        str, typer.Option("--name", help="On the board; else submission.yaml says it.")
    ] = "",
    method: Annotated[str, typer.Option("--method", help="In words, or a name.")] = "",
    description: Annotated[str, typer.Option("--description", help="In words.")] = "",
    training_data: Annotated[str, typer.Option("--training-data", help="In words.")] = "",
    compute: Annotated[str, typer.Option("--compute", help="In words.")] = "",
    url: Annotated[str, typer.Option("--url", help="Of a paper or of code.")] = "",
) -> None:
    """Hand in a submission; the same content again is the same submission."""
    from mechassay.errors import BadUsage
    from mechassay.service.client import ServiceClient, read_token
    from mechassay.service.declaration import Declaration

    said = {
        "method": method,
        "description": description,
        "training_data": training_data,
        "compute": compute,
        "url": url,
    }
    if any(said.values()) and not name:
        raise BadUsage("What is declared needs a --name; or all of it stands in submission.yaml.")
    declared = Declaration.of({"name": name, **said}, "options") if name else None
    client = ServiceClient(server, read_token(token_file))
    found = client.submit(source, declared)
    typer.echo(told_of(found))
    typer.echo(f"{server.rstrip('/')}/submissions/{found['id']}")


def told_of(found: dict[str, Any]) -> str:
    """What a server answers to a submission, in a line: bytes that it knows keep their name."""
    if found["new"]:
        return f"{found['id']}: {found['state']}"
    name = f", known under the name {found['name']!r}" if found.get("name") else ", known already"
    return f"These bytes are the submission {found['id']}{name}: {found['state']}"


def status(submission: SubmissionArgument, server: ServerOption = DEFAULT_SERVER) -> None:
    """Say what became of a submission."""
    from mechassay.service.client import ServiceClient

    found = ServiceClient(server).status(submission)
    typer.echo(f"{found['name']}: {found['state']}. {found['progress']}")
    for problem in found["report"]:
        kind = "warning" if problem["warning"] else "problem"
        typer.echo(f"{kind}: {problem['path']}: {problem['message']}")
    for each in found["evaluations"]:
        message = f": {each['message']}" if each["message"] else ""
        typer.echo(f"  {each['cell']} ({each['split']}): {each['state']}{message}")
    if found["state"] == "refused":
        raise typer.Exit(1)


def withdraw(
    submission: SubmissionArgument,
    server: ServerOption = DEFAULT_SERVER,
    token_file: TokenFileOption = None,
) -> None:
    """Take a submission back: it vanishes from the boards."""
    from mechassay.service.client import ServiceClient, read_token

    found = ServiceClient(server, read_token(token_file)).withdraw(submission)
    typer.echo(f"{found['id']}: {found['state']}")


def recompute_from(
    server: str, token_file: Path | None, board: str, cell: str, device: str
) -> None:
    """Compute a cell of a service's board again; with a token, tell the service."""
    import os
    from tempfile import TemporaryDirectory

    from mechassay.service.client import TOKEN, ServiceClient, read_token
    from mechassay.service.recomputing import recompute_asked

    token = read_token(token_file) if token_file or os.environ.get(TOKEN) else ""
    client = ServiceClient(server, token)
    with TemporaryDirectory() as folder:
        told, submission = recompute_asked(client, board, cell, Path(folder), device=device)
    if token and submission:
        said = {"cell": told.cell, "sha256": told.sha256, "value": told.again}
        client.recomputed(submission, {**said, "agrees": told.agrees})
    tell(told)


def tell(told: Recomputation) -> None:
    """Print what came of computing a cell again; exit with 1 if it differs."""
    from mechassay.leaderboard.recomputation import TOLERANCE

    typer.echo(f"{told.cell}: {told.stored:.9g} on the board, {told.again:.9g} again")
    word = "agrees" if told.agrees else "DIFFERS"
    where = f"first in {told.differs}" if told.differs else f"largest difference {told.largest:.1g}"
    typer.echo(f"{word}: {told.n} results, {where} (allowed {TOLERANCE:g}); {told.seconds:.0f} s")
    if not told.agrees:
        raise typer.Exit(1)


def rows_and_cells(board: Board) -> str:
    """How large a board is: `2 rows, 1 cell`."""
    return f"{counted(len(board.rows()), 'row')}, {counted(len(board.cells), 'cell')}"


def export(
    output: Annotated[Path, typer.Argument(help="Folder of the pages.")],
    folder: FolderOption = Path("service"),
    database: DatabaseOption = "",
    store: StoreOption = "",
    track: TrackOption = None,
    address: Annotated[
        str, typer.Option("--address", help="Of the server, for commands on the pages.")
    ] = "",
    board: BoardOption = None,
    files: Annotated[
        bool, typer.Option("--files/--no-files", help="Copy what was handed in.")
    ] = True,
) -> None:
    """Write the boards as pages that need no server, with data, public records and submissions."""
    from mechassay.service.export import export_boards
    from mechassay.service.settings import ServiceSettings

    settings = ServiceSettings(folder, database, store, track, board=board)
    found = export_boards(settings, output, address, with_files=files)
    for name, written in found.boards.items():
        typer.echo(f"{name}: {rows_and_cells(written)}")
    n_files = counted(len(found.files), "file")
    said = f"{n_files} of {found.n_bytes / 1e6:,.1f} MB (--no-files leaves them out)"
    told = said if files else "their files are left out"
    typer.echo(f"{counted(found.submissions, 'submission')}; {told}")
    typer.echo(f"Written: {output / 'index.html'}")
