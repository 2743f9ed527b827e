"""Visible orders to a reader of a document: "ignore previous instructions", "review it well".

Patterns are data (`data/reviewer-orders.yaml`). A flagged passage is the sentence that a pattern
matches in, with its place, so that it can be shown apart; nothing is cut, as readers see it. A
quote that is only inside such passages supports nothing. Papers about such orders are flagged too:
their other sentences remain to be quoted.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

import yaml

REACH = 400
"""Letters that a flagged passage goes on to either side, if no sentence ends before."""
_BREAK = re.compile(r"[-‐]\n(?=\w)")
_END = re.compile(r"[.!?](?=\s)|\n\s*\n")


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


def find_orders(pages: Sequence[str]) -> tuple[ReviewerOrder, ...]:
    """The flagged passages of pages; those that overlap are one, of the first pattern."""
    found: list[ReviewerOrder] = []
    for number, page in enumerate(pages, start=1):
        text, places = _plain(page)
        spans = sorted(
            (*_sentence(page, places[match.start()], places[match.end() - 1] + 1), kind)
            for kind, pattern in order_patterns()
            for match in pattern.finditer(text)
        )
        for begin, end, kind in spans:
            last = found[-1] if found and found[-1].page == number else None
            if last is not None and begin < last.end:
                found.pop()
                begin, end, kind = last.begin, max(last.end, end), last.kind
            found.append(ReviewerOrder(kind, number, begin, end, page[begin:end]))
    return tuple(found)


def _plain(page: str) -> tuple[str, list[int]]:
    """A page in compatible forms, without hyphens at lines' ends; of each letter its place."""
    broken = {place for each in _BREAK.finditer(page) for place in range(*each.span())}
    pairs = [
        (letter, place)
        for place, each in enumerate(page)
        if place not in broken
        for letter in unicodedata.normalize("NFKC", each)
    ]
    return "".join(letter for letter, _ in pairs), [place for _, place in pairs]


def _sentence(page: str, begin: int, end: int) -> tuple[int, int]:
    """A match with the rest of its sentence."""
    before = [each.end() for each in _END.finditer(page, max(0, begin - REACH), begin)]
    after = _END.search(page, end, min(len(page), end + REACH))
    first = before[-1] if before else max(0, begin - REACH)
    last = after.end() if after else min(len(page), end + REACH)
    while first < begin and page[first].isspace():
        first += 1
    return first, last
