"""Papers from the web: where a paper is, and its download into the user's cache.

    arxiv:2211.00593v1, 2211.00593, https://arxiv.org/abs/2211.00593     the PDF from arXiv
    openreview:NpsVSN6o4ul, https://openreview.net/forum?id=NpsVSN6o4ul  the PDF from OpenReview
    https://...                                                          what is there
    paper.pdf, post.html, paper.md, paper.txt                            a file

For an id, the address at which its registry says the title is known too (`PaperSource.titles`).

Only http and https are asked, for documents of known kinds, up to a size and a time. Redirects
are followed one by one. After 429 and 503 a download waits, as the answer says, and asks again,
twice at most.

Addresses of this machine and of its network are refused unless they are allowed. A name whose
address is allowed may have another address when it is looked up again (DNS rebinding). So the
host of each address is looked up once. All of its addresses have to be of the public internet
(`is_public`), and the connection is made to the very numbers that were checked, with the host's
name in the request and in TLS. Behind a proxy it is the proxy that looks names up.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, quote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass
from xml.etree import ElementTree

from mechassay.errors import BadFile, BadUsage, MissingExtra, first_line
from mechassay.models.weight_files import cache_folder
from mechassay.utils.arguments import checked
from mechassay.utils.files import write_bytes
from mechassay.version import __version__

SourceKind = Literal["arxiv", "openreview", "web", "file"]
_ARXIV = re.compile(r"(\d{4}\.\d{4,5}|[a-z-]+(?:\.[A-Z]{2})?/\d{7})(v\d+)?")
_OPENREVIEW = re.compile(r"[\w-]{6,40}")
_ATOM = "{http://www.w3.org/2005/Atom}"


@dataclass(frozen=True)
class Registries:
    """Where the registries of papers answer; tests and mirrors have other addresses."""

    arxiv: str = "https://arxiv.org"
    arxiv_titles: str = "https://export.arxiv.org"
    openreview: str = "https://openreview.net"
    openreview_titles: str = "https://api2.openreview.net"


@dataclass(frozen=True)
class PaperSource:
    """Where a paper is.

    Attributes:
        id: as it is told: "arxiv:2211.00593v1", the address, or the path.
        address: of the document; the path of a file.
        titles: address that says the title; "" if none does.
    """

    kind: SourceKind
    id: str
    address: str
    titles: str = ""


def paper_source(named: str | Path, registries: Registries | None = None) -> PaperSource:
    """Where a paper is, from how it was named.

    Raises:
        BadUsage: an id that none could be, or an address that is not of http or https.
    """
    text, at = str(named), registries or Registries()
    kind, colon, rest = text.partition(":")
    if isinstance(named, Path):
        return PaperSource("file", text, text)
    if colon and kind.lower() == "arxiv":
        return _arxiv(rest, at)
    if colon and kind.lower() == "openreview":
        return _openreview(rest, at)
    if "://" in text:
        return _address(text, at)
    if _ARXIV.fullmatch(text) and not Path(text).exists():
        return _arxiv(text, at)
    return PaperSource("file", text, text)


def _arxiv(text: str, at: Registries) -> PaperSource:
    name = text.strip().removesuffix(".pdf")
    match = _ARXIV.fullmatch(name)
    if not match:
        raise BadUsage(f"arXiv has no id {name!r}: they are like 2211.00593, 2211.00593v1.")
    return PaperSource(
        "arxiv",
        f"arxiv:{name}",
        f"{at.arxiv}/pdf/{name}",
        f"{at.arxiv_titles}/api/query?id_list={quote(name)}",
    )


def _openreview(text: str, at: Registries) -> PaperSource:
    name = text.strip()
    if not _OPENREVIEW.fullmatch(name):
        raise BadUsage(f"OpenReview has no id {name!r}: they are like NpsVSN6o4ul.")
    return PaperSource(
        "openreview",
        f"openreview:{name}",
        f"{at.openreview}/pdf?id={name}",
        f"{at.openreview_titles}/notes?id={name}",
    )


def _address(text: str, at: Registries) -> PaperSource:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadUsage(f"{text}: an address begins with http:// or https://, with a host.")
    host = parts.hostname.removeprefix("www.")
    if host in ("arxiv.org", "export.arxiv.org"):
        name = re.sub(r"^/(?:abs|pdf|html)/", "", parts.path).strip("/")
        if name != parts.path.strip("/") and _ARXIV.fullmatch(name.removesuffix(".pdf")):
            return _arxiv(name, at)
    named = parse_qs(parts.query).get("id", [""])[0]
    if host == "openreview.net" and _OPENREVIEW.fullmatch(named):
        return _openreview(named, at)
    return PaperSource("web", text, text)


# Titles


def title_in(source: PaperSource, content: bytes) -> str:
    """The title that a registry's answer holds.

    Raises:
        BadFile: the answer has none: the registry does not know the id, or says something else.
    """
    find: dict[str, Callable[[bytes], str]] = {"arxiv": _atom_title, "openreview": _note_title}
    try:
        title = find[source.kind](content)
    except (ElementTree.ParseError, ValueError, KeyError, TypeError, AttributeError):
        raise BadFile(f"{source.id}: the answer about its title is not understood.") from None
    if not title:
        raise BadFile(f"{source.id}: the registry knows no paper of this id.")
    return title


def _atom_title(content: bytes) -> str:
    if b"<!DOCTYPE" in content or b"<!ENTITY" in content:
        raise ValueError  # An entity can grow without end; arXiv's answers have none.
    entry = ElementTree.fromstring(content).find(f"{_ATOM}entry")
    if entry is None or "/api/errors" in (entry.findtext(f"{_ATOM}id") or ""):
        return ""
    return " ".join((entry.findtext(f"{_ATOM}title") or "").split())


def _note_title(content: bytes) -> str:
    notes = json.loads(content)["notes"]
    title = notes[0]["content"]["title"] if notes else ""
    return " ".join(str(title["value"] if isinstance(title, dict) else title).split())


_NAT64 = ipaddress.ip_network("64:ff9b::/96")
IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


@checked
def addresses_of(host: str, port: int) -> list[str]:
    """The addresses of a host, as this machine would ask them one after another.

    Raises:
        OSError: none is known.
    """
    addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(place[0]) for *_, place in addresses))


def is_public(address: str) -> bool:
    """Whether an address is one of the public internet.

    It is not if it is of this machine, its network, a link or a group. An IPv6 address that
    stands for an IPv4 one (mapped, 6to4, NAT64) is judged by that one.
    """
    place = ipaddress.ip_address(address.partition("%")[0])
    inner = _inner(place)
    if inner is not None:
        return is_public(str(inner))
    return place.is_global and not place.is_multicast


def _inner(place: IPAddress) -> ipaddress.IPv4Address | None:
    """The IPv4 address that an IPv6 one stands for, if it does."""
    if isinstance(place, ipaddress.IPv4Address):
        return None
    if place in _NAT64:
        return ipaddress.IPv4Address(int(place) & 0xFFFFFFFF)
    return place.ipv4_mapped or place.sixtofour


def is_proxied(scheme: str, host: str) -> bool:
    """Whether the environment has a proxy for an address: then it is the proxy that looks up."""
    proxies = getproxies()
    return bool(proxies.get(scheme) or proxies.get("all")) and not proxy_bypass(host)


KINDS = {
    "application/pdf": ".pdf",
    "application/x-pdf": ".pdf",
    "text/html": ".html",
    "application/xhtml+xml": ".html",
    "text/plain": ".txt",
    "text/markdown": ".md",
    "application/json": ".json",
    "application/atom+xml": ".xml",
    "application/xml": ".xml",
    "text/xml": ".xml",
}
DOCUMENTS = (".pdf", ".html", ".txt", ".md")
ANSWERS = (".json", ".xml")
"""Kinds in which registries answer."""
PORTS = {"http": 80, "https": 443}
REDIRECTS = 5
PATIENCE = 30.0
"""Seconds that a server's wish to wait is followed for at most."""
BUSY = (429, 503)


@dataclass(frozen=True)
class Web:
    """How papers are downloaded.

    Attributes:
        size: bytes of a document at most.
        seconds: that one may take, and that the server may be silent.
        local: whether addresses of this machine and its network are allowed.
        again: download what is in the cache once more.
        folder: of the cache; that of the package if not given.
        wait: waits for seconds.
        look_up: the addresses of a host and port.
    """

    size: int = 50_000_000
    seconds: float = 60.0
    local: bool = False
    again: bool = False
    folder: Path | None = None
    wait: Callable[[float], object] = time.sleep
    look_up: Callable[[str, int], Sequence[str]] = addresses_of

    def get(self, address: str, kinds: tuple[str, ...] = DOCUMENTS) -> Path:
        """The file that is at an address, in the cache.

        Raises:
            BadFile: it cannot be had, or is too large or of another kind; one line says which.
            BadUsage: its address, or one that it leads to, is not to be asked.
            MissingExtra: httpx2 is not installed.
        """
        folder = self.folder or cache_folder() / "papers"
        name = hashlib.sha256(address.encode()).hexdigest()[:24]
        kept = [folder / f"{name}{kind}" for kind in kinds]
        if not self.again:
            for path in kept:
                if path.is_file():
                    return path
        content, kind = self._asked(address, kinds)
        return write_bytes(folder / f"{name}{kind}", content)

    def _asked(self, address: str, kinds: tuple[str, ...]) -> tuple[bytes, str]:
        try:
            httpx = import_module("httpx2")
        except ImportError:
            raise MissingExtra(f"Downloading {address}", "httpx2", "papers") from None
        end = time.monotonic() + self.seconds
        try:
            return self._followed(httpx, address, kinds, end)
        except httpx.TimeoutException:
            raise BadFile(f"{address}: no answer within {self.seconds:g} s.") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            reason = first_line(error).rstrip(".")
            raise BadFile(f"{address}: cannot be reached ({reason}).") from None

    def _followed(
        self, httpx: Any, address: str, kinds: tuple[str, ...], end: float
    ) -> tuple[bytes, str]:
        at, redirects, waits = address, 0, 0
        while True:
            with self._answer(httpx, at, address) as answer:
                if answer.is_redirect:
                    redirects += 1
                    at = urljoin(at, answer.headers.get("location", ""))
                    if redirects > REDIRECTS:
                        raise BadFile(f"{address}: leads on more than {REDIRECTS} times.")
                    continue
                if answer.status_code in BUSY and waits < 2:
                    waits += 1
                    delay = answer.headers.get("retry-after", "")
                    pause = min(float(delay) if delay.isdigit() else 2.0 * waits, PATIENCE)
                else:
                    _check_status(address, answer.status_code)
                    return self._read(address, answer, kinds, end)
            self.wait(pause)
            end += pause

    @contextmanager
    def _answer(self, httpx: Any, at: str, address: str) -> Iterator[Any]:
        """What an address answers, from one of the numbers that its host was looked up to have."""
        url = httpx.URL(at)
        place = at if at == address else f"{address}: leads to {at}"
        if url.scheme not in ("http", "https") or not url.host:
            raise BadUsage(f"{place}: only addresses of http and https are downloaded.")
        host, proxied = url.raw_host.decode("ascii"), is_proxied(url.scheme, url.host)
        places = self._places(host, url.port or PORTS[url.scheme], place, proxied=proxied)
        # A client of its own, so that no cookie and no connection is shared by hosts of a number.
        direct = {} if proxied else {"mounts": {"http://": None, "https://": None}}
        agent = {"User-Agent": f"mechassay/{__version__}"}
        with httpx.Client(timeout=self.seconds, headers=agent, **direct) as client:
            if proxied:
                answer = client.send(client.build_request("GET", url), stream=True)
            else:
                answer = _from_places(httpx, client, url, places)
            with closing(answer):
                yield answer

    def _places(self, host: str, port: int, address_text: str, *, proxied: bool) -> Sequence[str]:
        """The addresses of a host, all of which may be asked."""
        try:
            places = self.look_up(host, port)
        except OSError:
            if not proxied:
                raise
            return ()
        for place in () if self.local else places:
            if not is_public(place):
                raise BadUsage(
                    f"{address_text}: is an address of this machine or its network ({place});"
                    " allow it with --local."
                )
        return places

    def _read(
        self, address: str, answer: Any, kinds: tuple[str, ...], end: float
    ) -> tuple[bytes, str]:
        length = answer.headers.get("content-length", "")
        if length.isdigit() and int(length) > self.size:
            raise self._too_large(address)
        content = bytearray()
        for part in answer.iter_bytes():
            content += part
            if len(content) > self.size:
                raise self._too_large(address)
            if time.monotonic() > end:
                raise BadFile(f"{address}: was not whole within {self.seconds:g} s.")
        media = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
        is_pdf = bytes(content[:1024]).find(b"%PDF-") >= 0
        # Servers that do not know a file's kind say that it is bytes.
        unknown = media in ("", "application/octet-stream", "binary/octet-stream")
        kind = ".pdf" if unknown and is_pdf else KINDS.get(media, "")
        if kind not in kinds:
            raise BadFile(
                f"{address}: is {media or 'of no declared kind'}; expected one of"
                f" {', '.join(name for name, kind in KINDS.items() if kind in kinds)}."
            )
        if kind == ".pdf" and not is_pdf:
            raise BadFile(
                f"{address}: says it is a PDF and is none; it begins with {bytes(content[:16])!r}."
            )
        return bytes(content), kind

    def _too_large(self, address: str) -> BadFile:
        return BadFile(f"{address}: is larger than {self.size / 1e6:,.0f} MB.")


def _from_places(httpx: Any, client: Any, url: Any, places: Sequence[str]) -> Any:
    """The answer of the first of a host's addresses that can be connected to."""
    extensions = {"sni_hostname": url.raw_host.decode("ascii")}
    for left, place in zip(reversed(range(len(places))), places, strict=True):
        request = client.build_request(
            "GET",
            url.copy_with(host=place),
            headers={"Host": url.netloc.decode("ascii")},
            extensions=extensions,
        )
        try:
            return client.send(request, stream=True)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            if not left:
                raise
    raise OSError("it has no address")


def _check_status(address: str, status: int) -> None:
    """Refuse an answer that is no document."""
    if status == 200:
        return
    why = {
        401: "asks who is there (401)",
        403: "refuses programs (403)",
        404: "has no such document (404)",
        410: "has no such document any more (410)",
        429: "is asked too often (429)",
        503: "is not available (503)",
    }.get(status, f"answers with the status {status}")
    raise BadFile(
        f"{address}: the site {why}; save the document with a browser, and name the file instead."
    )
