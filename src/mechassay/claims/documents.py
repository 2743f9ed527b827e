"""Documents as pages of text, and the passages that quotes are.

Text of a PDF is that of pypdf (`pip install 'mechassay[pdf]'`), page by page, up to a limit that is
said. Text and Markdown files are one page, or several with form feeds between them.

A quote is found exactly; or normalised: Unicode's compatible forms (NFKC, so that "ﬁ" is "fi"),
runs of white space as one space, a hyphen at a line's end as a hyphen or nothing; or loosely, by
letters and digits alone, where every digit and every negation must be the same and in its place.
Nothing else is found: a quote with another digit is no quote.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Literal

from mechassay.claims.judgments import SourceDocument
from mechassay.display import OneLine
from mechassay.errors import BadFile, MissingExtra, first_line
from mechassay.files import check_ending

PDF = ".pdf"
TEXT = (".txt", ".md")
MOST_PAGES = 50
"""Pages of a PDF that are read, as in Tower (2026)."""
Match = Literal["exact", "normalised", "loose", "none"]
BREAK = "\ue000"
"""Stands for a hyphen at a line's end."""
_BREAKS = re.compile(r"[-‐\u00ad\ufffe]\s*\n\s*|\ufffe|\u00ad")
_NUMBERS = re.compile(r"\d+(?:[.,]\d+)*")
_NEGATIONS = re.compile(r"\b(?:not|no|never|none|nor|neither|cannot|without|\w+n[’']t)\b", re.I)


@dataclass(frozen=True, repr=False)
class PagedDocument(OneLine):
    """The text of a document, page by page.

    Attributes:
        n_pages: of the file; more than there are texts if it was cut.
    """

    name: str
    sha256: str
    pages: tuple[str, ...]
    n_pages: int
    title: str = ""

    @property
    def source(self) -> SourceDocument:
        """What judgments store of it."""
        return SourceDocument(
            sha256=self.sha256, name=self.name, title=self.title, n_pages=self.n_pages
        )

    @cached_property
    def normal(self) -> tuple[str, ...]:
        """The pages, normalised."""
        return tuple(normalised(page) for page in self.pages)

    @cached_property
    def skeletons(self) -> tuple[str, ...]:
        """Letters and digits of the pages."""
        return tuple(_skeleton(page) for page in self.normal)

    @cached_property
    def joined(self) -> tuple[str, str, str]:
        """All pages as one text, as it is, normalised, and its letters and digits."""
        whole = "\n".join(self.pages)
        return whole, normalised(whole), _skeleton(normalised(whole))


def read_document(path: str | Path, most: int = MOST_PAGES) -> PagedDocument:
    """The pages of a PDF, text or Markdown file.

    Args:
        most: pages of a PDF that are read.

    Raises:
        BadFile: it is not there, cannot be read, or has no text.
        BadUsage: it has another ending.
        MissingExtra: of a PDF, if pypdf is not installed.
    """
    path = check_ending(Path(path), PDF, *TEXT)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadFile(f"{path}: cannot be read ({first_line(error)}).") from None
    digest = hashlib.sha256(content).hexdigest()
    if path.suffix == PDF:
        pages, n_pages, title = _pdf(path, most)
    else:
        try:
            pages = tuple(content.decode("utf-8").split("\f"))
        except UnicodeDecodeError as error:
            raise BadFile(f"{path}: is not UTF-8 ({error.reason} at byte {error.start}).") from None
        n_pages, title = len(pages), ""
    if not any(page.strip() for page in pages):
        raise BadFile(f"{path}: has no text; a scanned document needs its characters recognised.")
    return PagedDocument(path.name, digest, pages, n_pages, title)


def _pdf(path: Path, most: int) -> tuple[tuple[str, ...], int, str]:
    try:
        pypdf = import_module("pypdf")
    except ImportError:
        raise MissingExtra(f"Reading {path.name}", "pypdf", "pdf") from None
    try:
        reader = pypdf.PdfReader(path)
        pages = tuple(page.extract_text() for page in reader.pages[:most])
        title = str((reader.metadata or {}).get("/Title") or "")
        return pages, len(reader.pages), title
    except (pypdf.errors.PyPdfError, ValueError, KeyError, OSError, RecursionError) as error:
        raise BadFile(f"{path}: is no PDF that can be read ({first_line(error)}).") from None


# Quotes


@dataclass(frozen=True)
class QuoteMatch:
    """How a quote was found, and on which page; 0 if on none, or across two."""

    match: Match
    page: int = 0


def find_quote(document: PagedDocument, exact: str) -> QuoteMatch:
    """Where a document has a quote: exactly, normalised, loosely, or not.

    An empty quote, or one without a letter or digit, is nowhere.
    """
    if not _skeleton(normalised(exact)):
        return QuoteMatch("none")
    # Pages first; what runs over the end of a page is found in all of them as one text.
    whole, normal, bones = document.joined
    for number, page in enumerate((*document.pages, whole), start=1):
        if exact in page:
            return QuoteMatch("exact", _page(document, number))
    pattern = _pattern(exact)
    for number, page in enumerate((*document.normal, normal), start=1):
        if pattern.search(page):
            return QuoteMatch("normalised", _page(document, number))
    skeleton = _skeleton(normalised(exact))
    for number, page in enumerate((*document.skeletons, bones), start=1):
        text = (*document.normal, normal)[number - 1]
        if skeleton in page and _loosely(skeleton, exact, text):
            return QuoteMatch("loose", _page(document, number))
    return QuoteMatch("none")


def _page(document: PagedDocument, number: int) -> int:
    return number if number <= len(document.pages) else 0


def normalised(text: str) -> str:
    """NFKC, one space for white space, `BREAK` for a hyphen at a line's end."""
    text = unicodedata.normalize("NFKC", _BREAKS.sub(BREAK, text))
    return " ".join(text.replace("‐", "-").replace("‑", "-").split())


def _pattern(quote: str) -> re.Pattern[str]:
    """The normalised quote; between its characters may stand a line's end."""
    parts: list[str] = []
    for character in normalised(quote):
        if character in f"-{BREAK}":
            parts.append(f"(?:-|{BREAK})" if character == "-" else f"(?:-|{BREAK})?")
        elif character == " ":
            parts.append(" ")
        else:
            parts.append(re.escape(character))
    return re.compile(f"{BREAK}?".join(parts))


def _skeleton(text: str) -> str:
    return "".join(character for character in text.casefold() if character.isalnum())


def _marks(text: str) -> tuple[list[str], list[str]]:
    """The negations and the numbers of a text, which no other may stand for."""
    text = normalised(text)
    negations = [word.casefold().replace("’", "'") for word in _NEGATIONS.findall(text)]
    return negations, _NUMBERS.findall(text)


def _loosely(skeleton: str, quote: str, text: str) -> bool:
    """Whether a passage with these letters has the negations and the numbers of the quote."""
    places = [place for place, character in enumerate(text) for _ in _skeleton(character)]
    bones = _skeleton(text)
    begin = bones.find(skeleton)
    while begin >= 0 and len(places) == len(bones):
        passage = text[places[begin] : places[begin + len(skeleton) - 1] + 1]
        if _marks(passage) == _marks(quote):
            return True
        begin = bones.find(skeleton, begin + 1)
    return False
