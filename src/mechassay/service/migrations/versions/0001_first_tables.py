"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def _time(name: str, *, known: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=not known)


def _held() -> list[sa.Column[object]]:
    """Who works on a row, until when, and how often it was begun."""
    return [
        sa.Column("worker", sa.String(200)),
        _time("lease_until"),
        sa.Column("attempts", sa.Integer(), nullable=False),
    ]


def upgrade() -> None:
    """Make them."""
    op.create_table(
        "submitter",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("name", sa.String(64), nullable=False, unique=True),
        sa.Column("token_hash", sa.String(64), nullable=False, unique=True),
        _time("created", known=True),
        _time("withdrawn"),
        sa.Column("admin", sa.Boolean(), nullable=False),
    )
    op.create_table(
        "submission",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("submitter_id", sa.Integer(), sa.ForeignKey("submitter.id"), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("name", sa.String(200), nullable=False),
        sa.Column("declaration", sa.JSON(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("file", sa.String(200), nullable=False),
        sa.Column("n_bytes", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("report", sa.JSON(), nullable=False),
        *_held(),
        _time("created", known=True),
        _time("finished"),
        sa.UniqueConstraint("digest", "submitter_id", name="submission_once"),
    )
    op.create_index("ix_submission_submitter_id", "submission", ["submitter_id"])
    op.create_index("ix_submission_state", "submission", ["state"])
    op.create_table(
        "evaluation",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("submission_id", sa.String(16), sa.ForeignKey("submission.id"), nullable=False),
        sa.Column("job", sa.Integer(), nullable=False),
        sa.Column("cell", sa.Text(), nullable=False),
        sa.Column("split", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        *_held(),
        _time("started"),
        _time("finished"),
        sa.Column("message", sa.Text()),
        sa.Column("record", sa.String(200)),
        sa.Column("seconds", sa.Double()),
        sa.UniqueConstraint("submission_id", "job", "cell", name="evaluation_once"),
    )
    op.create_index("ix_evaluation_state", "evaluation", ["state"])
    op.create_index("ix_evaluation_started", "evaluation", ["started"])
    op.create_table(
        "recomputed",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("submission_id", sa.String(16), sa.ForeignKey("submission.id"), nullable=False),
        sa.Column("cell", sa.Text(), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("value", sa.Double()),
        sa.Column("agrees", sa.Boolean(), nullable=False),
        sa.Column("by", sa.String(64), nullable=False),
        _time("created", known=True),
    )
    op.create_index("ix_recomputed_submission_id", "recomputed", ["submission_id"])
