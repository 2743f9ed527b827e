"""What the columns of a file of pairs mean, told from their names.

    clean, counterfactual    the two prompts; `corrupted` means the same as the second
    answer, foil             texts; also `answers`, `foils`
    two of EAP-IG's columns  token ids, see `TOKEN_IDS`
    label or correct_idx     without any foil: a year, see below
    tags, spans, ...         what `Pair.as_dict` writes, where a row has them as objects
    anything else            a tag, and a field where its value is a word of the prompt

EAP-IG (Hanna et al. 2024) has token ids in columns of four pairs of names, or a last column with a
year YY from 0 to 98 (`label` or `correct_idx`), where the prompt has CCYY and ends in CC: right is
every later year of that century, wrong YY and those before. Columns of texts beside those of ids
are tags, unless they are a whole answer and foil.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import NamedTuple

from mechassay.rows import Mistake

PROMPTS = {"clean": ("clean",), "counterfactual": ("counterfactual", "corrupted")}
CONTINUATIONS = {
    "answer": ("answer", "answers", "correct_idx"),
    "foil": ("foil", "foils", "incorrect_idx"),
}
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
RESERVED = frozenset(
    [*OPTIONAL, *(name for names in (PROMPTS | CONTINUATIONS).values() for name in names)]
)
# A column of this beginning and the name of another says what that is in the counterfactual.
OF_OTHER = ("counterfactual_", "corrupted_")

Texts = tuple[str, ...]


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


@lru_cache(maxsize=64)
def meaning(names: Texts, split_column: str) -> Columns:
    """What columns of these names mean.

    Raises:
        Mistake: columns are missing, or mean the same.
    """
    columns = _present(PROMPTS, names) | _continuations(names)
    missing = [what for what in (*PROMPTS, *CONTINUATIONS) if what not in columns]
    if missing:
        said = f"no column{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}"
        raise Mistake(said, _hint(missing, names))
    # A column without a name is no tag: it is the row number that pandas writes, or nothing.
    special = {*columns.values(), *OPTIONAL, ANSWERS_OF_OTHER, split_column, ""}
    tags = tuple(name for name in names if name not in special)
    prefixed = [(name, prefix + name) for name in tags for prefix in OF_OTHER]
    others = {name: other for name, other in prefixed if other in tags}
    return Columns(**columns, tags=tags, others=others)


def _continuations(names: Texts) -> dict[str, str]:
    """The columns of answers and foils, as far as there are any; an empty foil beside a year."""
    found = _present(CONTINUATIONS, names)
    if len({name in ID_COLUMNS for name in found.values()}) > 1:
        raise Mistake(
            f"{found['answer']!r} and {found['foil']!r} are not of one kind",
            "both must be texts, or both token ids",
        )
    if len(found) == len(CONTINUATIONS):
        return found
    for pair in TOKEN_IDS:
        if set(pair) <= set(names):
            return dict(zip(CONTINUATIONS, pair, strict=True))
    years = [name for name in YEARS if name in names]
    if len(years) == 1 and set(found.values()) <= set(years):
        return {"answer": years[0], "foil": ""}
    return found


def _present(wanted: Mapping[str, Texts], names: Texts) -> dict[str, str]:
    """The column of each meaning that has one."""
    found: dict[str, str] = {}
    for what, spellings in wanted.items():
        present = [name for name in spellings if name in names]
        if len(present) > 1:
            same = f"{present[0]!r} and {present[1]!r}"
            raise Mistake(f"the columns {same} mean the same", "keep one of them")
        if present:
            found[what] = present[0]
    return found


def _hint(missing: Sequence[str], names: Sequence[str]) -> str:
    """The columns that there are, and which of them may be one of the missing."""
    present = f"there are {', '.join(map(repr, names))}" if names else "there are none"
    free = {name.lower(): name for name in names if name not in RESERVED}
    spellings = [spelling for what in missing for spelling in (PROMPTS | CONTINUATIONS)[what]]
    for spelling in spellings:
        for name in get_close_matches(spelling, free, n=1):
            return f"{present}; did you mean {spelling!r} by {free[name]!r}?"
    return present
