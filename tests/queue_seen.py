"""What a queue holds, changes of it at once, and changes whose answer is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from mechassay.service.database import Database
from mechassay.service.tables import Evaluation, Submission
from mechassay.service.work import Outcome

LEASE, OVER = 60.0, -1.0
"""Seconds of a lease, and of one that is over at once."""
DONE = Outcome("done", record="records/1", seconds=2.5)


def now_of(db: Database, submission: Submission) -> Submission:
    return db.read(lambda session: session.get_one(Submission, submission.id))


def evaluations(db: Database) -> list[Evaluation]:
    return db.read(lambda session: session.query(Evaluation).order_by(Evaluation.id).all())


def at_once(n: int, work: Callable[[int], None]) -> None:
    """Run threads that begin together; the first error of one is raised."""
    errors: list[BaseException] = []
    gate = threading.Barrier(n)

    def run(index: int) -> None:
        gate.wait()
        try:
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class Forgetful(Database):
    """A database whose connection is lost once, after a transaction was stored."""

    lose = False

    def _transaction(self, work: Callable[[Session], Any], *, writes: bool) -> Any:
        found = super()._transaction(work, writes=writes)
        if self.lose:
            self.lose = False
            raise OperationalError("COMMIT", {}, ConnectionError("lost"))
        return found
