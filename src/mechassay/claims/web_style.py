"""What a style does to text: whether a reader of the page can see it.

A text inherits its colour, what is behind it, its size, its opacity and its visibility
(`TextLook`). An element may be gone with all that is in it (`unseen_because`). Several rules may
match an element, and which of them wins is not trusted: `ways` gives the style that wins by the
order, and of each rule the style if it won. Text is hidden if any of these hides it.

Lengths in shares are taken of what they are shares of; a picture or gradient has no colour.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from mechassay.claims.hidden_text import SMALLEST, same_colour
from mechassay.claims.web_colour import BLACK, WHITE, Colour, colour_in, over

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
    own = {name: value for each in styles for name, value in each.items() if name[:2] == "--"}
    values = {**outer, **own} if own else outer

    def put(value: str) -> str:
        for _ in range(8):
            if "var(" not in value:
                break
            value = _VARIABLE.sub(lambda found: values.get(found[1], found[2] or ""), value)
        return value

    return [{name: put(value) for name, value in each.items()} for each in styles], values


def ways(styles: Sequence[Style]) -> list[Style]:
    """The style of an element by the order of its rules, and of each rule, if that one won."""
    last = {name: value for each in styles for name, value in each.items()}
    found: list[Style] = [last]
    for each in styles:
        won = {**last, **each}
        if won not in found:
            found.append(won)
    return found


def _pixels(value: str, whole: float) -> float | None:
    """A length in pixels, of a whole for shares of it; None if it is none."""
    found = _NUMBER.match(value)
    if not found:
        return None
    scale = {"pt": 4 / 3, "em": whole, "rem": 16.0, "%": whole / 100, "vw": 12.0, "vh": 8.0}
    return float(found[1]) * scale.get(found[2] or "px", 1.0)


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
        sizes = [_pixels(each, look.size) for each in (style.get("font-size", ""), *short[-1:])]
        known = [each for each in sizes if each is not None]
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
    first, second = (tuple(round(part) for part in each[:3]) for each in (one, other))
    return same_colour(first, second)


def looks_within(looks: Sequence[TextLook], styles: Sequence[Style]) -> list[TextLook]:
    """The looks of text inside an element, by each rule that may win; its size is the smallest."""
    if not styles:
        return list(looks)
    every = [look.within(style) for look in looks for style in ways(styles)]
    smallest = min(each.size for each in every)
    return list(dict.fromkeys(replace(each, size=smallest) for each in every))[: MOST_LOOKS + 1]


def reason_of(looks: Sequence[TextLook]) -> str:
    """Why text of these looks is hidden in one of them; "" if it is in none."""
    if len(looks) > MOST_LOOKS:
        return "more styles than are looked at"
    return next((each.reason for each in looks if each.reason), "")


def unseen_because(attributes: Mapping[str, str], styles: Sequence[Style]) -> str:
    """Why an element cannot be seen with all that is in it; "" if it can."""
    for name in ("hidden", "popover"):
        if name in attributes:
            return name
    if (attributes.get("aria-hidden") or "").lower() == "true":
        return "aria-hidden"
    return next((reason for each in ways(styles) if (reason := _unseen(each))), "")


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
        abs(float(each.rstrip("%"))) >= FAR for each in _FLOAT.findall(value)
    )


def _flat(style: Style) -> bool:
    """Whether letters are scaled to nothing, or turned so that they are seen from the side."""
    move = style.get("transform", "")
    scaled = [*_SCALE.findall(move), style.get("scale", ""), style.get("zoom", "")]
    for each in scaled:
        for number in _FLOAT.findall(each):
            share = float(number.rstrip("%")) / (100 if number.endswith("%") else 1)
            if abs(share) < FLATTEST:
                return True
    for each in _MATRIX.findall(move):
        a, b, c, d, *_ = (*(float(part.rstrip("%")) for part in _FLOAT.findall(each)), 0, 0, 0, 0)
        if abs(a * d - b * c) < FLATTEST:
            return True
    turned = style.get("rotate", "")
    return bool(_TURN.search(move)) or bool(re.search(r"\b[xy]\b", turned))
