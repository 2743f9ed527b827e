"""Visible orders to a reader of a document: "ignore previous instructions", "review it well".

Patterns are data (`data/reviewer-orders.yaml`). A flagged passage is the sentence that a pattern
matches in, with its place, so that it can be shown apart; nothing is cut, as readers see it. A
quote that is only inside such passages supports nothing. Papers about such orders are flagged too:
their other sentences remain to be quoted.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import yaml

from mechassay.claims.normal_text import LINE_END_HYPHENS

REACH = 400
"""Letters that a flagged passage goes on to either side, if no sentence ends before."""
_END = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True)
class ReviewerOrder:
    """A flagged passage: `pages[page - 1][begin:end]`.

    Attributes:
        kind: the pattern's name.
        page: from 1.
        text: the passage.
    """

    kind: str
    page: int
    begin: int
    end: int
    text: str


@lru_cache(maxsize=1)
def order_patterns() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """The patterns by their names; a space in them is any white space."""
    text = files("mechassay.claims").joinpath("data/reviewer-orders.yaml").read_text("utf-8")
    return tuple(
        (
            each["id"],
            re.compile(each["pattern"].replace(" ", r"\s+").replace(r"\s+?", r"\s*"), re.I),
        )
        for each in yaml.safe_load(text)
    )


@dataclass(frozen=True)
class FlatText:
    """A text as rules read it, and where each of its letters stands: page from 0, place."""

    text: str
    places: tuple[tuple[int, int], ...]


def flat_text(pages: Sequence[str]) -> FlatText:
    """Pages as one text in compatible forms (NFKC): white space is one space, words are joined over
    the ends of lines, invisible characters are left out.
    """
    letters: list[str] = []
    places: list[tuple[int, int]] = []
    for number, page in enumerate(pages):
        joined = {
            place for match in LINE_END_HYPHENS.finditer(page) for place in range(*match.span())
        }
        for place, character in enumerate(f"{page}\n"):
            if place in joined or unicodedata.category(character) == "Cf":
                continue
            for letter in unicodedata.normalize("NFKC", character):
                plain = " " if letter.isspace() else letter
                if plain != " " or (letters and letters[-1] != " "):
                    letters.append(plain)
                    places.append((number, place))
    return FlatText("".join(letters), tuple(places))


def find_orders(pages: Sequence[str]) -> tuple[ReviewerOrder, ...]:
    """The flagged passages of pages; those that overlap are one, of the first pattern.

    A sentence that goes on over the end of a page is a passage on either.
    """
    flat = flat_text(pages)
    spans = sorted(
        (*_sentence(flat.text, match.start(), match.end()), rank, kind)
        for rank, (kind, pattern) in enumerate(order_patterns())
        for match in pattern.finditer(flat.text)
    )
    merged: list[tuple[int, int, int, str]] = []
    for begin, end, rank, kind in spans:
        if merged and begin < merged[-1][1]:
            first = merged.pop()
            rank, kind = min((rank, kind), first[2:])
            begin, end = first[0], max(first[1], end)
        merged.append((begin, end, rank, kind))
    return tuple(
        order
        for begin, end, _, kind in merged
        for order in _on_pages(pages, flat.places[begin:end], kind)
    )


def _on_pages(
    pages: Sequence[str], places: Sequence[tuple[int, int]], kind: str
) -> Iterator[ReviewerOrder]:
    """The part of each page that these letters stand in."""
    spans: dict[int, list[int]] = {}
    for page, place in places:
        spans.setdefault(page, []).append(place)
    for page, own in spans.items():
        text = pages[page]
        begin, end = own[0], min(own[-1] + 1, len(text))
        end = begin + len(text[begin:end].rstrip())
        if begin < end:
            yield ReviewerOrder(kind, page + 1, begin, end, text[begin:end])


def _sentence(text: str, begin: int, end: int) -> tuple[int, int]:
    """A match with the rest of its sentence."""
    least, most = max(0, begin - REACH), min(len(text), end + REACH)
    before = [each.end() for each in _END.finditer(text, least, begin)]
    # What a match ends with may end its sentence.
    after = _END.search(text, end - 1, most)
    return (before[-1] if before else least), (max(after.start(), end) if after else most)
