"""The text of a PDF, page by page, without what a reader cannot see.

`pdfium` (the default) reads with pypdfium2. Text objects that cannot be seen are removed from the
page before its text is taken, so that spaces and line ends are those of the page without them:
letters below 2 points, letters in the colour of what lies behind them (paper is white), letters
that are not painted (render modes 3 and 7) or are transparent, letters off the page, and letters
below an opaque rectangle that was drawn later. What lies behind is judged by boxes: letters that
are clipped away, or of a layer that is switched off, are not found. Columns are ordered by
`page_order`; a hyphen at a line's end stays, with the line's end.

`paper` reads as Tower (2026) does: pypdf, the first 50 pages, nothing hidden cut.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Literal, NamedTuple

from mechassay.claims.hidden_text import (
    SMALLEST,
    HiddenText,
    hidden,
    merged,
    same_colour,
    without_shapeless,
)
from mechassay.claims.page_order import PageLine, page_text, title_of
from mechassay.errors import BadFile, MissingExtra, first_line

Extractor = Literal["pdfium", "paper"]
EXTRACTORS: tuple[Extractor, ...] = ("pdfium", "paper")
PAPER_PAGES = 50
"""Pages that the extractor `paper` reads."""
WHITE = (255, 255, 255)
FAINTEST = 12
"""Of 255: paint that covers less is transparent."""
HYPHEN = 2
"""PDFium's code for a hyphen at a line's end."""
GAP = 1.0
"""Heights of a letter; a wider gap in a row parts two lines."""
NO_TEXT = "has no text"
SCANNED = f"{NO_TEXT}; a scanned document needs its characters recognised"

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class FileText:
    """What a file says: its pages, its title, and what was cut.

    Attributes:
        n_pages: of the file, also of those that were not read.
        title: the one that can be seen; "" if none can be told.
        extractor: what read it, with its version.
    """

    pages: tuple[str, ...]
    n_pages: int
    title: str = ""
    extractor: str = "text"
    hidden: tuple[HiddenText, ...] = ()


def pdf_text(
    content: bytes, name: str, most: int | None = None, extractor: Extractor = "pdfium"
) -> FileText:
    """The text of a PDF.

    Args:
        name: for messages.
        most: pages that are read; all, or 50 of the extractor `paper`, if not given.

    Raises:
        BadFile: it is no PDF, needs a password, or has no text that can be seen.
        MissingExtra: what reads it is not installed.
    """
    if b"%PDF-" not in content[:1024]:
        raise BadFile(f"{name}: is no PDF; it begins with {content[:16]!r}.")
    read = _by_pypdf if extractor == "paper" else _by_pdfium
    return read(content, name, most)


# The extractor of the paper


def _by_pypdf(content: bytes, name: str, most: int | None) -> FileText:
    from io import BytesIO

    pypdf = _needed("pypdf", name)
    most = PAPER_PAGES if most is None else most
    try:
        reader = pypdf.PdfReader(BytesIO(content))
        # An empty password opens what is only protected against changes.
        if reader.is_encrypted and not reader.decrypt(""):
            raise _locked(name)
        pages = tuple(page.extract_text() for page in reader.pages[:most])
        title = str((reader.metadata or {}).get("/Title") or "")
        n_pages = len(reader.pages)
    except (pypdf.errors.PyPdfError, ValueError, KeyError, OSError, RecursionError) as error:
        raise BadFile(f"{name}: is no PDF that can be read ({first_line(error)}).") from None
    if not any(page.strip() for page in pages):
        raise BadFile(f"{name}: {SCANNED}.")
    told = f"pypdf {pypdf.__version__}, first {most} pages" + " (Tower 2026)" * (most == 50)
    return FileText(pages, n_pages, title, told)


# pypdfium2


def _by_pdfium(content: bytes, name: str, most: int | None) -> FileText:
    pdfium = _needed("pypdfium2", name)
    try:
        document = pdfium.PdfDocument(content)
    except pdfium.PdfiumError as error:
        if "password" in str(error).lower():
            raise _locked(name) from None
        raise BadFile(f"{name}: is no PDF that can be read ({first_line(error)}).") from None
    pages, cut, title = list[str](), list[HiddenText](), ""
    try:
        n_pages = len(document)
        for number in range(1, n_pages + 1 if most is None else min(n_pages, most) + 1):
            page = _PdfPage(document[number - 1], number, import_module("pypdfium2.raw"))
            lines = page.visible_lines()
            text, shapeless = without_shapeless(page_text(lines), number)
            pages.append(text)
            cut += [*page.cut, *shapeless]
            title = title_of(lines) if number == 1 else title
            page.page.close()
    except pdfium.PdfiumError as error:
        at = len(pages) + 1
        raise BadFile(f"{name}: page {at} cannot be read ({first_line(error)}).") from None
    finally:
        document.close()
    if not any(page.strip() for page in pages):
        raise BadFile(f"{name}: {_nothing_visible(cut)}.")
    version = getattr(import_module("pypdfium2.version"), "PYPDFIUM_INFO")
    return FileText(tuple(pages), n_pages, title, f"pypdfium2 {version}", merged(cut))


def _nothing_visible(cut: list[HiddenText]) -> str:
    n = sum(each.n for each in cut)
    if not n:
        return SCANNED
    return (
        f"has no text that can be seen; {n:,} characters lie hidden on its pages, as those of a"
        " scanned document do whose characters were recognised"
    )


class _PdfLetter(NamedTuple):
    """A character of a page: its code, its box, and the address of its text object."""

    code: int
    box: Box
    owner: int
    generated: bool


@dataclass
class _PdfShape:
    """Something that is drawn, in the order of drawing."""

    place: int
    kind: int
    handle: Any
    box: Box


@dataclass
class _PdfPage:
    """A page whose hidden text objects are removed, and what was cut."""

    page: Any
    number: int
    raw: Any
    cut: list[HiddenText] = field(default_factory=list[HiddenText])

    def visible_lines(self) -> list[PageLine]:
        """The lines of the page without its hidden text, in the order in which they were drawn."""
        # PDFium leaves out a text that lies on its copy: with one gone, the other may appear.
        while True:
            textpage = self.page.get_textpage()
            letters = list(self._letters(textpage.raw))
            shapes = self._shapes()
            reasons = self._reasons(letters, shapes)
            texts = {owner: shapes[owner].handle for owner in reasons}
            words = {owner: "" for owner in reasons}
            for letter in letters:
                if letter.owner in words:
                    words[letter.owner] += _character(letter.code)
            textpage.close()
            if not reasons:
                return lines_of(letters)
            for owner, reason in reasons.items():
                self.cut.append(hidden(reason, words[owner], self.number))
                self.page.remove_obj(texts[owner])

    def _letters(self, textpage: Any) -> Iterator[_PdfLetter]:
        raw, rect = self.raw, self.raw.FS_RECTF()
        nowhere: Box = (0.0, 0.0, 0.0, 0.0)
        for place in range(raw.FPDFText_CountChars(textpage)):
            code = raw.FPDFText_GetUnicode(textpage, place)
            if raw.FPDFText_IsGenerated(textpage, place) == 1:
                yield _PdfLetter(code, nowhere, 0, True)
                continue
            owner = _address(raw.FPDFText_GetTextObject(textpage, place))
            found = raw.FPDFText_GetLooseCharBox(textpage, place, rect)
            box = (rect.left, rect.bottom, rect.right, rect.top) if found else nowhere
            yield _PdfLetter(code, box, owner, False)

    def _shapes(self) -> dict[int, _PdfShape]:
        """Everything on the page by its address, in the order of drawing."""
        return {
            _address(each.raw): _PdfShape(place, each.type, each, self._box(each))
            for place, each in enumerate(self.page.get_objects())
        }

    def _box(self, shape: Any) -> Box:
        """The box of an object on the page; of one in a form, the form's matrix is applied."""
        left, bottom, right, top = shape.get_bounds()
        holder = shape.container
        while holder is not None:
            matrix = holder.get_matrix()
            corners = [matrix.on_point(x, y) for x in (left, right) for y in (bottom, top)]
            left, right = min(x for x, _ in corners), max(x for x, _ in corners)
            bottom, top = min(y for _, y in corners), max(y for _, y in corners)
            holder = holder.container
        return left, bottom, right, top

    def _reasons(self, letters: list[_PdfLetter], shapes: dict[int, _PdfShape]) -> dict[int, str]:
        """Why text objects cannot be seen; those that can are not in it."""
        boxes: dict[int, Box] = {}
        heights: dict[int, float] = {}
        for letter in letters:
            if not letter.generated and letter.owner in shapes:
                left, bottom, right, top = letter.box
                if letter.owner in boxes:
                    box = boxes[letter.owner]
                    left, bottom = min(left, box[0]), min(bottom, box[1])
                    right, top = max(right, box[2]), max(top, box[3])
                boxes[letter.owner] = left, bottom, right, top
                # Letters may be turned: the longer side is the height of most.
                side = max(letter.box[2] - letter.box[0], letter.box[3] - letter.box[1])
                heights[letter.owner] = max(heights.get(letter.owner, 0.0), side)
        paper: Box = self.page.get_bbox()
        others = [each for each in shapes.values() if each.kind != self.raw.FPDF_PAGEOBJ_TEXT]
        found = {
            owner: self._reason(shapes[owner], box, heights[owner], paper, others)
            for owner, box in boxes.items()
        }
        return {owner: reason for owner, reason in found.items() if reason}

    def _reason(
        self, text: _PdfShape, box: Box, height: float, paper: Box, others: list[_PdfShape]
    ) -> str:
        raw = self.raw
        mode = raw.FPDFTextObj_GetTextRenderMode(text.handle)
        if mode in (raw.FPDF_TEXTRENDERMODE_INVISIBLE, raw.FPDF_TEXTRENDERMODE_CLIP):
            return "not painted"
        if not _overlap(box, paper):
            return "off the page"
        if height < SMALLEST:
            return f"smaller than {SMALLEST:g} points"
        for each in others:
            if each.place > text.place and self._covers(each, box):
                return "covered"
        stroked = mode in (raw.FPDF_TEXTRENDERMODE_STROKE, raw.FPDF_TEXTRENDERMODE_STROKE_CLIP)
        colour = self._colour(text.handle, stroked)
        if colour is None:
            return ""
        if colour[3] <= FAINTEST:
            return "transparent"
        behind = self._behind(text, box, others)
        if behind is None or not same_colour(colour, behind):
            return ""
        return "white on white" if same_colour(behind, WHITE) else "the colour of what is behind it"

    def _colour(self, shape: Any, stroked: bool = False) -> tuple[int, int, int, int] | None:
        """Red, green, blue and opacity to 255; None if it is a pattern."""
        parts = [ctypes.c_uint() for _ in range(4)]
        raw = self.raw
        get = raw.FPDFPageObj_GetStrokeColor if stroked else raw.FPDFPageObj_GetFillColor
        if not get(shape, *parts):
            return None
        red, green, blue, opacity = (each.value for each in parts)
        return red, green, blue, opacity

    def _behind(
        self, text: _PdfShape, box: Box, others: list[_PdfShape]
    ) -> tuple[int, int, int, int] | tuple[int, int, int] | None:
        """The colour behind a text; None if it is a picture's."""
        middle = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
        behind: tuple[int, ...] | None = WHITE
        for each in others:
            if each.place > text.place or not _holds(each.box, (*middle, *middle)):
                continue
            if each.kind == self.raw.FPDF_PAGEOBJ_PATH:
                colour = self._colour(each.handle) if self._filled(each) else (0, 0, 0, 0)
                if colour is None or colour[3] > FAINTEST:
                    behind = colour
            elif each.kind in (self.raw.FPDF_PAGEOBJ_IMAGE, self.raw.FPDF_PAGEOBJ_SHADING):
                behind = None
        return behind  # pyright: ignore[reportReturnType] - three or four numbers

    def _filled(self, path: _PdfShape) -> bool:
        mode, stroked = ctypes.c_int(), ctypes.c_int()
        return bool(self.raw.FPDFPath_GetDrawMode(path.handle, mode, stroked) and mode.value)

    def _covers(self, shape: _PdfShape, box: Box) -> bool:
        """Whether an opaque rectangle lies over a whole box."""
        raw = self.raw
        if shape.kind != raw.FPDF_PAGEOBJ_PATH or not _holds(shape.box, box):
            return False
        if raw.FPDFPath_CountSegments(shape.handle) not in (4, 5) or not self._filled(shape):
            return False
        colour = self._colour(shape.handle)
        opaque = colour is not None and colour[3] >= 255 - FAINTEST
        return opaque and not raw.FPDFPageObj_HasTransparency(shape.handle)


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _holds(outer: Box, inner: Box) -> bool:
    within = outer[0] <= inner[0] and inner[2] <= outer[2]
    return within and outer[1] <= inner[1] and inner[3] <= outer[3]


def _character(code: int) -> str:
    return "-" if code == HYPHEN else chr(code)


# Lines


def lines_of(letters: list[_PdfLetter]) -> list[PageLine]:
    """Letters as lines: ended where PDFium ends them, at a hyphen it knows, and at wide gaps."""
    lines: list[PageLine] = []
    text, boxes, goes_on = "", list[Box](), False

    def end(next_goes_on: bool) -> None:
        nonlocal text, boxes, goes_on
        if boxes:
            lines.append(_line(text, boxes, goes_on))
            goes_on = next_goes_on
        text, boxes = "", []

    for letter in letters:
        if letter.code in (10, 13):
            end(False)
        elif letter.generated or letter.code == 32:
            text += " " if boxes else ""
        else:
            if boxes and _apart(boxes[-1], letter.box):
                end(True)
            text += _character(letter.code)
            boxes.append(letter.box)
            if letter.code == HYPHEN:
                end(False)
    end(False)
    return lines


def _line(text: str, boxes: list[Box], goes_on: bool) -> PageLine:
    left, bottom, right, top = zip(*boxes, strict=True)
    size = sum(top[n] - bottom[n] for n in range(len(boxes))) / len(boxes)
    # PDFium gives letters beyond Unicode's first plane in two halves.
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return PageLine(text.strip(), min(left), min(bottom), max(right), max(top), size, goes_on)


def _apart(before: Box, after: Box) -> bool:
    """Whether two letters stand in one row, with a wide gap between them."""
    height = max(before[3] - before[1], after[3] - after[1])
    in_row = before[1] < after[3] and after[1] < before[3]
    gap = after[0] - before[2]
    return in_row and (gap > GAP * height or gap < -3 * height)


# What is missing


def _needed(package: str, name: str) -> Any:
    try:
        return import_module(package)
    except ImportError:
        raise MissingExtra(f"Reading {name}", package, "pdf") from None


def _locked(name: str) -> BadFile:
    return BadFile(f"{name}: is encrypted and needs a password; save it without one.")
