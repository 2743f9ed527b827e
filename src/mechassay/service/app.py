"""The service's web application: pages for people, and the API for programs.

    /                               what boards there are
    /boards/NAME?model=&task=&row=  a board, or the part of it that is asked for
    /boards/NAME/rows/ROW           every cell of a row
    /compare?board=&column=&a=&b=   two rows
    /history?board=&cell=           what stood in a cell
    /submissions, /submissions/ID   submissions, one of them; ID/figures: its curves and circuits
    /submit                         the form
    /api/...                        see `api`

Pages come from caches; what is not there is made in a thread. There are no cookies.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from mechassay.errors import BadUsage, MechassayError
from mechassay.leaderboard.board import Board
from mechassay.leaderboard.choice import BoardChoice
from mechassay.leaderboard.pages import BoardPages
from mechassay.runs.job import cell_name
from mechassay.service.answers import SafeHeaders, answer, failed, refusal
from mechassay.service.api import api_routes, page_number
from mechassay.service.figures import submission_figures
from mechassay.service.intake import remove_unnamed, take
from mechassay.service.lookups import SUBMISSION_ID, NotFound, find_submission, list_submissions
from mechassay.service.pages import (
    SubmissionPlaces,
    figures_page,
    submission_page,
    submissions_page,
    submit_page,
)
from mechassay.service.parts import HTML, INDEX, ServiceParts
from mechassay.service.settings import ServiceSettings
from mechassay.service.tables import now
from mechassay.service.uploads import STALE, remove_stale

LOG = logging.getLogger("mechassay.service.app")
LONGEST_QUERY = 400
"""Letters of one value in an address."""
MOST_VALUES = 100


def create_app(settings: ServiceSettings, address: str = "") -> ASGIApp:
    """The application; its tables are brought up to date.

    Args:
        address: at which others reach it, for the commands on its pages.

    Raises:
        BadUsage, BadFile: the settings cannot be used. DatabaseAway: the database does not answer.
    """
    parts = ServiceParts(settings, address)
    parts.db.upgrade()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with suppress(MechassayError):
            await parts.look()
        tasks = [asyncio.create_task(parts.keep_looking()), asyncio.create_task(_sweep(parts))]
        yield
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        parts.db.close()

    pages = SitePages(parts)
    app = FastAPI(
        title="mechassay leaderboard",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        routes=pages.routes(),
    )
    app.include_router(api_routes(parts))
    for kind in (
        *(MechassayError, OSError, HTTPException, RequestValidationError, ClientDisconnect),
        Exception,
    ):
        app.add_exception_handler(kind, failed)
    return SafeHeaders(app)


async def _sweep(parts: ServiceParts) -> None:
    """Remove once a day what uploads left that were never taken."""
    while True:
        await run_in_threadpool(remove_stale, parts.settings.scratch / "uploads")
        old = now() - timedelta(seconds=STALE)
        try:
            await run_in_threadpool(remove_unnamed, parts.db, parts.store, old)
        except MechassayError as error:
            LOG.warning("Uploads are swept tomorrow: %s", error)
        await asyncio.sleep(STALE)


class SitePages:
    """The pages by their addresses."""

    def __init__(self, parts: ServiceParts) -> None:
        self._parts = parts

    def routes(self) -> list[BaseRoute]:
        """Of all pages."""
        return [
            Route("/", self.index),
            Route("/boards/{name}", self.board),
            Route("/boards/{name}/rows/{row}", self.row),
            Route("/compare", self.compare),
            Route("/history", self.history),
            Route("/submissions", self.submissions),
            Route("/submissions/{submission}", self.submission),
            Route("/submissions/{submission}/figures", self.figures),
            Route("/submit", self.form),
            Route("/submit", self.submit, methods=["POST"]),
        ]

    async def index(self, request: Request) -> Response:
        page = await self._parts.board_page(INDEX, lambda pages: pages.index())
        return answer(request, page)

    async def board(self, request: Request) -> Response:
        name = request.path_params["name"]
        choice = _choice(request, self._board(name)) if request.url.query else None
        page = await self._parts.board_page(
            ("board", name, choice), lambda pages: pages.board(name, choice)
        )
        return answer(request, page)

    async def row(self, request: Request) -> Response:
        name, row = request.path_params["name"], request.path_params["row"]

        def make(pages: BoardPages) -> str:
            for each in pages.find(name).rows():
                if cell_name(each) == row:
                    return pages.row(name, each)
            raise NotFound("There is no such row.")

        self._board(name)
        return answer(request, await self._parts.board_page(("row", name, row), make))

    async def compare(self, request: Request) -> Response:
        asked = {name: _asked(request, name) for name in ("board", "column", "a", "b")}
        name, column, first, second = asked.values()
        board = self._board(name)
        if (first or second) and not {first, second} <= set(board.rows()):
            raise NotFound("There is no such row.")
        page = await self._parts.board_page(
            ("compare", *asked.values()), lambda pages: pages.compared(name, column, first, second)
        )
        return answer(request, page)

    async def history(self, request: Request) -> Response:
        name, cell = _asked(request, "board"), _asked(request, "cell")
        board = self._board(name)
        if not any(cell in (each.id, each.full_id) for each in board.cells):
            raise NotFound("There is no such cell.")
        page = await self._parts.board_page(
            ("history", name, cell), lambda pages: pages.history(name, cell)
        )
        return answer(request, page)

    async def submissions(self, request: Request) -> Response:
        number = page_number(request)

        def make() -> str:
            return submissions_page(*list_submissions(self._parts.db, number), number)

        return answer(request, await self._parts.brief_page(("submissions", number), make))

    async def submission(self, request: Request) -> Response:
        submission = _submission(request)

        def make() -> str:
            view = find_submission(self._parts.db, submission)
            records = self._parts.boards.records_of(view)
            places = SubmissionPlaces.served(view, self._parts.address)
            return submission_page(view, records, places)

        return answer(request, await self._parts.brief_page(("submission", submission), make))

    async def figures(self, request: Request) -> Response:
        submission = _submission(request)

        def make(_: BoardPages) -> str:
            view = find_submission(self._parts.db, submission)
            if view.submission.state != "done":
                raise NotFound("There are figures when a submission is done.")
            records, drawings = submission_figures(self._parts, view)
            return figures_page(view, records, drawings)

        return answer(request, await self._parts.board_page(("figures", submission), make))

    async def form(self, request: Request) -> Response:
        megabytes = self._parts.track.upload.megabytes
        page = await self._parts.board_page(("form",), lambda _: submit_page(megabytes))
        return answer(request, page)

    async def submit(self, request: Request) -> Response:
        fields: dict[str, str] = {}
        try:
            found, _ = await take(self._parts, request, fields, by_header=False)
        except (MechassayError, OSError) as error:
            status, _, text = refusal(error)
            if status == 500:
                raise
            megabytes = self._parts.track.upload.megabytes
            page = await run_in_threadpool(submit_page, megabytes, fields, text)
            return Response(page, status, media_type=HTML)
        return RedirectResponse(f"/submissions/{found.id}", 303)

    def _board(self, name: str) -> Board:
        """A board; looked up here, where a wrong name costs nothing."""
        boards = self._parts.boards.snapshot.pages.boards
        if name not in boards:
            raise NotFound("There is no such board, or it is empty.")
        return boards[name]


def _submission(request: Request) -> str:
    found = request.path_params["submission"]
    if not SUBMISSION_ID.fullmatch(found):
        raise NotFound("There is no such submission.")
    return found


def _asked(request: Request, name: str) -> str:
    text = request.query_params.get(name, "")
    if len(text) > LONGEST_QUERY:
        raise BadUsage(f"{name} has more than {LONGEST_QUERY} letters.")
    return text


def _choice(request: Request, board: Board) -> BoardChoice:
    """What of a board an address asks for.

    Raises:
        NotFound: a value that the board does not have. BadUsage: too many.
    """
    roles: list[tuple[str, frozenset[str]]] = []
    for role in board.rules.place:
        values = frozenset(filter(None, request.query_params.getlist(role)))
        if len(values) > MOST_VALUES:
            raise BadUsage(f"More than {MOST_VALUES} values of {role}.")
        if values - {cell.place.get(role) for cell in board.cells}:
            raise NotFound(f"The board has no such {role}.")
        if values:
            roles.append((role, values))
    words = " ".join(_asked(request, "row").split())
    return BoardChoice(tuple(roles), words, request.query_params.get("rows") == "all")
