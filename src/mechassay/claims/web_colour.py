"""Colours as web pages write them: every notation of CSS that names red, green and blue.

tinycss2 reads them. Colours that are given by their lightness (lab, oklch and the like) or in the
space of another display are not known.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import tinycss2
from tinycss2.color4 import parse_color

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
