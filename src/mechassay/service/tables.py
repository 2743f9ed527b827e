"""What the service keeps of submitters, submissions and their evaluations, as tables.

A submission is received -> checking -> queued or refused, and then done or withdrawn. One of its
evaluations is waiting -> running -> done, failed, skipped or withdrawn. A worker holds what it
checks or runs until `lease_until`, and holds it longer by beating; what has no living holder waits
again. Files are blobs of a `Store`: tables hold their keys alone. Tokens are kept as hashes.

Times are aware and in UTC. All changes of state are in `queue`, `checks` and `retry`.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal

from mechassay.errors import MissingExtra

try:
    from sqlalchemy import (
        JSON,
        BigInteger,
        DateTime,
        Dialect,
        Double,
        ForeignKey,
        String,
        Text,
        UniqueConstraint,
    )
    from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
    from sqlalchemy.types import TypeDecorator
except ImportError as error:
    raise MissingExtra("The leaderboard's service", error.name or "", "server") from error

SubmissionState = Literal["received", "checking", "queued", "refused", "done", "withdrawn"]
EvaluationState = Literal["waiting", "running", "done", "failed", "skipped", "withdrawn"]
ID = 16
"""Characters of a submission's id: letters and digits, drawn at random."""


def now() -> datetime:
    """This moment, in UTC."""
    return datetime.now(UTC)


def new_id() -> str:
    """An id that nobody guesses; it needs no quotes in an address or on a command line."""
    return "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(ID))


class Instant(TypeDecorator[datetime]):
    """A time in UTC, which SQLite stores without its zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value}: times of the service have a zone.")
        return value.astimezone(UTC)

    def process_result_value(self, value: Any | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class ServiceTable(DeclarativeBase):
    """Base of the tables; rows are read once, and stay as they were read."""

    type_annotation_map: ClassVar[Mapping[Any, Any]] = {
        datetime: Instant(),
        float: Double(),
        SubmissionState: String(16),
        EvaluationState: String(16),
    }


class Submitter(ServiceTable):
    """Who has a token.

    Attributes:
        token_hash: SHA-256 of the token, which is random: no salt is needed.
        withdrawn: when the token was withdrawn; None while it is good.
        admin: may withdraw what others submitted, and is not held to limits of rate.
    """

    __tablename__ = "submitter"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(64), unique=True)
    token_hash: Mapped[str] = mapped_column(String(64), unique=True)
    created: Mapped[datetime]
    withdrawn: Mapped[datetime | None]
    admin: Mapped[bool] = mapped_column(default=False)


class Submission(ServiceTable):
    """What somebody handed in, once for each of its contents.

    Attributes:
        kind: "circuits", "variables" or "gym"; "" until it is checked.
        digest: SHA-256 of the uploaded file, in hex.
        file: key of the uploaded file in the store.
        report: what was found wrong with it: path, message, whether it is a warning only.
        worker, lease_until, attempts: who checks it, until when, and how often it was begun.
        deaths: how often the process that checked it died while its worker lived.
        finished: when it was refused, done or withdrawn.
    """

    __tablename__ = "submission"
    __table_args__ = (UniqueConstraint("digest", "submitter_id", name="submission_once"),)

    id: Mapped[str] = mapped_column(String(ID), primary_key=True, default=new_id)
    submitter_id: Mapped[int] = mapped_column(ForeignKey("submitter.id"), index=True)
    kind: Mapped[str] = mapped_column(String(32), default="")
    name: Mapped[str] = mapped_column(String(200))
    declaration: Mapped[dict[str, Any]] = mapped_column(JSON)
    digest: Mapped[str] = mapped_column(String(64))
    file: Mapped[str] = mapped_column(String(200))
    n_bytes: Mapped[int] = mapped_column(BigInteger)
    state: Mapped[SubmissionState] = mapped_column(default="received", index=True)
    report: Mapped[list[dict[str, Any]]] = mapped_column(JSON, default=list)
    worker: Mapped[str | None] = mapped_column(String(200))
    lease_until: Mapped[datetime | None]
    attempts: Mapped[int] = mapped_column(default=0)
    deaths: Mapped[int] = mapped_column(default=0)
    created: Mapped[datetime]
    finished: Mapped[datetime | None]


class Evaluation(ServiceTable):
    """One cell of one job of a submission.

    Attributes:
        job: which of the submission's jobs, counted from 0.
        cell: the name of the cell in the job's plan.
        called: what status and pages call it, unique in the submission and split; None if it was
            planned by an earlier version.
        split: "test", or "private".
        attempts, deaths: how often it was begun, and its process died while its worker lived.
        message: why it failed or was skipped.
        record: key of its record in the store.
        seconds: that the evaluation took.
    """

    __tablename__ = "evaluation"
    __table_args__ = (UniqueConstraint("submission_id", "job", "cell", name="evaluation_once"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    submission_id: Mapped[str] = mapped_column(ForeignKey("submission.id"))
    job: Mapped[int]
    cell: Mapped[str] = mapped_column(Text)
    called: Mapped[str | None] = mapped_column(Text)
    split: Mapped[str] = mapped_column(String(16))
    state: Mapped[EvaluationState] = mapped_column(default="waiting", index=True)
    worker: Mapped[str | None] = mapped_column(String(200))
    lease_until: Mapped[datetime | None]
    attempts: Mapped[int] = mapped_column(default=0)
    deaths: Mapped[int] = mapped_column(default=0)
    started: Mapped[datetime | None] = mapped_column(index=True)
    finished: Mapped[datetime | None]
    message: Mapped[str | None] = mapped_column(Text)
    record: Mapped[str | None] = mapped_column(String(200))
    seconds: Mapped[float | None]

    @property
    def title(self) -> str:
        """The name by which people know it."""
        return self.called or self.cell


class Receipt(ServiceTable):
    """That a submission was received, or received anew: limits count these, which stay.

    Attributes:
        begun: evaluations that were begun in the day before, and removed by this.
    """

    __tablename__ = "receipt"

    id: Mapped[int] = mapped_column(primary_key=True)
    submitter_id: Mapped[int] = mapped_column(ForeignKey("submitter.id"), index=True)
    created: Mapped[datetime]
    begun: Mapped[int] = mapped_column(default=0)


class Recomputed(ServiceTable):
    """A cell that somebody computed again.

    Attributes:
        sha256: of the record it was compared with.
        value: what came out; `agrees`, whether all results of the record did.
        by: who says so.
    """

    __tablename__ = "recomputed"

    id: Mapped[int] = mapped_column(primary_key=True)
    submission_id: Mapped[str] = mapped_column(ForeignKey("submission.id"), index=True)
    cell: Mapped[str] = mapped_column(Text)
    sha256: Mapped[str] = mapped_column(String(64))
    value: Mapped[float | None]
    agrees: Mapped[bool]
    by: Mapped[str] = mapped_column(String(64))
    created: Mapped[datetime]
