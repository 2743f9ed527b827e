"""Receipts, which limits count, and deaths of the processes that check or evaluate."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add them; what was received before counts once."""
    for table in ("submission", "evaluation"):
        op.add_column(table, sa.Column("deaths", sa.Integer(), nullable=False, server_default="0"))
    op.create_table(
        "receipt",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("submitter_id", sa.Integer(), sa.ForeignKey("submitter.id"), nullable=False),
        sa.Column("created", sa.DateTime(timezone=True), nullable=False),
        sa.Column("begun", sa.Integer(), nullable=False),
    )
    op.create_index("ix_receipt_submitter_id", "receipt", ["submitter_id"])
    op.execute(
        "INSERT INTO receipt (submitter_id, created, begun)"
        " SELECT submitter_id, created, 0 FROM submission"
    )
