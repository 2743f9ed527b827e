"""100 readers and 20 submitters at once, against a server process: nothing is lost, and how fast.

A reader opens a page, reads for about a second, and opens another one. A submitter hands a new file
in, sometimes the same again, and looks at its page. Meanwhile submissions end, so that the boards
are made anew all the time. `MECHASSAY_LOAD_SECONDS` makes it longer.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import os
import random
import re
import statistics
import threading
import time
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest

from mechassay.runs.job import cell_name
from mechassay.service.checks import checked, claim_check
from mechassay.service.lookups import row_name
from mechassay.service.tables import Submission, Submitter
from mechassay.service.tokens import new_token
from mechassay.service.work import PlannedEvaluation
from service_made import WORKER, MadeService, made_records
from service_processes import ServerProcess

pytest.importorskip("uvicorn")
pytestmark = pytest.mark.web
SECONDS = float(os.environ.get("MECHASSAY_LOAD_SECONDS", "15"))
READERS, SUBMITTERS = 100, 20
READING = 1.0
"""Seconds that a page is read, on average."""
MEDIAN = 1.0
"""Seconds that the median page may take where others use the machine too."""
LINE_SECONDS = 60


@dataclass
class Line:
    """A connection that stays open, as those of browsers."""

    port: int
    streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes, *, again: bool) -> tuple[int, bytes]:
        """The status and the content of an answer.

        Args:
            again: ask once more where the server had closed the line before it was asked.
        """
        if self.streams is None or self.streams[0].at_eof():
            self.streams = await asyncio.open_connection("127.0.0.1", self.port, limit=2**24)
        reader, writer = self.streams
        writer.write(request)
        try:
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            self.streams = None
            if not again:
                raise
            return await self.ask(request, again=False)
        length = re.search(rb"content-length: (\d+)", head.lower())
        assert length is not None, head
        return int(head.split(b" ", 2)[1]), await reader.readexactly(int(length[1]))

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()


@dataclass
class Seen:
    """What came of all requests.

    Attributes:
        seconds: of pages.
        accepted: id by submitter and digest.
        wrong: what should not have been.
    """

    seconds: list[float] = field(default_factory=list[float])
    accepted: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    repeated: int = 0
    wrong: list[str] = field(default_factory=list[str])


def got(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: board\r\nAccept-Encoding: gzip\r\n\r\n".encode()


def posted(token: str, name: str, content: bytes) -> bytes:
    body = (
        b'--b\r\nContent-Disposition: form-data; name="name"\r\n\r\n' + name.encode() + b"\r\n"
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.zip"\r\n\r\n'
        + content
        + b"\r\n--b--\r\n"
    )
    head = (
        "POST /api/submissions HTTP/1.1\r\nHost: board\r\n"
        f"Authorization: Bearer {token}\r\nContent-Length: {len(body)}\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
    )
    return head.encode() + body


def archive(text: str) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("truth-ioi_truth-ioi/importances.json", json.dumps({"of": text}))
    return content.getvalue()


async def reads(port: int, paths: list[str], seed: int, seen: Seen, until: float) -> None:
    chance, line = random.Random(seed), Line(port)
    await asyncio.sleep(chance.uniform(0, READING))
    while time.monotonic() < until:
        path, begin = chance.choice(paths), time.perf_counter()
        try:
            async with asyncio.timeout(LINE_SECONDS):
                status, content = await line.ask(got(path), again=True)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            seen.wrong.append(f"{path}: {error!r}")
            continue
        seen.seconds.append(time.perf_counter() - begin)
        if status != 200 or not content:
            seen.wrong.append(f"{path}: {status}")
        await asyncio.sleep(min(chance.expovariate(1 / READING), 3 * READING))
    line.close()


async def submits(port: int, name: str, token: str, seed: int, seen: Seen, until: float) -> None:
    chance, line, n = random.Random(seed), Line(port), 0
    while time.monotonic() < until:
        n += 1
        content = archive(f"{name} {n}")
        digest = hashlib.sha256(content).hexdigest()
        try:
            async with asyncio.timeout(LINE_SECONDS):
                for again in (False, True) if chance.random() < 0.2 else (False,):
                    request = posted(token, f"{name} {n}", content)
                    status, answer = await line.ask(request, again=False)
                    told = json.loads(answer)
                    if (status, told.get("new")) != ((200, False) if again else (201, True)):
                        seen.wrong.append(f"{name} {n}: {status} {answer!r}")
                        return
                    if seen.accepted.setdefault((name, digest), told["id"]) != told["id"]:
                        seen.wrong.append(f"{name} {n}: has two ids")
                    seen.repeated += again
                status, _ = await line.ask(got(f"/submissions/{told['id']}"), again=True)
            if status != 200:
                seen.wrong.append(f"{name} {n}: its page: {status}")
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            seen.wrong.append(f"{name} {n}: {error!r}")
        await asyncio.sleep(chance.uniform(0.5, 1.5))
    line.close()


async def load(port: int, paths: list[str], tokens: dict[str, str]) -> Seen:
    seen, until = Seen(), time.monotonic() + SECONDS
    readers = [reads(port, paths, seed, seen, until) for seed in range(READERS)]
    submitters = [
        submits(port, name, token, seed, seen, until)
        for seed, (name, token) in enumerate(tokens.items())
    ]
    await asyncio.gather(*readers, *submitters)
    return seen


def ends(service: MadeService, stop: threading.Event) -> None:
    """Be a worker that has all records already: a submission a second is done."""
    record = made_records()["truth-ioi eap"].stored_text()
    while not stop.wait(1.0):
        held = claim_check(service.db, WORKER, 60.0)
        if held is not None:
            planned = [PlannedEvaluation(0, "truth-ioi")]
            assert checked(service.db, held, WORKER, [], planned, kind="circuits")
            service.work({"truth-ioi": record})


def test_readers_and_submitters_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    service = MadeService.at(tmp_path / "service")
    ids = [
        service.done(f"row {n}", ("eap", "random")[n % 2], ("truth-ioi", "truth-induction"))
        for n in range(10)
    ]
    rows = [row_name(f"row {n}", submission) for n, submission in enumerate(ids)]
    tokens = {f"submitter {n}": new_token(service.db, f"submitter {n}") for n in range(SUBMITTERS)}
    server, stop = ServerProcess(tmp_path / "service"), threading.Event()
    worker = threading.Thread(target=ends, args=(service, stop))
    try:
        server.start()
        paths = [
            *("/", "/boards/circuits", "/boards/circuits?model=truth-ioi", "/submissions"),
            *("/compare?board=circuits", "/submit", "/api/boards/circuits.json"),
            *("/api/submissions", "/api/boards/circuits.csv"),
            *(f"/submissions/{submission}" for submission in ids),
            *(f"/boards/circuits/rows/{quote(cell_name(row))}" for row in rows),
        ]
        worker.start()
        seen = asyncio.run(load(server.port, paths, tokens))
    finally:
        stop.set()
        if worker.is_alive():
            worker.join()
        server.kill()
    median, slow = statistics.median(seen.seconds), statistics.quantiles(seen.seconds, n=20)[-1]
    with capsys.disabled():
        print(
            f"\n{len(seen.seconds):,} pages, {len(seen.accepted):,} submissions and"
            f" {seen.repeated:,} repeated ones in {SECONDS:g} s; a page takes {1000 * median:.0f}"
            f" ms (median), {1000 * slow:.0f} ms (95th percentile)"
        )
    assert seen.wrong == []
    assert "Traceback" not in server.log.read_text()
    assert len(seen.seconds) >= READERS and len(seen.accepted) >= SUBMITTERS and seen.repeated
    assert median < MEDIAN
    found = service.db.read(
        lambda session: [
            (by, held.digest, held.id, held.file)
            for held, by in session.query(Submission, Submitter.name)
            .join(Submitter, Submitter.id == Submission.submitter_id)
            .filter(Submitter.name.like("submitter %"))
        ]
    )
    assert len(found) == len(seen.accepted), "none is lost, none is there twice"
    assert {(by, digest): held for by, digest, held, _ in found} == seen.accepted
    for _, digest, _, key in found:
        assert hashlib.sha256(service.store.read(key)).hexdigest() == digest
    assert not any((service.settings.scratch / "uploads").glob("*"))
