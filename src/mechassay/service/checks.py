"""Checks of submissions: claimed, held by beats, given back, and ended; each in one transaction.

A check is of whom the least was received in the last day, and what was never begun comes first. See
`service.queue` for the whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from mechassay.service.changes import DIED, LOST, NAME, changed, counted, kept, locked
from mechassay.service.database import Database
from mechassay.service.tables import Evaluation, Submission, now
from mechassay.service.turns import received_of_late
from mechassay.service.work import PlannedEvaluation
from mechassay.submissions import Problem

NOTHING = "nothing in it is evaluated here."
UNREAD = "It could not be read: "


def unread(why: str) -> Problem:
    """What is said of a submission whose check did not come to its end, and tells it apart."""
    return Problem("", f"{UNREAD}{why}")


def was_unread(submission: Submission) -> bool:
    """Whether it was refused as its check did not come to its end, and not for what it is."""
    said = [str(problem["message"]) for problem in submission.report]
    return submission.state == "refused" and len(said) == 1 and said[0].startswith(UNREAD)


def claim_check(
    db: Database, worker: str, lease: float, *, without: Collection[str] = ()
) -> Submission | None:
    """The next submission to check, which is this worker's for `lease` seconds; None if none is.

    It is of whom the least was received in the last day.

    Args:
        without: ids of submissions that are passed over.
    """
    time = now()
    until = time + timedelta(seconds=lease)

    def work(session: Session) -> Submission | None:
        mine = select(Submission).filter_by(state="checking", worker=worker, lease_until=until)
        if found := session.scalar(mine):
            return found
        lost = (Submission.state == "checking") & (Submission.lease_until < time)
        session.execute(
            update(Submission)
            .where(lost, Submission.attempts >= LOST)
            .values(
                state="refused",
                finished=time,
                report=[asdict(unread(f"{DIED}."))],
                worker=None,
            )
        )
        found = session.scalar(
            select(Submission)
            .where((Submission.state == "received") | lost, Submission.id.not_in(without))
            .order_by(
                Submission.attempts, received_of_late(time), Submission.created, Submission.id
            )
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        if found is not None:
            found.state, found.worker, found.lease_until = "checking", worker, until
            found.attempts += 1
        return found

    return db.write(work)


def checked(
    db: Database,
    submission: Submission,
    worker: str,
    problems: Sequence[Problem],
    evaluations: Sequence[PlannedEvaluation],
    *,
    kind: str = "",
    name: str = "",
    declaration: Mapping[str, Any] | None = None,
) -> bool:
    """Say what a check found; without errors, the evaluations wait.

    Args:
        kind, name, declaration: what the submission's files say of it, in place of what was said
            with the upload.

    Returns:
        Whether it counted: the submission was still this worker's.
    """
    time = now()
    report = [asdict(problem) for problem in problems]
    bad = any(not problem.warning for problem in problems)
    if not (bad or evaluations):
        report, bad = [*report, asdict(Problem("", NOTHING))], True

    def work(session: Session) -> bool:
        found = locked(session, submission.id)
        if found is None or found.worker != worker:
            return False
        if found.state != "checking":
            return found.state in ("queued", "refused", "done")
        found.state = "refused" if bad else "queued"
        found.report, found.lease_until = report, None
        found.finished = time if bad else None
        found.kind, found.name = kind or found.kind, kept(name, NAME) or found.name
        if declaration is not None:
            found.declaration = dict(declaration)
        if not bad:
            session.add_all(
                Evaluation(submission_id=found.id, **asdict(planned)) for planned in evaluations
            )
        return True

    return db.write(work)


def beat_check(db: Database, submission: Submission, worker: str, lease: float) -> bool:
    """Hold a submission that is being checked longer; False: it was taken away or withdrawn."""
    until = now() + timedelta(seconds=lease)
    mine = (
        update(Submission)
        .where(Submission.id == submission.id, Submission.state == "checking")
        .where(Submission.worker == worker)
        .values(lease_until=until)
    )
    return db.write(lambda session: changed(session, mine) == 1)


def give_back_check(
    db: Database, submission: Submission, worker: str, *, died: bool = False
) -> bool:
    """Let a submission wait for its check again; whether it was this worker's.

    Args:
        died: the attempt counts, as the child died; else it is as if there had been none.
    """
    again = (
        update(Submission)
        .where(Submission.id == submission.id, Submission.state == "checking")
        .where(Submission.worker == worker)
        .values(state="received", worker=None, lease_until=None, **counted(Submission, died))
    )
    return db.write(lambda session: changed(session, again) == 1)
