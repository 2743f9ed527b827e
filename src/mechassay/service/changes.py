"""What changes of state are made of: rows that are locked, changed and counted, and texts kept."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from mechassay.service.tables import Evaluation, Submission

ATTEMPTS = 3
"""How often the child of a living worker may die of the same."""
LOST = 20
"""How often the same is begun, whose worker is silent then."""
DIED = f"its worker died {LOST} times"
NAME, MESSAGE = 200, 2000
"""Characters of a name and of a message that are kept."""


def kept(text: str, length: int) -> str:
    """A text that every database takes: PostgreSQL refuses zeros and halves of characters."""
    return text[:length].replace("\0", "").encode(errors="replace").decode()


def counted(of: type[Evaluation] | type[Submission], died: bool) -> dict[str, Any]:
    """How what is given back is counted."""
    return {"deaths": of.deaths + 1} if died else {"attempts": of.attempts - 1}


def locked(session: Session, submission: str) -> Submission | None:
    """A submission by its id, as it is now; nobody else changes it until this one is over."""
    return session.get(Submission, submission, with_for_update=True, populate_existing=True)


def changed(session: Session, change: Any) -> int:
    """How many rows a change finds."""
    found: Any = session.execute(change, execution_options={"synchronize_session": False})
    return found.rowcount
