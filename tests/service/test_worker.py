"""Workers: records of submissions, limits, deaths, turns."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import update

from mechassay.errors import BadUsage
from mechassay.service import queue
from mechassay.service.cell import CHECKED, CellOrders, check, run_cell
from mechassay.service.changes import DIED, LOST
from mechassay.service.evaluation import ChildEnd, ClusterAway, Evaluated
from mechassay.service.tables import Evaluation, Submission
from mechassay.service.track import ServiceTrack
from mechassay.service.work import PlannedEvaluation
from mechassay.service.worker import ServiceWorker, WorkerOptions
from mechassay.service.workers import run_workers
from small_service import (
    HERE,
    Served,
    circuits_archive,
    ended,
    junk,
    planned,
    without_times,
)

OPTIONS = WorkerOptions(threads=1)
PLANNED = PlannedEvaluation(0, "truth-ioi--truth-ioi/scores")
FATAL = str(HERE / "service_fatal_cell.py")


def until(true: Callable[[], bool], seconds: float = 400) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.1)


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


def test_cells_wait_for_a_cluster_that_is_away_and_checks_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served.at(tmp_path / "service")
    submission = planned(served, junk(tmp_path / "0.zip", b"0"), PLANNED)
    for name in "12":
        served.submit(junk(tmp_path / f"{name}.zip", name.encode()))
    worker, order = ServiceWorker(served.settings, OPTIONS), list[str]()

    def away(_: Evaluation) -> None:
        order.append("cell")
        raise ClusterAway("no cluster")

    monkeypatch.setattr(worker, "_check", lambda _: order.append("check"))
    monkeypatch.setattr(worker, "_evaluate", away)
    for _ in range(5):
        with suppress(ClusterAway):
            worker.step()
    assert order == ["check", "cell", "check"], "the cell waits for a minute"
    (cell,) = served.evaluations(submission)
    assert (cell.state, cell.attempts) == ("waiting", 0)


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
