"""Documents as pages of text: what a reader cannot see, texts that can be compared, visible orders.

Every reader of documents cuts hidden text before anything else looks at the text, so that what
goes on is the same with and without it. Here is the account of what was cut, where and why, and
the cut of what all kinds of documents may hold: characters without a shape (Unicode's format
characters, tags that spell ASCII, and selectors of variants), soft hyphens apart.

Texts are compared normalised, or by letters and digits alone. Normalised means Unicode's
compatible forms (NFKC, so that "ﬁ" is "fi"), one space for white space, one hyphen for all
hyphens and the minus sign, and a mark of its own for a hyphen at a line's end, which may be the
word's or the line's. Raised and lowered digits stay apart from others: "10²" is "10^2", not
"102". The numbers of a text, with their sign, and its negations must be the same in both.

Visible orders to a reader ("ignore previous instructions", "review it well") are flagged, not
cut, as readers see them. Their patterns are data (`data/reviewer-orders.yaml`). A flagged
passage is the sentence that a pattern matches in, with its place, so that it can be shown apart.
A quote that is only inside such passages supports nothing. Papers about such orders are flagged
too: their other sentences remain to be quoted.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib.resources import files
from typing import Any

import yaml

from mechassay.claims.judgments import SourceDocument
from mechassay.utils.display import OneLine, shortened

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


def merged(hidden_texts: Sequence[HiddenText]) -> tuple[HiddenText, ...]:
    """The same, pieces of one page and reason that follow each other as one."""
    kept: list[HiddenText] = []
    for part in hidden_texts:
        if kept and (kept[-1].page, kept[-1].reason) == (part.page, part.reason):
            last = kept.pop()
            text = shortened(f"{last.text} {part.text}".strip(), SHOWN, SHOWN - 1)
            part = replace(part, text=text, n=last.n + part.n)
        kept.append(part)
    return tuple(kept)


def same_colour(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether two colours, as red, green and blue to 255, cannot be told apart."""
    return all(abs(a - b) <= CLOSE for a, b in zip(one[:3], other[:3], strict=True))


def without_shapeless(text: str, page: int = 1) -> tuple[str, tuple[HiddenText, ...]]:
    """A text without characters that have no shape, and those, spelled out where they spell."""
    cut = [character for character in text if _shapeless(character)]
    if not cut:
        return text, ()
    spelled = "".join(chr(ord(character) - 0xE0000) for character in cut if ord(character) in _TAGS)
    kept = "".join(character for character in text if not _shapeless(character))
    spelling = spelled or " ".join(f"U+{ord(character):04X}" for character in cut)
    return kept, (replace(hidden("characters without a shape", spelling, page), n=len(cut)),)


def _shapeless(character: str) -> bool:
    if character < "\u00ae":  # The soft hyphen is below: it is a hyphen at a line's end.
        return False
    return unicodedata.category(character) == "Cf" or ord(character) in _VARIANTS


BREAK = "\ue000"
"""Stands for a hyphen at a line's end."""
LINE_END_HYPHENS = re.compile(r"[-‐\u00ad\ufffe]\s*\n\s*|[\ufffe\u00ad]")
"""Hyphens at the ends of lines, with what follows; U+FFFE is pdfium's, U+00AD one that is soft."""
_HYPHENS = str.maketrans(dict.fromkeys("‐‑‒–−", "-"))
_RAISED = {character: f"^{digit}" for digit, character in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}
_LOWERED = {character: f"_{digit}" for digit, character in enumerate("₀₁₂₃₄₅₆₇₈₉")}
_DIGITS = str.maketrans(_RAISED | _LOWERED)
# A hyphen is a sign where nothing that it could join or subtract from stands before it.
_NUMBERS = re.compile(r"(?:(?<![\w)\].,%^-])-)?\d+(?:[.,]\d+)*")
_NEGATIONS = re.compile(r"\b(?:not|no|never|none|nor|neither|cannot|without|\w+n[’']t)\b", re.I)
_TOKEN = re.compile(
    rf"[^\W\d_]+(?:(?:['’{BREAK}]|[-‐]\s*\n\s*)[^\W\d_]+)*"
    r"|(?:(?<![\w)\].,%^-])-|[\^_])?\d+(?:[.,^_-]\d+)*"
)
LONGEST = 60
"""Letters of a word that are looked at beyond a passage."""


def normalised(text: str) -> str:
    """NFKC, one space for white space, one hyphen for all, `BREAK` for one at a line's end."""
    text = LINE_END_HYPHENS.sub(BREAK, text).translate(_DIGITS)
    return " ".join(unicodedata.normalize("NFKC", text).translate(_HYPHENS).split())


def pattern_of(quote: str) -> re.Pattern[str]:
    """What finds a quote in normalised text: between its characters may stand a line's end, but
    not within a number.
    """
    parts, before = list[str](), ""
    for character in normalised(quote):
        if before and not (before.isdigit() and character.isdigit()):
            parts.append(f"{BREAK}?")
        if character == "-":
            parts.append(f"(?:-|{BREAK})")
        elif character == BREAK:
            parts.append(f"(?:-|{BREAK})?")
        else:
            parts.append(re.escape(character))
        before = character
    return re.compile("".join(parts))


def skeleton(text: str) -> str:
    """Letters and digits, without case."""
    return "".join(character for character in text.casefold() if character.isalnum())


def marks(text: str) -> tuple[list[str], list[str]]:
    """The negations and the numbers of a text, in their order."""
    text = normalised(text)
    negations = [word.casefold().replace("’", "'") for word in _NEGATIONS.findall(text)]
    return negations, _NUMBERS.findall(text)


def cut_words(text: str, begin: int, end: int) -> tuple[str, str]:
    """What a passage lacks of its first and of its last word or number: ("8", "") where "7 %" is
    taken from "87 %", and ("", "not") where "can" is taken from "cannot". A number at the end of a
    word, such as the mark of a footnote, is no part of it.
    """
    before = after = ""
    for token in _TOKEN.finditer(text, max(0, begin - LONGEST), min(len(text), end + LONGEST)):
        if token.start() < begin < token.end():
            before = text[token.start() : begin]
        if token.start() < end < token.end():
            after = text[end : token.end()]
    return _without_breaks(before), _without_breaks(after)


def _without_breaks(text: str) -> str:
    return LINE_END_HYPHENS.sub("", text).replace(BREAK, "")


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
            rule["id"],
            re.compile(rule["pattern"].replace(" ", r"\s+").replace(r"\s+?", r"\s*"), re.I),
        )
        for rule in yaml.safe_load(text)
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
    before = [match.end() for match in _END.finditer(text, least, begin)]
    # What a match ends with may end its sentence.
    after = _END.search(text, end - 1, most)
    return (before[-1] if before else least), (max(after.start(), end) if after else most)


@dataclass(frozen=True, repr=False)
class PagedDocument(OneLine):
    """The text of a document, page by page.

    Attributes:
        n_pages: of the file; more than there are texts if it was cut.
        title: found: the registry's of an id, else the one that can be seen.
        origin: where it is from, such as "arxiv:2211.00593".
        extractor: what read it, with its version.
        expected: the title that it should have; "" if none is known.
        title_agrees: whether it has that title; None if none is expected.
        hidden: text that was cut, as a reader cannot see it.
        orders: visible passages that give a reader orders.
    """

    name: str
    sha256: str
    pages: tuple[str, ...]
    n_pages: int
    title: str = ""
    origin: str = ""
    extractor: str = "text"
    expected: str = ""
    title_agrees: bool | None = None
    hidden: tuple[HiddenText, ...] = ()
    orders: tuple[ReviewerOrder, ...] = ()

    @property
    def source(self) -> SourceDocument:
        """What judgments store of it."""
        return SourceDocument(
            sha256=self.sha256, name=self.name, title=self.title, n_pages=self.n_pages
        )

    @cached_property
    def pieces(self) -> tuple[tuple[str, ...], ...]:
        """Of each page, the parts between its flagged passages, which support something."""
        blocks: list[tuple[str, ...]] = []
        for number, page in enumerate(self.pages, start=1):
            begin, parts = 0, list[str]()
            for order in self.orders:
                if order.page == number:
                    parts.append(page[begin : order.begin])
                    begin = order.end
            blocks.append((*parts, page[begin:]))
        return tuple(blocks)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader should know of it, a line each."""
        warnings: list[str] = []
        if self.n_pages > len(self.pages):
            warnings.append(f"{len(self.pages)} of {self.n_pages} pages were read")
        if self.title_agrees is False:
            warnings.append(title_fault(self))
        if self.hidden:
            n = sum(hidden_text.n for hidden_text in self.hidden)
            first = self.hidden[0]
            warnings.append(
                f"{n:,} hidden characters were cut, first on page {first.page} ({first.reason}):"
                f" {first.text!r}"
            )
        warnings += [
            f"page {order.page} gives a reader orders ({order.kind}); quotes from there support"
            f" nothing: {' '.join(order.text.split())!r}"
            for order in self.orders
        ]
        return tuple(f"{self.name}: {warning}" for warning in warnings)

    def to_json(self) -> dict[str, Any]:
        """What a judge reads, and what it does not, as plain values."""
        return {
            "format": 1,
            "name": self.name,
            "source": self.origin,
            "sha256": self.sha256,
            "extractor": self.extractor,
            "title": self.title,
            "expected_title": self.expected,
            "title_agrees": self.title_agrees,
            "n_pages": self.n_pages,
            "n_pages_read": len(self.pages),
            "hidden": [vars(hidden_text) for hidden_text in self.hidden],
            "orders": [vars(order) for order in self.orders],
            "pages": list(self.pages),
        }


def title_fault(document: PagedDocument) -> str:
    """What is wrong with a title, in a line."""
    return (
        f"should be {document.expected!r}, and its title is"
        f" {document.title or 'nowhere on its first page'!r}"
    )
