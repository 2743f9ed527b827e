"""Talks to a service: hands a submission in, asks what became of it, withdraws it.

What fails on the way is tried again with growing waits: the same content of one submitter is one
submission, however often it comes. The token is read from the environment or a file, and is in no
message. It is sent to no other server: redirects are not followed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from mechassay.errors import BadFile, BadUsage, MechassayError, MissingExtra, first_line
from mechassay.service.archive import pack
from mechassay.service.declaration import FILES, Declaration
from mechassay.service.hub import PREFIX, download
from mechassay.service.track import UploadLimits
from mechassay.version import __version__

TOKEN = "MECHASSAY_TOKEN"
SERVER = "http://127.0.0.1:8000"
ATTEMPTS = 5
PATIENCE = 60.0
"""The longest wait that a server may ask for, in seconds."""
AGAIN = (502, 503, 504)
LOCAL = ("127.0.0.1", "localhost", "::1")


class ServerRefused(MechassayError):
    """A service that does not take what it was sent, or cannot be reached."""


def read_token(file: Path | None = None) -> str:
    """The token in a file, else in the environment.

    Raises:
        BadUsage: there is none. BadFile: the file cannot be read.
    """
    if file is not None:
        try:
            token = file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError):
            raise BadFile(f"{file}: no token can be read from it.") from None
    else:
        token = os.environ.get(TOKEN, "").strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise BadUsage(f"A token is needed: set {TOKEN}, or name a file with --token-file.")
    return token


@dataclass(frozen=True)
class ServiceClient:
    """A service at an address.

    Attributes:
        token: of the submitter; only what is public can be asked without.
        wait: how to wait.
    """

    server: str = SERVER
    token: str = field(default="", repr=False)
    seconds: float = 300.0
    wait: Callable[[float], object] = time.sleep

    def __post_init__(self) -> None:
        parts = urlsplit(self.server)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise BadUsage(f"A server is https://HOST[:PORT]; got {self.server!r}.")
        if self.token and parts.scheme == "http" and parts.hostname not in LOCAL:
            raise BadUsage(f"{self.server}: a token is sent over https alone.")

    def submit(self, source: str | Path, declaration: Declaration | None = None) -> dict[str, Any]:
        """Hand in a folder, an archive, a file of data or an id of the hub; what the server says.

        Args:
            declaration: that of the folder's `submission.yaml` if not given.

        Raises:
            BadUsage, BadFile: nothing to send, or nothing is declared.
            ServerRefused: the server does not take it.
        """
        with TemporaryDirectory() as folder:
            path = Path(source)
            if str(source).startswith(PREFIX):
                path = download(str(source), Path(folder) / "hub", UploadLimits())
            if not path.exists():
                raise BadFile(f"{path}: there is no such file or folder.")
            told = (declaration or declared_in(path)).model_dump_json(exclude_defaults=True)
            file = pack(path, Path(folder) / "submission.zip") if path.is_dir() else path

            def send(client: Any) -> Any:
                # The form is read from its beginning each time that it is sent.
                with file.open("rb") as stream:
                    files = {"file": (file.name, stream, "application/octet-stream")}
                    form = {"declaration": told}
                    return client.post("/api/submissions", data=form, files=files)

            return self._asked(send)

    def status(self, submission: str) -> dict[str, Any]:
        """A submission and its evaluations; errors as `submit`."""
        return self._asked(lambda client: client.get(f"/api/submissions/{_plain(submission)}"))

    def withdraw(self, submission: str) -> dict[str, Any]:
        """Withdraw a submission; errors as `submit`."""
        return self._asked(lambda client: client.delete(f"/api/submissions/{_plain(submission)}"))

    def recomputed(self, submission: str, told: Mapping[str, Any]) -> dict[str, Any]:
        """Say that a cell was computed again; errors as `submit`."""
        address = f"/api/submissions/{_plain(submission)}/recomputed"
        return self._asked(lambda client: client.post(address, json=dict(told)))

    def asked(self, address: str) -> dict[str, Any]:
        """The JSON object at an address of the service; errors as `submit`."""
        return self._asked(lambda client: client.get(address))

    def content(self, address: str) -> bytes:
        """The bytes at an address of the service; errors as `submit`."""
        return self._answer(lambda client: client.get(address)).content

    def _asked(self, send: Callable[[Any], Any]) -> dict[str, Any]:
        return _object(self.server, self._answer(send))

    def _answer(self, send: Callable[[Any], Any]) -> Any:
        httpx = _httpx()
        headers: Mapping[str, str] = {"User-Agent": f"mechassay/{__version__}"}
        if self.token:
            headers = {**headers, "Authorization": f"Bearer {self.token}"}
        about: dict[str, Any] = {"base_url": self.server, "timeout": self.seconds}
        with httpx.Client(**about, headers=headers, follow_redirects=False) as client:
            for attempt in range(1, ATTEMPTS + 1):
                pause = 2.0 ** (attempt - 1)
                try:
                    answer = send(client)
                except httpx.TransportError as error:
                    said = first_line(error).rstrip(".")
                    refused = f"{self.server}: cannot be reached ({said})."
                else:
                    if answer.status_code < 300:
                        return answer
                    refused = f"{self.server}: {_reason(answer)}"
                    if answer.status_code not in AGAIN:
                        raise ServerRefused(refused)
                    asked = answer.headers.get("retry-after", "")
                    pause = max(pause, min(float(asked), PATIENCE)) if asked.isdigit() else pause
                if attempt == ATTEMPTS:
                    raise ServerRefused(refused)
                self.wait(pause)
        raise AssertionError("unreachable")


def declared_in(path: Path) -> Declaration:
    """The declaration in a folder.

    Raises:
        BadUsage: there is none. BadFile: it cannot be read.
    """
    for name in FILES:
        if (path / name).is_file():
            return Declaration.read(path / name)
    raise BadUsage(f"{path}: has no {' or '.join(FILES)}; say --name at least.")


def _httpx() -> Any:
    try:
        return import_module("httpx2")
    except ImportError:
        raise MissingExtra("Talking to a service", "httpx2", "server") from None


def _plain(submission: str) -> str:
    """An id; anything else would be another address."""
    if not (submission.isascii() and submission.isalnum()):
        raise BadUsage(f"An id has letters and digits alone; got {submission[:80]!r}.")
    return submission


def _object(server: str, answer: Any) -> dict[str, Any]:
    try:
        told = json.loads(answer.content)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise ServerRefused(f"{server}: answers with no JSON object; is it a service of ours?")
    return told


def _reason(answer: Any) -> str:
    try:
        said = json.loads(answer.content)["error"]
    except (ValueError, KeyError, TypeError):
        said = f"answers with the status {answer.status_code}."
    return first_line(said)
