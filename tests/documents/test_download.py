"""Downloads: the cache, limits, redirects, waiting, and what is refused, from a server here."""

from __future__ import annotations

import socket
import sys
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from helpers.pdf import made_pdf, written
from helpers.web import Answer, Served, served
from mechassay.documents import download
from mechassay.documents.download import Web
from mechassay.errors import BadFile, BadUsage, MissingExtra

pytest.importorskip("httpx2")
PDF = made_pdf(written("A claim."))


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def web(tmp_path: Path) -> Web:
    return Web(local=True, folder=tmp_path / "cache", seconds=5.0, wait=lambda _: None)


def test_a_document_is_kept(web: Web) -> None:
    with served(p=Answer(PDF, "application/pdf")) as server:
        first, second = web.get(f"{server.address}/p"), web.get(f"{server.address}/p")
        assert first == second and first.suffix == ".pdf" and first.read_bytes() == PDF
        assert server.asked == ["/p"]
        Web(**{**vars(web), "again": True}).get(f"{server.address}/p")
        assert server.asked == ["/p", "/p"]


@pytest.mark.parametrize(
    ("answer", "ending"),
    [
        (Answer(b"<p>a</p>", "text/html; charset=utf-8"), ".html"),
        (Answer(b"a", "text/plain"), ".txt"),
        (Answer(b"# a", "text/markdown"), ".md"),
        (Answer(PDF, "application/octet-stream"), ".pdf"),
    ],
)
def test_kinds(web: Web, answer: Answer, ending: str) -> None:
    with served(p=answer) as server:
        assert web.get(f"{server.address}/p").suffix == ending


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(b"x", "image/png"), "is image/png; expected one of application/pdf"),
        (Answer(b"x", "application/octet-stream"), "is application/octet-stream"),
        (Answer(b"{}", "application/json"), "is application/json"),
        (Answer(b"<html>", "application/pdf"), "says it is a PDF and is none"),
        (Answer(b"x", status=403), r"refuses programs \(403\); save the document with a browser"),
        (Answer(b"x", status=404), r"no such document \(404\)"),
        (Answer(b"x", status=500), "status 500"),
        (Answer(b"x", status=429), "asked too often"),
        (Answer(b"x", headers={"Content-Length": "99000000"}), "larger than 50 MB"),
    ],
)
def test_what_is_no_document(web: Web, answer: Answer, said: str, tmp_path: Path) -> None:
    with served(p=answer) as server, pytest.raises(BadFile, match=said) as error:
        web.get(f"{server.address}/p")
    assert "\n" not in str(error.value) and not list(tmp_path.rglob("*.*"))


def test_too_often_is_waited_for(tmp_path: Path) -> None:
    waits: list[float] = []
    web = Web(local=True, folder=tmp_path, wait=waits.append)
    busy = Answer(b"", status=429, headers={"Retry-After": "7"})
    long = Answer(b"", status=503, headers={"Retry-After": "9999"})
    with served(p=[busy, long, Answer(PDF, "application/pdf")]) as server:
        web.get(f"{server.address}/p")
    assert waits == [7.0, 30.0]


def endless(handler: BaseHTTPRequestHandler) -> None:
    try:
        while True:
            handler.wfile.write(b"x" * 100_000)
    except OSError:
        pass


def slow(handler: BaseHTTPRequestHandler) -> None:
    try:
        for _ in range(200):
            handler.wfile.write(b"x")
            handler.wfile.flush()
            time.sleep(0.02)
    except OSError:
        pass


def silent(handler: BaseHTTPRequestHandler) -> None:
    time.sleep(1.0)


@pytest.mark.parametrize(
    ("answer", "size", "seconds", "said"),
    [
        (Answer(kind="text/plain", write=endless), 1_000_000, 5.0, "larger than 1 MB"),
        (Answer(kind="text/plain", write=slow), 1_000_000, 0.3, "was not whole within 0.3 s"),
        (
            Answer(kind="text/plain", headers={"Content-Length": "5"}, write=silent),
            1_000_000,
            0.2,
            "no answer within 0.2 s",
        ),
    ],
)
def test_limits(tmp_path: Path, answer: Answer, size: int, seconds: float, said: str) -> None:
    web = Web(size=size, seconds=seconds, local=True, folder=tmp_path)
    with served(p=answer) as server, pytest.raises(BadFile, match=said):
        web.get(f"{server.address}/p")
    assert not list(tmp_path.iterdir())


def test_redirects_are_followed_and_each_is_looked_at(web: Web) -> None:
    moved = Answer(status=302, headers={"Location": "/p"})
    with served(a=moved, p=Answer(PDF, "application/pdf")) as server:
        assert web.get(f"{server.address}/a").read_bytes() == PDF
    for location in ("file:///etc/passwd", "ftp://a.org/b"):
        moved = Answer(status=302, headers={"Location": location})
        with served(a=moved) as server, pytest.raises(BadUsage, match="leads to"):
            web.get(f"{server.address}/a")
    with served(a=Answer(status=302, headers={"Location": "/a"})) as server:
        with pytest.raises(BadFile, match="more than 5 times"):
            web.get(f"{server.address}/a")
        assert len(server.asked) == 6


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "localhost",
        "[::1]",
        "0.0.0.0",
        "10.1.2.3",
        "169.254.169.254",
        "[::ffff:127.0.0.1]",
        "2130706433",
    ],
)
def test_addresses_of_this_machine_are_refused(tmp_path: Path, host: str) -> None:
    with pytest.raises(BadUsage, match="of this machine or its network"):
        Web(folder=tmp_path).get(f"http://{host}:9/p")


# Names are looked up once, and what was looked at is what is asked


class Names:
    """Addresses by host; each is given out once, as a server of names that rebinds would."""

    def __init__(self, **places: list[list[str]]) -> None:
        self.places = {host.replace("_", "."): [*rows] for host, rows in places.items()}
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        return self.places[host].pop(0)


def port_of(server: Served) -> str:
    return server.address.rpartition(":")[2]


def test_the_address_that_was_looked_up_is_the_one_that_is_asked(tmp_path: Path) -> None:
    """Nobody but `Names` knows this host; a second look would be an error."""
    names = Names(paper_example=[["127.0.0.1"]])
    hosts: list[str] = []

    def told(handler: BaseHTTPRequestHandler) -> None:
        hosts.append(str(handler.headers["Host"]))
        handler.wfile.write(b"text")

    with served(p=Answer(kind="text/plain", write=told)) as server:
        web = Web(local=True, folder=tmp_path, look_up=names)
        assert web.get(f"http://paper.example:{port_of(server)}/p").read_bytes() == b"text"
        assert hosts == [f"paper.example:{port_of(server)}"] and names.asked == ["paper.example"]


def test_a_host_that_answers_here_the_second_time_is_not_asked_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look gives a public address, which is what is connected to: nobody is there."""
    names = Names(rebinding_example=[["203.0.114.1"], ["127.0.0.1"]])
    connected: list[str] = []

    def connect(place: tuple[str, int], *rest: object, **more: object) -> socket.socket:
        connected.append(place[0])
        raise ConnectionRefusedError("nobody is there")

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(BadFile, match="cannot be reached"):
        Web(folder=tmp_path, look_up=names).get("http://rebinding.example/p")
    assert connected == ["203.0.114.1"] and names.asked == ["rebinding.example"]


def test_tls_is_asked_for_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The certificate is held against the name, not against the address."""
    httpx = pytest.importorskip("httpx2")
    sent: list[tuple[str, str, str]] = []

    def send(self: object, request: Any, **rest: object) -> Any:
        host, name = request.headers["Host"], request.extensions["sni_hostname"]
        sent.append((str(request.url), host, name))
        content = {"content": b"x", "headers": {"Content-Type": "text/plain"}}
        return httpx.Response(200, request=request, **content)

    monkeypatch.setattr(httpx.Client, "send", send)
    places = [["203.0.114.1"]], [["2001:4860::1"]]
    names = Names(a_example=places[0], b_example=places[1])
    web = Web(folder=tmp_path, look_up=names)
    web.get("https://a.example/p?q=1")
    web.get("https://b.example:8443/p")
    assert sent == [
        ("https://203.0.114.1/p?q=1", "a.example", "a.example"),
        ("https://[2001:4860::1]:8443/p", "b.example:8443", "b.example"),
    ]


def test_the_next_address_of_a_host_is_tried(tmp_path: Path) -> None:
    names = Names(paper_example=[["127.0.0.2", "127.0.0.1"]])
    with served(p=Answer(b"text", "text/plain")) as server:
        web = Web(local=True, folder=tmp_path, look_up=names, seconds=5.0)
        assert web.get(f"http://paper.example:{port_of(server)}/p").read_bytes() == b"text"


@pytest.mark.parametrize("places", [["203.0.114.1", "127.0.0.1"], ["10.0.0.1"], ["239.1.2.3"]])
def test_all_addresses_of_a_host_have_to_be_public(tmp_path: Path, places: list[str]) -> None:
    with pytest.raises(BadUsage, match=rf"of this machine or its network \({places[-1]}\)"):
        Web(folder=tmp_path, look_up=Names(a_example=[places])).get("http://a.example/p")


def test_a_redirect_to_this_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first host is taken for a public one; where it leads is not."""
    monkeypatch.setattr(download, "is_public", lambda place: place == "127.0.0.1")
    names = Names(a_example=[["127.0.0.1"]], b_example=[["169.254.169.254"]])
    moved = Answer(status=302, headers={"Location": "http://b.example/meta"})
    with served(a=moved) as server:
        with pytest.raises(BadUsage, match=r"leads to http://b\.example/meta: .*169\.254"):
            Web(folder=tmp_path, look_up=names).get(f"http://a.example:{port_of(server)}/a")
        assert server.asked == ["/a"] and names.asked == ["a.example", "b.example"]


def test_cookies_stay_with_their_host(tmp_path: Path) -> None:
    """Two hosts of one address are two hosts."""
    names = Names(a_example=[["127.0.0.1"]], b_example=[["127.0.0.1"]])
    cookies: list[str | None] = []

    def told(handler: BaseHTTPRequestHandler) -> None:
        cookies.append(handler.headers["Cookie"])
        handler.wfile.write(b"text")

    with served(p=Answer(kind="text/plain", write=told)) as server:
        location = f"http://b.example:{port_of(server)}/p"
        headers = {"Location": location, "Set-Cookie": "secret=1; Path=/"}
        server.answers["/a"] = [Answer(status=302, headers=headers)]
        web = Web(local=True, folder=tmp_path, look_up=names)
        web.get(f"http://a.example:{port_of(server)}/a")
    assert cookies == [None]


def test_a_proxy_looks_names_up_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(host: str, port: int) -> list[str]:
        raise OSError("no such host")

    with served() as server:
        server.answers["http://paper.example/p"] = [Answer(b"text", "text/plain")]
        monkeypatch.setenv("http_proxy", server.address)
        web = Web(folder=tmp_path, look_up=nobody)
        assert web.get("http://paper.example/p").read_bytes() == b"text"
        assert server.asked == ["http://paper.example/p"]
        # What is known to be of this network is refused all the same.
        web = Web(folder=tmp_path, look_up=Names(in_example=[["10.0.0.1"]]))
        with pytest.raises(BadUsage, match=r"10\.0\.0\.1"):
            web.get("http://in.example/p")


@pytest.mark.parametrize("address", ["file:///etc/passwd", "ftp://a.org/b", "http:///p", "p"])
def test_only_http_is_asked(web: Web, address: str) -> None:
    with pytest.raises(BadUsage, match="only addresses of http and https"):
        web.get(address)


def test_no_network_is_one_line(web: Web) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(BadFile, match="cannot be reached") as error:
        web.get(f"http://127.0.0.1:{port}/p")
    assert "\n" not in str(error.value)
    with pytest.raises(BadFile, match="cannot be reached"):
        Web(folder=web.folder).get("http://no-such-host.invalid/p")


def test_the_extra_is_named(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(MissingExtra, match=r"mechassay\[papers\]"):
        web.get("http://127.0.0.1:9/p")
