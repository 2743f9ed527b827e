"""Where a paper is: an arXiv or OpenReview id, an address on the web, or a file.

    arxiv:2211.00593v1, 2211.00593, https://arxiv.org/abs/2211.00593     the PDF from arXiv
    openreview:NpsVSN6o4ul, https://openreview.net/forum?id=NpsVSN6o4ul  the PDF from OpenReview
    https://...                                                          what is there
    paper.pdf, post.html, paper.md, paper.txt                            a file

Of an id, the registry is asked for the title too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, quote, urlsplit
from xml.etree import ElementTree

from mechassay.errors import BadFile, BadUsage

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
    found = _ARXIV.fullmatch(name)
    if not found:
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
