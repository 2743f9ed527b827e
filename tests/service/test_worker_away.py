"""Workers where the store, the database, the disk or the seeds are away: nothing is lost."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from mechassay.errors import DiskFull
from mechassay.service import checks, queue
from mechassay.service import worker as worker_file
from mechassay.service.cell import (
    CHECKED,
    CheckedCell,
    CheckedSubmission,
)
from mechassay.service.database import Database, DatabaseAway
from mechassay.service.evaluation import ChildEnd, ClusterAway, Evaluated
from mechassay.service.postponed import FIRST, PostponedWork
from mechassay.service.store import Store, StoreAway
from mechassay.service.tables import Evaluation, now
from mechassay.service.work import PlannedEvaluation
from mechassay.service.worker import SeedsAway, ServiceWorker, WorkerOptions
from small_service import (
    Served,
    junk,
    planned,
)

OPTIONS = WorkerOptions(threads=1)
PLANNED = PlannedEvaluation(0, "truth-ioi--truth-ioi/scores")


class AwayStore:
    """A store that is away `n` times, and then as the one it stands for."""

    def __init__(self, inner: Store, n: int) -> None:
        self.inner, self.left = inner, n

    def __getattr__(self, name: str) -> Any:
        def asked(*given: Any) -> Any:
            self.left -= 1
            if self.left >= 0:
                raise StoreAway("the store is away")
            return getattr(self.inner, name)(*given)

        return asked


@dataclass
class Clock:
    """The seconds of all workers that are made."""

    time: float = 100.0

    @staticmethod
    def of(monkeypatch: pytest.MonkeyPatch) -> Clock:
        clock = Clock()
        monkeypatch.setattr(worker_file, "PostponedWork", lambda: PostponedWork(lambda: clock.time))
        return clock


def test_a_store_that_is_away_costs_a_check_no_attempt(tmp_path: Path) -> None:
    served = Served.at(tmp_path / "service")
    submission = served.submit(junk(tmp_path / "one.zip"))
    worker = ServiceWorker(served.settings, OPTIONS)
    worker.store = AwayStore(worker.store, 4)  # pyright: ignore[reportAttributeAccessIssue]
    for _ in range(4):
        with pytest.raises(StoreAway):
            worker.step()
        found = served.submission(submission)
        assert (found.state, found.attempts, found.deaths) == ("received", 0, 0)


def test_a_record_waits_for_the_store_and_its_cell_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served.at(tmp_path / "service")
    submission = planned(served, junk(tmp_path / "one.zip"), PLANNED)
    worker = ServiceWorker(served.settings, OPTIONS)
    worker.store = AwayStore(worker.store, 3)  # pyright: ignore[reportAttributeAccessIssue]
    done: list[Evaluated] = []

    def evaluated(*_: object) -> Evaluated:
        done.append(Evaluated("ended", "done", "", 1.0, junk(tmp_path / "record.json")))
        return done[-1]

    monkeypatch.setattr("mechassay.service.worker.AWAY", 0.01)
    monkeypatch.setattr(worker, "_evaluated", evaluated)
    assert worker.step()
    (cell,) = served.evaluations(submission)
    assert (cell.state, cell.attempts, len(done)) == ("done", 1, 1)
    assert served.store.keys("records") == [cell.record]
    # The same is received anew, and a number of an evaluation may be given again.
    queue.withdraw(served.db, submission, served.submitter)
    assert planned(served, tmp_path / "one.zip", PLANNED) == submission and worker.step()
    (again,) = served.evaluations(submission)
    assert again.state == "done" and again.record != cell.record
    # A worker that has to end does not wait.
    third = planned(served, junk(tmp_path / "two.zip", b"PK2"), PLANNED)
    worker.store = AwayStore(served.store, 10**9)  # pyright: ignore[reportAttributeAccessIssue]
    threading.Timer(0.5, worker.stop.set).start()
    assert worker.step()
    (cell,) = served.evaluations(third)
    assert (cell.state, cell.attempts) == ("waiting", 0)


def test_a_submission_that_has_no_room_does_not_stop_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock.of(monkeypatch)
    served = Served.at(tmp_path / "service")
    large = served.submit(junk(tmp_path / "large.zip", b"PK large"))
    small = served.submit(junk(tmp_path / "small.zip", b"PK"))
    worker, whole, full = ServiceWorker(served.settings, OPTIONS), Store.get_file, [True]

    def get_file(store: Store, key: str, path: Path) -> Path:
        if full[0] and key == served.submission(large).file:
            raise DiskFull("the disk is full")
        return whole(store, key, path)

    def checked(folder: Path, *_: object, **__: object) -> CheckedSubmission:
        assert (folder / "upload").read_bytes().startswith(b"PK")
        cells = [CheckedCell(job=0, cell="a"), CheckedCell(job=0, cell="b")]
        return CheckedSubmission(kind="circuits", problems=[], cells=cells)

    def evaluated(folder: Path, *_: object, **__: object) -> Evaluated:
        (folder / CHECKED).touch()
        return Evaluated("ended", "failed", "none", 1.0)

    monkeypatch.setattr(Store, "get_file", get_file)
    monkeypatch.setattr("mechassay.service.worker.check_submission", checked)
    monkeypatch.setattr("mechassay.service.worker.evaluate", evaluated)
    with pytest.raises(DiskFull):
        worker.step()
    # The check of the small one, and its cells, although the large one is first in line.
    assert [worker.step() for _ in range(3)] == [True] * 3
    assert served.submission(small).state == "done"
    # Nothing else is left to do, and its wait is not over.
    assert not worker.step()
    clock.time += FIRST
    with pytest.raises(DiskFull):
        worker.step()
    clock.time += FIRST
    assert not worker.step()
    found = served.submission(large)
    assert (found.state, found.attempts, found.deaths) == ("received", 0, 0)
    full[0] = False
    clock.time += FIRST
    assert worker.step() and served.submission(large).state == "queued"
    # The same for a cell of it, whose file another worker has to get first.
    full[0], other = True, ServiceWorker(served.settings, OPTIONS)
    with pytest.raises(DiskFull):
        other.step()
    next_one = served.submit(junk(tmp_path / "next.zip", b"PK next"))
    assert other.step() and other.step() and other.step()
    assert served.submission(next_one).state == "done"
    assert [(each.state, each.attempts) for each in served.evaluations(large)] == [
        ("waiting", 0),
        ("waiting", 0),
    ]


def tried_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, *, once: bool
) -> int:
    """How often a worker tries a submission: `once`, or in at least 20 rounds."""
    served, tries = Served.at(tmp_path / "service"), list[int]()
    served.submit(junk(tmp_path / "one.zip"))

    def get_file(*_: object) -> Path:
        tries.append(1)
        raise error

    monkeypatch.setattr(Store, "get_file", get_file)
    worker, rounds = ServiceWorker(served.settings, OPTIONS), list[float]()

    def wait(seconds: float) -> bool:
        rounds.append(seconds)
        if len(rounds) == 20:
            worker.stop.set()
        return worker.stop.is_set()

    monkeypatch.setattr(worker.stop, "wait", wait)
    assert worker.run(once=once) == 0
    return len(tries)


def test_an_idle_worker_keeps_to_the_wait_of_what_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tried_in(monkeypatch, tmp_path, DiskFull("the disk is full"), once=False) == 1


def test_a_worker_that_ends_when_nothing_is_left_tries_once_more_what_has_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tried_in(monkeypatch, tmp_path, DiskFull("the disk is full"), once=True) == 2


@pytest.mark.parametrize("error", [StoreAway("away"), OSError(11, "fork: try again")])
def test_what_is_away_for_all_is_booked_on_no_submission(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tried_in(monkeypatch, tmp_path, error, once=True) == 20


def test_private_cells_and_checks_do_not_wait_for_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, done = Clock.of(monkeypatch), list[str]()
    served = Served.at(tmp_path / "service", splits="test, private")
    plan = [PlannedEvaluation(0, "public"), PlannedEvaluation(1, "private", "private")]
    first, second = (
        planned(served, junk(tmp_path / f"{name}.zip", b"PK" + name.encode()), *plan)
        for name in ("a", "b")
    )

    def evaluated(*given: object, private: bool, **_: object) -> Evaluated:
        done.append(str(given[2]))
        if not private and done.count("public") <= 5:
            raise ClusterAway("no Ray cluster")
        return Evaluated("ended", "failed", "none", 1.0)

    def checked(folder: Path, *_: object, **__: object) -> CheckedSubmission:
        (folder / CHECKED).touch()
        return CheckedSubmission(kind="circuits", problems=[], cells=[])

    monkeypatch.setattr(worker_file, "check_submission", checked)
    monkeypatch.setattr(worker_file, "evaluate", evaluated)
    worker = ServiceWorker(served.settings, OPTIONS)
    with pytest.raises(ClusterAway):
        worker.step()
    assert [worker.step() for _ in range(3)] == [True, True, False]
    assert done == ["public", "private", "private"]
    third = served.submit(junk(tmp_path / "c.zip", b"PKc"))
    assert worker.step() and served.submission(third).state == "refused"
    # The second wait is twice as long.
    for wait in (FIRST, 2 * FIRST):
        clock.time += wait - 1
        assert not worker.step()
        clock.time += 1
        with pytest.raises(ClusterAway):
            worker.step()
    assert done.count("public") == 3
    # A worker that is to end when nothing is left waits for the cluster.
    monkeypatch.setattr(worker_file, "AWAY", 0.01)
    assert worker.run(once=True) == 2 and done.count("public") == 5 + 2
    for submission in (first, second):
        cells = served.evaluations(submission)
        assert [(each.state, each.attempts) for each in cells] == [("failed", 1)] * 2


def test_a_database_that_is_away_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served.at(tmp_path / "service")
    worker = ServiceWorker(served.settings, OPTIONS)
    asked: list[int] = []

    def claim(*_: object, **__: object) -> None:
        asked.append(1)
        if len(asked) == 1:
            raise DatabaseAway("the database does not answer")

    monkeypatch.setattr("mechassay.service.worker.AWAY", 0.01)
    monkeypatch.setattr(checks, "claim_check", claim)
    with caplog.at_level(logging.WARNING):
        assert worker.run(once=True) == 0
    assert len(asked) == 2 and "does not answer" in caplog.text


def test_a_database_that_goes_away_when_a_cell_ends_costs_no_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served.at(tmp_path / "service")
    submission = planned(served, junk(tmp_path / "one.zip"), PLANNED)
    worker, done = ServiceWorker(served.settings, OPTIONS), list[Evaluated]()
    worker.db = Database(served.settings.database, patience=0.05)
    other = sqlite3.connect(
        served.settings.folder / "board.sqlite", isolation_level=None, check_same_thread=False
    )

    def evaluated(*_: object) -> Evaluated:
        other.execute("BEGIN IMMEDIATE")  # From now on nobody else writes.
        done.append(Evaluated("ended", "done", "", 1.0, junk(tmp_path / "record.json")))
        threading.Timer(1.0, other.rollback).start()
        return done[-1]

    monkeypatch.setattr("mechassay.service.worker.AWAY", 0.01)
    monkeypatch.setattr(worker, "_evaluated", evaluated)
    with caplog.at_level(logging.WARNING):
        assert worker.step()
    assert "does not answer" in caplog.text and len(done) == 1
    (cell,) = served.evaluations(submission)
    assert (cell.state, cell.attempts) == ("done", 1)
    assert served.store.keys("records") == [cell.record]
    assert served.submission(submission).state == "done"
    worker.db.close()
    other.close()


def finishing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, then: Callable[[Callable[[], bool]], object]
) -> tuple[Served, str, ServiceWorker]:
    """A worker with a record, whose first `finish` is `then` and gets no answer."""
    served = Served.at(tmp_path / "service")
    submission = planned(served, junk(tmp_path / "one.zip"), PLANNED)
    worker, finish, calls = ServiceWorker(served.settings, OPTIONS), queue.finish, list[int]()

    def lost(*given: Any) -> bool:
        calls.append(1)
        if len(calls) > 1:
            return finish(*given)
        then(lambda: finish(*given))
        raise DatabaseAway("the database does not answer")

    found = Evaluated("ended", "done", "", 1.0, junk(tmp_path / "record.json"))
    monkeypatch.setattr("mechassay.service.worker.AWAY", 0.01)
    monkeypatch.setattr(worker, "_evaluated", lambda *_: found)
    monkeypatch.setattr(queue, "finish", lost)
    return served, submission, worker


def test_a_record_whose_lease_was_lost_while_the_database_was_away_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(_: object) -> None:
        over = update(Evaluation).values(lease_until=now() - timedelta(seconds=1))
        served.db.write(lambda session: session.execute(over))
        assert len(served.store.keys("records")) == 1
        assert queue.claim(served.db, "other", 60.0) is not None

    served, submission, worker = finishing(monkeypatch, tmp_path, taken)
    assert worker.step()
    (cell,) = served.evaluations(submission)
    assert (cell.state, cell.worker, cell.attempts) == ("running", "other", 2)
    assert served.store.keys("records") == []


def test_a_record_stays_where_the_answer_that_it_counts_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, submission, worker = finishing(monkeypatch, tmp_path, lambda finish: finish())
    assert worker.step()
    (cell,) = served.evaluations(submission)
    assert cell.state == "done" and served.store.keys("records") == [cell.record]


def test_a_worker_that_has_to_end_while_the_database_is_away_removes_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ended_too(finish: Callable[[], bool]) -> None:
        finish()
        worker.stop.set()

    served, submission, worker = finishing(monkeypatch, tmp_path, ended_too)
    assert worker.step()
    (cell,) = served.evaluations(submission)
    assert cell.state == "done" and served.store.keys("records") == [cell.record]


def test_what_fails_for_the_machine_ends_no_worker_and_counts_as_no_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served.at(tmp_path / "service", splits="test, private")
    submission = served.submit(junk(tmp_path / "one.zip"))
    worker, seeds = ServiceWorker(served.settings, OPTIONS), served.settings.private_seed_file
    assert seeds is not None
    told = seeds.read_text()
    seeds.write_text("2026-11")  # In the middle of an edit.
    with pytest.raises(SeedsAway):
        worker.step()
    seeds.write_text(told)
    errors: list[Exception] = [OSError(11, "fork: try again"), DiskFull("the disk is full")]

    def checked(*_: object) -> ChildEnd:
        if errors:
            raise errors.pop(0)
        return ChildEnd("ended", "no archive", 0.0)

    monkeypatch.setattr("mechassay.service.worker.AWAY", 0.01)
    monkeypatch.setattr(worker, "_checked", checked)
    with caplog.at_level(logging.WARNING):
        assert worker.run(once=True) == 1
    assert "try again" in caplog.text and "the disk is full" in caplog.text
    found = served.submission(submission)
    assert (found.state, found.attempts) == ("refused", 1)
