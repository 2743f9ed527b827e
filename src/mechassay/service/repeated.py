"""What people say of cells that they computed again, as the marks on boards.

A person says one thing of a record. It counts for a cell that a board shows. The number decides:
whoever says that it agrees has to have the number of the board. The same again changes nothing;
something else is taken an hour later.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from datetime import timedelta

from pydantic import Field, ValidationError
from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from mechassay.errors import BadUsage
from mechassay.leaderboard.recomputation import TOLERANCE
from mechassay.records import Number, Stored, first_mistake
from mechassay.service.answers import TooMany
from mechassay.service.lookups import NotFound, SubmissionView
from mechassay.service.parts import ServiceParts
from mechassay.service.tables import Recomputed, Submitter, now
from mechassay.service.uploads import TooLarge

LARGEST = 4096
"""Bytes of what is said."""
LONGEST_CELL = 500
ANOTHER, DAY = timedelta(hours=1), timedelta(days=1)
A_DAY = 200
"""Records of which one person says something in 24 hours."""


class Repeated(Stored):
    """What somebody says of a cell that was computed again."""

    cell: str = Field(max_length=LONGEST_CELL)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    value: Number
    agrees: bool


async def read_repeated(chunks: AsyncIterator[bytes]) -> Repeated:
    """What a request says; of one that is too long no more is read.

    Raises:
        TooLarge: it is too long. BadUsage: it is of another form.
    """
    content = bytearray()
    async for chunk in chunks:
        content += chunk
        if len(content) > LARGEST:
            raise TooLarge(f"What is said of a cell has at most {LARGEST:,} bytes.")
    try:
        return Repeated.model_validate_json(bytes(content))
    except ValidationError as error:
        said = first_mistake(error)
        raise BadUsage(f"The request is not of the form that is expected ({said}).") from None


def note(parts: ServiceParts, view: SubmissionView, by: Submitter, said: Repeated) -> bool:
    """Store what somebody says; whether the numbers agree.

    Raises:
        BadUsage: it is the submitter's own. NotFound: no board shows this cell of this record.
        TooMany: the same person said something else of it, or of too many, just now.
    """
    held = view.submission
    if held.submitter_id == by.id:
        raise BadUsage("Your own submission has to be computed again by somebody else.")
    shown = {parts.boards.snapshot.hashes.get(each.record or "") for each in view.evaluations}
    cell = parts.boards.snapshot.cell(said.cell, said.sha256) if said.sha256 in shown else None
    if cell is None:
        raise NotFound("The submission has no such record with such a cell on a board.")
    agrees = said.agrees and _same(said.value, cell.value)
    value = None if math.isnan(said.value) else said.value
    time, same = now(), {"sha256": said.sha256, "by": by.name}

    def work(session: Session) -> None:
        for old in session.scalars(select(Recomputed).filter_by(**same)):
            if (old.cell, old.value, old.agrees) == (said.cell, value, agrees):
                return
            if old.created > time - ANOTHER:
                raise TooMany("You said something else of this record in the last hour.")
        own = select(func.count(Recomputed.id)).filter_by(by=by.name)
        if (session.scalar(own.where(Recomputed.created > time - DAY)) or 0) >= A_DAY:
            raise TooMany(f"You said something of {A_DAY} records in the last 24 hours.")
        session.execute(delete(Recomputed).filter_by(**same))
        session.add(
            Recomputed(
                **same,
                submission_id=held.id,
                cell=said.cell,
                value=value,
                agrees=agrees,
                created=time,
            )
        )

    parts.db.write(work)
    return agrees


def _same(one: float, other: float) -> bool:
    if math.isnan(one) or math.isnan(other):
        return math.isnan(one) and math.isnan(other)
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
