"""Answers of the service: pages from a cache, errors in one line, headers that every answer has."""

from __future__ import annotations

import logging

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mechassay.errors import BadUsage, DiskFull, MechassayError, UnknownName
from mechassay.leaderboard.pages import board_script
from mechassay.report.page import script_hash
from mechassay.service.database import DatabaseAway
from mechassay.service.lookups import NotFound
from mechassay.service.page_cache import CachedPage
from mechassay.service.pages import message_page, watch_script
from mechassay.service.store import StoreAway
from mechassay.service.tokens import BadToken
from mechassay.service.uploads import TooLarge
from mechassay.text import shortened

LOG = logging.getLogger("mechassay.service.app")
API = "/api/"
RETRY_SECONDS = 10
LONGEST = 1000
"""Letters of a message."""
DISK_FULL = (28, 122)
"""ENOSPC and EDQUOT, as the system calls them."""


class TooMany(MechassayError):
    """More than one submitter, or all together, may ask for now."""


STATUS: tuple[tuple[type[BaseException], int, str], ...] = (
    (NotFound, 404, "Not found"),
    (UnknownName, 404, "Not found"),
    (BadToken, 401, "Token refused"),
    (TooMany, 429, "Too many"),
    (TooLarge, 413, "Too large"),
    (DatabaseAway, 503, "Not available"),
    (StoreAway, 503, "Not available"),
    (DiskFull, 507, "No room"),
    (BadUsage, 400, "Refused"),
    (MechassayError, 400, "Refused"),
)
AWAY = "The service cannot reach its data now; nothing is lost. Try again in a moment."
FULL = "The server has no room now; nothing was taken. Try again later."
BROKEN = "Something went wrong here, and was logged."
TITLES = {404: "Not found", 405: "Refused", 500: "Error"}


def policy() -> str:
    """The Content-Security-Policy of all answers; a page allows itself less."""
    scripts = " ".join(f"'sha256-{script_hash(text)}'" for text in (board_script(), watch_script()))
    return (
        f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data:;"
        " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


class SafeHeaders:
    """Adds to every answer what keeps browsers from doing more than showing it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._headers = [
            (b"content-security-policy", policy().encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"x-frame-options", b"DENY"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-opener-policy", b"same-origin"),
            (b"cross-origin-resource-policy", b"same-origin"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers]
            await send(message)

        await self._app(scope, receive, guarded)


def answer(request: Request, page: CachedPage) -> Response:
    """A cached page, zipped if the reader takes that; nothing if the reader has it."""
    headers = {"ETag": page.etag, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == page.etag:
        return Response(status_code=304, headers=headers)
    body = page.body
    if page.zipped is not None and "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["Content-Encoding"] = page.zipped, "gzip"
    return Response(body, headers=headers, media_type=page.media)


def refusal(error: BaseException) -> tuple[int, str, str]:
    """The status, title and line of an error."""
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return 507, "No room", FULL
    for kind, status, title in STATUS:
        if isinstance(error, kind):
            # What names our parts is for the log alone.
            text = {503: AWAY, 507: FULL}.get(status) or shortened(str(error), LONGEST)
            return status, title, text
    return 500, "Error", BROKEN


async def failed(request: Request, error: Exception) -> Response:
    """The answer to an error: one line, never a trace."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=400)
    if isinstance(error, RequestValidationError):
        status, title, text = 400, "Refused", "The request is not of the form that is expected."
    elif isinstance(error, HTTPException):
        status, title, text = error.status_code, TITLES.get(error.status_code, "Refused"), ""
        text = "There is no such page." if status == 404 else f"{error.detail}."
    else:
        status, title, text = refusal(error)
    if status >= 500:
        LOG.error("%s %s: %s", request.method, request.url.path, error)
    headers = {"Retry-After": str(RETRY_SECONDS)} if status in (429, 503) else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if request.url.path.startswith(API):
        return JSONResponse({"error": text}, status, headers)
    page = message_page(title, text)
    return Response(page, status, headers, media_type="text/html; charset=utf-8")
