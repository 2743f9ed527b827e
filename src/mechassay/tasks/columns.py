"""What the columns of a file of pairs mean, told from their names.

    clean, counterfactual    the two prompts; `corrupted` means the same as the second
    answer, foil             texts; also `answers`, `foils`
    two of EAP-IG's columns  token ids, see `TOKEN_IDS`
    label or correct_idx     without any foil: a year, see below
    tags, spans, ...         what `Pair.as_dict` writes, where a row has them as objects
    anything else            a tag, and a field where its value is a word of the prompt

EAP-IG (Hanna et al. 2024) and the code of its paper have three layouts. The right and the wrong
token are ids in columns of four pairs of names. Or the last column is a year YY from 0 to 98, where
the prompt has CCYY and ends in CC: right is then every later year of that century, and wrong are YY
and those before. That column is `label` in one file and `correct_idx` in others. Columns of texts
beside those of ids are tags, unless they are a whole answer and foil.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple

from mechassay.errors import BadFile, BadPairs

PROMPTS = {"clean": ("clean",), "counterfactual": ("counterfactual", "corrupted")}
CONTINUATIONS = {"answer": ("answer", "answers"), "foil": ("foil", "foils")}
# Columns of token ids: the right ones and the wrong ones.
TOKEN_IDS = (
    ("correct_idx", "incorrect_idx"),
    ("clean_answer_idx", "corrupted_answer_idx"),
    ("country_idx", "corrupted_country_idx"),
    ("answers_idx", "corrupted_answers_idx"),
)
ID_COLUMNS = frozenset(name for pair in TOKEN_IDS for name in pair)
YEARS = ("label", "correct_idx")
OPTIONAL = ("id", "group")
TAGS, ANSWERS_OF_OTHER = "tags", "counterfactual_answers"
SPANS = ("spans", "counterfactual_spans")
REQUIRED = {
    meaning: (*names, TOKEN_IDS[0][place])
    for place, (meaning, names) in enumerate(CONTINUATIONS.items())
}
RESERVED = frozenset(
    [*OPTIONAL, *(name for names in (PROMPTS | REQUIRED).values() for name in names)]
)
# A column of this beginning and the name of another says what that is in the counterfactual.
OF_OTHER = ("counterfactual_", "corrupted_")

Texts = tuple[str, ...]


@dataclass(frozen=True)
class Mistake:
    """What is wrong with a row: a kind to count by,
    what it looks like there, and the error it makes.
    """

    what: str
    detail: str = ""
    error: type[BadFile | BadPairs] = BadFile


class Columns(NamedTuple):
    """The column of each required text, and those of the tags.

    Attributes:
        foil: empty where the answer is a year.
        others: for a tag, the column that says what it is in the counterfactual.
    """

    clean: str
    counterfactual: str
    answer: str
    foil: str
    tags: Texts
    others: Mapping[str, str]

    @property
    def years(self) -> bool:
        return not self.foil

    @property
    def token_ids(self) -> bool:
        return bool(self.foil) and self.answer in ID_COLUMNS


def meaning(names: Texts, split_column: str) -> Columns | Mistake:
    """What columns of these names mean."""
    found: dict[str, str] = {}
    for what, spellings in PROMPTS.items():
        there = _there(spellings, names)
        if isinstance(there, Mistake):
            return there
        if there:
            found[what] = there
    said = _continuations(names)
    if isinstance(said, Mistake):
        return said
    found |= said
    missing = [what for what in (*PROMPTS, *CONTINUATIONS) if what not in found]
    if missing:
        return Mistake(
            f"no column{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}",
            _hint(missing, names),
        )
    # A column without a name is no tag: it is the row number that pandas writes, or nothing.
    special = {*found.values(), *OPTIONAL, ANSWERS_OF_OTHER, split_column, ""}
    tags = tuple(name for name in names if name not in special)
    others = {
        name: beginning + name
        for name in tags
        for beginning in OF_OTHER
        if beginning + name in tags
    }
    return Columns(
        found["clean"], found["counterfactual"], found["answer"], found["foil"], tags, others
    )


def _continuations(names: Texts) -> dict[str, str] | Mistake:
    """The columns of answers and foils, as far as there are any; an empty foil beside a year."""
    texts: dict[str, str] = {}
    for what, spellings in CONTINUATIONS.items():
        there = _there(spellings, names)
        if isinstance(there, Mistake):
            return there
        if there:
            texts[what] = there
    usual = {
        what: name for what, name in zip(CONTINUATIONS, TOKEN_IDS[0], strict=True) if name in names
    }
    both = [what for what in usual if what in texts]
    if both:
        return _same(texts[both[0]], usual[both[0]])
    if usual and texts:
        mixed = texts | usual
        return Mistake(
            f"{mixed['answer']!r} and {mixed['foil']!r} are not of one kind",
            "both must be texts, or both token ids",
        )
    if len(texts) == len(CONTINUATIONS):
        return texts
    for pair in TOKEN_IDS:
        if set(pair) <= set(names):
            return dict(zip(CONTINUATIONS, pair, strict=True))
    years = [name for name in YEARS if name in names]
    if len(years) == 1 and not texts and TOKEN_IDS[0][1] not in names:
        return {"answer": years[0], "foil": ""}
    return texts or usual


def _there(spellings: Sequence[str], names: Texts) -> str | Mistake:
    """The one of some columns that is there; empty if none is."""
    there = [name for name in spellings if name in names]
    return _same(there[0], there[1]) if len(there) > 1 else "".join(there)


def _same(one: str, other: str) -> Mistake:
    return Mistake(f"the columns {one!r} and {other!r} mean the same", "keep one of them")


def _hint(missing: Sequence[str], names: Sequence[str]) -> str:
    """The columns that there are, and which of them may be one of the missing."""
    there = f"there are {', '.join(map(repr, names))}" if names else "there are none"
    free = {name.lower(): name for name in names if name not in RESERVED}
    spellings = [spelling for each in missing for spelling in (PROMPTS | REQUIRED)[each]]
    close = [
        (spelling, found)
        for spelling in spellings
        for found in get_close_matches(spelling, free, n=1)
    ]
    return there + (f"; did you mean {close[0][0]!r} by {free[close[0][1]]!r}?" if close else "")
