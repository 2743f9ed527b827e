"""Where a document has a quote, and on which page.

A quote is found exactly; or normalised (see `normal_text`), where a hyphen at a line's end is a
hyphen or nothing; or loosely, by letters and digits alone. On every rung the numbers and the
negations of the passage are those of the quote, also of the words that the quote cuts: "7 %" is no
quote of "87 %", nor "can" of "cannot". Nothing else is found.

Pages are searched one by one, then each with the next, so that a quote may run over a page's end.
Passages that give a reader orders (`reviewer_orders`) are left out first; what is found only there
is flagged, and supports nothing.

The nearest passage of a quote that was not found is for people to look at. It is no match: of 100
letters one digit is little to a measure of likeness, and everything to a claim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib import import_module
from itertools import pairwise
from typing import Literal

from mechassay.claims.documents import PagedDocument
from mechassay.claims.normal_text import (
    BREAK,
    cut_words,
    marks,
    normalised,
    pattern_of,
    skeleton,
)
from mechassay.errors import MissingExtra

Match = Literal["exact", "normalised", "loose", "none"]
LEAST_WORDS, LEAST_LETTERS = 4, 20
"""A quote with fewer words and fewer letters or digits is too short: every document has it."""


@dataclass(frozen=True)
class QuoteMatch:
    """How a quote was found.

    Attributes:
        page: where it begins, from 1; 0 if it was not found.
        flagged: it is only in a passage that gives a reader orders.
    """

    match: Match
    page: int = 0
    flagged: bool = False


@dataclass(frozen=True)
class NearestPassage:
    """The passage that is most like a quote; `likeness` is from 0 to 100 (Levenshtein)."""

    text: str
    page: int
    likeness: float


@dataclass(frozen=True)
class _Stretch:
    """A text that quotes are looked for in: a page, a part of one, or the seam of two."""

    page: int
    text: str

    @cached_property
    def normal(self) -> str:
        return normalised(self.text)

    @cached_property
    def bones(self) -> str:
        return skeleton(self.normal)

    @cached_property
    def places(self) -> list[int]:
        """Of each letter of `bones`, its place in `normal`."""
        return [place for place, each in enumerate(self.normal) for _ in skeleton(each)]


def find_quote(document: PagedDocument, exact: str) -> QuoteMatch:
    """Where a document has a quote: exactly, normalised, loosely, or not.

    An empty quote, or one without a letter or digit, is nowhere.
    """
    if not skeleton(normalised(exact)):
        return QuoteMatch("none")
    found = _found(_stretches(document.pieces), exact)
    if found.match == "none" and document.orders:
        found = _found(_stretches(tuple((page,) for page in document.pages)), exact)
        return replace(found, flagged=found.match != "none")
    return found


def is_short(exact: str) -> bool:
    """Whether a quote is too short to support anything, wherever it stands."""
    words = [word for word in normalised(exact).split() if skeleton(word)]
    return len(words) < LEAST_WORDS and len(skeleton(normalised(exact))) < LEAST_LETTERS


def nearest_passage(document: PagedDocument, exact: str) -> NearestPassage | None:
    """The passage of a page that is most like a quote; None if there is nothing to compare.

    Raises:
        MissingExtra: rapidfuzz is not installed.
    """
    try:
        fuzz = import_module("rapidfuzz.fuzz")
    except ImportError:
        raise MissingExtra("Finding the nearest passage", "rapidfuzz", "papers") from None
    wanted = normalised(exact)
    best: NearestPassage | None = None
    for place, page in enumerate(document.pages, start=1):
        text = normalised(page)
        if not wanted or not text:
            continue
        at = fuzz.partial_ratio_alignment(wanted, text)
        if at is not None and (best is None or at.score > best.likeness):
            before, after = cut_words(text, at.dest_start, at.dest_end)
            passage = f"{before}{text[at.dest_start : at.dest_end]}{after}".replace(BREAK, "-")
            best = NearestPassage(passage, place, float(at.score))
    return best


@lru_cache(maxsize=8)
def _stretches(pieces: tuple[tuple[str, ...], ...]) -> tuple[_Stretch, ...]:
    """The pieces of each page; then of each page its last, with the first of the next."""
    own = [_Stretch(n, text) for n, page in enumerate(pieces, start=1) for text in page]
    seams = [
        _Stretch(n, f"{page[-1]}\n{after[0]}")
        for n, (page, after) in enumerate(pairwise(pieces), start=1)
        if page and after
    ]
    return (*own, *seams)


def _found(stretches: tuple[_Stretch, ...], exact: str) -> QuoteMatch:
    rungs: list[tuple[Match, Callable[[_Stretch, str], Iterator[str]]]] = [
        ("exact", _exactly),
        ("normalised", _normally),
        ("loose", _loosely),
    ]
    wanted = marks(exact)
    for match, passages in rungs:
        for stretch in stretches:
            if any(marks(passage) == wanted for passage in passages(stretch, exact)):
                return QuoteMatch(match, stretch.page)
    return QuoteMatch("none")


# Each yields the passages that could be the quote, with the words that it cuts.


def _exactly(stretch: _Stretch, exact: str) -> Iterator[str]:
    begin = stretch.text.find(exact)
    while begin >= 0:
        before, after = cut_words(stretch.text, begin, begin + len(exact))
        yield before + exact + after
        begin = stretch.text.find(exact, begin + 1)


def _normally(stretch: _Stretch, exact: str) -> Iterator[str]:
    for found in _pattern(exact).finditer(stretch.normal):
        before, after = cut_words(stretch.normal, found.start(), found.end())
        # Its line ends are read as the quote reads them.
        yield before + exact + after


def _loosely(stretch: _Stretch, exact: str) -> Iterator[str]:
    bones, places = skeleton(normalised(exact)), stretch.places
    begin = stretch.bones.find(bones)
    while begin >= 0 and len(places) == len(stretch.bones):
        first, last = places[begin], places[begin + len(bones) - 1] + 1
        before, after = cut_words(stretch.normal, first, last)
        for reading in ("", "-"):
            yield before + stretch.normal[first:last].replace(BREAK, reading) + after
        begin = stretch.bones.find(bones, begin + 1)


_pattern = lru_cache(maxsize=64)(pattern_of)
