"""Greater-than: "The war lasted from the year 1733 to 17" -> any of "34" to "99".

The task is that of Hanna et al. (2023), with the corrupted prompts of Uit de Bos and Garriga-Alonso
(2024, table 2 and appendix B). A prompt is made of a noun, a century (11 to 17) and a year YY of it
(02 to 98). Right is every YY' > YY, written directly after the century; the foils are all others,
and the objective is the difference of probability. In counterfactuals the year is 01: "matched"
with the same noun and century, "unmatched" with a noun of the split and a century drawn
independently. Splits share no noun, and no year (century and YY) of an original prompt.

What is compared depends on how the tokenizer writes numbers (docs/tasks/greater-than.md): the two
digits of the year (" 17|33"), whole years (" 1733"), or the tens digit (" 173|3", " 1|7|3|3"). In
the last two the tens digit of YY counts for neither answers nor foils, and years with nothing else
to be told apart by are dropped and counted; `digit="last"` asks for what is left out, with the tens
digit of YY written into both prompts. Both together are exact:

    P(year > YY) = A + P(tens of YY) * B
    A            = sum of P(tens) over tens above that of YY               (digit="first")
    B            = sum of P(ones | tens of YY) over ones above that of YY  (digit="last")

Deviations: the nouns are our own (`data/greater_than.json`), and there are splits; years that a
tokenizer writes otherwise than most of their century (GPT-2: " 1700", " 130|5") are left out, of
prompts and of continuations; years are 02 to 98 for any tokenizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mechassay.errors import one_of
from mechassay.prompts.pairs import Example, Prompt, filled
from mechassay.prompts.tokenization import continued, encode
from mechassay.tasks.task import OWN, PAPER, PAPER_SIZES, Task, owner, split_rng, word_lists

SIZES = {"train": 10_000, "validation": 1_000, "test": 1_000, "private": 1_000}
TEMPLATE = "The {noun} lasted from the year {century}{year} to {century}"
CENTURIES = ("11", "12", "13", "14", "15", "16", "17")
YEARS = tuple(f"{year:02d}" for year in range(2, 99))
FIRST_YEAR = "01"
MATCHED, UNMATCHED = "matched_counterfactual", "unmatched_counterfactual"
DIGITS = ("first", "last")

Endings = Mapping[tuple[str, str], tuple[str, ...]]
"""What continues a prompt, by its century and the tens digit written after it, "" for none."""


@dataclass(frozen=True)
class GreaterThan(Task):
    """The greater-than task. Tags: noun, century, year (YY), tens.

    Parts of a prompt: noun, century, year (the digits YY), century_2 (the one to be continued), and
    digit (the tens digit written after it) with digit="last".

    Attributes:
        digit: "first": continue with the year's last two digits; "last": the tens digit is given.
        words: "own", or "paper" for the nouns of Hanna et al. (2023), see `mechassay.tasks.task`:
            every split has all nouns, centuries and YY, and no two splits share a noun with its
            century.

    Raises:
        UnknownName: another digit, or no such `words`.
    """

    digit: str = "first"
    words: str = OWN

    name: ClassVar[str] = "greater-than"
    version: ClassVar[int] = 2
    counterfactuals: ClassVar[tuple[str, ...]] = (MATCHED, UNMATCHED)
    default_counterfactual: ClassVar[str] = MATCHED
    objective: ClassVar[str] = "prob_diff"
    sizes: ClassVar[Mapping[str, int]] = SIZES

    def __post_init__(self) -> None:
        one_of("digit", self.digit, DIGITS)
        one_of("words", self.words, (OWN, PAPER))
        if self.words == PAPER:
            object.__setattr__(self, "sizes", PAPER_SIZES)

    def template(self, tags: Mapping[str, str]) -> str | None:
        return self.name

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        """All examples of one split, in random order; with a tokenizer, those it writes as usual.

        An example's id is its place in that order: it does not depend on the tokenizer.
        """
        originals, others = _originals(self.words, split), _others(self.words, split)
        rng = split_rng(split, seed)
        order: list[int] = rng.permutation(len(originals)).tolist()
        drawn: list[list[int]] = rng.integers(
            (len(others), len(others[0])), size=(len(order), 2)
        ).tolist()
        given = sorted({"", *(self._tens(year) for year in YEARS)})
        places = [(century, tens) for century in CENTURIES for tens in given]
        endings = {at: _usual(originals[0][0], *at, tokenizer) for at in places}
        for number, (place, (row, column)) in enumerate(zip(order, drawn, strict=True)):
            id = f"{self.name}-{split}-{number:06d}"
            example = self._example(id, originals[place], others[row][column], endings)
            if example is not None:
                yield example

    def population(self, split: str) -> int:
        """How many examples a split has before a tokenizer is looked at.

        Raises:
            UnknownName: no such split.
        """
        one_of("split", split, self.sizes)
        years = [year for _, _, year in _originals(self.words, split)]
        return sum(self.digit == "first" or year[1] != "9" for year in years)

    def _tens(self, year: str) -> str:
        return year[0] if self.digit == "last" else ""

    def _example(
        self, id: str, ours: tuple[str, str, str], theirs: tuple[str, str], endings: Endings
    ) -> Example | None:
        """An example; None if it has no answers or foils, or is unusual to the tokenizer."""
        noun, century, year = ours
        tens = self._tens(year)
        prompt = _prompt(noun, century, year, tens, endings)
        right = set(prompt.answers)
        foils = tuple(ending for ending in prompt.choices if ending not in right)
        if not prompt.answers or not foils or not {year, FIRST_YEAR} <= set(endings[century, ""]):
            return None
        others = {MATCHED: _prompt(noun, century, FIRST_YEAR, tens, endings)}
        if FIRST_YEAR in endings[theirs[1], ""]:
            others[UNMATCHED] = _prompt(*theirs, FIRST_YEAR, tens, endings)
        tags = {"noun": noun, "century": century, "year": year, "tens": year[0]}
        # The counterfactual's answers are nearly all continuations, so they cannot be the foils.
        return Example(id, prompt, others, foils=foils, tags=tags)


def _prompt(noun: str, century: str, year: str, tens: str, endings: Endings) -> Prompt:
    choices = endings[century, tens]
    # Both are two digits, so their order as texts is that of the numbers.
    answers = tuple(ending for ending in choices if tens + ending > year)
    template = TEMPLATE + ("{digit}" if tens else "")
    fields = {"noun": noun, "century": century, "year": year, "digit": tens}
    return filled(template, fields, answers, choices)


def _usual(noun: str, century: str, tens: str, tokenizer: Any) -> tuple[str, ...]:
    """The endings of a prompt that the tokenizer adds in the usual way; all without a tokenizer."""
    width = 2 - len(tens)
    endings = tuple(f"{number:0{width}d}" for number in range(10**width))
    if tokenizer is None:
        return endings
    prompt = _prompt(noun, century, FIRST_YEAR, tens, {(century, tens): ()})
    return usual(prompt.text, endings, tokenizer)


def usual(text: str, endings: tuple[str, ...], tokenizer: Any) -> tuple[str, ...]:
    """Those endings that a tokenizer adds to a text in the way in which it adds most of them.

    A way is how many tokens of the text stay in place, and how many follow them. Of two equally
    usual ways it is the one that leaves more of the text as it is.
    """
    prompt, *whole = encode(tokenizer, [text, *(text + ending for ending in endings)])
    splits = [continued(prompt, [tokens], force=False) for tokens in whole]
    ways = [(split.kept, len(split.rests[0])) for split in splits]
    count = Counter(ways)
    most = max(count, key=lambda way: (count[way], way))
    return tuple(ending for ending, way in zip(endings, ways, strict=True) if way == most)


def _nouns(split: str) -> list[str]:
    return word_lists("greater_than")[split]


def _originals(words: str, split: str) -> list[tuple[str, str, str]]:
    """Noun, century and year of every original prompt of a split."""
    if words == PAPER:
        return [(*place, year) for (place,) in _others(words, split) for year in YEARS]
    years = [(century, year) for century in CENTURIES for year in YEARS]
    own = [(century, year) for century, year in years if _owner(int(century), int(year)) == split]
    return [(noun, century, year) for century, year in own for noun in _nouns(split)]


def _others(words: str, split: str) -> list[list[tuple[str, str]]]:
    """Noun and century of every unmatched prompt of a split, in rows of equal length."""
    if words == OWN:
        return [[(noun, century) for century in CENTURIES] for noun in _nouns(split)]
    return [
        [(noun, century)]
        for row, noun in enumerate(word_lists("paper")["greater-than"]["nouns"])
        for column, century in enumerate(CENTURIES)
        if owner(row, column) == split
    ]


def _owner(century: int, year: int) -> str:
    """The split of a year: of each YY, three of the seven centuries train, one or two each other.

    As 3 and 7 have no common divisor, the years of a split are spread evenly over each century.
    """
    place = (century + 3 * year) % len(CENTURIES)
    if place < 3:
        return "train"
    others = ("validation", "test", "private")
    return others[place - 3] if place < 6 else others[year % 3]
