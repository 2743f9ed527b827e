"""Multiple-choice question answering: "A box is brown. What color is a box?" -> " D".

The task is that of Wiegreffe et al. (2025) with the splits and the nine counterfactuals of MIB
(Mueller et al. 2025, appendix D.3, tables 5 and 9). The answer stands in the question: all there is
to do is to find the choice that repeats it and to say its label. `mechassay.tasks.multiple_choice`
has the changes of format; two more change the question:

- noun: another object of the same split stands in both places of the question. The color stays, so
  the sentence may be false: the task is to copy, not to know;
- color: the right color becomes one that is not among the choices, in question and choice.

answerPosition exchanges the correct choice with one other, drawn at random. A split is a stream of
rounds over its objects, each in an order of its own; an object comes with its color, wrong choices
drawn from the other ten, and a place for the right one. No prompt comes twice.

Parts of a prompt, beside those of every multiple-choice prompt: object, object_2, color, and
choice_color (also called correct_choice). Examples of one object are one group. Tags: object,
color, position (of the correct choice, from 0), n_choices.

Deviations from MIB: objects are our own (`data/colors.json`), 260 in the numbers of table 5, and no
split shares any; with a tokenizer, noun takes an object that leaves the number of tokens as it is,
if there is one; random letters have none of the original's; the objects of the private split are
public, its rows private through their seed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import comb, factorial
from typing import Any, ClassVar

import numpy as np

from mechassay.alignment import Span, encode
from mechassay.errors import BadUsage
from mechassay.examples import Example, Prompt
from mechassay.pairs import NO_SPANS
from mechassay.tasks.multiple_choice import (
    Format,
    MultipleChoice,
    Question,
    changes_of,
    letters,
    random_letters,
    swap,
)
from mechassay.tasks.public import BadRow, PublicData
from mechassay.tasks.task import split_rng
from mechassay.tasks.words import word_lists

COLORS = (
    *("black", "blue", "brown", "gray", "green", "orange"),
    *("pink", "purple", "red", "white", "yellow"),
)
NOUN, COLOR = "noun", "color"
SIZES = {"train": 110, "validation": 50, "test": 50, "private": 50}
# In the order and spelling of MIB's columns.
KINDS = (
    "noun_counterfactual",
    "color_counterfactual",
    "noun_color_counterfactual",
    "answerPosition_counterfactual",
    "symbol_counterfactual",
    "randomLetter_counterfactual",
    "answerPosition_randomLetter_counterfactual",
    "answerPosition_symbol_counterfactual",
    "answerPosition_color_counterfactual",
)
# Objects that are tokenized at once in search of one that fits.
CHUNK = 8
_STEM = re.compile(
    r"(?P<object>.+) (?P<verb>is|are) (?P<color>\w[\w -]*)\. What color (?P=verb)"
    r" (?P<object_2>.+)\?"
)


@dataclass(frozen=True)
class MCQA(MultipleChoice):
    """Copying a color from a multiple-choice question.

    With a tokenizer, the object of the counterfactual noun is drawn from those that make a prompt
    of equally many tokens. Where none does, it is the one drawn without a tokenizer, and the pair
    is dropped and counted. Nothing else depends on the tokenizer.

    A public row whose question is worded otherwise than "X is COLOR. What color is X?" has no parts
    object, object_2 and color; its tag object is the whole question.

    Attributes:
        source: "own", "hub", or a folder with rows of the public schema.
        n_choices: how many choices a question has, 2 to 10.
        labels: "strict" for answers like " D", "mib-2025" for "D".

    Raises:
        BadUsage: `n_choices` outside its range.
        UnknownName: no such `labels`.
    """

    source: str = "own"
    n_choices: int = 4
    labels: str = "strict"

    name: ClassVar[str] = "mcqa"
    version: ClassVar[int] = 2
    counterfactuals: ClassVar[tuple[str, ...]] = KINDS
    default_counterfactual: ClassVar[str] = "symbol_counterfactual"
    sizes: ClassVar[Mapping[str, int]] = SIZES

    def __post_init__(self) -> None:
        self.check_labels()
        if not 2 <= self.n_choices <= len(COLORS) - 1:
            raise BadUsage(
                f"n_choices of mcqa must be between 2 and {len(COLORS) - 1}; got {self.n_choices}."
            )

    @property
    def n_labels(self) -> int:
        return self.n_choices

    # The configuration depends on a setting.
    @property
    def public(self) -> PublicData:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Where the data set of questions with so many choices is."""
        return PublicData("mib-bench/copycolors_mcqa", f"{self.n_choices}_answer_choices")

    def invent(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        """Rounds over the objects of one split, until every prompt has come."""
        things, seen = _things()[split], set[tuple[str, ...]]()
        # An object, its wrong choices, and an order of all choices.
        n = self.n_choices
        possible = len(things) * comb(len(COLORS) - 1, n - 1) * factorial(n)
        for draw in _draws(things, self.n_choices, split_rng(split, seed)):
            if draw.key in seen:
                continue
            id = f"{self.name}-{split}-{len(seen):06d}"
            seen.add(draw.key)
            other = self._noun(draw, tokenizer)
            others = {kind: draw.question(changes_of(kind), other) for kind in KINDS}
            yield self.example(id, draw.question(()), others, {})
            if len(seen) == possible:
                return

    def example(
        self, id: str, question: Question, others: Mapping[str, Question], row: Mapping[str, Any]
    ) -> Example:
        prompt = self.prompt(question)
        tags = {
            "object": prompt.part("object_2") if "object_2" in prompt.spans else question.stem,
            "color": question.choices[question.correct],
            "position": str(question.correct),
            "n_choices": str(self.n_choices),
        }
        counterfactuals = {kind: self.prompt(other) for kind, other in others.items()}
        return Example(id, prompt, counterfactuals, group=tags["object"], tags=tags)

    def parts(self, question: Question) -> Mapping[str, Span]:
        match, correct = _STEM.fullmatch(question.stem), question.choices[question.correct]
        if match is None:
            return NO_SPANS
        if match["color"] != correct:
            raise BadRow(
                "a question that its answer does not answer",
                f"the question {question.stem!r} is not answered by {correct!r}",
            )
        return {name: match.span(name) for name in ("object", "color", "object_2")}

    def prompt(self, question: Question) -> Prompt:
        if len(question.choices) != self.n_choices:
            raise BadRow(
                "another number of choices",
                f"a question has {len(question.choices)} choices; n_choices is {self.n_choices}",
            )
        made = super().prompt(question)
        return replace(made, spans={**made.spans, "choice_color": made.spans["correct_choice"]})

    def _noun(self, draw: _MCQADraw, tokenizer: Any) -> _Thing:
        """The first drawn object that leaves the number of tokens as it is; else the very first."""
        if tokenizer is None:
            return draw.others[0]
        plain = self.prompt(draw.question(())).text
        for begin in range(0, len(draw.others), CHUNK):
            others = draw.others[begin : begin + CHUNK]
            texts = [self.prompt(draw.question((NOUN,), other)).text for other in others]
            own, *encoded = encode(tokenizer, [plain, *texts])
            for other, tokens in zip(others, encoded, strict=True):
                if len(tokens) == len(own):
                    return other
        return draw.others[0]


@dataclass(frozen=True)
class _Thing:
    """An object: its name within a sentence, the verb that agrees with it, and its color."""

    name: str
    verb: str
    color: str

    def stem(self, color: str) -> str:
        return (
            f"{self.name[0].upper()}{self.name[1:]} {self.verb} {color}. What color {self.verb}"
            f" {self.name}?"
        )


@dataclass(frozen=True)
class _MCQADraw:
    """Everything that a question and its counterfactuals are made of.

    Attributes:
        thing: the object asked about.
        others: all other objects of the split; the noun change takes the first that fits.
        choices: the colors in their order, the right one among them.
        color: what the color change puts in the right one's stead.
        format: the draw of the format changes.
    """

    thing: _Thing
    others: Sequence[_Thing]
    choices: tuple[str, ...]
    color: str
    format: Format

    @property
    def key(self) -> tuple[str, ...]:
        """What the original prompt is made of."""
        return (self.thing.name, *self.choices)

    def question(self, changes: Sequence[str], other: _Thing | None = None) -> Question:
        """The question with some changes made; `other` is the object of the change noun."""
        thing = other if other is not None and NOUN in changes else self.thing
        color = self.color if COLOR in changes else self.thing.color
        choices = tuple(color if choice == self.thing.color else choice for choice in self.choices)
        plain = Question(thing.stem(color), choices, letters(len(choices)), choices.index(color))
        return self.format.changed(plain, changes)


@cache
def _things() -> dict[str, tuple[_Thing, ...]]:
    return {
        split: tuple(
            _Thing(name, verb, color)
            for color, verbs in colors.items()
            for verb, names in verbs.items()
            for name in names
        )
        for split, colors in word_lists("colors").items()
    }


def _draws(things: Sequence[_Thing], n: int, rng: np.random.Generator) -> Iterator[_MCQADraw]:
    """Round after round over the objects, without end."""
    while True:
        for index in rng.permutation(len(things)).tolist():
            thing = things[index]
            others = [other for other in things if other is not thing]
            remaining = [color for color in COLORS if color != thing.color]
            shuffled = [remaining[i] for i in rng.permutation(len(remaining)).tolist()]
            place, step = int(rng.integers(n)), int(rng.integers(1, n))
            yield _MCQADraw(
                thing=thing,
                others=[others[i] for i in rng.permutation(len(others)).tolist()],
                choices=(*shuffled[:place], thing.color, *shuffled[place : n - 1]),
                color=shuffled[n - 1],
                format=Format(swap(n, place, (place + step) % n), random_letters(n, rng)),
            )
