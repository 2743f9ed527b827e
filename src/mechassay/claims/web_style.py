"""What a style does to text: whether a reader of the page can see it.

A text inherits its colour, what is behind it, its size and its visibility (`TextLook`). An element
may be gone with all that is in it (`unseen_because`). Lengths in shares are taken of what they are
shares of; a picture or gradient has no colour.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from mechassay.claims.hidden_text import SMALLEST, same_colour

Style = Mapping[str, str]
Colour = tuple[int, int, int]
OFF = 400
"""Pixels that a box is moved by to be off the page."""
_NUMBER = re.compile(r"(-?\d*\.?\d+)\s*(px|pt|em|rem|%|vw|vh)?\Z")
_RGB = re.compile(r"rgba?\(([^)]*)\)")
_SIZE = re.compile(r"(?<![\w.#-])\d*\.?\d+(?:px|pt|em|rem|%)?(?=/|\s)")


def declared(text: str) -> dict[str, str]:
    """Declarations by their property: "color: red" is {"color": "red"}."""
    pairs = (each.partition(":") for each in text.split(";"))
    values = {name.strip().lower(): value.strip().lower() for name, _, value in pairs}
    return {name: value.removesuffix("!important").strip() for name, value in values.items()}


def _colour(value: str) -> Colour | None:
    """Red, green and blue to 255; None if it names none."""
    found = _RGB.search(value)
    if found:
        parts = [float(each) for each in re.findall(r"\d*\.?\d+", found[1])]
        return (int(parts[0]), int(parts[1]), int(parts[2])) if len(parts) >= 3 else None
    colours = import_module("matplotlib.colors")
    for word in value.split():
        if word != "none" and colours.is_color_like(word) and not word[0].isdigit():
            red, green, blue = (round(255 * part) for part in colours.to_rgb(word))
            return red, green, blue
    return None


def _see_through(value: str) -> bool:
    found = _RGB.search(value)
    parts = re.findall(r"\d*\.?\d+", found[1]) if found else []
    return value == "transparent" or (len(parts) == 4 and float(parts[3]) <= 0.05)


def _pixels(value: str, whole: float) -> float | None:
    """A length in pixels, of a whole for shares of it; None if it is none."""
    found = _NUMBER.match(value)
    if not found:
        return None
    scale = {"pt": 4 / 3, "em": whole, "rem": 16.0, "%": whole / 100, "vw": 12.0, "vh": 8.0}
    return float(found[1]) * scale.get(found[2] or "px", 1.0)


@dataclass(frozen=True)
class TextLook:
    """What an element's text inherits."""

    colour: Colour = (0, 0, 0)
    behind: Colour | None = (255, 255, 255)
    size: float = 16.0
    visible: bool = True
    see_through: bool = False

    def within(self, style: Style) -> TextLook:
        """The look inside an element of this style."""
        look = self
        if "color" in style:
            through = _see_through(style["color"])
            look = replace(look, colour=_colour(style["color"]) or look.colour, see_through=through)
        for name in ("background", "background-color"):
            if name in style and not _see_through(style[name]):
                plain = "url(" not in style[name] and "gradient" not in style[name]
                look = replace(
                    look, behind=(_colour(style[name]) or look.behind) if plain else None
                )
        sizes = (
            [style["font-size"]] if "font-size" in style else _SIZE.findall(style.get("font", ""))
        )
        size = _pixels(sizes[-1], look.size) if sizes else None
        if size is not None:
            look = replace(look, size=size)
        if "visibility" in style:
            look = replace(look, visible=style["visibility"] not in ("hidden", "collapse"))
        return look

    @property
    def reason(self) -> str:
        """Why text cannot be seen; "" if it can."""
        if not self.visible:
            return "visibility: hidden"
        if self.size < SMALLEST:
            return f"smaller than {SMALLEST:g} pixels"
        if self.see_through:
            return "transparent"
        if self.behind is not None and same_colour(self.colour, self.behind):
            return "the colour of the background"
        return ""


def unseen_because(element: Any, style: Style) -> str:
    """Why an element cannot be seen with all that is in it; "" if it can."""
    if "hidden" in element.attrib:
        return "hidden"
    if element.get("aria-hidden", "").lower() == "true":
        return "aria-hidden"
    if style.get("display") == "none":
        return "display: none"
    opacity = _pixels(style.get("opacity", "1"), 1.0)
    if opacity is not None and opacity <= 0.05:
        return "transparent"
    if style.get("overflow") in ("hidden", "clip"):
        sides = [_pixels(style.get(name, ""), 100.0) for name in ("width", "height", "max-height")]
        if any(side is not None and side < SMALLEST for side in sides):
            return "a box without room"
    if re.match(r"rect\(\s*(?:0|1px)\D+(?:0|1px)\D+", style.get("clip", "")):
        return "a box without room"
    moved = [style.get(name, "") for name in ("text-indent", "left", "top", "margin-left")]
    if any((_pixels(each, 100.0) or 0) <= -OFF for each in moved):
        return "off the page"
    return ""
