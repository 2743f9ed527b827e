"""A PostgreSQL server for tests, in a folder of its own, on a free port of this machine.

PostgreSQL refuses to run as root: root's tests run it as the user that Debian's package made.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

USER = "mechassay"
SECONDS = 60.0


def program(name: str) -> str | None:
    """Where a program of PostgreSQL is; Debian puts them where no shell looks."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parent.name)
    places = os.pathsep.join([os.environ.get("PATH", ""), *map(str, reversed(debian))])
    return shutil.which(name, path=places)


def missing() -> str:
    """Why there can be no server; "" if there can."""
    if program("postgres") is None or program("initdb") is None:
        return "there is no PostgreSQL; see `make test-web`"
    if os.geteuid() == 0 and _owner() is None:
        return "PostgreSQL does not run as root, and there is no user postgres"
    return ""


def _owner() -> pwd.struct_passwd | None:
    """The user that runs the server for root."""
    with suppress(KeyError):
        return pwd.getpwnam("postgres")
    return None


def _as_owner() -> dict[str, int]:
    """Arguments of a process that is run as that user; nothing if this is not root."""
    owner = _owner()
    return {"user": owner.pw_uid, "group": owner.pw_gid} if os.geteuid() == 0 and owner else {}


def _lives(process: psutil.Process) -> bool:
    """Whether a process is there, and more than its entry in the system's list."""
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


class PostgresServer:
    """A server that can be killed and started again on the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.password = folder, secrets.token_urlsafe(16)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        word = folder / "word"
        word.write_text(self.password)
        if os.geteuid() == 0:
            for path in (folder, word):
                shutil.chown(path, "postgres")
        made = subprocess.run(
            [
                str(program("initdb")),
                *f"-D data -U {USER} -E UTF8 --locale=C --no-sync".split(),
                *("--auth=scram-sha-256", f"--pwfile={word}"),
            ],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            **_as_owner(),
        )
        assert made.returncode == 0, made.stderr
        self.process: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "postgres") -> str:
        return f"postgresql://{USER}:{self.password}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """The address of a database that is empty now; who used it before is thrown out."""
        import pg8000.native

        connection = pg8000.native.Connection(
            USER, host="127.0.0.1", port=self.port, password=self.password, database="postgres"
        )
        try:
            connection.run(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            connection.run("DROP SCHEMA public CASCADE")
            connection.run("CREATE SCHEMA public")
        finally:
            connection.close()
        return self.url()

    def start(self) -> None:
        """Start it, and wait until it answers; one that was killed recovers first."""
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            # Right after a kill, what is left of the old one may still hold its memory.
            if self.process is None or self.process.poll() is not None:
                self.process = self._spawn()
            if self._answers():
                return
            time.sleep(0.05)
        raise TimeoutError((self.folder / "log").read_text())

    def kill(self) -> None:
        """End it as a machine does that loses power: nothing is told, nothing closed."""
        if self.process is None or self.process.poll() is not None:
            return
        family = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        self.process.wait()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        until = time.monotonic() + SECONDS
        while any(map(_lives, family)) and time.monotonic() < until:
            time.sleep(0.01)

    def _spawn(self) -> subprocess.Popen[bytes]:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": "off",
        }
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [str(program("postgres")), "-D", str(self.folder / "data")]
                + [word for name, value in settings.items() for word in ("-c", f"{name}={value}")],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                **_as_owner(),
            )

    def _answers(self) -> bool:
        """Whether it says so in its file; what an older one said there does not count."""
        assert self.process is not None
        with suppress(OSError):
            lines = (self.folder / "data" / "postmaster.pid").read_text().splitlines()
            return lines[0] == str(self.process.pid) and lines[7:8] == ["ready   "]
        return False


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A server that runs; its folder is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="mechassay-postgres-"))
    server = PostgresServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(missing() or 0)
