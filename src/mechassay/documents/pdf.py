"""The text of a PDF, page by page: without what a reader cannot see, in the order of its columns.

    pdfium    the default: pypdfium2; hidden text is cut, and columns are ordered
    paper     as Tower (2026) reads: pypdf, the first 50 pages, nothing hidden is cut

With `pdfium`, text objects that cannot be seen are removed from the page before its text is
taken (`PdfPage`). So spaces and line ends are those of the page without them. The lines are then
read column by column (`in_order`). A hyphen at a line's end stays, with the line's end.

PDFium is asked directly, because pdfplumber tells neither render modes nor clip paths nor
opacity: to it, letters of six of the sixteen kinds of hidden text in the tests look like any
other.
"""

from __future__ import annotations

import codecs
import ctypes
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from io import BytesIO
from itertools import combinations, groupby, pairwise
from math import hypot, inf
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from mechassay.claims.document import (
    SMALLEST,
    HiddenText,
    hidden,
    merged,
    normalised,
    same_colour,
    skeleton,
    without_shapeless,
)
from mechassay.documents import Extractor
from mechassay.documents.layers import OFF_LAYER, mark_layers
from mechassay.errors import BadFile, MissingExtra, first_line

SIDE_BY_SIDE = 4
"""Lines with another beside them that make a page one of two columns."""
WIDE = 0.25
"""Share of the text's width that such a line has at least."""
MAX_OVERLAP = 2.0
"""Points by which a line may reach over the place between columns."""


@dataclass(frozen=True)
class PageLine:
    """A piece of a page's text and its box, in points from the page's lower left corner.

    Attributes:
        size: height of its letters, in points.
        goes_on: it stands in one row with the line before, behind a gap.
    """

    text: str
    left: float
    bottom: float
    right: float
    top: float
    size: float = 10.0
    goes_on: bool = False

    @property
    def middle(self) -> float:
        """Its height on the page."""
        return (self.bottom + self.top) / 2


def in_order(lines: Sequence[PageLine]) -> list[PageLine]:
    """The lines in the order in which they are read: as they were drawn, column by column.

    A line is a piece of text that was drawn without a wide gap. A page has two columns if
    enough wide lines stand side by side, left and right of one place; of several places, the
    one with the most such lines counts. It has three columns if there are two such places, and
    at least half as many lines have lines of both other columns beside them.

    Lines that cross a place, such as a title or a wide caption, cut the page into bands. A band
    is read column by column from the left. Within a column, lines keep the order in which they
    were drawn; this is right for columns drawn one by one and for lines drawn alternately. A
    page without such a place keeps the order of drawing throughout.

    More than three columns are not told apart. A table of two or three wide text columns looks
    like a page with columns.
    """
    places = between_columns(lines)
    if not places:
        return list(lines)
    across = len(places) + 1
    crossing = np.array([line.middle for line in lines if _column(line, places) == across])
    slack = np.array([line.size / 2 for line in lines])

    def key(n: int) -> tuple[int, int, int]:
        above = int((crossing > lines[n].middle + slack[n]).sum())
        return above, _column(lines[n], places), n

    return [lines[n] for n in sorted(range(len(lines)), key=key)]


def between_columns(lines: Sequence[PageLine]) -> tuple[float, ...]:
    """The places between columns, in points from the left: none, one of two columns, or two."""
    wide_enough = [line for line in lines if line.text.strip()]
    if len(wide_enough) < 2 * SIDE_BY_SIDE:
        return ()
    box = np.array(
        [(letter.left, letter.right, letter.bottom, letter.top) for letter in wide_enough]
    )
    left, right, bottom, top = box.T
    width = right.max() - left.min()
    wide = right - left >= WIDE * width
    beside = (bottom[:, None] < top[None]) & (bottom[None] < top[:, None])
    places = left.min() + width * np.linspace(0.3, 0.7, 81)
    before = [wide & (right <= place + MAX_OVERLAP) for place in places]
    after = [wide & (left >= place - MAX_OVERLAP) for place in places]
    two = [
        int(beside[own][:, other].any(axis=1).sum())
        for own, other in zip(before, after, strict=True)
    ]
    if max(two) < SIDE_BY_SIDE:
        return ()
    three: dict[tuple[int, int], int] = {}
    for a, b in combinations([n for n, count in enumerate(two) if 2 * count >= max(two)], 2):
        middle = after[a] & before[b]
        if middle.any():
            rows = beside[before[a]]
            both = rows[:, middle].any(axis=1) & rows[:, after[b]].any(axis=1)
            three[a, b] = int(both.sum())
    most = max(three.values(), default=0)
    if most >= SIDE_BY_SIDE and 2 * most >= max(two):
        # Places in one gap are as good as each other, whichever the other gap's is.
        firsts, seconds = zip(*(pair for pair, n in three.items() if n == most), strict=True)
        first, second = (sorted(set(gap)) for gap in (firsts, seconds))
        return float(places[first[len(first) // 2]]), float(places[second[len(second) // 2]])
    best = [n for n, count in enumerate(two) if count == max(two)]
    return (float(places[best[len(best) // 2]]),)


def _column(line: PageLine, places: Sequence[float]) -> int:
    """The column of a line, from the left; one more than the last if it lies across a place."""
    edges = [-np.inf, *places, np.inf]
    for column, (begin, end) in enumerate(pairwise(edges)):
        if line.left >= begin - MAX_OVERLAP and line.right <= end + MAX_OVERLAP:
            return column
    return len(places) + 1


def page_text(lines: Sequence[PageLine]) -> str:
    """The lines as text; those in one row, that follow each other as drawn, on one line."""
    parts: list[str] = []
    before: PageLine | None = None
    follows = {id(line): id(last) for last, line in pairwise(lines)}
    for line in in_order(lines):
        row = before is not None and line.goes_on and follows.get(id(line)) == id(before)
        if parts:
            parts.append(" " if row else "\n")
        parts.append(line.text.strip())
        before = line
    return "".join(parts)


def title_of(lines: Sequence[PageLine]) -> str:
    """The lines with the largest letters, which on a first page are the title; "" if none.

    The stamp of arXiv, written upwards, is left out, as are single letters.
    """
    visible = [
        line
        for line in lines
        if sum(character.isalpha() for character in line.text) >= 3
        and line.right - line.left > line.top - line.bottom
        and not line.text.lstrip().startswith("arXiv:")
    ]
    if not visible:
        return ""
    largest = max(line.size for line in visible)
    parts = [line.text.strip() for line in visible if line.size > 0.95 * largest]
    # A page in letters of one size has no title that could be told.
    return " ".join(parts) if len(parts) < min(6, len(visible)) else ""


WHITE = (255, 255, 255)
FAINTEST = 12
"""Of 255: paint that covers less is transparent."""
ACTUAL = "ActualText"
OFF, CLIPPED = "off the page", "clipped away"
LAYER = "on a layer that is off"
HYPHEN = 2
"""PDFium's code for a hyphen at a line's end."""
DEEPEST = 64
"""Forms inside each other that are looked through; PDFium draws fewer."""
GAP = 1.0
"""Heights of a letter; a wider gap in a row parts two lines."""

Box = tuple[float, float, float, float]
"""Left, bottom, right and top, in points from the page's lower left corner."""
EVERYWHERE: Box = (-inf, -inf, inf, inf)
NOWHERE: Box = (inf, inf, -inf, -inf)


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
    """A page whose hidden text objects are removed, and what was cut.

        layer            on a layer that is switched off (`documents.layers`)
        not painted      render modes 3 and 7
        off the page     no part of its box is on the page
        clipped away     no part of its box is inside the clip paths and forms around it
        small            letters below 2 points, in height or in width, by their boxes
        covered          below an opaque rectangle that was drawn later
        transparent      its paint covers less than 5 %
        white on white   or the colour of what lies behind it; paper is white

    Of a text object that is cut by the page or by a clip path, the letters whose middle is
    outside are left out.

    Text that marked content gives in the place of its letters (ActualText) is not used. It is
    reported where it differs from the letters. Text is cut if it lies inside more nested forms
    than are looked through.

    Clip paths and what lies behind are judged by boxes, and a picture has no colour. Letters on a
    shape that is smaller than its box are not found. Where layers could not be read, what is on
    any of them is cut.
    """

    page: Any
    number: int
    raw: Any
    layers_known: bool = True
    cut: list[HiddenText] = field(default_factory=list[HiddenText])

    def visible_lines(self) -> list[PageLine]:
        """The lines of the page without its hidden text, in the order in which they were drawn."""
        # Marks may go with what they say in the place of letters: layers come first.
        layered = {owner for owner, shape in self._shapes().items() if self._is_layered(shape)}
        stand_ins = self._without_stand_ins()
        # PDFium leaves out a text that lies on its copy: with one gone, the other may appear.
        while True:
            textpage = self.page.get_textpage()
            letters = list(self._letters(textpage.raw))
            shapes = self._shapes()
            reasons = self._reasons(letters, shapes, layered)
            texts = {owner: shapes[owner].handle for owner in reasons}
            words: dict[int, str] = {}
            for letter in letters:
                if not letter.generated:
                    words[letter.owner] = words.get(letter.owner, "") + _character(letter.code)
            textpage.close()
            self._tell_stand_ins(stand_ins, words)
            stand_ins = []
            if not reasons:
                return lines_of(self._reached(letters, shapes, words))
            for owner, reason in reasons.items():
                self.cut.append(hidden(reason, words[owner], self.number))
                self.page.remove_obj(texts[owner])
                texts[owner].close()  # It is ours now, and may not outlive the document.

    def _without_stand_ins(self) -> list[tuple[str, int]]:
        """Take ActualText from the page; what it said, and of which text objects."""
        shapes, marks = self._shapes(), list[tuple[str, int]]()
        for owner, shape in shapes.items():
            if shape.kind == self.raw.FPDF_PAGEOBJ_TEXT:
                marks += [(self._stand_in(mark), owner) for mark in self._marks(shape)]
        for shape in shapes.values():  # Text objects share marks: all are read before one goes.
            for mark in self._marks(shape):
                self.raw.FPDFPageObj_RemoveMark(shape.handle.raw, mark)
        return marks

    def _marks(self, shape: PdfShape) -> list[Any]:
        """The marked content of an object that declares ActualText."""
        raw, handle = self.raw, shape.handle.raw
        marks = [
            raw.FPDFPageObj_GetMark(handle, place)
            for place in range(raw.FPDFPageObj_CountMarks(handle))
        ]
        return [mark for mark in marks if ACTUAL in self._keys(mark)]

    def _keys(self, mark: Any) -> list[str]:
        get = self.raw.FPDFPageObjMark_GetParamKey
        n = self.raw.FPDFPageObjMark_CountParams(mark)
        return [self._wide(get, mark, place) for place in range(n)]

    def _name(self, mark: Any) -> str:
        return self._wide(self.raw.FPDFPageObjMark_GetName, mark)

    @staticmethod
    def _wide(get: Any, *of: Any) -> str:
        """A text that PDFium writes in UTF-16."""
        n = ctypes.c_ulong()
        get(*of, None, 0, n)
        name = (ctypes.c_ushort * (n.value // 2 + 1))()
        get(*of, name, n.value, n)
        return bytes(name)[: n.value].decode("utf-16-le", "replace").rstrip("\0")

    def _stand_in(self, mark: Any) -> str:
        """What the ActualText of a piece of marked content says."""
        get, n = self.raw.FPDFPageObjMark_GetParamBlobValue, ctypes.c_ulong()
        get(mark, ACTUAL.encode(), None, 0, n)
        text = (ctypes.c_ubyte * (n.value + 1))()
        get(mark, ACTUAL.encode(), text, n.value, n)
        letters = bytes(text)[: n.value]
        wide = letters[:2] in (codecs.BOM_UTF16_BE, codecs.BOM_UTF16_LE)
        return letters.decode("utf-16" if wide else "utf-8", "replace")

    def _tell_stand_ins(self, stand_ins: list[tuple[str, int]], words: dict[int, str]) -> None:
        """Report what ActualText said where the letters are others."""
        for text, pieces in groupby(stand_ins, key=itemgetter(0)):
            drawn = "".join(words.get(owner, "") for _, owner in pieces)
            plain = skeleton(normalised(text))
            if plain and plain != skeleton(normalised(drawn)):
                self.cut.append(hidden("in the place of other letters", text, self.number))

    def _reached(
        self, letters: list[PdfLetter], shapes: dict[int, PdfShape], words: dict[int, str]
    ) -> list[PdfLetter]:
        """Letters without those of text objects that cannot be looked at."""
        for owner in words.keys() - shapes.keys():
            self.cut.append(hidden("in too many forms", words[owner], self.number))
        reached = [letter for letter in letters if letter.generated or letter.owner in shapes]
        return self._inside(reached, shapes)

    def _inside(self, letters: list[PdfLetter], shapes: dict[int, PdfShape]) -> list[PdfLetter]:
        """Letters without those that the page or a clip path cuts off a text object."""
        paper: Box = self.page.get_bbox()
        owners = {letter.owner for letter in letters if not letter.generated}
        clips = {owner: self._clip(shapes[owner].handle) for owner in owners}
        kept, lost = list[PdfLetter](), dict[tuple[int, str], str]()
        for letter in letters:
            reason = ""
            if not letter.generated:
                off = not _holds(paper, _middle(letter.box))
                clipped = not _holds(clips[letter.owner], _middle(letter.box))
                reason = OFF if off else CLIPPED if clipped else ""
            if reason:
                key = letter.owner, reason
                lost[key] = lost.get(key, "") + _character(letter.code)
            else:
                kept.append(letter)
        self.cut += [hidden(reason, text, self.number) for (_, reason), text in lost.items()]
        return kept

    def _letters(self, textpage: Any) -> Iterator[PdfLetter]:
        raw, rect = self.raw, self.raw.FS_RECTF()
        nowhere: Box = (0.0, 0.0, 0.0, 0.0)
        for place in range(raw.FPDFText_CountChars(textpage)):
            code = raw.FPDFText_GetUnicode(textpage, place)
            if raw.FPDFText_IsGenerated(textpage, place) == 1:
                yield PdfLetter(code, nowhere, 0, True)
                continue
            owner = _address(raw.FPDFText_GetTextObject(textpage, place))
            has_box = raw.FPDFText_GetLooseCharBox(textpage, place, rect)
            box = (rect.left, rect.bottom, rect.right, rect.top) if has_box else nowhere
            yield PdfLetter(code, box, owner, False)

    def _shapes(self) -> dict[int, PdfShape]:
        """Everything on the page by its address, in the order of drawing."""
        return {
            _address(object.raw): PdfShape(place, object.type, object, self._box(object))
            for place, object in enumerate(self.page.get_objects(max_depth=DEEPEST))
        }

    def _box(self, shape: Any) -> Box:
        """The box of an object on the page; of one in a form, the form's matrix is applied."""
        box, holder = shape.get_bounds(), shape.container
        while holder is not None:
            box, holder = _moved(box, holder.get_matrix()), holder.container
        return box

    def _clip(self, shape: Any) -> Box:
        """What the clip paths of an object, and of the forms around it, leave of the page."""
        box, holder = self._own_clip(shape), shape.container
        while holder is not None:
            if box != EVERYWHERE:
                box = _moved(box, holder.get_matrix())
            box, holder = _common(box, self._own_clip(holder)), holder.container
        return box

    def _own_clip(self, shape: Any) -> Box:
        """The box that all clip paths of an object share, where the object is drawn."""
        raw, box = self.raw, EVERYWHERE
        clip = raw.FPDFPageObj_GetClipPath(shape.raw)
        for path in range(raw.FPDFClipPath_CountPaths(clip) if clip else 0):
            points: list[tuple[float, float]] = []
            for place in range(raw.FPDFClipPath_CountPathSegments(clip, path)):
                x, y = ctypes.c_float(), ctypes.c_float()
                segment = raw.FPDFClipPath_GetPathSegment(clip, path, place)
                if raw.FPDFPathSegment_GetPoint(segment, x, y):
                    points.append((x.value, y.value))
            box = _common(box, _around(points) if points else NOWHERE)
        return box

    def _is_layered(self, shape: PdfShape) -> bool:
        """Whether an object, or a form around it, is on a layer that is off."""
        raw, holder = self.raw, shape.handle
        while holder is not None:
            for place in range(raw.FPDFPageObj_CountMarks(holder.raw)):
                mark = raw.FPDFPageObj_GetMark(holder.raw, place)
                off = OFF_LAYER in self._keys(mark)
                if off or (not self.layers_known and self._name(mark) == "OC"):
                    return True
            holder = holder.container
        return False

    def _reasons(
        self, letters: list[PdfLetter], shapes: dict[int, PdfShape], layered: set[int]
    ) -> dict[int, str]:
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
        others = [
            shape
            for owner, shape in shapes.items()
            if shape.kind != self.raw.FPDF_PAGEOBJ_TEXT and owner not in layered
        ]
        owners = {
            owner: LAYER
            if owner in layered
            else self._reason(shapes[owner], box, heights[owner], paper, others)
            for owner, box in boxes.items()
        }
        return {owner: reason for owner, reason in owners.items() if reason}

    def _reason(
        self, text: PdfShape, box: Box, height: float, paper: Box, others: list[PdfShape]
    ) -> str:
        raw = self.raw
        mode = raw.FPDFTextObj_GetTextRenderMode(text.handle)
        if mode in (raw.FPDF_TEXTRENDERMODE_INVISIBLE, raw.FPDF_TEXTRENDERMODE_CLIP):
            return "not painted"
        if _is_empty(_common(box, paper)):
            return OFF
        if _is_empty(_common(box, self._clip(text.handle))):
            return CLIPPED
        if height * self._narrowness(text.handle) < SMALLEST:
            return f"smaller than {SMALLEST:g} points"
        for other_shape in others:
            if other_shape.place > text.place and self._covers(other_shape, box):
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

    def _narrowness(self, text: Any) -> float:
        """The shorter side of a letter as it is drawn, in shares of the longer, if it was square.

        A box is as wide or high as its letters are on one side, however flat they are drawn.
        """
        corners = [text.get_matrix().on_point(x, y) for x, y in ((0, 0), (1, 0), (0, 1))]
        holder = text.container
        while holder is not None:
            matrix = holder.get_matrix()
            corners = [matrix.on_point(x, y) for x, y in corners]
            holder = holder.container
        (x, y), across, up = corners[0], corners[1], corners[2]
        a, b, c, d = across[0] - x, across[1] - y, up[0] - x, up[1] - y
        longer = max(hypot(a, b), hypot(c, d))
        return abs(a * d - b * c) / longer**2 if longer else 0.0

    def _colour(self, shape: Any, stroked: bool = False) -> tuple[int, int, int, int] | None:
        """Red, green, blue and opacity to 255; None if it is a pattern."""
        parts = [ctypes.c_uint() for _ in range(4)]
        raw = self.raw
        get = raw.FPDFPageObj_GetStrokeColor if stroked else raw.FPDFPageObj_GetFillColor
        if not get(shape, *parts):
            return None
        red, green, blue, opacity = (channel.value for channel in parts)
        return red, green, blue, opacity

    def _behind(
        self, text: PdfShape, box: Box, others: list[PdfShape]
    ) -> tuple[int, int, int, int] | tuple[int, int, int] | None:
        """The colour behind a text; None if it is a picture's."""
        middle = ((box[0] + box[2]) / 2, (box[1] + box[3]) / 2)
        behind: tuple[int, ...] | None = WHITE
        for other_shape in others:
            if other_shape.place > text.place or not _holds(other_shape.box, (*middle, *middle)):
                continue
            if other_shape.kind == self.raw.FPDF_PAGEOBJ_PATH:
                colour = (
                    self._colour(other_shape.handle) if self._filled(other_shape) else (0, 0, 0, 0)
                )
                if colour is None or colour[3] > FAINTEST:
                    behind = colour
            elif other_shape.kind in (self.raw.FPDF_PAGEOBJ_IMAGE, self.raw.FPDF_PAGEOBJ_SHADING):
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


def _common(one: Box, other: Box) -> Box:
    """What two boxes share; of none, a box whose sides have changed places."""
    low = max(one[0], other[0]), max(one[1], other[1])
    return *low, min(one[2], other[2]), min(one[3], other[3])


def _is_empty(box: Box) -> bool:
    return box[0] >= box[2] or box[1] >= box[3]


def _around(points: Sequence[tuple[float, float]]) -> Box:
    across, up = zip(*points, strict=True)
    return min(across), min(up), max(across), max(up)


def _moved(box: Box, matrix: Any) -> Box:
    """The box around a box that a matrix moves; an empty one stays empty."""
    if _is_empty(box):
        return NOWHERE
    return _around([matrix.on_point(x, y) for x in box[::2] for y in box[1::2]])


def _middle(box: Box) -> Box:
    x, y = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2
    return x, y, x, y


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


NO_TEXT = "has no text"


@dataclass(frozen=True)
class FileText:
    """What a file says.

    Attributes:
        n_pages: of the file, also of those that were not read.
        title: the one that can be seen; "" if none can be told.
        extractor: what read it, with its version.
        hidden: what was cut, as a reader cannot see it.
    """

    pages: tuple[str, ...]
    n_pages: int
    title: str = ""
    extractor: str = "text"
    hidden: tuple[HiddenText, ...] = ()


def needed(module: str, name: str, extra: str) -> Any:
    """A module that reads a file of this name.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtra(f"Reading {name}", module.partition(".")[0], extra) from None


PAPER_PAGES = 50
"""Pages that the extractor `paper` reads."""
SCANNED = f"{NO_TEXT}; a scanned document needs its characters recognised"


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
    pypdf = needed("pypdf", name, "pdf")
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
    if skeleton(normalised(title)) not in skeleton(normalised(pages[0])):
        title = ""  # No reader sees it.
    how = f"pypdf {pypdf.__version__}, first {most} pages" + " (Tower 2026)" * (most == 50)
    return FileText(pages, n_pages, title, how)


# pypdfium2


def _by_pdfium(content: bytes, name: str, most: int | None) -> FileText:
    pdfium = needed("pypdfium2", name, "pdf")
    content, layers_known = mark_layers(content, needed("pypdf", name, "pdf"))
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
            raw = needed("pypdfium2.raw", name, "pdf")
            page = PdfPage(document[number - 1], number, raw, layers_known)
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
    version = needed("pypdfium2.version", name, "pdf").PYPDFIUM_INFO
    return FileText(tuple(pages), n_pages, title, f"pypdfium2 {version}", merged(cut))


def _nothing_visible(cut: list[HiddenText]) -> str:
    n = sum(hidden_text.n for hidden_text in cut)
    if not n:
        return SCANNED
    return (
        f"has no text that can be seen; {n:,} characters lie hidden on its pages, as those of a"
        " scanned document do whose characters were recognised"
    )


def _locked(name: str) -> BadFile:
    return BadFile(f"{name}: is encrypted and needs a password; save it without one.")
