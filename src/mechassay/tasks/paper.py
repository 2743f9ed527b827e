"""The prompts of Uit de Bos and Garriga-Alonso (2024):
their words, and what divides them among splits.

The lists are those of the paper's public code (Nielius/AdversarialCircuitEvaluation), where the IOI
words are those of Wang et al. (2023), the nouns of greater-than those of Hanna et al. (2023), and
the docstring words those of Heimersheim and Janiak (2023):

    ioi            99 names, 8 places, 8 objects; ABBA only, one template for each population:
                   "paper" for unmatched pairs (tables 3 and 4), "paper-matched" for matched ones (7
                   and 8)
    greater-than   120 nouns
    docstring      111 names, 687 words; 59 are both

The paper has no splits and draws from one population. Here every split has all words, and prompts
are kept apart by what all prompts of an example share: the two people of the first clause,
whichever comes first; the noun with its century; the name of the function. Three fifths of these
belong to test, one fifth to train and one to validation. There is no private split, as the words
are public and few.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from mechassay.errors import one_of

OWN, PAPER, PAPER_MATCHED = "own", "paper", "paper-matched"
SIZES = {"train": 10_000, "validation": 1_000, "test": 1_000}
_FIFTHS = ("test", "test", "test", "train", "validation")


def owner(*places: int) -> str:
    """The split of words by their places in their lists;
    the order of the places is of no matter.
    """
    return _FIFTHS[sum(places) % len(_FIFTHS)]


def check_words(words: str, known: Sequence[str] = (OWN, PAPER)) -> None:
    """Refuse a word set that a task does not have.

    Raises:
        UnknownName: it is none of `known`.
    """
    one_of("words", words, known)


@cache
def paper_words(task: str) -> Mapping[str, Any]:
    """The lists of one task by their names."""
    return json.loads(
        files("mechassay.tasks").joinpath("data/paper.json").read_text(encoding="utf-8")
    )[task]
