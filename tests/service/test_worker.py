"""Workers: records of submissions, limits, deaths, and private seeds, which leave no trace."""

from __future__ import annotations

import logging
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

import mechassay as ma
from mechassay.errors import BadUsage, DiskFull
from mechassay.service import checks, queue
from mechassay.service.cell import (
    CHECKED,
    CellOrders,
    CheckedCell,
    CheckedSubmission,
    check,
    run_cell,
    without_hashes,
)
from mechassay.service.changes import DIED, LOST
from mechassay.service.database import Database, DatabaseAway
from mechassay.service.evaluation import ChildEnd, Evaluated
from mechassay.service.store import Store, StoreAway
from mechassay.service.tables import Evaluation, Submission, now
from mechassay.service.track import ServiceTrack
from mechassay.service.work import PlannedEvaluation
from mechassay.service.worker import SeedsAway, ServiceWorker, WorkerOptions
from mechassay.service.workers import run_workers
from small_service import (
    HERE,
    OLD_SEED,
    SEED,
    Served,
    circuits_archive,
    variables_archive,
    without_times,
)

OPTIONS = WorkerOptions(threads=1)
PLANNED = PlannedEvaluation(0, "truth-ioi--truth-ioi/scores")
FATAL = str(HERE / "service_fatal_cell.py")


def ended(process: subprocess.Popen[str], seconds: float = 600) -> str:
    """What a worker's process has logged."""
    return process.communicate(timeout=seconds)[1]


def until(true: Callable[[], bool], seconds: float = 400) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.1)


def planned(served: Served, archive: Path, *cells: PlannedEvaluation) -> str:
    """A submission that was checked elsewhere; its id."""
    submission = served.submit(archive)
    claimed = checks.claim_check(served.db, "other", 60.0)
    assert claimed is not None and claimed.id == submission
    assert checks.checked(served.db, claimed, "other", [], cells)
    return submission


def junk(file: Path, content: bytes = b"PK") -> Path:
    file.write_bytes(content)
    return file


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


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> tuple[Served, str, str, str]:
    """A service with private examples whose worker has ended: submissions, and all it has said."""
    folder = tmp_path_factory.mktemp("private")
    served = Served.at(folder / "service", splits="test, private")
    first = served.submit(circuits_archive(folder / "circuits.zip"))
    second = served.submit(variables_archive(folder / "variables.zip"))
    said = ended(served.start("30"))
    return served, first, second, said


@pytest.mark.slow
def test_every_cell_of_a_submission_ends_in_a_record(
    private: tuple[Served, str, str, str], tmp_path: Path
) -> None:
    served, first, second, _ = private
    for submission, kind in ((first, "circuits"), (second, "variables")):
        found = served.submission(submission)
        assert (found.state, found.kind, found.name) == ("done", kind, "mine")
        cells = served.evaluations(submission)
        assert [(each.split, each.state, each.attempts) for each in cells] == [
            ("test", "done", 1),
            ("private", "done", 1),
        ]
        assert all(each.seconds and each.message is None for each in cells)
    assert len(served.store.keys("records")) == 4
    (record, hidden) = served.records(second, tmp_path)
    assert record.kind == hidden.kind == "variables"
    accuracy = record.measure("iia")
    assert accuracy is not None and accuracy.value == 1.0


@pytest.mark.slow
def test_the_private_seed_is_nowhere(private: tuple[Served, str, str, str]) -> None:
    """Neither in the store, the database, the scratch folder, nor in what was logged."""
    served, _, _, said = private
    traces = [form for seed in (SEED, OLD_SEED) for form in forms_of(seed)]
    files = [file for file in served.settings.folder.rglob("*") if file.is_file()]
    assert any(file.suffix == ".sqlite" for file in files) and len(files) > 5
    for file in files:
        held = file.read_bytes()
        assert not any(trace in held for trace in traces), file
    assert "evaluation" in said and not any(trace in said.encode() for trace in traces)


def forms_of(seed: int) -> list[bytes]:
    """A seed as text, in hex, and as eight bytes."""
    return [str(seed).encode(), f"{seed:x}".encode(), *(seed.to_bytes(8, x) for x in ORDERS_OF)]


ORDERS_OF = ("little", "big")


def test_the_private_seed_is_not_in_the_folder_that_a_cell_is_done_in(tmp_path: Path) -> None:
    """The folder is removed when a worker ends, so it is looked at before."""
    served = Served.at(tmp_path / "service", splits="test, private")
    orders = CellOrders(track=ServiceTrack.read(served.settings.track), seed=SEED, epoch="2026-11")
    folder = tmp_path / "work"
    folder.mkdir()
    circuits_archive(tmp_path / "one.zip").rename(folder / "upload")
    cells = check(folder, orders).cells
    run_cell(folder, cells[1].job, cells[1].cell, orders)
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert any("records" in file.parts for file in files) and len(files) > 5
    for file in files:
        assert not any(trace in file.read_bytes() for trace in forms_of(SEED)), file


@pytest.mark.slow
def test_private_records_name_their_epoch_and_hold_no_hash_of_their_examples(
    private: tuple[Served, str, str, str], tmp_path: Path
) -> None:
    served, first, _, _ = private
    public, hidden = served.records(first, tmp_path)
    assert hidden.task.args["epoch"] == "2026-11" and "epoch" not in public.task.args
    model = ma.load_model("truth-ioi")
    pairs = ma.load_task("truth-ioi").pairs("private", model, limit=6, private_seed=SEED)
    plain = str(pairs.selection()["hash"])
    assert plain not in hidden.model_dump_json()
    assert hidden.data["test"].hash == hidden.provenance.data_hash != plain
    assert hidden.data["test"].split == "private" and hidden.data["test"].first is None
    # Done again, as by a second attempt, it stays as it is.
    assert without_hashes(hidden, SEED, "2026-11") == hidden


def test_an_upload_that_is_no_submission_is_refused_with_a_report(tmp_path: Path) -> None:
    served = Served.at(tmp_path / "service")
    junk = tmp_path / "junk.bin"
    junk.write_bytes(b"cos\nsystem\n(S'touch /tmp/pwned'\ntR.")
    one = served.submit(junk)
    missing = served.submit(circuits_archive(tmp_path / "gone.zip", 3))
    served.store.delete(served.submission(missing).file)
    assert run_workers(served.settings, options=OPTIONS, once=True) == 2
    for submission in (one, missing):
        found = served.submission(submission)
        assert found.state == "refused" and found.report[0]["message"]
        assert served.evaluations(submission) == []
    assert "not in the store" in served.submission(missing).report[0]["message"]
    assert not list(served.settings.scratch.glob("*")), "nothing of it stays"


@pytest.mark.parametrize(
    ("limits", "said"),
    [({"seconds": 0.5}, "took longer than 0.5 s"), ({"memory": 0.02}, "the limit is 0.02 GB")],
)
def test_a_cell_over_a_limit_fails_at_once_and_says_which(
    limits: dict[str, float], said: str, tmp_path: Path
) -> None:
    served = Served.at(tmp_path / "service")
    submission = planned(served, circuits_archive(tmp_path / "one.zip"), PLANNED)
    narrow = Served.at(tmp_path / "narrow", **limits).settings.track
    worker = ServiceWorker(replace(served.settings, track=narrow), OPTIONS)
    # It was unpacked before the limit was so narrow.
    folder = worker.folder / submission
    folder.mkdir(parents=True)
    (folder / CHECKED).touch()
    assert worker.step()
    (cell,) = served.evaluations(submission)
    assert (cell.state, cell.attempts) == ("failed", 1) and said in (cell.message or "")
    assert served.submission(submission).state == "done" and not served.store.keys("records")


@pytest.mark.slow
def test_a_worker_that_is_killed_in_a_cell_is_followed_by_another_with_the_same_numbers(
    tmp_path: Path,
) -> None:
    archive = circuits_archive(tmp_path / "one.zip")
    whole = Served.at(tmp_path / "whole")
    undisturbed = whole.submit(archive)
    run_workers(whole.settings, options=OPTIONS, once=True)
    served, begun = Served.at(tmp_path / "service"), tmp_path / "begun"
    submission = served.submit(archive)
    first = served.start("2", FATAL, "wait", XDG_BEGUN=str(begun))
    until(begun.exists)
    (held,) = served.evaluations(submission)
    assert held.state == "running" and held.worker
    first.send_signal(signal.SIGKILL)
    first.communicate(timeout=60)
    time.sleep(2.5)  # The lease is over.
    assert "Traceback" not in ended(served.start("30"))
    (cell,) = served.evaluations(submission)
    assert (cell.state, cell.attempts, served.submission(submission).state) == ("done", 2, "done")
    assert cell.worker != held.worker
    assert served.store.keys("records") == [cell.record], "exactly one result"
    (record,) = served.records(submission, tmp_path / "a")
    (expected,) = whole.records(undisturbed, tmp_path / "b")
    assert without_times(record) == without_times(expected)
    assert not list(served.settings.scratch.glob("*")), "what a killed worker left is removed"


@pytest.mark.slow
def test_a_submission_that_kills_its_worker_fails_and_another_is_done(tmp_path: Path) -> None:
    served = Served.at(tmp_path / "service")
    bad = planned(served, circuits_archive(tmp_path / "bad.zip", 1, "bad"), PLANNED)
    # As if it had killed most of the workers that it may.
    before = LOST - 3
    served.db.write(lambda session: session.execute(update(Evaluation).values(attempts=before)))
    good = served.submit(circuits_archive(tmp_path / "good.zip", 2, "good"), "good")
    deaths = 0
    for _ in range(8):
        process = served.start("2", FATAL, "bad")
        process.communicate(timeout=600)
        deaths += process.returncode == -signal.SIGKILL
        if served.submission(bad).state == served.submission(good).state == "done":
            break
        time.sleep(2.2)
    assert deaths == 3
    (cell,) = served.evaluations(bad)
    assert (cell.state, cell.attempts, cell.message) == ("failed", LOST, f"{DIED}.")
    (cell,) = served.evaluations(good)
    assert cell.state == "done" and served.store.keys("records") == [cell.record]


@pytest.mark.slow
def test_a_worker_that_is_told_to_end_gives_its_cell_back(tmp_path: Path) -> None:
    served, begun = Served.at(tmp_path / "service"), tmp_path / "begun"
    submission = served.submit(circuits_archive(tmp_path / "one.zip"))
    process = served.start("30", FATAL, "wait", XDG_BEGUN=str(begun))
    until(begun.exists)
    process.send_signal(signal.SIGTERM)
    assert "Traceback" not in ended(process, 60) and process.returncode == 0
    (cell,) = served.evaluations(submission)
    assert (cell.state, cell.attempts, cell.worker) == ("waiting", 0, None)


def test_a_record_of_an_attempt_that_does_not_count_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served.at(tmp_path / "service")
    submission = planned(served, junk(tmp_path / "one.zip"), PLANNED)
    record = tmp_path / "record.json"
    record.write_text("{}")
    worker = ServiceWorker(served.settings, OPTIONS)

    def withdrawn(*_: object, **__: object) -> Evaluated:
        queue.withdraw(served.db, submission, served.submitter)
        return Evaluated("ended", "done", "", 1.0, record)

    monkeypatch.setattr(worker, "_evaluated", withdrawn)
    assert worker.step() and not worker.step()
    assert served.store.keys("records") == []
    assert served.evaluations(submission)[0].state == "withdrawn"


def test_a_child_that_dies_is_tried_again_and_then_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served.at(tmp_path / "service")
    submission = planned(served, junk(tmp_path / "one.zip"), PLANNED)
    worker = ServiceWorker(served.settings, OPTIONS)
    died = Evaluated("died", "failed", "its process ended with signal 9", 1.0)
    monkeypatch.setattr(worker, "_evaluated", lambda *_: died)
    assert [worker.step() for _ in range(4)] == [True, True, True, False]
    (cell,) = served.evaluations(submission)
    assert (cell.state, cell.attempts, cell.message) == ("failed", 3, died.message)


def test_a_folder_that_is_half_there_is_not_taken_for_a_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served.at(tmp_path / "service")
    submission = planned(served, junk(tmp_path / "one.zip"), PLANNED)
    worker = ServiceWorker(served.settings, OPTIONS)
    (worker.folder / submission / "bundle").mkdir(parents=True)
    again: list[str] = []

    def checked(found: Submission, _: threading.Event) -> ChildEnd:
        again.append(found.id)
        return ChildEnd("stopped", "it was stopped.", 0.0)

    monkeypatch.setattr(worker, "_checked", checked)
    assert worker.step() and again == [submission]
    assert served.evaluations(submission)[0].state == "waiting"


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
    # Now nothing else is left to do.
    with pytest.raises(DiskFull):
        worker.step()
    found = served.submission(large)
    assert (found.state, found.attempts, found.deaths) == ("received", 0, 0)
    full[0] = False
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


def test_a_worker_that_is_told_to_end_gives_its_check_back(tmp_path: Path) -> None:
    served = Served.at(tmp_path / "service")
    submission = served.submit(junk(tmp_path / "one.zip"))
    sleeps = (sys.executable, "-c", "import time; time.sleep(600)")
    worker = ServiceWorker(served.settings, WorkerOptions(command=sleeps))
    threading.Timer(1.0, worker.stop.set).start()
    assert worker.run() == 1
    found = served.submission(submission)
    assert (found.state, found.attempts, found.worker) == ("received", 0, None)


def test_checks_and_cells_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served.at(tmp_path / "service")
    planned(served, junk(tmp_path / "0.zip", b"0"), PLANNED, replace(PLANNED, job=1))
    for name in "12":
        served.submit(junk(tmp_path / f"{name}.zip", name.encode()))
    worker, order = ServiceWorker(served.settings, OPTIONS), list[str]()
    monkeypatch.setattr(worker, "_check", lambda _: order.append("check"))
    monkeypatch.setattr(worker, "_evaluate", lambda _: order.append("cell"))
    while worker.step():
        pass
    assert order == ["check", "cell", "check", "cell"]


def test_checks_are_told_apart_from_cells_and_unknown_cells_are_refused(tmp_path: Path) -> None:
    served = Served.at(tmp_path / "service", splits="test, private")
    orders = CellOrders(track=ServiceTrack.read(served.settings.track))
    circuits_archive(tmp_path / "one.zip").rename(tmp_path / "upload")
    found = check(tmp_path, orders)
    assert [(cell.job, cell.split) for cell in found.cells] == [(0, "test"), (1, "private")]
    assert found.kind == "circuits" and not found.problems and (tmp_path / CHECKED).is_file()
    with pytest.raises(BadUsage, match="cell of the job"):
        run_cell(tmp_path, 0, "other", orders)
    with pytest.raises(BadUsage, match="no seed of private examples"):
        run_cell(tmp_path, 1, found.cells[1].cell, orders)


def test_without_a_seed_private_examples_are_not_planned(tmp_path: Path) -> None:
    served = Served.at(tmp_path / "service", splits="test, private")
    submission = served.submit(variables_archive(tmp_path / "one.zip"))
    worker = ServiceWorker(replace(served.settings, private_seed_file=None), OPTIONS)
    assert worker.step()
    assert [each.split for each in served.evaluations(submission)] == ["test"]


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
