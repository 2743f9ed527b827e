"""An S3 server on this machine for tests: moto's, which lives in an environment of its own.

Its dependencies pin others than the package is tested with; `make test-web` installs it.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ENVIRONMENT = Path(__file__).parents[1] / ".venv-moto"
SECONDS = 60.0


def program() -> str | None:
    """Where moto's server is."""
    return shutil.which(
        "moto_server", path=os.pathsep.join([str(ENVIRONMENT / "bin"), os.environ.get("PATH", "")])
    )


def missing() -> str:
    """Why there can be no server; "" if there can."""
    return "" if program() else "there is no moto_server; see `make test-web`"


@contextmanager
def s3_server(*buckets: str) -> Iterator[str]:
    """The address of a server with these buckets, empty."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    address = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [str(program()), "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait(f"{address}/moto-api/", process)
        for bucket in buckets:
            made = urllib.request.Request(f"{address}/{bucket}", method="PUT")
            urllib.request.urlopen(made).close()
        yield address
    finally:
        process.kill()
        process.wait()


def _wait(address: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            urllib.request.urlopen(address).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"{address} does not answer")


if __name__ == "__main__":
    sys.exit(missing() or 0)
