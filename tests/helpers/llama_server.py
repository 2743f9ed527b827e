"""llama.cpp's own server in a process of its own: `python llama_server.py GGUF PORT`.

The first line that it prints is its address.
"""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONTEXT = 8192


@contextmanager
def running(gguf: Path, port: int = 0) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address of the server and its process, once it answers."""
    words = [sys.executable, __file__, str(gguf), str(port)]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = next(line.strip() for line in process.stdout if line.startswith("http"))
            wait_until_ready(address)
            yield f"{address}/v1", process
        finally:
            process.kill()


def wait_until_ready(address: str, seconds: float = 120.0) -> None:
    """Wait until the model is loaded."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=5) as response:
                if response.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"{address} did not become ready")


def serve(gguf: str, port: int) -> None:
    """Run the server until the process is killed."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = gguf
    parameters.n_ctx = CONTEXT
    parameters.cpuparams.n_threads = 1
    parameters.cpuparams_batch.n_threads = 1
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.n_parallel = 1
    server = xllamacpp.Server(parameters)
    print(server.listening_address, flush=True)
    while True:
        time.sleep(60)


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
