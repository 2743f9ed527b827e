"""The service for programs: boards, records and submissions as JSON, CSV and files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field
from sqlalchemy import delete, text
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse

from mechassay.errors import BadUsage
from mechassay.records import Number, Stored
from mechassay.service.answers import answer
from mechassay.service.intake import bearer, take
from mechassay.service.lookups import NotFound, SubmissionView, find_submission, list_submissions
from mechassay.service.parts import KINDS, ServiceParts
from mechassay.service.queue import withdraw
from mechassay.service.store import Store
from mechassay.service.tables import Recomputed, Submitter, now
from mechassay.service.tokens import submitter_of
from mechassay.service.uploads import TooLarge

_SHA256 = re.compile(r"[0-9a-f]{64}")
MAGIC = {b"PK": ".zip", b"\x1f\x8b": ".tar.gz"}
"""How files of archives begin; tar archives do not."""
LONGEST_CELL, LONGEST_BODY = 500, 10_000
_DIGITS = re.compile(r"[1-9][0-9]{0,5}")


class Repeated(Stored):
    """What somebody says of a cell that was computed again."""

    cell: str = Field(max_length=LONGEST_CELL)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    value: Number
    agrees: bool


def page_number(request: Request) -> int:
    """The page that a list is asked for, counted from 1.

    Raises:
        NotFound: it is no number.
    """
    asked = request.query_params.get("page", "1")
    if not _DIGITS.fullmatch(asked):
        raise NotFound("Pages are counted from 1.")
    return int(asked)


def api_routes(parts: ServiceParts) -> APIRouter:
    """All addresses below /api."""
    router = APIRouter(prefix="/api")
    _read_boards(router, parts)
    _take_submissions(router, parts)
    return router


def _read_boards(router: APIRouter, parts: ServiceParts) -> None:

    @router.get("/health")
    async def health() -> dict[str, str]:
        """Whether the database answers."""
        await run_in_threadpool(parts.db.read, lambda session: session.execute(text("SELECT 1")))
        return {"status": "ok"}

    @router.get("/track")
    async def track() -> Response:
        """What is evaluated, and the limits of an upload."""
        told = parts.track.model_dump(mode="json")
        for about in told["models"].values():
            if Path(about["load"]).is_absolute():
                about["load"] = ""  # Where files of this machine are concerns nobody.
        return JSONResponse(told)

    @router.get("/boards/{name}.{kind}", response_class=Response)
    async def board(request: Request, name: str, kind: str) -> Response:
        """All cells of a board, as JSON or CSV."""
        boards = parts.boards.snapshot.pages.boards
        if kind not in KINDS or name not in boards:
            raise NotFound("There is no such board, or it is empty.")
        page = await parts.board_page(
            ("data", name, kind), lambda pages: pages.text(f"data/{name}.{kind}"), KINDS[kind]
        )
        return answer(request, page)

    @router.get("/records/{sha256}.json", response_class=Response)
    async def record(sha256: str) -> Response:
        """The record of a cell about public examples."""
        if not _SHA256.fullmatch(sha256) or sha256 not in parts.boards.snapshot.public:
            raise NotFound("There is no such record.")
        path = parts.boards.record_file(sha256)
        return FileResponse(path, media_type=KINDS["json"], filename=f"{sha256}.json")


def _take_submissions(router: APIRouter, parts: ServiceParts) -> None:
    @router.get("/submissions")
    async def submissions(request: Request) -> dict[str, Any]:
        """The submissions, the newest first."""
        page = page_number(request)
        views, total = await run_in_threadpool(list_submissions, parts.db, page)
        return {"total": total, "page": page, "submissions": [view.plain() for view in views]}

    @router.post("/submissions", response_class=Response)
    async def submit(request: Request) -> Response:
        """Hand a submission in; the same content again is the same submission."""
        found, new = await take(parts, request, {}, by_header=True)
        plain = {"id": found.id, "state": found.state, "new": new, "digest": found.digest}
        return JSONResponse(plain, 201 if new else 200)

    @router.get("/submissions/{submission}")
    async def submission(submission: str) -> dict[str, Any]:
        """A submission and its evaluations."""
        return (await run_in_threadpool(find_submission, parts.db, submission)).plain()

    @router.delete("/submissions/{submission}")
    async def remove(request: Request, submission: str) -> dict[str, str]:
        """Withdraw a submission."""
        by = await run_in_threadpool(submitter_of, parts.db, bearer(request))
        await run_in_threadpool(find_submission, parts.db, submission)
        found = await run_in_threadpool(withdraw, parts.db, submission, by)
        parts.brief.clear()
        return {"id": found.id, "state": found.state}

    @router.post("/submissions/{submission}/recomputed", status_code=201)
    async def recomputed(request: Request, submission: str) -> dict[str, bool]:
        """Say that a cell was computed again by somebody else than its submitter."""
        by = await run_in_threadpool(submitter_of, parts.db, bearer(request))
        said = await _repeated(request)
        view = await run_in_threadpool(find_submission, parts.db, submission)
        await run_in_threadpool(_note, parts, view, by, said)
        return {"agrees": said.agrees}

    @router.get("/submissions/{submission}/file", response_class=Response)
    async def file(submission: str) -> Response:
        """The file of a submission that is done; what was not checked is given to nobody."""
        held = (await run_in_threadpool(find_submission, parts.db, submission)).submission
        if held.state != "done":
            raise NotFound(f"Submission {submission} is {held.state}: its file is not given out.")
        size, first, chunks = await run_in_threadpool(_begun, parts.store, held.file)
        ending = next((name for magic, name in MAGIC.items() if first.startswith(magic)), ".tar")
        headers = {
            "Content-Length": str(size),
            "Content-Disposition": f'attachment; filename="submission-{held.id}{ending}"',
        }
        return StreamingResponse(
            chain((first,), chunks), headers=headers, media_type="application/octet-stream"
        )


async def _repeated(request: Request) -> Repeated:
    """What a request says. It is read after its token was, and no more of it than is needed.

    Raises:
        TooLarge: it says more. BadUsage: it says something else.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > LONGEST_BODY:
            raise TooLarge(f"The request has more than {LONGEST_BODY:,} bytes.")
    try:
        return Repeated.model_validate(json.loads(body))
    except (ValueError, RecursionError):
        raise BadUsage("The request is not of the form that is expected.") from None


def _begun(store: Store, key: str) -> tuple[int, bytes, Iterator[bytes]]:
    """The size of a blob, its first bytes, and the others."""
    size, chunks = store.stream(key)
    return size, next(chunks, b""), chunks


def _note(parts: ServiceParts, view: SubmissionView, by: Submitter, said: Repeated) -> None:
    """Store what somebody computed again, once for each cell and person.

    Raises:
        BadUsage: it is the submitter's own. NotFound: the board shows no such record.
    """
    held = view.submission
    if held.submitter_id == by.id:
        raise BadUsage("Your own submission has to be computed again by somebody else.")
    shown = {parts.boards.snapshot.hashes.get(each.record or "") for each in view.evaluations}
    if said.sha256 not in shown:
        raise NotFound("The submission has no such record on a board.")

    def work(session: Session) -> None:
        same = {"sha256": said.sha256, "cell": said.cell, "by": by.name}
        session.execute(delete(Recomputed).filter_by(**same))
        value = None if math.isnan(said.value) else said.value
        session.add(
            Recomputed(
                **same, submission_id=held.id, value=value, agrees=said.agrees, created=now()
            )
        )

    parts.db.write(work)
