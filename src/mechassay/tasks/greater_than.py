"""Greater-than: "The war lasted from the year 1733 to 17" -> any of "34" to "99".

The task is that of Hanna et al. (2023), with the corrupted prompts under which Uit de Bos and
Garriga-Alonso (2024, table 2 and appendix B) evaluate its circuit. A prompt is made of a noun, a
century (11 to 17) and a year YY of it (02 to 98). Right is every YY' > YY, written directly after
the century; the foils are all others, YY itself included. Both add up to one hundred continuations,
and the objective is their difference of probability.

Counterfactuals, in which the year is always 01, so that nearly every continuation is right:

- matched: the same noun and century;
- unmatched: a noun of the split and a century drawn uniformly and independently of the clean
  prompt (so that they may happen to be the same).

Examples are finite in number. Those of a split are all its nouns with all its years, in an order
that depends on the seed; splits share no noun, and no year (century and YY) of an original prompt,
but each has every YY and every century. The years XX01 of the counterfactuals are common to all
splits, as is what prompts are continued with: there are but 100 numbers of two digits.

What is compared depends on how the tokenizer writes numbers (`mechassay.alignment`):

    " 17|33"      the two digits of the year, as in the papers
    " 1733"       whole years, directly after "to"
    " 173|3"      the tens digit, as the last digit of " 173"
    " 1|7|3|3"    the tens digit

In the last two a tens digit that begins both an answer and a foil (that of YY, unless YY ends in 9)
counts for neither, and years that have nothing else to be told apart by (05 or 95) are dropped
and counted. What is left out is what `digit="last"` asks for: there, the tens digit of YY is
written into both prompts, answers are the larger last digits and foils the others. Under these two
sorts of tokenizer both together are the exact probability of a right year,

    P(year > YY) = A + P(tens of YY) * B
    A            = sum of P(tens) over tens above that of YY               answers of digit="first"
    B            = sum of P(ones | tens of YY) over ones above that of YY  answers of digit="last"

where P(tens of YY) is that of the token which counts for neither. Years that end in 9 have B = 0:
digit="last" does not have them. Under the other two, digit="first" is exact by itself.

A tokenizer may write a few years otherwise than their century: GPT-2 has " 17|33" but " 1700", and
" 13|10" but " 130|5". Their first token would be compared with that of the whole century. With a
tokenizer given, such years come neither in prompts nor among the continuations: the usual way is
the one in which most of the hundred years continue a prompt.

Where this deviates from the papers:

- The nouns are our own (`data/greater_than.json`), and there are splits.
- GPT-2's tokens for "00" to "99" are all compared in the papers, even where GPT-2 never writes them
  in two parts; here, those that it writes otherwise are left out (up to nine of a century, but 45
  of 11xx).
- They leave out the first and last year of each century that GPT-2 writes in two parts; here, years
  are 02 to 98 for any tokenizer.
- The words of the private split are public; its examples are private through their seed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar

from mechassay.alignment import continued, encode
from mechassay.errors import one_of
from mechassay.examples import Example, Prompt, filled
from mechassay.tasks.paper import OWN, PAPER, check_words, owner, paper_words
from mechassay.tasks.paper import SIZES as PAPER_SIZES
from mechassay.tasks.task import Task, split_rng

SIZES = {"train": 10_000, "validation": 1_000, "test": 1_000, "private": 1_000}
TEMPLATE = "The {noun} lasted from the year {century}{year} to {century}"
CENTURIES = ("11", "12", "13", "14", "15", "16", "17")
YEARS = tuple(f"{year:02d}" for year in range(2, 99))
FIRST_YEAR = "01"
MATCHED, UNMATCHED = "matched_counterfactual", "unmatched_counterfactual"
DIGITS = ("first", "last")

Endings = Mapping[tuple[str, str], tuple[str, ...]]
"""What a prompt may be continued with, by its century and the tens digit written after it
("" for none).
"""


@dataclass(frozen=True)
class GreaterThan(Task):
    """The greater-than task. Tags: noun, century, year (YY), tens.

    Parts of a prompt: noun, century, year (the digits YY), century_2 (the one to be continued), and
    digit (the tens digit written after it) with digit="last".

    Attributes:
        digit: "first": continue with the year's last two digits; "last": the tens digit is given.
        words: "own", or "paper" for the nouns of Hanna et al. (2023), see `mechassay.tasks.paper`:
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
        check_words(self.words)
        if self.words == PAPER:
            object.__setattr__(self, "sizes", PAPER_SIZES)

    def template(self, tags: Mapping[str, str]) -> str | None:
        """All prompts are built alike."""
        return self.name

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        """All examples of one split, in random order; with a tokenizer,
        those of years that it writes in the usual way.

        An example's id is its place in that order: it does not depend on the tokenizer.
        """
        originals, others = _originals(self.words, split), _others(self.words, split)
        rng = split_rng(split, seed)
        order: list[int] = rng.permutation(len(originals)).tolist()
        drawn: list[list[int]] = rng.integers(
            (len(others), len(others[0])), size=(len(order), 2)
        ).tolist()
        endings = self._endings(originals[0][0], tokenizer)
        for number, (place, (row, column)) in enumerate(zip(order, drawn, strict=True)):
            theirs = others[row][column]
            example = self._example(
                f"{self.name}-{split}-{number:06d}", originals[place], theirs, endings
            )
            if example is not None:
                yield example

    def population(self, split: str) -> int:
        """How many examples a split has before a tokenizer is looked at.

        Raises:
            UnknownName: no such split.
        """
        one_of("split", split, self.sizes)
        return sum(
            self.digit == "first" or year[1] != "9" for _, _, year in _originals(self.words, split)
        )

    def _tens(self, year: str) -> str:
        return year[0] if self.digit == "last" else ""

    def _example(
        self, id: str, ours: tuple[str, str, str], theirs: tuple[str, str], endings: Endings
    ) -> Example | None:
        """The example of a noun, century and year;
        None if it has no answers or foils, or is unusual to the tokenizer.
        """
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

    def _endings(self, noun: str, tokenizer: Any) -> Endings:
        given = sorted({"", *(self._tens(year) for year in YEARS)})
        return {
            (century, tens): _usual(noun, century, tens, tokenizer)
            for century in CENTURIES
            for tens in given
        }


def _prompt(noun: str, century: str, year: str, tens: str, endings: Endings) -> Prompt:
    choices = endings[century, tens]
    # Both are two digits, so their order as texts is that of the numbers.
    answers = tuple(ending for ending in choices if tens + ending > year)
    template = TEMPLATE + ("{digit}" if tens else "")
    return filled(
        template, {"noun": noun, "century": century, "year": year, "digit": tens}, answers, choices
    )


def _usual(noun: str, century: str, tens: str, tokenizer: Any) -> tuple[str, ...]:
    """The endings of a prompt that the tokenizer adds to it in the usual way;
    all of them without a tokenizer.
    """
    width = 2 - len(tens)
    endings = tuple(f"{number:0{width}d}" for number in range(10**width))
    if tokenizer is None:
        return endings
    return usual(
        _prompt(noun, century, FIRST_YEAR, tens, {(century, tens): ()}).text, endings, tokenizer
    )


def usual(text: str, endings: tuple[str, ...], tokenizer: Any) -> tuple[str, ...]:
    """Those endings that a tokenizer adds to a text in the way in which it adds most of them.

    A way is how many tokens of the text stay in place, and how many follow them. Of two equally
    usual ways it is the one that leaves more of the text as it is.
    """
    prompt, *whole = encode(tokenizer, [text, *(text + ending for ending in endings)])
    found = [continued(prompt, [tokens], force=False) for tokens in whole]
    ways = [(each.kept, len(each.rests[0])) for each in found]
    count = Counter(ways)
    most = max(count, key=lambda way: (count[way], way))
    return tuple(ending for ending, way in zip(endings, ways, strict=True) if way == most)


@cache
def _nouns() -> dict[str, tuple[str, ...]]:
    text = files("mechassay.tasks").joinpath("data/greater_than.json").read_text(encoding="utf-8")
    return {split: tuple(words) for split, words in json.loads(text).items()}


def _originals(words: str, split: str) -> tuple[tuple[str, str, str], ...]:
    """Noun, century and year of every original prompt of a split."""
    if words == PAPER:
        return tuple(
            (noun, century, year) for ((noun, century),) in _others(words, split) for year in YEARS
        )
    return tuple(
        (noun, century, year) for century, year in _years(split) for noun in _nouns()[split]
    )


def _others(words: str, split: str) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Noun and century of every unmatched prompt of a split, in rows of equal length."""
    if words == OWN:
        return tuple(tuple((noun, century) for century in CENTURIES) for noun in _nouns()[split])
    nouns = paper_words("greater-than")["nouns"]
    return tuple(
        ((noun, century),)
        for row, noun in enumerate(nouns)
        for column, century in enumerate(CENTURIES)
        if owner(row, column) == split
    )


@cache
def _years(split: str) -> tuple[tuple[str, str], ...]:
    """Centuries and years of a split's original prompts."""
    return tuple(
        (century, year)
        for century in CENTURIES
        for year in YEARS
        if _owner(int(century), int(year)) == split
    )


def _owner(century: int, year: int) -> str:
    """The split that has a year: of each YY, three of the seven centuries train,
    and one or two are in each other split.

    As 3 and 7 have no common divisor, the years of a split are spread evenly over each century.
    """
    place = (century + 3 * year) % len(CENTURIES)
    if place < 3:
        return "train"
    others = ("validation", "test", "private")
    return others[place - 3] if place < 6 else others[year % 3]
