"""The service for programs: boards, records and submissions as JSON, CSV and files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from sqlalchemy import text
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse

from mechassay.service.answers import answer
from mechassay.service.intake import bearer, take
from mechassay.service.lookups import NotFound, file_ending, find_submission, list_submissions
from mechassay.service.parts import KINDS, ServiceParts
from mechassay.service.queue import withdraw
from mechassay.service.repeated import note, read_repeated
from mechassay.service.store import Store
from mechassay.service.tokens import submitter_of

PACKED = "application/gzip"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_DIGITS = re.compile(r"[1-9][0-9]{0,5}")


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
        return JSONResponse(parts.public_track())

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

    @router.get("/plans/{sha256}.json", response_class=Response)
    async def plan(sha256: str) -> Response:
        """What a record of the static board is computed again from."""
        if not _SHA256.fullmatch(sha256) or sha256 not in parts.boards.snapshot.public:
            raise NotFound("There is no such plan.")
        return _file(parts.boards.plan_file(sha256), "plan", KINDS["json"])

    @router.get("/artefacts/{sha256}.gz", response_class=Response)
    async def artefact(sha256: str) -> Response:
        """A file that a plan names, packed."""
        return _file(parts.boards.artefact_file(sha256), "artefact", PACKED)


def _file(path: Path | None, what: str, media: str) -> Response:
    if path is None:
        raise NotFound(f"There is no such {what}.")
    return FileResponse(path, media_type=media, filename=path.name)


def _take_submissions(router: APIRouter, parts: ServiceParts) -> None:
    @router.get("/submissions", response_class=Response)
    async def submissions(request: Request) -> Response:
        """The submissions, the newest first; a report is that of a submission alone."""
        page = page_number(request)

        def make() -> str:
            views, total = list_submissions(parts.db, page)
            plain = [view.plain() for view in views]
            for each in plain:
                del each["report"], each["evaluations"]
            return json.dumps({"total": total, "page": page, "submissions": plain})

        found = await parts.brief_page(("submissions.json", page), make, KINDS["json"])
        return answer(request, found)

    @router.post("/submissions", response_class=Response)
    async def submit(request: Request) -> Response:
        """Hand a submission in; the same content again is the same submission."""
        found, new = await take(parts, request, {}, by_header=True)
        plain = {"id": found.id, "state": found.state, "new": new, "digest": found.digest}
        plain["name"] = found.name  # Of known bytes that under which they were handed in first.
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
        said = await read_repeated(request.stream())
        view = await run_in_threadpool(find_submission, parts.db, submission)
        return {"agrees": await run_in_threadpool(note, parts, view, by, said)}

    @router.get("/submissions/{submission}/file", response_class=Response)
    async def file(submission: str) -> Response:
        """The file of a submission that is done; what was not checked is given to nobody."""
        held = (await run_in_threadpool(find_submission, parts.db, submission)).submission
        if held.state != "done":
            raise NotFound(f"Submission {submission} is {held.state}: its file is not given out.")
        size, first, chunks = await run_in_threadpool(_begun, parts.store, held.file)
        name = f"submission-{held.id}{file_ending(first)}"
        headers = {
            "Content-Length": str(size),
            "Content-Disposition": f'attachment; filename="{name}"',
        }
        return StreamingResponse(
            chain((first,), chunks), headers=headers, media_type="application/octet-stream"
        )


def _begun(store: Store, key: str) -> tuple[int, bytes, Iterator[bytes]]:
    """The size of a blob, its first bytes, and the others."""
    size, chunks = store.stream(key)
    return size, next(chunks, b""), chunks
