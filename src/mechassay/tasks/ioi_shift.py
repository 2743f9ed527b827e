"""IOI whose prompts are shifted: a circuit found on `ioi` meets words that it was not found on.

Words of the splits of `ioi` share nothing. The prompts here are of the train split's words, of
which a circuit was found, but for one kind of them:

    none        nothing: other rows of the same words
    names, objects, places, templates    these are the test split's
    all         all of them are, as in the test split itself
    register    templates are colloquial or official
    secret      "had secret plans to give an atomic bomb to": objects and templates are far from
                those of any split (Uit de Bos and Garriga-Alonso 2024, section 5, name this case)

Splits, counterfactuals and sizes are those of `ioi`; all splits have the same words, and their
rows are drawn by their own seeds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import ClassVar, Literal, get_args

from mechassay.errors import BadUsage, one_of
from mechassay.tasks.ioi import IOI, IOIWords, ioi_words
from mechassay.tasks.task import OWN, word_lists

Shift = Literal["none", "names", "objects", "places", "templates", "all", "register", "secret"]
SHIFTS: tuple[Shift, ...] = get_args(Shift)
HOME = "none"


@dataclass(frozen=True)
class ShiftedIOI(IOI):
    """IOI with one kind of words that is not the train split's.

    Attributes:
        kind: which, see the module.

    Raises:
        UnknownName: no such kind.
        BadUsage: words or a source of another kind.
    """

    kind: str = HOME

    name: ClassVar[str] = "ioi-shift"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        one_of("kind of shift", self.kind, SHIFTS)
        if self.words != OWN or self.source != "own":
            raise BadUsage("ioi-shift has words and rows of its own; words and source stay `own`.")
        super().__post_init__()

    def split_words(self, split: str) -> IOIWords:
        """The words of all splits."""
        return _shifted(self.kind)


@cache
def _shifted(kind: str) -> IOIWords:
    known, other = ioi_words("train"), ioi_words("test")
    if kind in ("none", "all"):
        return known if kind == "none" else other
    if kind in ("register", "secret"):
        groups = word_lists("ioi_shift")[kind]
        return replace(known, **{field: tuple(words) for field, words in groups.items()})
    return replace(known, **{kind: getattr(other, kind)})
