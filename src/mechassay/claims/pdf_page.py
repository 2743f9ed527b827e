"""A page of a PDF: what of its text cannot be seen, and its lines without that.

Text objects that cannot be seen are removed from the page before its text is taken, so that spaces
and line ends are those of the page without them:

    not painted      render modes 3 and 7
    off the page     no part of its box is on the page
    small            letters below 2 points, by their boxes on the page
    covered          below an opaque rectangle that was drawn later
    transparent      its paint covers less than 5 %
    white on white   or the colour of what lies behind it; paper is white

What lies behind is judged by boxes, and a picture has no colour. Letters that are clipped away, of
a layer that is switched off, or on a shape that is smaller than its box are not found.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mechassay.claims.hidden_text import SMALLEST, HiddenText, hidden, same_colour
from mechassay.claims.page_order import PageLine

WHITE = (255, 255, 255)
FAINTEST = 12
"""Of 255: paint that covers less is transparent."""
HYPHEN = 2
"""PDFium's code for a hyphen at a line's end."""
GAP = 1.0
"""Heights of a letter; a wider gap in a row parts two lines."""

Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in points from the page's lower left corner."""


class PdfLetter(NamedTuple):
    """A character of a page: its code, its box, and the address of its text object."""

    code: int
    box: Box
    owner: int
    generated: bool


@dataclass
class PdfShape:
    """Something that is drawn, in the order of drawing."""

    place: int
    kind: int
    handle: Any
    box: Box


@dataclass
class PdfPage:
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
                texts[owner].close()  # It is ours now, and may not outlive the document.

    def _letters(self, textpage: Any) -> Iterator[PdfLetter]:
        raw, rect = self.raw, self.raw.FS_RECTF()
        nowhere: Box = (0.0, 0.0, 0.0, 0.0)
        for place in range(raw.FPDFText_CountChars(textpage)):
            code = raw.FPDFText_GetUnicode(textpage, place)
            if raw.FPDFText_IsGenerated(textpage, place) == 1:
                yield PdfLetter(code, nowhere, 0, True)
                continue
            owner = _address(raw.FPDFText_GetTextObject(textpage, place))
            found = raw.FPDFText_GetLooseCharBox(textpage, place, rect)
            box = (rect.left, rect.bottom, rect.right, rect.top) if found else nowhere
            yield PdfLetter(code, box, owner, False)

    def _shapes(self) -> dict[int, PdfShape]:
        """Everything on the page by its address, in the order of drawing."""
        return {
            _address(each.raw): PdfShape(place, each.type, each, self._box(each))
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

    def _reasons(self, letters: list[PdfLetter], shapes: dict[int, PdfShape]) -> dict[int, str]:
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
        self, text: PdfShape, box: Box, height: float, paper: Box, others: list[PdfShape]
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
        self, text: PdfShape, box: Box, others: list[PdfShape]
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

    def _filled(self, path: PdfShape) -> bool:
        mode, stroked = ctypes.c_int(), ctypes.c_int()
        return bool(self.raw.FPDFPath_GetDrawMode(path.handle, mode, stroked) and mode.value)

    def _covers(self, shape: PdfShape, box: Box) -> bool:
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


def lines_of(letters: list[PdfLetter]) -> list[PageLine]:
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
