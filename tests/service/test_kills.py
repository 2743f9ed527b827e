"""Server and worker killed at random moments: what was accepted has one result a cell, the same."""

from __future__ import annotations

import hashlib
import json
import os
import random
import socket
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from mechassay.service.cell import CellOrders, check, job_folder, run_cell
from mechassay.service.client import ServerRefused, ServiceClient
from mechassay.service.declaration import Declaration
from mechassay.service.lookups import row_name
from mechassay.service.tables import Submission
from mechassay.service.tokens import new_token
from mechassay.service.track import ServiceTrack
from mechassay.service.uploads import STALE
from service_processes import START_SECONDS, ServerProcess, WorkerProcess
from small_service import SEED, Served, circuits_archive, without_times

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.web
KILLS, SUBMISSIONS = 10, 3
PUBLIC, PRIVATE = "test", "private"
MOMENT = 4.0
"""Seconds within which a process is killed when it has begun something."""


def until(true: Callable[[], bool], seconds: float = START_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.1)


def undisturbed(archive: Path, folder: Path, track: ServiceTrack) -> dict[str, object]:
    """The records of a submission by split, computed in this process."""
    orders = CellOrders(track=track, seed=SEED, epoch="2026-11")
    torch.set_num_threads(1)  # As workers have; the last bits depend on it.
    folder.mkdir()
    (folder / "upload").write_bytes(archive.read_bytes())
    found: dict[str, object] = {}
    for each in check(folder, orders).cells:
        run_cell(folder, each.job, each.cell, orders)
        epoch = orders.epoch if each.split == PRIVATE else ""
        record = job_folder(folder, each.job, epoch).record(each.cell)
        assert record is not None and each.split not in found
        found[each.split] = without_times(record)
    return found


@dataclass
class Sender:
    """Hands files in one after the other, and then all of them again and again.

    Attributes:
        answers: the ids that the server gave each file.
        refused: how often it did not answer.
    """

    client: ServiceClient
    archives: list[Path]
    stop: threading.Event = field(default_factory=threading.Event)
    answers: dict[Path, set[str]] = field(default_factory=dict[Path, "set[str]"])
    refused: int = 0

    def send(self) -> None:
        n = 0
        while not self.stop.is_set() or len(self.answers) < len(self.archives):
            archive = self.archives[n % len(self.archives)]
            try:
                found = self.client.submit(archive, Declaration(name=archive.stem))
            except ServerRefused:
                self.refused += 1
            else:
                self.answers.setdefault(archive, set()).add(str(found["id"]))
                n += 1
            self.stop.wait(0.2)


@pytest.fixture
def running() -> Iterator[list[ServerProcess | WorkerProcess]]:
    """Processes that end with the test."""
    made: list[ServerProcess | WorkerProcess] = []
    yield made
    for each in made:
        with suppress(ProcessLookupError):
            each.kill()


def test_kills_at_random_moments_lose_and_double_nothing(
    tmp_path: Path, running: list[ServerProcess | WorkerProcess]
) -> None:
    chance = random.Random(1)
    served = Served.at(tmp_path / "service", splits=f"{PUBLIC}, {PRIVATE}")
    archives = [
        circuits_archive(tmp_path / f"circuits {n}.zip", n, f"circuits {n}")
        for n in range(SUBMISSIONS)
    ]
    server, worker = ServerProcess(served.settings.folder), WorkerProcess(served)
    running += [server, worker]
    server.start()
    worker.start()
    token = new_token(served.db, "bob")
    sender = Sender(ServiceClient(server.address, token, wait=lambda _: time.sleep(0.2)), archives)
    sending = threading.Thread(target=sender.send)
    sending.start()

    def all_done() -> bool:
        states = served.db.read(lambda session: [x.state for x in session.query(Submission)])
        return states == ["done"] * SUBMISSIONS

    try:
        victims = [server, worker] * (KILLS // 2)
        chance.shuffle(victims)
        for victim in victims:
            until(lambda: worker.has_begun() or all_done())
            time.sleep(chance.uniform(0, MOMENT))
            victim.kill()
            victim.start()
    finally:
        sender.stop.set()
        sending.join()
    until(all_done)
    worker.kill()

    assert sorted(sender.answers) == archives, "all were accepted at last"
    assert all(len(ids) == 1 for ids in sender.answers.values()), "each under one id"
    attempts = Counter[int]()
    track, rows = ServiceTrack.read(served.settings.track), set[str]()
    for archive, (submission,) in sender.answers.items():
        rows.add(row_name(archive.stem, submission))
        found = served.evaluations(submission)
        assert [(each.split, each.state) for each in found] == [
            (PUBLIC, "done"),
            (PRIVATE, "done"),
        ], [each.message for each in found]
        attempts.update(each.attempts for each in found)
        attempts[served.submission(submission).attempts] += 1
        expected = undisturbed(archive, archive.with_suffix(".again"), track)
        records = served.records(submission, archive.with_suffix(".records"))
        assert [without_times(record) for record in records] == [*expected.values()]
        held = served.store.read(served.submission(submission).file)
        assert held == archive.read_bytes()
    assert sum(n for count, n in attempts.items() if count > 1), "some work was interrupted"
    assert len(served.store.keys("uploads")) == SUBMISSIONS

    def cells() -> list[dict[str, object]]:
        with urllib.request.urlopen(f"{server.address}/api/boards/circuits.json") as answer:
            return json.load(answer)["cells"]

    until(lambda: {cell["row"] for cell in cells()} == rows)
    times = Counter((cell["row"], cell["column"], cell["private"]) for cell in cells())
    assert set(times.values()) == {1} and not any(cell["earlier"] for cell in cells())
    for log in (server.log, worker.log):
        assert "Traceback" not in log.read_text(), log.read_text()


def test_a_server_that_is_killed_in_an_upload_has_taken_nothing(
    tmp_path: Path, running: list[ServerProcess | WorkerProcess]
) -> None:
    served = Served.at(tmp_path / "service")
    token = new_token(served.db, "bob")
    server = ServerProcess(served.settings.folder)
    running.append(server)
    server.start()
    head = (
        b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\nhalf\r\n'
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.zip"\r\n\r\n'
    )
    uploads = served.settings.scratch / "uploads"
    with socket.create_connection(("127.0.0.1", server.port)) as line:
        line.sendall(
            b"POST /api/submissions HTTP/1.1\r\nHost: x\r\nContent-Length: 1900000\r\n"
            b"Content-Type: multipart/form-data; boundary=b\r\n"
            b"Authorization: Bearer " + token.encode() + b"\r\n\r\n" + head + b"0" * 1_500_000
        )
        until(lambda: any(file.stat().st_size for file in uploads.glob("*")))
        server.kill()
    (half,) = uploads.glob("*")
    assert 0 < half.stat().st_size < 1_900_000
    long_ago = time.time() - STALE - 60
    os.utime(half, (long_ago, long_ago))
    server.start()
    assert not half.exists(), "what is older than a day is removed at the start"
    assert served.db.read(lambda session: session.query(Submission).count()) == 0
    assert served.store.keys() == []
    # The submitter is not held up by what broke off.
    archive = circuits_archive(tmp_path / "whole.zip")
    found = ServiceClient(server.address, token).submit(archive, Declaration(name="whole"))
    assert found["new"] and found["state"] == "received"
    assert found["digest"] == hashlib.sha256(archive.read_bytes()).hexdigest()
