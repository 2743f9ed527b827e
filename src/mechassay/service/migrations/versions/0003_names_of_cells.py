"""What status and pages call a cell."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add it; cells that were planned before have the name in their job's plan."""
    op.add_column("evaluation", sa.Column("called", sa.Text(), nullable=True))
