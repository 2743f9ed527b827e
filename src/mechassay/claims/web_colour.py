"""Colours as web pages write them: names, hex digits with or without opacity, rgb and hsl."""

from __future__ import annotations

import re
from colorsys import hls_to_rgb
from importlib import import_module

Colour = tuple[float, float, float, float]
"""Red, green and blue to 255, and opacity to 1."""
BLACK: Colour = (0.0, 0.0, 0.0, 1.0)
WHITE: Colour = (255.0, 255.0, 255.0, 1.0)
NOTHING: Colour = (0.0, 0.0, 0.0, 0.0)
_NAMED = {"transparent": NOTHING, "canvas": WHITE, "field": WHITE, "canvastext": BLACK}
_FUNCTION = re.compile(r"\b(rgb|hsl)a?\(([^()]*)\)")
_PART = re.compile(r"[-+]?\d*\.?\d+(?:e[-+]?\d+)?%?|none")


def colour_in(value: str) -> Colour | None:
    """The colour that a value names; None if it names none that is known."""
    found = _FUNCTION.search(value)
    if found:
        return _of_parts(found[1], found[2])
    colours = import_module("matplotlib.colors")
    for word in value.split():
        if word in _NAMED:
            return _NAMED[word]
        known = len(word) > 2 and word[0] in "#abcdefghijklmnopqrstuvwxyz"
        if known and word != "none" and colours.is_color_like(word):
            red, green, blue, opacity = colours.to_rgba(word)
            return 255 * red, 255 * green, 255 * blue, opacity
    return None


def _of_parts(kind: str, inside: str) -> Colour | None:
    parts = _PART.findall(inside)
    if len(parts) < 3:
        return None
    opacity = min(1.0, max(0.0, _share(parts[3], 1.0))) if len(parts) > 3 else 1.0
    if kind == "rgb":
        red, green, blue = (min(255.0, max(0.0, _share(each, 255.0))) for each in parts[:3])
        return red, green, blue, opacity
    turn = _share(parts[0], 360.0) / (1.0 if "turn" in inside else 360.0)
    # Saturation and lightness are percentages, with their sign or without.
    full, light = (
        min(1.0, max(0.0, _share(each.rstrip("%") + "%", 1.0) if each != "none" else 0.0))
        for each in parts[1:3]
    )
    red, green, blue = (255 * part for part in hls_to_rgb(turn % 1.0, light, full))
    return red, green, blue, opacity


def _share(part: str, whole: float) -> float:
    if part == "none":
        return 0.0
    return float(part[:-1]) / 100 * whole if part.endswith("%") else float(part)


def over(paint: Colour, behind: Colour) -> Colour:
    """What is seen of a paint on what lies behind it."""
    share = paint[3]
    red, green, blue = (share * paint[n] + (1 - share) * behind[n] for n in range(3))
    return red, green, blue, share + (1 - share) * behind[3]
