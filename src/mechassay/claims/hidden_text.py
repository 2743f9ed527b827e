"""Text that a document holds and a reader does not see: what was cut, where, and why.

Every reader of documents cuts it before anything else looks at the text, so that what goes on is
the same with and without it. Here is what was cut, and what all kinds of documents may hold:
characters without a shape (Unicode's format characters, tags that spell ASCII, and selectors of
variants), soft hyphens apart.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mechassay.text import shortened

SHOWN = 120
"""Letters of a hidden text that are kept."""
SMALLEST = 2.0
"""Points; smaller letters are hidden. The smallest subscripts of papers have about 4."""
CLOSE = 20
"""Of 255, in each of red, green and blue: colours that differ by no more are the same."""
_TAGS = range(0xE0020, 0xE007F)
_VARIANTS = (*range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0))


@dataclass(frozen=True)
class HiddenText:
    """A text that was cut.

    Attributes:
        reason: why it cannot be seen, such as "white on white".
        text: its beginning.
        n: its characters.
        page: from 1.
    """

    reason: str
    text: str
    n: int
    page: int = 1


def hidden(reason: str, text: str, page: int = 1) -> HiddenText:
    """A text that was cut; its beginning is kept."""
    words = " ".join(text.split())
    return HiddenText(reason, shortened(words, SHOWN, SHOWN - 1), len(words), page)


def merged(found: Sequence[HiddenText]) -> tuple[HiddenText, ...]:
    """The same, pieces of one page and reason that follow each other as one."""
    kept: list[HiddenText] = []
    for each in found:
        if kept and (kept[-1].page, kept[-1].reason) == (each.page, each.reason):
            last = kept.pop()
            text = shortened(f"{last.text} {each.text}".strip(), SHOWN, SHOWN - 1)
            each = replace(each, text=text, n=last.n + each.n)
        kept.append(each)
    return tuple(kept)


def same_colour(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two colours, as red, green and blue to 255, cannot be told apart."""
    return all(abs(a - b) <= CLOSE for a, b in zip(one[:3], other[:3], strict=True))


def without_shapeless(text: str, page: int = 1) -> tuple[str, tuple[HiddenText, ...]]:
    """A text without characters that have no shape, and those, spelled out where they spell."""
    cut = [each for each in text if _shapeless(each)]
    if not cut:
        return text, ()
    spelled = "".join(chr(ord(each) - 0xE0000) for each in cut if ord(each) in _TAGS)
    kept = "".join(each for each in text if not _shapeless(each))
    told = spelled or " ".join(f"U+{ord(each):04X}" for each in cut)
    return kept, (replace(hidden("characters without a shape", told, page), n=len(cut)),)


def _shapeless(character: str) -> bool:
    if character < "\u00ae":  # The soft hyphen is below: it is a hyphen at a line's end.
        return False
    return unicodedata.category(character) == "Cf" or ord(character) in _VARIANTS
