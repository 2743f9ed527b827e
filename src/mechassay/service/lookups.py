"""What pages and the API say of submissions, read from the database in one transaction each."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from mechassay.errors import MechassayError
from mechassay.service.database import Database
from mechassay.service.tables import ID, Evaluation, Submission, Submitter
from mechassay.text import counted

SUBMISSION_ID = re.compile(rf"[A-Za-z0-9]{{{ID}}}")
PAGE = 100
"""Submissions of a page of their list."""
SHORT_ID = 6
"""Characters of an id in the name of a row."""
ENDED = ("done", "refused", "withdrawn")
WORDS = {
    "received": "Received; it waits to be checked.",
    "checking": "It is being checked.",
    "refused": "It was refused; the report says why.",
    "withdrawn": "It was withdrawn.",
}


ENDINGS = (".zip", ".tar.gz", ".tar")
_MAGIC = {b"PK": ".zip", b"\x1f\x8b": ".tar.gz"}


class NotFound(MechassayError):
    """What is asked for is not there, or not any more."""


def row_name(name: str, submission: str, ending: str = "") -> str:
    """What boards call a submission.

    Args:
        ending: behind its name, where a board has several rows of it.
    """
    return f"{name}{ending} (submission {submission[:SHORT_ID]})"


def file_ending(first: bytes) -> str:
    """The ending of a submission's file, by its first bytes; those of tar say nothing."""
    return next((ending for magic, ending in _MAGIC.items() if first.startswith(magic)), ".tar")


@dataclass(frozen=True, eq=False)
class SubmissionView:
    """A submission as others may see it.

    Attributes:
        submitter: the submitter's name.
        counts: evaluations by state.
        evaluations: in the order of the jobs; none where only counts were asked for.
    """

    submission: Submission
    submitter: str
    counts: Mapping[str, int]
    evaluations: Sequence[Evaluation] = ()

    @property
    def row(self) -> str:
        """What boards call it."""
        return row_name(self.submission.name, self.submission.id)

    @property
    def ended(self) -> bool:
        """Whether nothing will change but by a withdrawal."""
        return self.submission.state in ENDED

    @property
    def progress(self) -> str:
        """How far it is, in a sentence."""
        total = sum(self.counts.values())
        done = total - self.counts.get("waiting", 0) - self.counts.get("running", 0)
        failed = self.counts.get("failed", 0)
        said = f"{done} of {counted(total, 'evaluation is', 'evaluations are')} done" + (
            f", {failed} failed" if failed else ""
        )
        return WORDS.get(self.submission.state, f"{said}.")

    @property
    def version(self) -> str:
        """Changes when anything that its page shows does."""
        counts = ",".join(f"{state}={n}" for state, n in sorted(self.counts.items()))
        return f"{self.submission.state};{counts}"

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        held = self.submission
        return {
            "id": held.id,
            "name": held.name,
            "submitter": self.submitter,
            "kind": held.kind,
            "state": held.state,
            "finished": self.ended,
            "progress": self.progress,
            "version": self.version,
            "created": _told(held.created),
            "ended": _told(held.finished),
            "digest": held.digest,
            "n_bytes": held.n_bytes,
            "declaration": held.declaration,
            "report": held.report,
            "counts": dict(self.counts),
            "evaluations": [
                {
                    "job": each.job,
                    "cell": each.title,
                    "split": each.split,
                    "state": each.state,
                    "message": each.message,
                    "seconds": each.seconds,
                }
                for each in self.evaluations
            ],
        }


def find_submission(db: Database, submission: str) -> SubmissionView:
    """A submission by its id.

    Raises:
        NotFound: there is none, or it was withdrawn.
        DatabaseAway: the database does not answer.
    """
    if not SUBMISSION_ID.fullmatch(submission):
        raise NotFound(f"An id has {ID} letters and digits; this is none.")

    def work(session: Session) -> SubmissionView:
        found = session.get(Submission, submission)
        if found is None or found.state == "withdrawn":
            raise NotFound(f"There is no submission {submission}.")
        evaluations = session.scalars(
            select(Evaluation)
            .filter_by(submission_id=submission)
            .order_by(Evaluation.job, Evaluation.id)
        ).all()
        counts: dict[str, int] = {}
        for each in evaluations:
            counts[each.state] = counts.get(each.state, 0) + 1
        submitter = session.get_one(Submitter, found.submitter_id).name
        return SubmissionView(found, submitter, counts, evaluations)

    return db.read(work)


def list_submissions(db: Database, page: int = 1) -> tuple[list[SubmissionView], int]:
    """Submissions that were not withdrawn, the newest first, and how many there are in all.

    Args:
        page: of `PAGE` submissions, counted from 1.
    """
    shown = Submission.state != "withdrawn"

    def work(session: Session) -> tuple[list[SubmissionView], int]:
        total = session.scalar(select(func.count()).select_from(Submission).where(shown)) or 0
        rows = session.execute(
            select(Submission, Submitter.name)
            .join(Submitter, Submitter.id == Submission.submitter_id)
            .where(shown)
            .order_by(Submission.created.desc(), Submission.id)
            .offset((page - 1) * PAGE)
            .limit(PAGE)
        ).all()
        ids = [row[0].id for row in rows]
        counts: dict[str, dict[str, int]] = {each: {} for each in ids}
        held = select(Evaluation.submission_id, Evaluation.state, func.count()).where(
            Evaluation.submission_id.in_(ids)
        )
        for one, state, n in session.execute(
            held.group_by(Evaluation.submission_id, Evaluation.state)
        ):
            counts[one][state] = n
        return [SubmissionView(each, name, counts[each.id]) for each, name in rows], total

    return db.read(work)


def done_submissions(db: Database, until: datetime | None = None) -> list[SubmissionView]:
    """The submissions that are done, in the order in which they ended.

    Args:
        until: only those that had ended at this time.

    Raises:
        NotFound: one was withdrawn meanwhile. DatabaseAway: the database does not answer.
    """
    found = select(Submission.id).where(Submission.state == "done")
    if until is not None:
        found = found.where(Submission.finished <= until)
    ids = db.read(
        lambda session: session.scalars(found.order_by(Submission.finished, Submission.id)).all()
    )
    return [find_submission(db, each) for each in ids]


def _told(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat(timespec="seconds")
