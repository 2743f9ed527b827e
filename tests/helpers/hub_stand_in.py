"""A stand-in of the Hugging Face hub's API on loopback, for what the hub's own client calls.

Repositories of models in memory, each a list of commits. A write needs the token. Answers have the
status codes, fields and headers that the client reads. Tensors are uploaded apart, as large files
of git (LFS), not by the hub's newer protocol, which is no HTTP of this kind.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

Files = dict[str, bytes]
TOKEN = "hf_of_the_test"


@dataclass
class StandIn:
    """What is on the hub, and what was asked.

    Attributes:
        repos: of each repository its commits, by their hashes, the newest last.
        asked: "METHOD PATH" of all requests.
        cards: what was given to be validated.
        large: files that were uploaded apart, by their SHA-256.
    """

    address: str = ""
    repos: dict[str, dict[str, Files]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    cards: list[str] = field(default_factory=list)
    large: Files = field(default_factory=dict)

    def commit(self, repo: str, files: Files) -> str:
        """Add files to a repository, which is made; the hash of the commit."""
        commits = self.repos.setdefault(repo, {})
        held = {**(list(commits.values())[-1] if commits else {}), **files}
        text = json.dumps([len(commits), sorted(held)]) + repo
        oid = hashlib.sha1(text.encode()).hexdigest()
        commits[oid] = held
        return oid

    def at(self, repo: str, revision: str) -> tuple[str, Files] | None:
        """The commit of a revision, and its files; None if there is none."""
        commits = self.repos[repo]
        oid = list(commits)[-1] if revision == "main" and commits else revision
        return (oid, commits[oid]) if oid in commits else None


class _Answers(BaseHTTPRequestHandler):
    hub: StandIn
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None: ...

    def _send(self, code: int, body: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _json(self, plain: Any, code: int = 200, **headers: str) -> None:
        self._send(code, json.dumps(plain).encode(), Content_Type="application/json", **headers)

    def _missing(self, what: str) -> None:
        self._json({"error": what}, 404, X_Error_Code=what, X_Error_Message=what)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"{self.command} {path}")
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        match = api or file
        if match is None or match[1] not in self.hub.repos:
            self._missing("RepoNotFound")
            return
        revision = (api[3] if api else match[2]) or "main"
        commit = self.hub.at(match[1], revision)
        if commit is None:
            if file and not self.hub.repos[match[1]]:
                self._missing("EntryNotFound")
            else:
                self._missing("RevisionNotFound")
            return
        oid, files = commit
        if file:
            content = files.get(file[3])
            if content is None:
                self._missing("EntryNotFound")
            else:
                tag = f'"{hashlib.sha1(content).hexdigest()}"'
                self._send(200, content, ETag=tag, X_Repo_Commit=oid)
        elif api and api[2] == "tree":
            sha1 = {name: hashlib.sha1(content).hexdigest() for name, content in files.items()}
            self._json(
                [
                    {"type": "file", "path": name, "size": len(content), "oid": sha1[name]}
                    for name, content in files.items()
                ]
            )
        else:
            siblings = [{"rfilename": name, "size": len(files[name])} for name in files]
            about = {"id": match[1], "sha": oid, "private": False, "tags": [], "downloads": 0}
            self._json({**about, "likes": 0, "siblings": siblings})

    do_HEAD = do_GET

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def do_PUT(self) -> None:
        self.hub.asked.append(f"PUT {self.path}")
        self.hub.large[self.path.removeprefix("/large/")] = self._body()
        self._send(200, b"")

    def do_POST(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.asked.append(f"POST {path}")
        body = self._body()
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._json({"error": "Invalid username or password."}, 401)
        elif path == "/api/validate-yaml":
            self.hub.cards.append(json.loads(body)["content"])
            self._json({"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            about = {"url": f"{self.hub.address}/{name}", "id": name, "name": name}
            if asked["organization"] == "others":
                self._json({"error": "You have no rights to others."}, 403)
            elif name in self.hub.repos:
                self._json({**about, "error": "You already created this model repo"}, 409)
            else:
                self.hub.repos[name] = {}
                self._json(about)
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main", path):
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(".safetensors") else "regular" for name in names}
            rows = [{"path": x, "uploadMode": modes[x], "shouldIgnore": False} for x in names]
            self._json({"files": rows})
        elif path.endswith(".git/info/lfs/objects/batch"):
            objects = json.loads(body)["objects"]
            for item in objects:
                where = f"{self.hub.address}/large/{item['oid']}"
                item["actions"] = {"upload": {"href": where}}
            self._json({"transfer": "basic", "objects": objects})
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main", path):
            rows = [json.loads(line) for line in body.splitlines()]
            files = {
                row["value"]["path"]: base64.b64decode(row["value"]["content"])
                for row in rows
                if row["key"] == "file"
            }
            for row in rows:
                if row["key"] == "lfsFile":
                    content = self.hub.large[row["value"]["oid"]]
                    assert hashlib.sha256(content).hexdigest() == row["value"]["oid"]
                    files[row["value"]["path"]] = content
            oid = self.hub.commit(match[1], files)
            url = f"{self.hub.address}/{match[1]}/commit/{oid}"
            self._json({"success": True, "commitOid": oid, "commitUrl": url})
        else:
            self._missing("EntryNotFound")


@contextmanager
def hub_on_loopback() -> Generator[StandIn]:
    """A stand-in that answers on a port of its own."""
    hub = StandIn()
    handler = type("Answers", (_Answers,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def point_at(hub: StandIn, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Have the hub's client ask a stand-in, with a token, and keep its caches in a folder."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub-cache"))
    template = f"{hub.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("MECHASSAY_CACHE", str(folder / "cache"))
