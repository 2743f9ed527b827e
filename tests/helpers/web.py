"""Modules of tests/web, which is no package: pytest imports its files one by one.

A small server on this machine, with answers by path.

The scripts in tools as modules; `pages` makes pages from code.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType

WEB = Path(__file__).parents[1] / "web"


def web_module(name: str) -> ModuleType:
    """A module of tests/web, once."""
    known = sys.modules.get(f"web_{name}")
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(f"web_{name}", WEB / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@dataclass
class Answer:
    """What a path answers, and its headers."""

    content: bytes = b""
    kind: str = "text/html"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])
    write: Callable[[BaseHTTPRequestHandler], None] | None = None


@dataclass
class Served:
    """The server's address, its answers, which are taken in turn, and the paths asked so far."""

    address: str
    answers: dict[str, list[Answer]]
    asked: list[str] = field(default_factory=list[str])


@contextmanager
def served(**answers: Answer | list[Answer]) -> Iterator[Served]:
    """Serve answers by their path without its slash; the last of a list stays."""
    state = Served(
        "",
        {
            f"/{name}": [*each] if isinstance(each, list) else [each]
            for name, each in answers.items()
        },
    )

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            given = state.answers.get(self.path, [Answer(b"nothing", status=404)])
            answer = given.pop(0) if len(given) > 1 else given[0]
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.kind)
            if answer.write is None and "Content-Length" not in answer.headers:
                self.send_header("Content-Length", str(len(answer.content)))
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            if answer.write is not None:
                answer.write(self)
            else:
                self.wfile.write(answer.content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    state.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


ROOT = Path(__file__).parents[2]


def tool(name: str) -> ModuleType:
    """The script of that name."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pages = tool("pages")
