"""Documents as pages of text: papers and posts from files and from the web.

    PDF         its pages, as `pdf_text` reads them
    web page    its article as one page, see `web_text`
    Markdown    without what its page would not show (`markdown_text`)
    text        as it is

Text and Markdown files are one page, or several with form feeds between them. What a reader
cannot see is cut and reported. Visible orders to a reviewer stay and are flagged
(`find_orders`).

An id can be wrong, so titles are compared. The expected title is the caller's, else the
registry's. It has to stand on the first page, letter by letter but for case and spaces. Where a
registry knows the title, the expected one also has to be the registry's.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

from mechassay.claims.document import (
    HiddenText,
    PagedDocument,
    find_orders,
    hidden,
    merged,
    normalised,
    skeleton,
    title_fault,
    without_shapeless,
)
from mechassay.documents import EXTRACTORS, Extractor
from mechassay.documents.download import ANSWERS, Registries, Web, paper_source, title_in
from mechassay.documents.pdf import NO_TEXT, FileText, pdf_text
from mechassay.documents.web import (
    Style,
    TextLook,
    declared,
    looks_within,
    reason_of,
    unseen_because,
    web_text,
    with_values,
)
from mechassay.errors import BadFile, BadUsage, first_line, one_of
from mechassay.utils.arguments import checked

VOID = ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr")
NEVER = ("template", "noscript", "script", "style", "title", "iframe", "canvas")
"""Elements whose text no browser shows as text."""
_COMMENT = re.compile(r"<!--(.*?)-->|^[ \t>]{0,8}<!--(.*)", re.S | re.M)
_LABEL = r"\[(?!\^)(?:[^\[\]\\]|\\.)+\]:"
_TITLE = (
    r"\"(?:(?!\n[ \t]*\n)(?:[^\"\\]|\\.))*\"|'(?:(?!\n[ \t]*\n)(?:[^'\\]|\\.))*'"
    r"|\((?:(?!\n[ \t]*\n)(?:[^()\\]|\\.))*\)"
)
_DEFINITION = re.compile(
    rf"^(?:[ \t]|>|[-*+][ \t]|\d+[.)][ \t])*({_LABEL}[ \t]*\n?[ \t]*(?:<[^<>\n]*>|[^\s<]\S*)"
    rf"(?:(?:[ \t]+|[ \t]*\n[ \t]*)(?:{_TITLE}))?)[ \t]*$\n?",
    re.M | re.S,
)
_EMPTY = re.compile(r"\n(?:[ \t]*\n){2,}")


def markdown_text(text: str) -> tuple[str, tuple[HiddenText, ...]]:
    """A Markdown text without what its page would not show, and what that was.

        comments      `<!-- ... -->`; one without an end hides the rest if it begins a line, and
                      is plain text elsewhere
        definitions   of links, such as `[//]: # (...)`: no page shows them; footnotes are shown
        elements      of HTML that are hidden by their attributes or their own style, and closed
                      `<details>` but for its summary; one without an end hides the rest

    All are cut in code as well, where a page shows them. Style sheets are not applied. Titles
    of links, and the text that stands for a picture, are left in.

    Several empty lines become one, so that what was cut leaves none.
    """
    text = text.replace("\r\n", "\n")
    comments = tuple(
        hidden("comment", words)
        for match in _COMMENT.finditer(text)
        if (words := match[1] or match[2] or "").strip()
    )
    text = _COMMENT.sub("", text)
    elements = _Elements(text)
    text = elements.seen()
    definitions = tuple(
        hidden("definition of a link", match[1]) for match in _DEFINITION.finditer(text)
    )
    text = _DEFINITION.sub("", text)
    return _EMPTY.sub("\n\n", text), (*comments, *elements.hidden_texts, *definitions)


class _Open(NamedTuple):
    """An element that has begun: its tag, and what its text inherits."""

    tag: str
    looks: list[TextLook]
    values: Style
    reason: str
    closed: bool = False


class _Elements(HTMLParser):
    """Finds the elements of a text, and keeps what is seen of it."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self.text = text
        self.starts = [0, *(match.end() for match in re.finditer("\n", text))]
        self.open = [_Open("", [TextLook()], {}, "")]
        self.kept: list[str] = []
        self.hidden_texts: list[HiddenText] = []
        self.at = 0

    def seen(self) -> str:
        """The text without what is hidden."""
        self.feed(self.text)
        self._upto(len(self.text))
        return "".join(self.kept)

    def _upto(self, end: int) -> None:
        """Keep or cut what stands between the last tag and a place."""
        part, self.at = self.text[self.at : end], max(self.at, end)
        if not self.open[-1].reason:
            self.kept.append(part)
        elif part.strip():
            self.hidden_texts.append(hidden(self.open[-1].reason, part))

    def _tag(self, size: int) -> None:
        """Go to the tag that is read now, and, if it is in hidden text, beyond it."""
        line, column = self.getpos()
        begin = self.starts[line - 1] + column
        self._upto(begin)
        if self.open[-1].reason:
            self.at = begin + size

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        size = len(self.get_starttag_text() or "")
        if tag in VOID:
            self._tag(size)
            return
        line, column = self.getpos()
        begin = self.starts[line - 1] + column
        self._upto(begin)
        self.open.append(self._inside(tag, {name: value or "" for name, value in attrs}))
        if self.open[-1].reason:
            self.at = begin + size  # What hides goes with what it hides.

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VOID:
            self._tag(len(self.get_starttag_text() or ""))
        else:
            self.handle_starttag(tag, attrs)  # `<p/>` begins an element in HTML.

    def handle_endtag(self, tag: str) -> None:
        line, column = self.getpos()
        begin = self.starts[line - 1] + column
        self._upto(begin)
        tags = [element.tag for element in self.open]
        self.at = (self.text.find(">", begin) + 1) or len(self.text)
        if not self.open[-1].reason:
            self.kept.append(self.text[begin : self.at])
        if tag in tags:
            del self.open[len(tags) - 1 - tags[::-1].index(tag) :]

    def _inside(self, tag: str, attributes: dict[str, str]) -> _Open:
        outer = self.open[-1]
        inline = attributes.get("style", "")
        styles = [*declared(inline), *declared(inline, important=True)]
        for name, meant in (("color", "color"), ("bgcolor", "background-color")):
            value = attributes.get(name, "").strip().lower()
            styles.insert(0, {meant: f"#{value}" if re.fullmatch("[0-9a-f]{6}", value) else value})
        given, values = with_values(
            [style for style in styles if any(style.values())], outer.values
        )
        looks = looks_within(outer.looks, given)
        closed = tag in ("details", "dialog") and "open" not in attributes
        reason = "not shown" if tag in NEVER else unseen_because(attributes, given)
        # Text of a closed element is hidden, and its summary is not.
        is_open = tag == "summary" and outer.closed
        gone = outer.reason if outer.reason not in _LOOKS and not is_open else ""
        reason = gone or reason or reason_of(looks) or ("closed" if closed else "")
        return _Open(tag, looks, values, reason, closed and not gone)


_LOOKS = ("visibility: hidden", "the colour of the background")
"""Reasons that an element inside may end."""


PDF = ".pdf"
HTML = (".html", ".htm")
TEXT = (".txt", ".md")
ENDINGS = (PDF, *HTML, *TEXT)


@checked
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
    label = str(path) if source.kind == "file" else source.id
    read = _text(content, path.suffix, label, most, extractor)
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
    cut = merged(
        [*unseen, *(hidden_text for _, hidden_texts in split for hidden_text in hidden_texts)]
    )
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


def check_title(document: PagedDocument) -> PagedDocument:
    """The document, if it has the title that it should have.

    Raises:
        BadUsage: it has another, as that of a wrong id.
    """
    if document.title_agrees is False:
        raise BadUsage(f"{document.name}: {title_fault(document)}.")
    return document
