"""The words of Uit de Bos and Garriga-Alonso (2024), and what divides them among splits.

The lists (`data/paper.json`) are those of the paper's public code
(Nielius/AdversarialCircuitEvaluation), after Wang et al. (2023), Hanna et al. (2023) and
Heimersheim and Janiak (2023):

    ioi            99 names, 8 places, 8 objects; ABBA only, one template for each population:
                   "paper" for unmatched pairs (tables 3 and 4), "paper-matched" for matched ones
    greater-than   120 nouns
    docstring      111 names, 687 words; 59 are both

The paper has no splits. Here every split has all words, and prompts are kept apart by what all
prompts of an example share: the two people of the first clause, the noun with its century, the name
of the function. Three fifths of these belong to test, one fifth each to train and validation. There
is no private split, as the words are public and few.
"""

from __future__ import annotations

OWN, PAPER, PAPER_MATCHED = "own", "paper", "paper-matched"
PAPER_SIZES = {"train": 10_000, "validation": 1_000, "test": 1_000}
_FIFTHS = ("test", "test", "test", "train", "validation")


def owner(*places: int) -> str:
    """The split of words by their places in their lists, in any order."""
    return _FIFTHS[sum(places) % len(_FIFTHS)]
