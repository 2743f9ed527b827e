"""The service as processes of its own on this machine, that can be killed and begun again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy.orm import Session

from mechassay.service.tables import Evaluation, Submission
from small_service import Served

START_SECONDS = 900
"""For a process to be there, on a machine that others use."""


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def started(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    """A Python process that writes what it says into a file."""
    with log.open("ab") as stream:
        return subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=stream,
            stderr=stream,
        )


def killed(process: subprocess.Popen[bytes]) -> None:
    """End a process at once, whatever it is at."""
    process.send_signal(signal.SIGKILL)
    process.wait()


@dataclass
class ServerProcess:
    """`mechassay leaderboard serve` of the service in a folder, always at the same port.

    Attributes:
        log: what all of its processes said.
    """

    folder: Path
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def log(self) -> Path:
        return self.folder.with_suffix(".server.log")

    def start(self) -> None:
        """Start it, and wait until it answers."""
        where = ["--folder", str(self.folder), "--track", str(self.folder / "track.yaml")]
        many = ["--port", str(self.port), "--a-day", "1000000", "--at-once", "1000000"]
        self.process = started(["-m", "mechassay", "leaderboard", "serve", *where, *many], self.log)
        until = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < until, "the server does not answer"
            time.sleep(0.05)

    def kill(self) -> None:
        """Kill it, if it runs."""
        if self.process is not None:
            killed(self.process)
            self.process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/api/health", timeout=30) as answer:
                return answer.status == 200
        except OSError:
            return False


WORKER = """
import sys
from pathlib import Path
from mechassay.service.settings import ServiceSettings
from mechassay.service.worker import WorkerOptions
from mechassay.service.workers import run_workers
folder, seeds = map(Path, sys.argv[1:])
settings = ServiceSettings(folder, track=folder / "track.yaml", private_seed_file=seeds)
run_workers(settings, options=WorkerOptions(lease=1.0, threads=1))
"""


@dataclass
class WorkerProcess:
    """A worker of a service in a folder, until it is killed; its lease is one second.

    Attributes:
        log: what all of its processes said.
    """

    served: Served
    process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.served.settings.folder.with_suffix(".worker.log")

    def start(self) -> None:
        """Start it; it waits for work."""
        seeds = self.served.settings.private_seed_file
        words = ["-c", WORKER, str(self.served.settings.folder), str(seeds)]
        self.process = started(words, self.log)

    def kill(self) -> None:
        """Kill it, if it runs."""
        if self.process is not None:
            killed(self.process)
            self.process = None

    def has_begun(self) -> bool:
        """Whether something is held, by whichever worker."""

        def work(session: Session) -> bool:
            both = (*session.query(Submission), *session.query(Evaluation))
            return any(each.state in ("checking", "running") for each in both)

        return self.served.db.read(work)
