"""What rules find in a document before anyone judges it: what it lacks, and orders to its reader.

Rules read the text as one: compatible forms of Unicode (NFKC), words joined over the ends of lines,
white space as one space, invisible characters left out. What a document lacks is looked for without
its references. Flags enter the request to a judge, and name the criteria that they are about.

    NO_VARIANCE_REPORTED  no standard deviation, error bar, interval or bootstrap of a result
    NO_SEED               no random seed
    SMALL_N               every number of prompts, examples or pairs that is given is below 50
    THEORETICAL_PAPER     theorems and proofs, and no intervention
    LOW_TEXT_QUALITY      many characters that are no text: a scan, or a font without its letters
    TRUNCATED             not all pages were read
    ORDERS_TO_REVIEWER    sentences that tell whoever judges what to say

The first is the flag of Tower (2026), section 3.6. Its rule takes any mention in the text, so that
the spread of initial weights counts as a variance of results: `variant="paper"`. Ours takes none
from references, and none from a sentence about initialisation.

Orders (`reviewer_orders`) are marked where a judge reads them; quotes from them support nothing.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from mechassay.claims.documents import PagedDocument
from mechassay.claims.reviewer_orders import ReviewerOrder, flat_text
from mechassay.errors import one_of

FlagName = Literal[
    "NO_VARIANCE_REPORTED",
    "NO_SEED",
    "SMALL_N",
    "THEORETICAL_PAPER",
    "LOW_TEXT_QUALITY",
    "TRUNCATED",
    "ORDERS_TO_REVIEWER",
]
FlagVariant = Literal["repaired", "paper"]
SMALL = 50
"""Examples below which their number is small."""
THEOREMS = 5
STRANGE = 0.01
"""Share of characters that are no text from which a document cannot be read well."""
OPEN, CLOSE = "⟦", "⟧"
"""Stand around an order where a judge reads it."""

_SENTENCE = re.compile(r"(?<=[.!?;])\s+")
_VARIANCE = re.compile(
    r"standard deviation|std\.? ?dev|\bs\.d\.|standard error|\bs\.e\.m\.|\bSEM\b|error bar"
    r"|(?:confidence|credible) interval|\d ?% ?CI\b|\d ?% intervals?\b|bootstrap|±|interquartile"
    r"|variance across",
    re.IGNORECASE,
)
_INITIAL = re.compile(r"\binit\b|initiali[sz]|drawn from a (?:normal|gaussian)", re.IGNORECASE)
_SEED = re.compile(r"\bseeds?\b", re.IGNORECASE)
_COUNT = re.compile(
    r"\bn ?= ?(\d[\d,]*)"
    r"|\b(\d[\d,]*) (?:\w+ )?(?:prompts|examples|pairs|samples|sentences|inputs)\b",
    re.IGNORECASE,
)
_THEORY = re.compile(r"\b(?:theorem|lemma|proposition|corollary|proof)\b", re.IGNORECASE)
_INTERVENTION = re.compile(r"ablat|patching|interven|interchange|knock(?:ed)? ?out", re.I)
_REFERENCES = re.compile(
    r"^\W*(?:\d+\.?\s+)?(?:references|bibliography|works cited)\W*$", re.I | re.M
)
_APPENDIX = re.compile(r"^\W*(?:appendix|appendices|supplement\w*)\b", re.I | re.M)


@dataclass(frozen=True)
class DocumentFlag:
    """What a rule found.

    Attributes:
        level: how much it weighs for the criteria that it is about.
        about: codes of criteria; none if it is about all.
    """

    name: FlagName
    level: Literal["major", "minor"]
    says: str
    about: tuple[str, ...] = ()
    passages: tuple[ReviewerOrder, ...] = ()


def find_flags(
    document: PagedDocument, variant: FlagVariant = "repaired"
) -> tuple[DocumentFlag, ...]:
    """What rules find in the text of a document.

    Args:
        variant: of NO_VARIANCE_REPORTED, see the module.

    Raises:
        UnknownName: no such variant.
    """
    one_of("variant of flags", variant, get_args(FlagVariant))
    whole = flat_text(document.pages).text
    body = flat_text([_without_references(document.pages)]).text
    flags: list[DocumentFlag] = []
    if not _reports_variance(whole if variant == "paper" else body, variant):
        says = "The text reports no standard deviation, error bar, interval or bootstrap."
        flags.append(DocumentFlag("NO_VARIANCE_REPORTED", "major", says, ("M1", "I4")))
    if not _SEED.search(body):
        flags.append(DocumentFlag("NO_SEED", "minor", "The text names no seed.", ("M1", "I4")))
    counts = [int((a or b).replace(",", "")) for a, b in _COUNT.findall(body)]
    if counts and max(counts) < SMALL:
        says = f"The largest number of prompts or examples that the text gives is {max(counts)}."
        flags.append(DocumentFlag("SMALL_N", "minor", says, ("M1", "E5")))
    if len(_THEORY.findall(body)) >= THEOREMS and not _INTERVENTION.search(body):
        says = (
            "The text proves theorems and reports no intervention; the rubric is for experiments."
        )
        flags.append(DocumentFlag("THEORETICAL_PAPER", "minor", says))
    if _is_strange("".join(document.pages)):
        says = "Many characters of the text are no letters: words may be missing."
        flags.append(DocumentFlag("LOW_TEXT_QUALITY", "major", says))
    if document.n_pages > len(document.pages):
        says = f"The text is that of the first {len(document.pages)} of {document.n_pages} pages."
        flags.append(DocumentFlag("TRUNCATED", "major", says))
    if passages := document.orders:
        n = len(passages)
        says = f"{n} {'passage tells' if n == 1 else 'passages tell'} the reader what to say."
        flags.append(DocumentFlag("ORDERS_TO_REVIEWER", "major", says, (), passages))
    return tuple(flags)


def marked_pages(document: PagedDocument) -> tuple[str, ...]:
    """The pages, with orders between `OPEN` and `CLOSE`, which stand nowhere else."""
    pages = [unmarked(page) for page in document.pages]
    for order in sorted(document.orders, key=lambda each: each.begin, reverse=True):
        text = pages[order.page - 1]
        marked = f"{OPEN}{text[order.begin : order.end]}{CLOSE}"
        pages[order.page - 1] = text[: order.begin] + marked + text[order.end :]
    return tuple(pages)


def unmarked(text: str) -> str:
    """A text whose own marks are other brackets, so that it cannot mark or unmark anything."""
    return text.replace(OPEN, "[").replace(CLOSE, "]")


def _without_references(pages: Sequence[str]) -> str:
    """The text without what stands between the last heading of references and an appendix."""
    text = "\n".join(pages)
    headings = list(_REFERENCES.finditer(text))
    if not headings:
        return text
    begin = headings[-1].start()
    appendix = _APPENDIX.search(text, headings[-1].end())
    return text[:begin] + (text[appendix.start() :] if appendix else "")


def _reports_variance(text: str, variant: FlagVariant) -> bool:
    if variant == "paper":
        return _VARIANCE.search(text) is not None
    ends = [0, *(match.end() for match in _SENTENCE.finditer(text)), len(text)]
    for match in _VARIANCE.finditer(text):
        first = bisect_right(ends, match.start()) - 1
        last = bisect_right(ends, match.end() - 1)
        if not _INITIAL.search(text[ends[first] : ends[last]]):
            return True
    return False


def _is_strange(text: str) -> bool:
    # U+FFFE stands for a hyphen at a line's end where pdfium read the page.
    shown = [character for character in text if not character.isspace() and character != "\ufffe"]
    strange = sum(
        character == "\ufffd" or unicodedata.category(character) in ("Co", "Cc", "Cn")
        for character in shown
    )
    return strange > STRANGE * max(1, len(shown))
