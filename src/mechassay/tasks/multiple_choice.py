"""Multiple-choice tasks: how a question is written, its changes of format, and MCQA.

A question is written as MIB writes it (Mueller et al. 2025, tables 9 and 10), "Question: ...", a
line "A. gray" for each choice and "Answer:", and completed by the label of its correct choice.
Three changes leave the question and its choices as they are:

- answerPosition: the choices come in another order, the correct one in another place;
- symbol: the labels are 1, 2, 3 and so on;
- randomLetter: the labels are random letters, all different, none of them of the original's.

The name of a counterfactual joins the names of its changes by "_"; what a draw makes of a change
is the same in all of them. Parts of a prompt: question; symbol_0, choice_0, symbol_1, ...; and
correct_symbol, correct_symbol_period, correct_choice, in the line of the correct choice.

With labels "strict" the answer is " D", as a model writes it; with "mib-2025" it is "D", as the
circuit track of MIB compares it. What is compared is the first token that tells answer from foil
(`mechassay.prompts.tokenization`). Where a tokenizer does not tell the symbols apart by their
first token, the default counterfactual is randomLetter instead of symbol. One that has a token
":D" compares, with "mib-2025", that token with ":" or ":C", where MIB's code takes "D" alone.

Deviation from MIB: table 10 has a letter of the original among the random ones; here every label
changes, and with it every answer.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import comb, factorial
from string import ascii_uppercase
from typing import Any, ClassVar

import numpy as np

from mechassay.errors import BadUsage, one_of
from mechassay.prompts.pairs import NO_SPANS, Example, Prompt, filled
from mechassay.prompts.tokenization import Span, continued, encode
from mechassay.tasks.hub_datasets import BadRow, PublicData, PublicTask
from mechassay.tasks.scoring import LABELLED, Scoring
from mechassay.tasks.task import split_rng, word_lists

POSITION, SYMBOL, LETTER = "answerPosition", "symbol", "randomLetter"
SUFFIX = "_counterfactual"
# What stands between "Answer:" and a label.
SPACES = {"strict": " ", "mib-2025": ""}
BEGIN, END = "Question: ", "\nAnswer:"


@dataclass(frozen=True)
class Question:
    """A question with labelled choices.

    Attributes:
        stem: what is asked.
        choices: the choices in their order.
        labels: one a choice, all different.
        correct: the index of the correct choice.
    """

    stem: str
    choices: tuple[str, ...]
    labels: tuple[str, ...]
    correct: int

    def permuted(self, order: Sequence[int]) -> Question:
        """The choices in another order, given as the index of each place's choice; labels stay."""
        return replace(
            self,
            choices=tuple(self.choices[i] for i in order),
            correct=list(order).index(self.correct),
        )

    def relabelled(self, labels: Sequence[str]) -> Question:
        return replace(self, labels=tuple(labels))

    def prompt(self, space: str, parts: Mapping[str, Span] = NO_SPANS) -> Prompt:
        """The question as text, with its answer, choices and parts.

        Args:
            space: what stands before a label that is written after the prompt.
            parts: parts of the stem by name, in characters of the stem.
        """
        lines = "".join(f"\n{{symbol_{i}}}. {{choice_{i}}}" for i in range(len(self.choices)))
        fields = {f"symbol_{i}": label for i, label in enumerate(self.labels)}
        fields |= {f"choice_{i}": choice for i, choice in enumerate(self.choices)}
        plain = filled(BEGIN + "{question}" + lines + END, {"question": self.stem, **fields})
        symbol = plain.spans[f"symbol_{self.correct}"]
        spans = {
            **plain.spans,
            **{name: (len(BEGIN) + a, len(BEGIN) + b) for name, (a, b) in parts.items()},
            "correct_symbol": symbol,
            "correct_symbol_period": (symbol[1], symbol[1] + 1),
            "correct_choice": plain.spans[f"choice_{self.correct}"],
        }
        continuations = tuple(space + label for label in self.labels)
        return Prompt(plain.text, (continuations[self.correct],), continuations, spans)


@dataclass(frozen=True)
class Format:
    """What one draw makes of the changes of format.

    Attributes:
        order: for each place, the index of the choice that answerPosition moves there.
        letters: the labels of randomLetter.
    """

    order: tuple[int, ...]
    letters: tuple[str, ...]

    def changed(self, question: Question, changes: Sequence[str]) -> Question:
        """The question with those of the changes that are of format."""
        if POSITION in changes:
            question = question.permuted(self.order)
        if SYMBOL in changes:
            question = question.relabelled(symbols(len(question.choices)))
        if LETTER in changes:
            question = question.relabelled(self.letters)
        return question


class MultipleChoice(PublicTask):
    """Multiple-choice questions. Subclasses are dataclasses with fields `source` and `labels`.

    Attributes:
        labels: "strict" (" D") or "mib-2025" ("D").
    """

    labels: str
    mib_scoring: ClassVar[Scoring] = LABELLED

    @abstractmethod
    def parts(self, question: Question) -> Mapping[str, Span]:
        """Parts of the stem by name, in characters of the stem.

        Raises:
            ValueError: the stem contradicts the correct choice.
        """

    @abstractmethod
    def example(
        self, id: str, question: Question, others: Mapping[str, Question], row: Mapping[str, Any]
    ) -> Example:
        """The example of a question and its counterfactuals by kind, with tags and group.

        Args:
            row: the public row it was read from; empty if it was not.
        """

    def from_row(self, row: Mapping[str, Any], id: str) -> Example:
        others, unread = self.read_counterfactuals(row, self._question)
        return replace(self.example(id, self._question(row), others, row), unread=unread)

    def _question(self, struct: Mapping[str, Any]) -> Question:
        """The question of a public struct, if this task has such prompts."""
        question = read_question(struct)
        self.prompt(question)
        return question

    def to_row(self, example: Example) -> dict[str, Any]:
        """An example in the public schema: prompt, choices {label, text}, answerKey (an index), and
        one such struct for each counterfactual.
        """
        return {
            **_struct(example.prompt),
            **{kind: _struct(prompt) for kind, prompt in example.counterfactuals.items()},
        }

    @property
    @abstractmethod
    def n_labels(self) -> int:
        """How many choices a question has."""

    def counterfactual_for(self, tokenizer: Any = None) -> str:
        """The letters where the tokenizer begins two symbols alike (1 and 10), else the symbols."""
        if tokenizer is None:
            return self.default_counterfactual
        written = [END + SPACES[self.labels] + symbol for symbol in symbols(self.n_labels)]
        prompt, *whole = encode(tokenizer, [END, *written])
        first = {rest[:1] for rest in continued(prompt, whole, force=False).rests}
        return self.default_counterfactual if len(first) == self.n_labels else LETTER + SUFFIX

    def unusable(self, kind: str, tokenizer: Any = None) -> str | None:
        if tokenizer is None or SYMBOL not in changes_of(kind):
            return None
        names = letters(self.n_labels), symbols(self.n_labels)
        ours, theirs = (
            encode(tokenizer, ["".join(f"\n{label}. x" for label in labels)])[0] for labels in names
        )
        if len(ours) == len(theirs):
            return None
        return (
            f"the tokenizer writes lines with the labels 1 to {self.n_labels} in {len(theirs)}"
            f" tokens and A to {names[0][-1]} in {len(ours)}; take {LETTER}{SUFFIX} or fewer"
            " choices"
        )

    def prompt(self, question: Question) -> Prompt:
        """A question as a prompt of this task."""
        return question.prompt(SPACES[self.labels], self.parts(question))

    def check_labels(self) -> None:
        """Raise UnknownName for labels that are neither "strict" nor "mib-2025"."""
        one_of("labels", self.labels, SPACES)


def changes_of(kind: str) -> list[str]:
    """The changes that a counterfactual makes, from its name."""
    return kind.removesuffix(SUFFIX).split("_")


def letters(n: int) -> tuple[str, ...]:
    """The labels of an original question: A, B, C, ..."""
    return tuple(ascii_uppercase[:n])


def symbols(n: int) -> tuple[str, ...]:
    """The labels of the change symbol: 1, 2, 3, ..."""
    return tuple(str(i + 1) for i in range(n))


def random_letters(n: int, rng: np.random.Generator) -> tuple[str, ...]:
    """Different letters beyond the first n, in random order; n is at most 13."""
    order = rng.permutation(len(ascii_uppercase) - n)[:n].tolist()
    return tuple(ascii_uppercase[n + i] for i in order)


def swap(n: int, a: int, b: int) -> tuple[int, ...]:
    """The order of n things in which a and b have changed places."""
    return tuple({a: b, b: a}.get(i, i) for i in range(n))


def derangement(n: int, rng: np.random.Generator) -> tuple[int, ...]:
    """A random order of n > 1 things in which none keeps its place, each equally likely."""
    while True:
        # About one permutation in e is one.
        order = tuple(rng.permutation(n).tolist())
        if all(i != place for place, i in enumerate(order)):
            return order


def read_question(struct: Mapping[str, Any]) -> Question:
    """The question of a public struct {prompt, choices {label, text}, answerKey}, as its prompt has
    it.

    Raises:
        KeyError, TypeError, ValueError: it has not these fields, or they contradict one another.
    """
    labels, texts = labelled(struct["choices"])
    stem, choices = _lines(struct["prompt"], labels)
    if [choice.strip() for choice in choices] != [str(text).strip() for text in texts]:
        raise BadRow(
            "a prompt that contradicts its choices",
            f"the prompt has the choices {choices}, the field has {texts}",
        )
    return Question(stem, tuple(choices), tuple(labels), answer_index(struct["answerKey"], labels))


def labelled(choices: Any) -> tuple[list[str], list[Any]]:
    """Labels and texts of choices, which are {label: [], text: []} or a list of {label, text}.

    Raises:
        KeyError, TypeError, ValueError: they are not, or not one label each, all different.
    """
    if isinstance(choices, Mapping):
        columns = choices["label"], choices["text"]
    else:
        columns = [[choice[field] for choice in choices] for field in ("label", "text")]
    labels, texts = [str(label) for label in columns[0]], list(columns[1])
    if len(labels) != len(texts) or not 1 < len(set(labels)) == len(labels) <= len(ascii_uppercase):
        raise BadRow(
            "choices without a label of their own",
            f"there are two choices or more with one label each, all different; got {labels} for"
            f" {texts}",
        )
    return labels, texts


def answer_index(key: object, labels: Sequence[str]) -> int:
    """The index that an answer key says, as an index or as a label.

    Raises:
        ValueError: there is no such choice.
    """
    if isinstance(key, str) and key in labels:
        return labels.index(key)
    if isinstance(key, int) and not isinstance(key, bool) and 0 <= key < len(labels):
        return key
    raise BadRow(
        "an answer key that is no choice",
        f"an answer key is an index below {len(labels)} or one of the labels {list(labels)}; got"
        f" {key!r}",
    )


def _lines(text: object, labels: Sequence[str]) -> tuple[str, list[str]]:
    """The stem and the choices of a prompt; from its end, as a stem may have lines of its own."""
    form = "a prompt of another form"
    if not (isinstance(text, str) and text.startswith(BEGIN) and text.endswith(END)):
        raise BadRow(form, f"a prompt begins with {BEGIN!r} and ends with {END!r}; got {text!r}")
    rest, choices = text[len(BEGIN) : -len(END)], list[str]()
    for label in reversed(labels):
        rest, line, choice = rest.rpartition(f"\n{label}. ")
        if not line:
            raise BadRow(form, f"the prompt has no line '{label}. ...' in its place: {text!r}")
        choices.insert(0, choice)
    return rest, choices


def _struct(prompt: Prompt) -> dict[str, Any]:
    label, text = (
        [prompt.part(f"{part}_{i}") for i in range(len(prompt.choices))]
        for part in ("symbol", "choice")
    )
    key = prompt.choices.index(prompt.answers[0])
    return {"prompt": prompt.text, "choices": {"label": label, "text": text}, "answerKey": key}


def one_line(text: object) -> str:
    """A text without space around it and without line breaks.

    Raises:
        ValueError: it is no text, or nothing is left of it.
    """
    line = re.sub(r"\s*\n\s*", " ", text.strip()) if isinstance(text, str) else ""
    if not line:
        raise ValueError(f"a question and its choices are texts; got {text!r}")
    return line


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
    """Multiple-choice question answering: copying a color from the question.

    "A box is brown. What color is a box?" -> " D". The task is that of Wiegreffe et al. (2025)
    with the splits and the nine counterfactuals of MIB (Mueller et al. 2025, appendix D.3,
    tables 5 and 9). The answer stands in the question: all there is to do is to find the choice
    that repeats it and to say its label. Beside the changes of format, two change the question:

    - noun: another object of the same split stands in both places of the question. The color
      stays, so the sentence may be false: the task is to copy, not to know;
    - color: the right color becomes one that is not among the choices, in question and choice.

    answerPosition exchanges the correct choice with one other, drawn at random. A split is a
    stream of rounds over its objects, each in an order of its own; an object comes with its
    color, wrong choices drawn from the other ten, and a place for the right one. No prompt
    comes twice.

    Parts of a prompt, beside those of every multiple-choice prompt: object, object_2, color,
    and choice_color (also called correct_choice). Examples of one object are one group. Tags:
    object, color, position (of the correct choice, from 0), n_choices.

    Deviations from MIB: objects are our own (`data/colors.json`), 260 in the numbers of table
    5, and no split shares any; with a tokenizer, noun takes an object that leaves the number of
    tokens as it is, if there is one; random letters have none of the original's; the objects of
    the private split are public, its rows private through their seed.

    With a tokenizer, the object of the counterfactual noun is drawn from those that make a
    prompt of equally many tokens. Where none does, it is the one drawn without a tokenizer, and
    the pair is dropped and counted. Nothing else depends on the tokenizer.

    A public row whose question is worded otherwise than "X is COLOR. What color is X?" has no
    parts object, object_2 and color; its tag object is the whole question.

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
        return PublicData("mib-worker/copycolors_mcqa", f"{self.n_choices}_answer_choices")

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
