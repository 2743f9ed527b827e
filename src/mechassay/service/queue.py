"""Changes of state of submissions and evaluations; each is one transaction that can run twice.

Whoever changes a submission as a whole locks its row first, and then its evaluations, so that two
who end its last two evaluations see each other. A claim locks one evaluation alone, and passes over
those that others are about to take.

Claims are fair: see `service.turns`. Within a submission, what was never begun comes first. So 500
cells of one do not stand before 2 of another.

A worker that does not beat loses what it holds when its lease is over. Workers die for reasons of
their machines, so that may happen often (`LOST`); what ended the child of a living worker three
times is not tried again. A check and a submission received anew count for as long as a day, even
if it is withdrawn: `Receipt`. Checks are in `service.checks`, and what is tried again as somebody
says so in `service.retry`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, replace
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, func, select, update
from sqlalchemy.orm import Session

from mechassay.errors import UnknownName
from mechassay.service.changes import (
    DIED,
    LOST,
    MESSAGE,
    NAME,
    changed,
    counted,
    kept,
    locked,
)
from mechassay.service.database import Database
from mechassay.service.settings import ServiceLimits
from mechassay.service.tables import Evaluation, Receipt, Submission, Submitter, now
from mechassay.service.turns import DAY, fair_order
from mechassay.service.work import Counts, Outcome, Upload

OPEN_EVALUATIONS = ("waiting", "running")
OPEN_SUBMISSIONS = ("received", "checking", "queued")
CLOSED = ("refused", "withdrawn")
"""Submissions that are received anew when they are handed in again."""


def receive(
    db: Database, submitter: Submitter, upload: Upload, limits: ServiceLimits | None = None
) -> tuple[Submission, bool]:
    """Take a submission, once for each content and submitter.

    One that was refused or withdrawn is received anew, under the id it had.

    Returns:
        The submission, and whether it is new; one that is under way or done is not.

    Raises:
        BadUsage: the submitter has as many as are allowed a day, or at once.
    """
    limits, time = limits or ServiceLimits(), now()

    def work(session: Session) -> tuple[Submission, bool]:
        # Two uploads of one submitter come one after the other.
        session.execute(select(Submitter.id).filter_by(id=submitter.id).with_for_update())
        own = select(func.count()).where(Submission.submitter_id == submitter.id)
        known = session.scalar(
            select(Submission)
            .filter_by(submitter_id=submitter.id, digest=upload.digest)
            .with_for_update()
        )
        if known and (known.state not in CLOSED):
            return known, known.created == time
        if not submitter.admin:
            pending = session.scalar(own.where(Submission.state.in_(OPEN_SUBMISSIONS))) or 0
            today = session.scalar(
                select(func.count())
                .where(Receipt.submitter_id == submitter.id)
                .where(Receipt.created > time - DAY)
            )
            limits.check(submitter.name, pending=pending, today=today or 0)
        begun = 0
        if known:
            earlier = session.query(Evaluation).filter_by(submission_id=known.id)
            begun = earlier.where(Evaluation.started > time - DAY).count()
            earlier.delete()
        session.add(Receipt(submitter_id=submitter.id, created=time, begun=begun))
        found = known or Submission(submitter_id=submitter.id, digest=upload.digest)
        found.name, found.kind, found.file = kept(upload.name, NAME), upload.kind, upload.file
        found.declaration, found.n_bytes = dict(upload.declaration), upload.n_bytes
        found.state, found.report = "received", []
        found.attempts = found.deaths = 0
        found.created, found.finished = time, None
        found.worker = found.lease_until = None
        session.add(found)
        return found, True

    return db.write(work)


def claim(
    db: Database,
    worker: str,
    lease: float,
    *,
    without: Collection[str] = (),
    split: str | None = None,
) -> Evaluation | None:
    """The next evaluation, which is this worker's for `lease` seconds; None if none waits.

    Args:
        without: ids of submissions that are passed over.
        split: of the evaluation; None: any.
    """
    wanted = {"state": "waiting"} if split is None else {"state": "waiting", "split": split}
    time = now()
    until = time + timedelta(seconds=lease)

    def work(session: Session) -> Evaluation | None:
        mine = select(Evaluation).filter_by(state="running", worker=worker, started=time)
        if found := session.scalar(mine):
            return found
        _take_back(session, time)
        for submission in fair_order(session, time):
            if submission in without:
                continue
            found = session.scalar(
                select(Evaluation)
                .filter_by(submission_id=submission, **wanted)
                .order_by(Evaluation.attempts, Evaluation.id)
                .limit(1)
                .with_for_update(skip_locked=True)
            )
            if found is not None:
                found.state, found.worker, found.lease_until = "running", worker, until
                found.started = time
                found.attempts += 1
                return found
        return None

    return db.write(work)


def beat(db: Database, evaluation: Evaluation, worker: str, lease: float) -> bool:
    """Hold an evaluation longer; False: it was taken away or withdrawn, and may be stopped."""
    longer = (
        update(Evaluation)
        .where(_is_mine(evaluation, worker))
        .values(lease_until=now() + timedelta(seconds=lease))
    )
    return db.write(lambda session: changed(session, longer) == 1)


def finish(db: Database, evaluation: Evaluation, worker: str, outcome: Outcome) -> bool:
    """Say how an evaluation ended; the last one ends its submission. It may be said again.

    Returns:
        Whether it counted: the evaluation was still this worker's.
    """
    time = now()
    outcome = replace(outcome, message=outcome.message and kept(outcome.message, MESSAGE))

    def work(session: Session) -> bool:
        locked(session, evaluation.submission_id)
        ended = (
            update(Evaluation)
            .where(_is_mine(evaluation, worker))
            .values(finished=time, lease_until=None, **asdict(outcome))
        )
        if changed(session, ended) == 0:
            # Said before, as by a call whose answer was lost? There is no row if its submission
            # was withdrawn and received anew.
            found = session.get(Evaluation, evaluation.id)
            said = asdict(outcome) | {"worker": worker, "started": evaluation.started}
            return found is not None and all(getattr(found, x) == y for x, y in said.items())
        _close(session, evaluation.submission_id, time)
        return True

    return db.write(work)


def give_back(db: Database, evaluation: Evaluation, worker: str, *, died: bool = False) -> bool:
    """Let an evaluation wait again; whether it was this worker's.

    Args:
        died: the attempt counts, as the child died; else it is as if there had been none.
    """
    again = (
        update(Evaluation)
        .where(_is_mine(evaluation, worker))
        .values(
            state="waiting",
            worker=None,
            lease_until=None,
            started=None,
            **counted(Evaluation, died),
        )
    )
    return db.write(lambda session: changed(session, again) == 1)


def withdraw(db: Database, submission: str, submitter: Submitter) -> Submission:
    """Take a submission back, whatever its state; what runs of it counts no more.

    Args:
        submission: its id.

    Raises:
        UnknownName: there is none, or it is somebody else's.
    """
    time = now()

    def work(session: Session) -> Submission:
        found = session.get(Submission, submission, with_for_update=True)
        if found is None or not (submitter.admin or found.submitter_id == submitter.id):
            seen = select(Submission.id)
            own = seen if submitter.admin else seen.filter_by(submitter_id=submitter.id)
            raise UnknownName("submission", submission, session.scalars(own).all())
        if found.state != "withdrawn":
            found.state, found.finished, found.lease_until = "withdrawn", time, None
            session.execute(
                update(Evaluation)
                .where(Evaluation.submission_id == submission)
                .where(Evaluation.state.in_(OPEN_EVALUATIONS))
                .values(state="withdrawn", finished=time, lease_until=None)
            )
        return found

    return db.write(work)


def counts(db: Database, submission: str) -> Counts:
    """How many evaluations of a submission, by its id, are in each state."""
    rows = (
        select(Evaluation.state, func.count())
        .filter_by(submission_id=submission)
        .group_by(Evaluation.state)
    )
    return db.read(lambda session: Counts({state: n for state, n in session.execute(rows)}))


def _is_mine(evaluation: Evaluation, worker: str) -> ColumnElement[bool]:
    """That the worker holds the evaluation since the claim that gave it this one."""
    return (
        (Evaluation.id == evaluation.id)
        & (Evaluation.state == "running")
        & (Evaluation.worker == worker)
        & (Evaluation.started == evaluation.started)
    )


def _take_back(session: Session, time: datetime) -> None:
    """Let evaluations wait again whose worker is silent; fail those for which that is too much."""
    lost = (Evaluation.state == "running") & (Evaluation.lease_until < time)
    theirs = select(Evaluation.submission_id).where(lost).distinct()
    for submission in sorted(session.scalars(theirs)):
        locked(session, submission)
        own = update(Evaluation).where(lost, Evaluation.submission_id == submission)
        failed = own.where(Evaluation.attempts >= LOST)
        changed(
            session,
            own.where(Evaluation.attempts < LOST).values(
                state="waiting", worker=None, lease_until=None, started=None
            ),
        )
        if changed(
            session,
            failed.values(state="failed", message=f"{DIED}.", finished=time, lease_until=None),
        ):
            _close(session, submission, time)


def _close(session: Session, submission: str, time: datetime) -> None:
    """End a submission, whose row is locked, if nothing of it waits or runs."""
    left = select(func.count()).where(
        Evaluation.submission_id == submission, Evaluation.state.in_(OPEN_EVALUATIONS)
    )
    if session.scalar(left) == 0:
        changed(
            session,
            update(Submission)
            .where(Submission.id == submission, Submission.state == "queued")
            .values(state="done", finished=time),
        )
