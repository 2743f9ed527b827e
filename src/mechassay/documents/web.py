"""The text of a web page, without what a reader cannot see and without what stands around it.

Hidden elements are cut from the tree first:

    by style        their attributes, their own style, and the rules of `<style>` elements
    by their kind   comments, closed `<details>` but for its summary, and what is never text

One rule that hides is enough, whichever rule wins (`ways`). Rules under a condition, such as
`@media`, are tried one condition after the other, and all together. An element that a cut leaves
empty goes too. So trafilatura sees the page as it is without hidden text; it keeps the article
and drops menus and footers.

tinycss2 parses styles as browsers do (`sheet_rules`). Every notation that names red, green and
blue is known; colours by lightness (lab, oklch and the like) or in the space of another display
are not. A picture or gradient has no colour. Style sheets in files of their own are not loaded:
text that only such a sheet hides is kept.
"""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import import_module
from typing import Any, NamedTuple

import tinycss2
from tinycss2.color4 import parse_color

from mechassay.claims.document import (
    SMALLEST,
    HiddenText,
    hidden,
    merged,
    same_colour,
    without_shapeless,
)
from mechassay.documents.pdf import NO_TEXT, FileText, needed
from mechassay.errors import BadFile, first_line

CONDITIONS = ("media", "supports", "container")
UNWRAPPED = (*CONDITIONS, "layer", "scope")
_PAPER = re.compile(r"(?:only\s+)?(?:print|speech|aural|braille|embossed|tty)\b", re.I)


@dataclass(frozen=True)
class SheetRule:
    """What elements of a selector are told, under a condition ("" for none)."""

    selector: str
    declares: dict[str, str]
    condition: str = ""
    important: bool = False


@lru_cache(maxsize=4096)
def declared(text: str, important: bool = False) -> tuple[Mapping[str, str], ...]:
    """Declarations by their property: "color: red" is ({"color": "red"},).

    A browser ignores values that it does not know, so that of a property with several values any
    may count: each further one begins another dict.

    Args:
        important: those that are marked so, else the others.
    """
    return tuple(_declared(tinycss2.parse_blocks_contents(_tokens(text)), important))


def for_paper(query: str) -> bool:
    """Whether a media query holds for paper or speech alone."""
    return bool(query.strip()) and all(_PAPER.match(part.strip()) for part in query.split(","))


def sheet_rules(text: str, condition: str = "") -> list[SheetRule]:
    r"""The rules of a sheet in its order; a rule with several selectors is several.

    Each says what it selects, what it declares, and under which condition. Escapes
    (`di\splay`), comments, rules inside rules, and sheets that end early are read as browsers
    read them. Rules inside `@media`, `@supports`, `@container`, `@layer` and `@scope` count as
    rules. The first three are conditions; those that hold for paper or speech alone are left
    out, as are `@keyframes`, `@font-face` and the like.
    """
    rules: list[SheetRule] = []
    # Nodes that are still to be read, the next one last, with the selectors around them.
    ahead: list[tuple[Any, list[str], str]] = [
        (node, [], condition) for node in reversed(tinycss2.parse_stylesheet(_tokens(text)))
    ]
    while ahead:
        node, selectors, condition = ahead.pop()
        if node.type == "qualified-rule":
            selectors = _nested(selectors, _selectors(node.prelude))
        elif node.type == "at-rule" and node.content is not None:
            name, query = node.lower_at_keyword, _serialized(node.prelude) or ""
            if name not in UNWRAPPED or (name == "media" and for_paper(query)):
                continue
            if name in CONDITIONS:
                condition = " ".join(f"{condition} {name} {query}".lower().split())
        else:
            continue
        parse = tinycss2.parse_blocks_contents if selectors else tinycss2.parse_rule_list
        inside = parse(node.content)
        rules += [
            SheetRule(selector, declares, condition, important)
            for important in (False, True)
            for declares in _declared(inside, important)
            for selector in selectors
        ]
        ahead += [(rule, selectors, condition) for rule in reversed(inside)]
    return rules


def _tokens(text: str) -> list[Any]:
    return tinycss2.parse_component_value_list(text, skip_comments=True)


def _declared(nodes: Iterable[Any], important: bool) -> list[dict[str, str]]:
    styles: list[dict[str, str]] = [{}]
    for node in nodes:
        if node.type != "declaration" or node.important != important:
            continue
        name = "background-color" if node.lower_name == "background" else node.lower_name
        value = _serialized(node.value)
        if value is not None:
            if name in styles[-1]:
                styles.append({})
            styles[-1][name] = value.lower()
    return [style for style in styles if style]


def _selectors(prelude: Sequence[Any]) -> list[str]:
    parts: list[list[Any]] = [[]]
    for token in prelude:
        if token == ",":
            parts.append([])
        else:
            parts[-1].append(token)
    texts = [_serialized(part) for part in parts]
    # A selector that is nested too deeply may select anything.
    return ["*" if text is None else text for text in texts]


def _nested(outer: list[str], own: list[str]) -> list[str]:
    if not outer:
        return own
    return [
        inner.replace("&", around) if "&" in inner else f"{around} {inner}"
        for around in outer
        for inner in own
    ]


def _serialized(tokens: Sequence[Any]) -> str | None:
    """Tokens as text; None if brackets are nested deeper than Python's stack."""
    try:
        return tinycss2.serialize(tokens).strip()
    except RecursionError:
        return None


Colour = tuple[float, float, float, float]
"""Red, green and blue to 255, and opacity to 1."""
BLACK: Colour = (0.0, 0.0, 0.0, 1.0)
WHITE: Colour = (255.0, 255.0, 255.0, 1.0)
_SYSTEM = {"canvas": WHITE, "field": WHITE, "canvastext": BLACK}
_SPACES = ("srgb", "hsl", "hwb")


@lru_cache(maxsize=4096)
def colour_in(value: str) -> Colour | None:
    """The first colour that a value names; None if it names none that is known."""
    ahead: list[Any] = tinycss2.parse_component_value_list(value)[::-1]
    while ahead:
        token = ahead.pop()
        if token.type == "ident" and token.lower_value in _SYSTEM:
            return _SYSTEM[token.lower_value]
        colour: Any = parse_color(token)
        if getattr(colour, "space", "") in _SPACES:
            red, green, blue = (
                255 * min(1.0, max(0.0, part)) for part in colour.to("srgb").coordinates
            )
            return red, green, blue, colour.alpha
        if token.type == "function":  # such as color-mix
            ahead += token.arguments[::-1]
    return None


def over(paint: Colour, behind: Colour) -> Colour:
    """What is seen of a paint on what lies behind it."""
    share = paint[3]
    red, green, blue = (share * paint[n] + (1 - share) * behind[n] for n in range(3))
    return red, green, blue, share + (1 - share) * behind[3]


Style = Mapping[str, str]
OFF = 400
"""Pixels that a box is moved by, to the left or up, to be off the page."""
FAR = 2000
"""Pixels that a box is moved by, to the right or down, to be off the page."""
FAINTEST = 0.05
"""Paint that covers less is transparent."""
FLATTEST = 0.125
"""Letters that are scaled to less are too small: 16 pixels to 2."""
MOST_LOOKS = 64
"""Looks that a text may have by its rules; with more, it is cut."""
_NUMBER = re.compile(r"(-?\d*\.?\d+)\s*(px|pt|em|rem|%|vw|vh)?\Z")
_SIZE = re.compile(r"(?<![\w.#/-])\d*\.?\d+(?:px|pt|em|rem|%)?(?=/|\s)")
_LENGTH = re.compile(r"([-+]?\s*\d*\.?\d+)(px|pt|em|rem|ch|ex|in|cm|mm|%|vw|vh)")
_PIXELS = {"pt": 1.33, "em": 16.0, "rem": 16.0, "ch": 8.0, "ex": 8.0, "in": 96.0, "cm": 38.0}
_SHARES = {"mm": 3.8, "%": 4.0, "vw": 12.0, "vh": 8.0}  # A whole width of a box is off the page.
_MOVES = ("text-indent", "left", "right", "top", "bottom", "inset", "margin", "translate")
_MOVED = (*_MOVES, "margin-left", "margin-right", "margin-top", "inset-inline-start")
_SCALE = re.compile(r"\bscale(?:x|y|3d)?\(([^()]*)\)")
_MATRIX = re.compile(r"\bmatrix\(([^()]*)\)")
_TURN = re.compile(r"\b(?:rotate(?:x|y|3d)|skew[xy]?|matrix3d)\(")
_FILTER = re.compile(r"\b(opacity|blur)\(\s*(\d*\.?\d+)(%?)")
_FLOAT = re.compile(r"[-+]?\d*\.?\d+(?:e[-+]?\d+)?%?")
_VARIABLE = re.compile(r"var\(\s*(--[\w-]+)\s*(?:,\s*([^()]*))?\)")
_WHOLE = ("none", "initial", "unset", "auto", "border-box", "margin-box", "padding-box")


def with_values(styles: Iterable[Style], outer: Style) -> tuple[list[Style], Style]:
    """Styles with values in the place of variables (`--a`), and those inside it."""
    styles = list(styles)
    own = {name: value for style in styles for name, value in style.items() if name[:2] == "--"}
    values = {**outer, **own} if own else outer

    def put(value: str) -> str:
        for _ in range(8):
            if "var(" not in value:
                break
            value = _VARIABLE.sub(lambda match: values.get(match[1], match[2] or ""), value)
        return value

    return [{name: put(value) for name, value in style.items()} for style in styles], values


def ways(styles: Sequence[Style]) -> list[Style]:
    """The style of an element by the order of its rules, and of each rule, if that one won.

    Several rules may match an element, and which of them wins is not trusted: text is hidden if
    any of these styles hides it. What text inherits is in `TextLook`; an element may also be
    gone with all that is in it (`unseen_because`). A length given as a share is taken of what
    it is a share of.
    """
    last = {name: value for style in styles for name, value in style.items()}
    looks: list[Style] = [last]
    for style in styles:
        won = {**last, **style}
        if won not in looks:
            looks.append(won)
    return looks


def _pixels(value: str, whole: float) -> float | None:
    """A length in pixels, of a whole for shares of it; None if it is none."""
    number = _NUMBER.match(value)
    if not number:
        return None
    scale = {"pt": 4 / 3, "em": whole, "rem": 16.0, "%": whole / 100, "vw": 12.0, "vh": 8.0}
    return float(number[1]) * scale.get(number[2] or "px", 1.0)


@dataclass(frozen=True)
class TextLook:
    """What an element's text inherits.

    Attributes:
        fill: the colour of its letters, where that is another than `colour`.
        behind: None for a picture.
    """

    colour: Colour = BLACK
    fill: Colour | None = None
    behind: Colour | None = WHITE
    size: float = 16.0
    opacity: float = 1.0
    visible: bool = True

    def within(self, style: Style) -> TextLook:
        """The look inside an element of this style."""
        look = replace(self, colour=colour_in(style.get("color", "")) or self.colour)
        fill = style.get("-webkit-text-fill-color", "")
        if fill:
            look = replace(look, fill=colour_in(fill))
        look = replace(look, behind=look._behind(style))
        short = _SIZE.findall(re.sub(r"\s*/\s*", "/", style.get("font", "")))
        sizes = [
            _pixels(size_text, look.size) for size_text in (style.get("font-size", ""), *short[-1:])
        ]
        known = [size for size in sizes if size is not None]
        if known:
            look = replace(look, size=min(known))
        opacity = _pixels(style.get("opacity", ""), 1.0)
        if opacity is not None:
            look = replace(look, opacity=look.opacity * min(1.0, max(0.0, opacity)))
        if "visibility" in style:
            look = replace(look, visible=style["visibility"] not in ("hidden", "collapse"))
        return look

    def _behind(self, style: Style) -> Colour | None:
        value = style.get("background-color", "")
        if any(part in value + style.get("background-image", "") for part in ("url(", "gradient")):
            return None
        paint = self.colour if "currentcolor" in value else colour_in(value)
        if paint is None or (self.behind is None and paint[3] < 1.0):
            return self.behind
        return over(paint, self.behind or WHITE)

    @property
    def reason(self) -> str:
        """Why text cannot be seen; "" if it can."""
        if not self.visible:
            return "visibility: hidden"
        if self.size < SMALLEST:
            return f"smaller than {SMALLEST:g} pixels"
        red, green, blue, opacity = self.fill or self.colour
        paint = red, green, blue, opacity * self.opacity
        if paint[3] <= FAINTEST:
            return "transparent"
        if self.behind is not None and _same(over(paint, self.behind), self.behind):
            return "the colour of the background"
        return ""


def _same(one: Colour, other: Colour) -> bool:
    first, second = (tuple(round(part) for part in colour[:3]) for colour in (one, other))
    return same_colour(first, second)


def looks_within(looks: Sequence[TextLook], styles: Sequence[Style]) -> list[TextLook]:
    """The looks of text inside an element, by each rule that may win; its size is the smallest."""
    if not styles:
        return list(looks)
    every = [look.within(style) for look in looks for style in ways(styles)]
    smallest = min(look.size for look in every)
    return list(dict.fromkeys(replace(look, size=smallest) for look in every))[: MOST_LOOKS + 1]


def reason_of(looks: Sequence[TextLook]) -> str:
    """Why text of these looks is hidden in one of them; "" if it is in none."""
    if len(looks) > MOST_LOOKS:
        return "more styles than are looked at"
    return next((look.reason for look in looks if look.reason), "")


def unseen_because(attributes: Mapping[str, str], styles: Sequence[Style]) -> str:
    """Why an element cannot be seen with all that is in it; "" if it can."""
    for name in ("hidden", "popover"):
        if name in attributes:
            return name
    if (attributes.get("aria-hidden") or "").lower() == "true":
        return "aria-hidden"
    return next((reason for check in ways(styles) if (reason := _unseen(check))), "")


def _unseen(style: Style) -> str:
    if style.get("display") == "none":
        return "display: none"
    if style.get("content-visibility") == "hidden":
        return "content-visibility: hidden"
    opacity = _pixels(style.get("opacity", "1"), 1.0)
    if opacity is not None and opacity <= FAINTEST:
        return "transparent"
    for kind, number, share in _FILTER.findall(style.get("filter", "")):
        amount = float(number) / (100 if share else 1)
        if (kind == "opacity" and amount <= FAINTEST) or (kind == "blur" and amount >= 4):
            return "filtered"
    names = ("width", "height", "max-width", "max-height", "inline-size", "block-size")
    sides = [_pixels(style.get(name, ""), 100.0) for name in names]
    flows = " ".join(style.get(name, "") for name in ("overflow", "overflow-x", "overflow-y"))
    small = any(side is not None and side < SMALLEST for side in sides)
    if small and re.search(r"hidden|clip|auto|scroll", flows):
        return "a box without room"
    if re.match(r"rect\(", style.get("clip", "")):
        return "a box without room"
    for name in ("clip-path", "-webkit-clip-path", "mask", "mask-image", "-webkit-mask-image"):
        if style.get(name, "none") not in _WHOLE:
            return "clipped"
    if _flat(style):
        return "scaled or turned away"
    if any(_off(style[name]) for name in _MOVED if name in style):
        return "off the page"
    return (
        "off the page" if "translate" in (move := style.get("transform", "")) and _off(move) else ""
    )


def _off(value: str) -> bool:
    """Whether a length of a move leads off the page; the parts of a sum are taken alone."""
    scale = {**_PIXELS, **_SHARES}
    for number, unit in _LENGTH.findall(value):
        pixels = float(re.sub(r"\s", "", number)) * scale.get(unit, 1.0)
        if pixels <= -OFF or pixels >= FAR:
            return True
    return bool(re.search(r"calc|min|max|clamp", value)) and any(
        abs(float(match.rstrip("%"))) >= FAR for match in _FLOAT.findall(value)
    )


def _flat(style: Style) -> bool:
    """Whether letters are scaled to nothing, or turned so that they are seen from the side."""
    move = style.get("transform", "")
    scaled = [*_SCALE.findall(move), style.get("scale", ""), style.get("zoom", "")]
    for value in scaled:
        for number in _FLOAT.findall(value):
            share = float(number.rstrip("%")) / (100 if number.endswith("%") else 1)
            if abs(share) < FLATTEST:
                return True
    for value in _MATRIX.findall(move):
        a, b, c, d, *_ = (*(float(part.rstrip("%")) for part in _FLOAT.findall(value)), 0, 0, 0, 0)
        if abs(a * d - b * c) < FLATTEST:
            return True
    turned = style.get("rotate", "")
    return bool(_TURN.search(move)) or bool(re.search(r"\b[xy]\b", turned))


MUTE = ("script", "style", "head", "title", "meta", "link")
"""Elements whose text is none that anybody wrote for readers: it is not counted as hidden."""
UNSEEN = (
    *MUTE,
    *("template", "noscript", "noframes", "noembed", "iframe", "canvas", "audio", "video"),
    *("datalist", "annotation", "annotation-xml"),
)
"""Elements whose text no browser shows as text."""
_CLASSES = re.compile(r":not\([^()]*\)")
_ANY_CASE = re.compile(r"\s+[is]\s*\]", re.I)
_HEX = re.compile(r"[0-9a-f]{3}(?:[0-9a-f]{3})?\Z")


def web_text(content: bytes, name: str) -> FileText:
    """The article of an HTML page, as one page of text.

    Raises:
        BadFile: it is no HTML, or has no text that can be seen.
        MissingExtra: what reads it is not installed.
    """
    modules = ("lxml.html", "trafilatura", "lxml.cssselect")
    html, trafilatura, select = (needed(package, name, "papers") for package in modules)
    etree = import_module("lxml.etree")
    try:
        root = html.document_fromstring(_decoded(content))
    except (ValueError, etree.LxmlError) as error:
        raise BadFile(f"{name}: is no HTML that can be read ({first_line(error)}).") from None
    title = " ".join("".join(root.xpath("//title[1]//text()")).split())
    cut = _Unseen(root, select).cut(root)
    heading = " ".join("".join(root.xpath("(//h1)[1]//text()")).split())
    every = "\n".join(root.itertext())
    article = _article(trafilatura, root)
    version = ".".join(map(str, etree.LXML_VERSION[:3]))
    reader = f"trafilatura {trafilatura.__version__}" if article else f"lxml {version}, all text"
    lines = (" ".join(line.split()) for line in (article or every).splitlines())
    text, shapeless = without_shapeless("\n".join(line for line in lines if line))
    if not text:
        raise BadFile(f"{name}: {NO_TEXT}{' that can be seen' * bool(cut)}.")
    return FileText((text,), 1, heading or title, reader, merged([*cut, *shapeless]))


def _article(trafilatura: Any, root: Any) -> str:
    """The article of a page; "" if it is too short for one to be told."""
    logger = logging.getLogger("trafilatura")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # It warns of what is told here by the extractor's name.
    try:
        text = trafilatura.extract(
            root, output_format="txt", include_comments=False, favor_recall=True
        )
    finally:
        logger.setLevel(level)
    return text or ""


def _decoded(content: bytes) -> str:
    """A page as text: by its mark, by what it declares, as UTF-8, else as pages used to be."""
    declared = re.search(rb"charset=[\"']?([\w-]+)", content[:2048], re.I)
    names = ["utf-8-sig", "windows-1252"]
    if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        names.insert(0, "utf-16")
    elif declared:
        names.insert(0, declared[1].decode())
    for name in names:
        with suppress(LookupError, UnicodeDecodeError):
            # lxml refuses text that declares how its bytes are to be read.
            return re.sub(r"^\s*<\?xml[^>]*\?>", "", content.decode(name))
    return content.decode("utf-8", "replace")


class _Matched(NamedTuple):
    """What a rule declares for an element; ordered as rules win, apart from conditions."""

    important: bool
    specificity: tuple[int, int, int, int]
    place: int
    condition: str
    style: Style


def _selected(root: Any, select: Any, selector: str) -> tuple[list[Any], tuple[int, int, int, int]]:
    """The elements of a selector, and how specific it is.

    Of what is not known, `:not(...)` and the case of a value are left out, which selects more.
    States and parts of elements (`a:hover`, `p::before`) select nothing.
    """
    wider = _ANY_CASE.sub("]", _CLASSES.sub("", selector))
    for selector_text in (selector, wider):
        with suppress(select.SelectorError):
            elements = select.CSSSelector(selector_text, translator="html")(root)
            parse = import_module("cssselect").parse
            return elements, (0, *max(one.specificity() for one in parse(selector_text)))
    return [], (0, 0, 0, 0)


class _Unseen:
    """Cuts what cannot be seen from a tree, and keeps what it was."""

    def __init__(self, root: Any, select: Any) -> None:
        self.matched: dict[Any, list[_Matched]] = {}
        self.conditions: dict[str, None] = {}
        self.holding: str | None = ""
        self.hidden_texts: list[HiddenText] = []
        place = 0
        for sheet in root.xpath("//style"):
            media = sheet.get("media", "")
            if for_paper(media):
                continue
            condition = "" if media.lower() in ("", "all") else f"media {media.lower()}"
            for rule in sheet_rules(sheet.text or "", condition):
                place += 1
                elements, specificity = _selected(root, select, rule.selector)
                matched = _Matched(
                    rule.important, specificity, place, rule.condition, rule.declares
                )
                for element in elements:
                    self.matched.setdefault(element, []).append(matched)
                    self.conditions.setdefault(rule.condition)

    def cut(self, root: Any) -> list[HiddenText]:
        """Cut it; what it was, in the order of the page for each condition."""
        conditions = [condition for condition in self.conditions if condition]
        for self.holding in ("", *conditions, *([None] if len(conditions) > 1 else [])):
            self._walk(root, self._styles(root), [TextLook()], {})
        for element in root.iter():
            # What is left is seen: trafilatura drops some of it by such a style.
            element.attrib.pop("style", None)
        return self.hidden_texts

    def _walk(
        self, element: Any, styles: list[Style], looks: list[TextLook], values: Style
    ) -> None:
        styles, values = with_values(styles, values)
        looks = looks_within(looks, styles)
        closed = element.tag == "details" and "open" not in element.attrib
        self._own(element, "closed" if closed else reason_of(looks))
        summary = element.find("summary") if closed else None
        for child in list(element):
            if not isinstance(child.tag, str):
                self._drop(child, "comment", child.text or "")
                continue
            own = self._styles(child)
            gone = "not shown" if child.tag in UNSEEN else ""
            gone = gone or unseen_because(child.attrib, with_values(own, values)[0])
            if not gone and closed and child is not summary:
                gone = "closed"
            if not gone and child.tag == "dialog" and "open" not in child.attrib:
                gone = "closed"
            if gone:
                words = "" if child.tag in MUTE else "".join(child.itertext())
                self._drop(child, gone, words)
                continue
            before = len(self.hidden_texts)
            self._walk(child, own, looks, values)
            if (
                len(self.hidden_texts) > before
                and not len(child)
                and not (child.text or "").strip()
            ):
                self._drop(child, "", "")

    def _styles(self, element: Any) -> list[Style]:
        """The styles of an element under the conditions that hold, the strongest last."""
        inline = element.get("style", "")
        own = ((1, 0, 0, 0), 0, "")
        applied = [
            *self.matched.get(element, []),
            *(
                _Matched(important, *own, style)
                for important in (False, True)
                for style in declared(inline, important)
            ),
        ]
        holding = ("", self.holding) if self.holding is not None else self.conditions
        ordered = sorted(
            (
                declaration
                for declaration in applied
                if declaration.style
                and (not declaration.condition or declaration.condition in holding)
            ),
            key=lambda declaration: declaration[:3],
        )
        return [
            style
            for style in (_hints(element), *(declaration.style for declaration in ordered))
            if style
        ]

    def _own(self, element: Any, reason: str) -> None:
        """Cut an element's own text, and what stands between its children, if it is not seen."""
        if not reason:
            return
        self._note(reason, element.text or "")
        element.text = ""
        for child in element:
            self._note(reason, child.tail or "")
            child.tail = ""

    def _note(self, reason: str, words: str) -> None:
        if words.strip():
            self.hidden_texts.append(hidden(reason, words))

    def _drop(self, element: Any, reason: str, words: str) -> None:
        """Remove an element; what stands behind it stays, after what stood before it."""
        self._note(reason, words)
        parent, before = element.getparent(), element.getprevious()
        tail = element.tail or ""
        if before is not None:
            before.tail = _joined(before.tail or "", tail)
        else:
            parent.text = _joined(parent.text or "", tail)
        element.tail = None
        parent.remove(element)


def _hints(element: Any) -> Style:
    """What the attributes of an element say of its style."""
    names = {"bgcolor": "background-color"}
    names["text" if element.tag == "body" else "color"] = "color"
    values = {
        names[attribute]: element.get(attribute).strip().lower()
        for attribute in names
        if element.get(attribute)
    }
    return {name: f"#{value}" if _HEX.match(value) else value for name, value in values.items()}


def _joined(before: str, after: str) -> str:
    """Two texts that nothing stands between any more: white space at their seam is one."""
    if before[-1:].isspace() and after[:1].isspace():
        return before + after.lstrip()
    return before + after
