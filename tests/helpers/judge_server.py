"""A small OpenAI-compatible server for tests, and a proxy that makes faults by a seed."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import urlsplit

FAULTS = ("429", "500", "slow", "cut", "not json", "half an answer")
"""What the proxy does instead of passing a response on."""


def smallest(form: dict[str, Any], defs: dict[str, Any] | None = None) -> Any:
    """A value that keeps to a JSON schema: first words, one item, short texts."""
    defs = form.get("$defs", {}) if defs is None else defs
    while "$ref" in form:
        form = defs[form["$ref"].rpartition("/")[2]]
    if "enum" in form:
        return form["enum"][0]
    match form.get("type"):
        case "object":
            return {key: smallest(own, defs) for key, own in form["properties"].items()}
        case "array":
            return [smallest(form["items"], defs)]
        case "boolean":
            return True
        case _:
            return "a" if "pattern" in form else "The circuit recovers 87 %."


def completion(text: str, model: str = "small", finish: str = "stop") -> dict[str, Any]:
    """A response of `/v1/chat/completions`."""
    message = {"role": "assistant", "content": text}
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
    }


class JudgeServer:
    """A server that answers every request by a function of its body.

    Attributes:
        bodies: of all requests, as they came.
        headers: of the last request.
    """

    def __init__(self, reply: Callable[[dict[str, Any]], Any] | None = None, n_ctx: int = 0):
        self.reply = reply or (lambda body: json.dumps(smallest(form_of(body))))
        self.n_ctx, self.bodies, self.headers = n_ctx, list[bytes](), dict[str, str]()

    def respond(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        self.headers = {name.lower(): value for name, value in handler.headers.items()}
        if handler.command == "GET":
            meta = {"n_ctx": self.n_ctx} if self.n_ctx else {}
            listed = [{"id": "small", "object": "model", "created": 1, "owned_by": "x"} | meta]
            send(handler, 200, json.dumps({"object": "list", "data": listed}).encode())
            return
        self.bodies.append(body)
        said = self.reply(json.loads(body))
        match said:
            case (int() as status, payload):
                send(handler, status, json.dumps(payload).encode())
            case dict():
                send(handler, 200, json.dumps(said).encode())
            case _:
                send(handler, 200, json.dumps(completion(said)).encode())


class FaultProxy:
    """Passes requests on, or makes a fault, as a seed has it; never more than three in a row.

    Attributes:
        made: the faults, in order; "" where a response was passed on.
    """

    def __init__(self, port: int, seed: int, share: float = 0.5, slow: float = 1.5):
        self.port, self.share, self.slow = port, share, slow
        self.random, self.made, self.lock = random.Random(seed), list[str](), threading.Lock()

    def _drawn(self) -> str:
        with self.lock:
            fault = self.random.choice(FAULTS) if self.random.random() < self.share else ""
            if len(self.made) >= 3 and all(self.made[-3:]):
                fault = ""
            self.made.append(fault)
            return fault

    def respond(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        fault = self._drawn() if handler.command == "POST" else ""
        if fault == "429":
            send(handler, 429, b'{"error": {"message": "busy"}}', {"Retry-After": "0.01"})
            return
        if fault == "500":
            send(handler, 500, b"<html>broken</html>", {"Content-Type": "text/html"})
            return
        if fault == "slow":
            time.sleep(self.slow)
            handler.close_connection = True
            return
        try:
            status, content = self._passed_on(handler, body)
        except OSError:
            send(handler, 502, b'{"error": {"message": "the server behind is down"}}')
            return
        if status != 200:
            fault = ""  # There is no answer that could be spoilt.
        if fault == "cut":
            send(
                handler, status, content[: len(content) // 2], {"Content-Length": f"{len(content)}"}
            )
            handler.close_connection = True
            return
        if fault == "not json":
            content = content[: len(content) // 2]
        if fault == "half an answer":
            whole = json.loads(content)
            message = whole["choices"][0]["message"]
            message["content"] = message["content"][: len(message["content"]) // 2]
            content = json.dumps(whole).encode()
        send(handler, status, content)

    def _passed_on(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        upstream = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        kept = {key: handler.headers[key] for key in ("Content-Type",) if key in handler.headers}
        upstream.request(handler.command, handler.path, body or None, kept)
        response = upstream.getresponse()
        content = response.read()
        upstream.close()
        return response.status, content


def form_of(body: dict[str, Any]) -> dict[str, Any]:
    """The JSON schema that a request asks for."""
    return body["response_format"]["json_schema"]["schema"]


def port_of(url: str) -> int:
    """The port of an address."""
    found = urlsplit(url).port
    assert found is not None
    return found


def send(
    handler: BaseHTTPRequestHandler,
    status: int,
    content: bytes,
    headers: dict[str, str] | None = None,
) -> None:
    """A response."""
    handler.send_response(status)
    told = {"Content-Type": "application/json", "Content-Length": f"{len(content)}"}
    for name, value in {**told, **(headers or {})}.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(content)


@contextmanager
def served(responder: JudgeServer | FaultProxy, port: int = 0) -> Iterator[str]:
    """The address of a server that runs in a thread of this process."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version: ClassVar[str] = "HTTP/1.1"

        def do_POST(self) -> None:
            self._respond()

        def do_GET(self) -> None:
            self._respond()

        def _respond(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            try:
                responder.respond(self, body)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # The client was tired of waiting.

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()
