"""What Alembic runs for each upgrade; `Database.upgrade` gives it the connection."""

from __future__ import annotations

from alembic import context

from mechassay.service.tables import ServiceTable

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=ServiceTable.metadata,
    render_as_batch=True,
)
# The transaction is the caller's: an upgrade is there as a whole or not at all.
context.run_migrations()
