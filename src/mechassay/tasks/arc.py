"""Science questions with four choices (AI2 Reasoning Challenge, Clark et al.
2018), easy and challenge.

The task is that of MIB (Mueller et al. 2025, appendix D.4, tables 5 and 10): a question of school
science is completed by the label of its correct choice. Unlike in "mcqa" the question does not
contain the answer, so there are counterfactuals of format only. How a prompt is written, and what
the changes answerPosition, symbol and randomLetter are, says `mechassay.tasks.multiple_choice`.
answerPosition puts every choice in another place (a derangement), each one equally likely.

*Questions.* The setting `questions` says where they come from:

- "sample": a small sample of our own (`data/science.json`), 64 easy and 40 challenging questions
  written for this project, for trying things out. They are no substitute for ARC;
- "hub": the public ARC, `allenai/ai2_arc` on the Hugging Face hub, in its own splits train,
  validation and test. It has no private split;
- a file: .jsonl, .json or .parquet in one of ARC's two original formats, the hub's
  {id, question, choices: {text: [], label: []}, answerKey} and AI2's {id, question: {stem,
  choices: [{text, label}]}, answerKey}. Rows may have a field split ("train", "validation" or
  "dev", "test", "private"). Where none has, a hash of the question allots it to a split, in the
  proportions of table 5: a question comes into the same split whatever else is in the file.

With `source="hub"` or a folder, rows of MIB's own data set are read instead, with its
counterfactuals.

*Which questions count.* As in MIB, only questions with exactly four choices, which must be four
different ones. Any other question is an example without counterfactuals: no pair comes of it, and
`Pairs.dropped` counts it as "no such counterfactual". So is a question of the hub that came before
with the same choices; in a file, where it can be corrected, that is an error. The labels are A to
D, whatever the original calls them.

A split is its questions in an order drawn from the seed, each once. Parts of a prompt are those of
every multiple-choice prompt. Tags: question_id and position (of the correct choice, from 0).

Where this deviates from MIB:

- The default questions are our own sample, in small splits. The sizes of table 5 need the public
  data: `source="hub"`, or `questions="hub"`, whose test split is as large as MIB's public and
  private test together.
- The random letters have none of the original's, and answerPosition leaves no choice in its place.
- Splits share no question, but they share words.
- A private seed decides the order and the counterfactuals of the private split; its questions are
  as public as their source.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, ClassVar

from mechassay.alignment import Span
from mechassay.errors import BadFile, BadUsage
from mechassay.examples import Example
from mechassay.pairs import NO_SPANS
from mechassay.tasks.multiple_choice import (
    Format,
    MultipleChoice,
    Question,
    answer_index,
    changes_of,
    derangement,
    labelled,
    letters,
    one_line,
    random_letters,
)
from mechassay.tasks.public import ROW_FILES, PublicData, public_rows, read_rows
from mechassay.tasks.splits import split_named
from mechassay.tasks.task import SPLITS, stream

N_CHOICES = 4
# In the order and spelling of MIB's columns.
KINDS = (
    "answerPosition_counterfactual",
    "symbol_counterfactual",
    "randomLetter_counterfactual",
    "answerPosition_randomLetter_counterfactual",
)
SAMPLE, HUB = "sample", "hub"


@dataclass(frozen=True)
class _Item:
    """A question as its source has it.

    Attributes:
        split: the split that the source says, if it says one.
        again: whether it came before.
    """

    id: str
    question: Question
    split: str | None = None
    again: bool = False


@dataclass(frozen=True)
class _Set:
    """One of ARC's two sets.

    Attributes:
        level: its name in the sample.
        original: where its questions are on the hub.
        original_sizes: how many those are.
        sizes: questions of each split in MIB, which divides the original's test split (table 5).
    """

    level: str
    original: PublicData
    original_sizes: Mapping[str, int]
    sizes: Mapping[str, int]


EASY = _Set(
    "easy",
    PublicData("allenai/ai2_arc", "ARC-Easy"),
    {"train": 2251, "validation": 570, "test": 2376},
    {"train": 2251, "validation": 570, "test": 1188, "private": 1188},
)
CHALLENGE = _Set(
    "challenge",
    PublicData("allenai/ai2_arc", "ARC-Challenge"),
    {"train": 1119, "validation": 299, "test": 1172},
    {"train": 1119, "validation": 299, "test": 586, "private": 586},
)


@dataclass(frozen=True)
class ARC(MultipleChoice):
    """Science questions; the base of the easy and the challenging ones.

    Attributes:
        source: "own" (questions from `questions`), "hub", or a folder with rows of MIB's schema.
        questions: "sample", "hub", or the path of a file in ARC's original format.
        labels: "strict" for answers like " D", "mib-2025" for "D".

    Raises:
        BadUsage: `questions` of another kind, or together with a source that brings its own.
        UnknownName: no such `labels`.
    """

    source: str = "own"
    questions: str = SAMPLE
    labels: str = "strict"

    # Unannotated, so of the class and no fields.
    version = 2
    counterfactuals = KINDS
    default_counterfactual = "symbol_counterfactual"

    # Of the subclasses.
    data: ClassVar[_Set]

    def __post_init__(self) -> None:
        self.check_labels()
        if self.source != "own" and self.questions != SAMPLE:
            raise BadUsage(
                f'{self.name} takes questions only with source="own"; got source={self.source!r},'
                f" questions={self.questions!r}."
            )
        if self.questions not in (SAMPLE, HUB) and Path(self.questions).suffix not in ROW_FILES:
            raise BadUsage(
                f"questions of {self.name} is {SAMPLE!r}, {HUB!r} or a file {', '.join(ROW_FILES)};"
                f" got {self.questions!r}."
            )

    @property
    def n_labels(self) -> int:
        return N_CHOICES

    # They depend on where the questions come from.
    @property
    def sizes(self) -> Mapping[str, int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Questions of each split, those that do not count included;
        splits without any are not there.

        Raises:
            BadFile: the file of questions cannot be read.
        """
        if self.source != "own":
            return self.data.sizes
        if self.questions == HUB:
            return self.data.original_sizes
        return {split: len(items) for split, items in self._by_split.items()}

    def invent(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        """The questions of one split with their counterfactuals.

        Raises:
            BadUsage: the questions have no such split.
            BadFile: they cannot be read; by row number where it is a row that is wrong.
        """
        self._check_split(split)
        items, rng = self._items(split), stream(split, seed)
        for number, index in enumerate(rng.permutation(len(items)).tolist()):
            item = items[index]
            format = Format(derangement(N_CHOICES, rng), random_letters(N_CHOICES, rng))
            fit = _counts(item.question) and not item.again
            others = (
                {kind: format.changed(item.question, changes_of(kind)) for kind in KINDS}
                if fit
                else {}
            )
            yield self.example(
                f"{self.name}-{split}-{number:06d}", item.question, others, {"id": item.id}
            )

    def to_row(self, example: Example) -> dict[str, Any]:
        """An example in the public schema; its question_id is "arc_id"."""
        return {**super().to_row(example), "arc_id": example.tags["question_id"]}

    def example(
        self, id: str, question: Question, others: Mapping[str, Question], row: Mapping[str, Any]
    ) -> Example:
        name = row.get("arc_id") or row.get("id") or _digest("\n".join(_key(question)))[:16]
        tags = {"question_id": str(name), "position": str(question.correct)}
        kept = others if _counts(question) else {}
        return Example(
            id,
            self.prompt(question),
            {kind: self.prompt(other) for kind, other in kept.items()},
            tags=tags,
        )

    def parts(self, question: Question) -> Mapping[str, Span]:
        return NO_SPANS

    def _check_split(self, split: str) -> None:
        if split not in self.sizes:
            raise BadUsage(
                f"The questions {self.questions!r} of {self.name} have no split {split!r}, only"
                f" {', '.join(self.sizes)}."
            )

    def _items(self, split: str) -> Sequence[_Item]:
        if self.questions == HUB:
            return _read(
                public_rows(HUB, self.data.original, split), f"{self.data.original.repo} ({split})"
            )
        return self._by_split[split]

    # Read once: a task gives the same questions even if its file changes meanwhile.
    @cached_property
    def _by_split(self) -> Mapping[str, Sequence[_Item]]:
        """The questions of the sample or of a file."""
        if self.questions == SAMPLE:
            return _sample(self.data.level)
        items = _allotted(
            _read(read_rows(Path(self.questions)), self.questions), self.questions, self.data.sizes
        )
        return {
            split: found
            for split in SPLITS
            if (found := [item for item in items if item.split == split])
        }


@dataclass(frozen=True)
class ARCEasy(ARC):
    """Questions of ARC's easy set, or like them."""

    name = "arc-easy"
    public = PublicData("mib-bench/arc_easy")
    data = EASY


@dataclass(frozen=True)
class ARCChallenge(ARC):
    """Questions of ARC's challenge set, or like them."""

    name = "arc-challenge"
    public = PublicData("mib-bench/arc_challenge")
    data = CHALLENGE


def _sample(level: str) -> dict[str, list[_Item]]:
    text = files("mechassay.tasks").joinpath("data/science.json").read_text(encoding="utf-8")
    return {
        split: [
            _Item(
                row["id"],
                Question(
                    row["question"],
                    tuple(row["choices"]),
                    letters(N_CHOICES),
                    row["choices"].index(row["answer"]),
                ),
            )
            for row in rows
        ]
        for split, rows in json.loads(text)[level].items()
    }


def _counts(question: Question) -> bool:
    """Whether a question has four different choices."""
    return len(question.choices) == len(set(question.choices)) == N_CHOICES


def _key(question: Question) -> tuple[str, ...]:
    """What makes it a question of its own: some stems come several times, with other choices."""
    return (question.stem, *sorted(question.choices))


def _read(rows: Iterable[Any], where: str) -> list[_Item]:
    """Questions in ARC's original formats.

    Raises:
        BadFile: a row of another format, by its number.
    """
    items: list[_Item] = []
    seen: set[tuple[str, ...]] = set()
    for number, row in enumerate(rows, 1):
        try:
            item = _item(row, str(number))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise BadFile(
                f"{where}: row {number} is not a question of ARC: {type(error).__name__} {error}."
            ) from error
        key = _key(item.question)
        items.append(replace(item, again=key in seen))
        seen.add(key)
    return items


def _item(row: object, number: str) -> _Item:
    if not isinstance(row, Mapping):
        raise TypeError(f"a row is an object, got {type(row).__name__}")
    inner = row["question"]
    stem, choices = (
        (inner["stem"], inner["choices"]) if isinstance(inner, Mapping) else (inner, row["choices"])
    )
    labels, texts = labelled(choices)
    correct = answer_index(str(row["answerKey"]), labels)
    question = Question(
        one_line(stem), tuple(one_line(text) for text in texts), letters(len(texts)), correct
    )
    return _Item(str(row.get("id") or number), question, _split(row.get("split")))


def _split(name: object) -> str | None:
    if name is None:
        return None
    ours = split_named(str(name))
    if ours is None:
        raise ValueError(
            f"a split is one of {', '.join(SPLITS)} or a usual name of one (val, dev); got {name!r}"
        )
    return ours


def _allotted(items: Sequence[_Item], where: str, shares: Mapping[str, int]) -> list[_Item]:
    """The questions of a file, each with its split.

    Raises:
        BadFile: no questions; two rows with the same one; a split for some and not for others.
    """
    rows: dict[tuple[str, ...], int] = {}
    for number, item in enumerate(items, 1):
        first = rows.setdefault(_key(item.question), number)
        if first != number:
            raise BadFile(
                f"{where}: rows {first} and {number} have the same question with the same choices:"
                f" {item.question.stem!r}."
            )
    if not items:
        raise BadFile(f"{where} has no questions.")
    without = [number for number, item in enumerate(items, 1) if item.split is None]
    if 0 < len(without) < len(items):
        raise BadFile(
            f"{where}: either all rows have a field split or none has; row {without[0]} has none."
        )
    return (
        [replace(item, split=_share(item.question.stem, shares)) for item in items]
        if without
        else list(items)
    )


def _share(stem: str, shares: Mapping[str, int]) -> str:
    """The split of a question by its hash, in proportion to `shares`."""
    place = int(_digest(stem), 16) % sum(shares.values())
    for split, share in shares.items():
        if place < share:
            return split
        place -= share
    raise AssertionError("the shares cover every place")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
