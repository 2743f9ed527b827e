"""Documents as pages of text: papers and posts from files and from the web.

PDF files are read as `pdf_text` says, web pages as `web_text` says. Text and Markdown files are one
page, or several with form feeds between them. What a reader cannot see is cut and reported; visible
orders to a reviewer stay and are flagged (`reviewer_orders`).

An id can be wrong. The title that is expected (the caller's, else the registry's) has to be the
registry's, and has to stand on the first page, letter by letter but for case and spaces.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mechassay.claims.download import ANSWERS, Web
from mechassay.claims.file_text import NO_TEXT, FileText
from mechassay.claims.hidden_text import (
    HiddenText,
    merged,
    without_shapeless,
)
from mechassay.claims.judgments import SourceDocument
from mechassay.claims.markdown_text import markdown_text
from mechassay.claims.normal_text import normalised, skeleton
from mechassay.claims.pdf_text import EXTRACTORS, Extractor, pdf_text
from mechassay.claims.reviewer_orders import ReviewerOrder, find_orders
from mechassay.claims.sources import Registries, paper_source, title_in
from mechassay.claims.web_text import web_text
from mechassay.display import OneLine
from mechassay.errors import BadFile, BadUsage, first_line, one_of

PDF = ".pdf"
HTML = (".html", ".htm")
TEXT = (".txt", ".md")
ENDINGS = (PDF, *HTML, *TEXT)


@dataclass(frozen=True, repr=False)
class PagedDocument(OneLine):
    """The text of a document, page by page.

    Attributes:
        n_pages: of the file; more than there are texts if it was cut.
        title: found: the registry's of an id, else the one that can be seen.
        origin: where it is from, such as "arxiv:2211.00593".
        extractor: what read it, with its version.
        expected: the title that it should have; "" if none is known.
        title_agrees: whether it has that title; None if none is expected.
        hidden: text that was cut, as a reader cannot see it.
        orders: visible passages that give a reader orders.
    """

    name: str
    sha256: str
    pages: tuple[str, ...]
    n_pages: int
    title: str = ""
    origin: str = ""
    extractor: str = "text"
    expected: str = ""
    title_agrees: bool | None = None
    hidden: tuple[HiddenText, ...] = ()
    orders: tuple[ReviewerOrder, ...] = ()

    @property
    def source(self) -> SourceDocument:
        """What judgments store of it."""
        return SourceDocument(
            sha256=self.sha256, name=self.name, title=self.title, n_pages=self.n_pages
        )

    @cached_property
    def pieces(self) -> tuple[tuple[str, ...], ...]:
        """Of each page, the parts between its flagged passages, which support something."""
        found: list[tuple[str, ...]] = []
        for number, page in enumerate(self.pages, start=1):
            begin, parts = 0, list[str]()
            for order in self.orders:
                if order.page == number:
                    parts.append(page[begin : order.begin])
                    begin = order.end
            found.append((*parts, page[begin:]))
        return tuple(found)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader should know of it, a line each."""
        said: list[str] = []
        if self.n_pages > len(self.pages):
            said.append(f"{len(self.pages)} of {self.n_pages} pages were read")
        if self.title_agrees is False:
            said.append(title_fault(self))
        if self.hidden:
            n = sum(each.n for each in self.hidden)
            first = self.hidden[0]
            said.append(
                f"{n:,} hidden characters were cut, first on page {first.page} ({first.reason}):"
                f" {first.text!r}"
            )
        said += [
            f"page {each.page} gives a reader orders ({each.kind}); quotes from there support"
            f" nothing: {' '.join(each.text.split())!r}"
            for each in self.orders
        ]
        return tuple(f"{self.name}: {each}" for each in said)

    def to_json(self) -> dict[str, Any]:
        """What a judge reads, and what it does not, as plain values."""
        return {
            "format": 1,
            "name": self.name,
            "source": self.origin,
            "sha256": self.sha256,
            "extractor": self.extractor,
            "title": self.title,
            "expected_title": self.expected,
            "title_agrees": self.title_agrees,
            "n_pages": self.n_pages,
            "n_pages_read": len(self.pages),
            "hidden": [vars(each) for each in self.hidden],
            "orders": [vars(each) for each in self.orders],
            "pages": list(self.pages),
        }


def read_document(
    named: str | Path,
    most: int | None = None,
    *,
    extractor: Extractor = "pdfium",
    title: str = "",
    web: Web | None = None,
    registries: Registries | None = None,
) -> PagedDocument:
    """The pages of a paper or post.

    Args:
        named: an id, an address or a file; see `sources`.
        most: pages of a PDF that are read; all if not given.
        extractor: of PDF files: "pdfium", or "paper", which reads 50 pages with pypdf.
        title: that it should have; the registry's of an id if not given.
        web: how it is downloaded.
        registries: other addresses of arXiv and OpenReview.

    Raises:
        BadFile: it is not there, cannot be had or read, or has no text that can be seen.
        BadUsage: it has another ending, or an address that is not to be asked.
        MissingExtra: what reads it is not installed.
    """
    one_of("extractor", extractor, EXTRACTORS)
    source, web = paper_source(named, registries), web or Web()
    registered = ""
    if source.titles:
        answer = web.get(source.titles, ANSWERS)
        registered = title_in(source, answer.read_bytes())
    path = Path(source.address) if source.kind == "file" else web.get(source.address)
    if path.suffix not in ENDINGS:
        raise BadUsage(f"{path}: is no document; files end in {' or '.join(ENDINGS)}.")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise BadFile(f"{path}: cannot be read ({first_line(error)}).") from None
    name = path.name if source.kind == "file" else source.id
    told = str(path) if source.kind == "file" else source.id
    read = _text(content, path.suffix, told, most, extractor)
    document = PagedDocument(
        name,
        hashlib.sha256(content).hexdigest(),
        read.pages,
        read.n_pages,
        registered or read.title,
        source.id,
        read.extractor,
        hidden=read.hidden,
        orders=find_orders(read.pages),
    )
    return _with_title(document, title or registered, read.title, registered)


def _text(
    content: bytes, ending: str, name: str, most: int | None, extractor: Extractor
) -> FileText:
    if ending == PDF:
        return pdf_text(content, name, most, extractor)
    if ending in HTML:
        return web_text(content, name)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadFile(f"{name}: is not UTF-8 ({error.reason} at byte {error.start}).") from None
    text, unseen = markdown_text(text) if ending == ".md" else (text, ())
    split = [without_shapeless(page, n) for n, page in enumerate(text.split("\f"), start=1)]
    pages = tuple(page for page, _ in split)
    if not any(page.strip() for page in pages):
        raise BadFile(f"{name}: {NO_TEXT}.")
    cut = merged([*unseen, *(each for _, found in split for each in found)])
    return FileText(pages, len(pages), hidden=cut)


# Titles


def _with_title(
    document: PagedDocument, expected: str, printed: str, registered: str
) -> PagedDocument:
    """The document with the title that it should have, and whether it has it."""
    wanted = skeleton(normalised(expected))
    if not wanted:
        return document
    seen = skeleton(normalised(f"{printed}\n{document.pages[0]}"))
    agrees = wanted in seen
    if registered:
        agrees = agrees and wanted == skeleton(normalised(registered))
    return replace(document, expected=expected, title_agrees=agrees)


def title_fault(document: PagedDocument) -> str:
    """What is wrong with a title, in a line."""
    return (
        f"should be {document.expected!r}, and its title is"
        f" {document.title or 'nowhere on its first page'!r}"
    )


def check_title(document: PagedDocument) -> PagedDocument:
    """The document, if it has the title that it should have.

    Raises:
        BadUsage: it has another, as that of a wrong id.
    """
    if document.title_agrees is False:
        raise BadUsage(f"{document.name}: {title_fault(document)}.")
    return document
