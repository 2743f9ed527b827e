"""Taking a submission: whose token, what is declared, the file into the store, then the queue.

The file is in the store before the database knows of it, so that an accepted submission always has
its file. Each upload has a key of its own: one that is not taken, or is there already, is deleted
again, and takes nothing from another. What a server that was killed left there is swept later.
Sent twice, the same content of one submitter is one submission.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime
from secrets import token_hex
from typing import Any

from sqlalchemy import select
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from mechassay.errors import BadFile, BadUsage
from mechassay.service.answers import TooMany
from mechassay.service.database import Database
from mechassay.service.declaration import Declaration
from mechassay.service.parts import ServiceParts
from mechassay.service.queue import receive
from mechassay.service.store import Store
from mechassay.service.tables import Submission, Submitter
from mechassay.service.tokens import BadToken, submitter_of
from mechassay.service.uploads import uploaded
from mechassay.service.work import Upload

DECLARATION, TOKEN = "declaration", "token"
UPLOADS = "uploads"
"""Where the keys of uploads begin."""


def bearer(request: Request) -> str:
    """The token of a request's header.

    Raises:
        BadToken: it has none.
    """
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer" or not token.strip():
        raise BadToken("A token is needed: Authorization: Bearer TOKEN.")
    return token.strip()


async def take(
    parts: ServiceParts, request: Request, fields: dict[str, str], *, by_header: bool
) -> tuple[Submission, bool]:
    """The submission of a form, and whether it is new.

    Args:
        fields: gets what the form says, but for the token.
        by_header: whether the token is in the request's header, else in the form.

    Raises:
        BadToken, TooMany, TooLarge, BadFile, BadUsage, DiskFull: it is not taken.
        DatabaseAway, StoreAway: it cannot be taken now.
    """
    held: dict[str, Any] = {}
    with ExitStack() as stack:

        def own(token: str) -> None:
            held["by"] = submitter_of(parts.db, token)
            stack.enter_context(parts.uploading(held["by"].id))

        def ready(found: Mapping[str, str]) -> None:
            fields.update({name: text for name, text in found.items() if name != TOKEN})
            if not by_header:
                own(found.get(TOKEN, ""))
            held["declared"] = declaration_of(fields)

        if by_header:
            # Without a token not even the form is read.
            await run_in_threadpool(own, bearer(request))
        largest = parts.track.upload.n_bytes
        folder = parts.settings.scratch / "uploads"
        async with uploaded(request.stream(), request.headers, folder, largest, ready) as upload:
            if upload.path is None:
                raise BadUsage("The form has no file.")
            # What kind of archive it is, its first bytes say.
            key = f"{UPLOADS}/{upload.digest}-{token_hex(8)}"
            await run_in_threadpool(parts.store.put_file, key, upload.path)
            declared = held["declared"]
            plain = json.loads(declared.model_dump_json())
            wanted = Upload(upload.digest, key, upload.n_bytes, declared.name, plain)
            return await run_in_threadpool(_received, parts, held["by"], wanted)


def _received(parts: ServiceParts, by: Submitter, upload: Upload) -> tuple[Submission, bool]:
    try:
        found, new = receive(parts.db, by, upload, parts.settings.limits)
    except BadUsage as error:
        parts.store.delete(upload.file)
        raise TooMany(str(error)) from None
    # After any other error the database may have taken it.
    if found.file != upload.file:
        parts.store.delete(upload.file)
    return found, new


def remove_unnamed(db: Database, store: Store, before: datetime) -> int:
    """Remove uploads older than a time that no submission names; how many these were.

    Raises:
        DatabaseAway, StoreAway: database or store do not answer.
    """
    old = store.keys(UPLOADS, before)
    # Read after the keys: what is named later is younger than these.
    named = set(db.read(lambda session: session.scalars(select(Submission.file)).all()))
    left = [key for key in old if key not in named]
    for key in left:
        store.delete(key)
    return len(left)


def declaration_of(fields: Mapping[str, str]) -> Declaration:
    """What a form declares: as one JSON object, or field by field.

    Raises:
        BadFile: a field that is missing, unknown, too long or of another kind; the first.
    """
    if DECLARATION in fields:
        try:
            return Declaration.of(json.loads(fields[DECLARATION]))
        except (ValueError, RecursionError):
            raise BadFile("declaration: it is no JSON.") from None
    told: dict[str, Any] = {
        name: text.replace("\r\n", "\n") for name, text in fields.items() if text
    }
    if "train_hashes" in told:
        told["train_hashes"] = told["train_hashes"].split()
    return Declaration.of(told)
