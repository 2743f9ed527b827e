"""What failed waits again: whoever runs the service says so, when the cause of it is gone.

Cells that are done keep their records. A retry counts as nothing that was handed in, so limits of a
day do not hold it up. A cell that was begun in the last day counts for whose turn it is
(`service.turns`), once however often it is begun.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from mechassay.errors import BadUsage, UnknownName, one_of
from mechassay.service.changes import locked
from mechassay.service.checks import was_unread
from mechassay.service.database import Database
from mechassay.service.tables import Evaluation, Submission
from mechassay.service.work import Retried

AGAIN = ("failed", "skipped")
"""States of cells that are tried again."""


def retry(db: Database, submission: str, cells: Collection[str] = ()) -> Retried:
    """Let a submission's failed and skipped cells wait again, as if they had not been tried.

    One that was done is queued again. One that was refused as its check came to no end is received
    again: it died, was over a limit, or its file was not in the store.

    Args:
        submission: its id.
        cells: names of cells as status says them, or as in their plans, of each split; all of them
            if there are none.

    Raises:
        UnknownName: there is no such submission, or it has no such cell.
        BadUsage: it is withdrawn.
    """
    waiting: set[int] = set()
    received: set[str] = set()

    def work(session: Session) -> Retried:
        # What a run before this one has changed stays in the two sets: its commit may have counted.
        found = locked(session, submission)
        if found is None:
            known = session.scalars(select(Submission.id)).all()
            raise UnknownName("submission", submission, known)
        if found.state == "withdrawn":
            raise BadUsage(f"{submission}: is withdrawn; only its submitter can hand it in again.")
        own = select(Evaluation).filter_by(submission_id=submission)
        evaluations = session.scalars(own).all() if cells else ()
        known = dict.fromkeys(name for each in evaluations for name in (each.title, each.cell))
        for cell in cells:
            one_of("cell of the submission", cell, known)
        if was_unread(found):
            _receive_again(found)
            received.add(found.id)
        again = _wait_again(session, submission, cells)
        waiting.update(again)
        if again and found.state == "done":
            found.state, found.finished = "queued", None
        return Retried(found.state, bool(received), len(waiting))

    return db.write(work)


def _receive_again(found: Submission) -> None:
    found.state, found.report, found.finished = "received", [], None
    found.worker = found.lease_until = None
    found.attempts = found.deaths = 0


def _wait_again(session: Session, submission: str, cells: Collection[str]) -> Sequence[int]:
    """Let cells wait again; the ids of those that do. `started` stays: it counts for turns."""
    wanted = (Evaluation.submission_id == submission) & Evaluation.state.in_(AGAIN)
    if cells:
        wanted &= Evaluation.cell.in_(cells) | Evaluation.called.in_(cells)
    change = (
        update(Evaluation)
        .where(wanted)
        .values(
            state="waiting",
            attempts=0,
            deaths=0,
            worker=None,
            lease_until=None,
            finished=None,
            message=None,
            seconds=None,
        )
    )
    plain = {"synchronize_session": False}
    return session.scalars(change.returning(Evaluation.id), execution_options=plain).all()
