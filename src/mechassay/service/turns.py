"""Whose turn it is: what was begun and received of each submitter in the last day decides.

The submitter comes first of whose evaluations the fewest were begun in the last day, then the
submission with the fewest begun, then the older one. What was begun of a submission that was
received anew since counts by its `Receipt`.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import ScalarSelect, func, select
from sqlalchemy.orm import Session

from mechassay.service.tables import Evaluation, Receipt, Submission

DAY = timedelta(days=1)


def received_of_late(time: datetime) -> ScalarSelect[int]:
    """How much was received in the last day of whom a submission is."""
    return (
        select(func.count())
        .where(Receipt.submitter_id == Submission.submitter_id, Receipt.created > time - DAY)
        .correlate(Submission)
        .scalar_subquery()
    )


def fair_order(session: Session, time: datetime) -> list[str]:
    """Submissions of which something waits, the next one first."""
    begun = Evaluation.started.is_not(None)
    of_submission = (
        select(func.count())
        .where(begun, Evaluation.submission_id == Submission.id)
        .correlate(Submission)
        .scalar_subquery()
    )
    of_submitter = (
        select(Submission.submitter_id, func.count().label("n"))
        .join(Evaluation, Evaluation.submission_id == Submission.id)
        .where(begun, Evaluation.started > time - DAY)
        .group_by(Submission.submitter_id)
        .subquery()
    )
    of_earlier = (
        select(func.coalesce(func.sum(Receipt.begun), 0))
        .where(Receipt.submitter_id == Submission.submitter_id, Receipt.created > time - DAY)
        .correlate(Submission)
        .scalar_subquery()
    )
    waiting = (
        select(Evaluation.id)
        .where(Evaluation.submission_id == Submission.id, Evaluation.state == "waiting")
        .exists()
    )
    order = (
        select(Submission.id)
        .outerjoin(of_submitter, of_submitter.c.submitter_id == Submission.submitter_id)
        .where(Submission.state == "queued", waiting)
        .order_by(
            func.coalesce(of_submitter.c.n, 0) + of_earlier,
            of_submission,
            Submission.created,
            Submission.id,
        )
    )
    return list(session.scalars(order))
