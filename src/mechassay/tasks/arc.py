"""Science questions with four choices: the AI2 Reasoning Challenge (Clark et al. 2018).

The task is that of MIB (Mueller et al. 2025, appendix D.4, tables 5 and 10): a question of school
science is completed by the label of its correct choice. The question does not contain the answer,
so there are counterfactuals of format only (`mechassay.tasks.multiple_choice`). `questions` says
where they are from:

- "sample": 64 easy and 40 challenging questions of our own (`data/science.json`), no substitute for
  ARC;
- "hub": the public ARC, `allenai/ai2_arc`, in its own splits; there is no private one;
- a file in one of ARC's two original formats, {id, question, choices: {text: [], label: []},
  answerKey} (the hub's) or {id, question: {stem, choices: [{text, label}]}, answerKey} (AI2's).
  Rows may have a field split. Where none has, a hash of the question allots it, in the proportions
  of table 5.

Only questions with exactly four different choices count, as in MIB. Any other, and on the hub one
that came before with the same choices, has no counterfactuals, and `Pairs.dropped` counts it. A
split is its questions in an order drawn from the seed. Labels are A to D. Tags: question_id and
position (of the correct choice, from 0).

Deviations from MIB: the default questions are the sample; the test split of "hub" is MIB's public
and private one together; random letters have none of the original's, and answerPosition leaves no
choice in its place; splits share words; a private seed decides order and counterfactuals, not the
questions.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

from mechassay.errors import BadFile, BadUsage
from mechassay.prompts.pairs import NO_SPANS, Example
from mechassay.prompts.rows import read_rows
from mechassay.prompts.tokenization import Span
from mechassay.tasks.hub_datasets import ROW_ERRORS, ROW_FILES, PublicData, public_rows
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
from mechassay.tasks.task import SPLITS, split_named, split_rng, word_lists

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
        place: of its row in the source, from 1.
        split: the split that the source says, if it says one.
        again: whether it came before.
    """

    id: str
    question: Question
    place: int = 0
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

    version: ClassVar[int] = 2
    counterfactuals: ClassVar[tuple[str, ...]] = KINDS
    default_counterfactual: ClassVar[str] = "symbol_counterfactual"

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
        """Questions of each split that has any, those that do not count included.

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
        if split not in self.sizes:
            raise BadUsage(
                f"The questions {self.questions!r} of {self.name} have no split {split!r}, only"
                f" {', '.join(self.sizes)}."
            )
        items, rng = self._items(split), split_rng(split, seed)
        for number, index in enumerate(rng.permutation(len(items)).tolist()):
            item = items[index]
            format = Format(derangement(N_CHOICES, rng), random_letters(N_CHOICES, rng))
            kinds = KINDS if _counts(item.question) and not item.again else ()
            others = {kind: format.changed(item.question, changes_of(kind)) for kind in kinds}
            id = f"{self.name}-{split}-{number:06d}"
            yield self.example(id, item.question, others, {"id": item.id})

    def to_row(self, example: Example) -> dict[str, Any]:
        """An example in the public schema; its question_id is "arc_id"."""
        return {**super().to_row(example), "arc_id": example.tags["question_id"]}

    def example(
        self, id: str, question: Question, others: Mapping[str, Question], row: Mapping[str, Any]
    ) -> Example:
        name = row.get("arc_id") or row.get("id") or _digest("\n".join(_key(question)))[:16]
        tags = {"question_id": str(name), "position": str(question.correct)}
        kept = others if _counts(question) else {}
        kept = {kind: self.prompt(other) for kind, other in kept.items()}
        return Example(id, self.prompt(question), kept, tags=tags)

    def parts(self, question: Question) -> Mapping[str, Span]:
        return NO_SPANS

    def _items(self, split: str) -> Sequence[_Item]:
        if self.questions == HUB:
            original = self.data.original
            rows = enumerate(public_rows(HUB, original, split), 1)
            return _read(rows, f"{original.repo} ({split})")
        return self._by_split[split]

    # Read once: a task gives the same questions even if its file changes meanwhile.
    @cached_property
    def _by_split(self) -> Mapping[str, Sequence[_Item]]:
        """The questions of the sample or of a file."""
        if self.questions == SAMPLE:
            return _sample(self.data.level)
        items = _read(read_rows(Path(self.questions)), self.questions)
        items = _allotted(items, self.questions, self.data.sizes)
        by_split = {split: [item for item in items if item.split == split] for split in SPLITS}
        return {split: items for split, items in by_split.items() if items}


@dataclass(frozen=True)
class ARCEasy(ARC):
    """Questions of ARC's easy set, or like them."""

    name: ClassVar[str] = "arc-easy"
    published_sizes: ClassVar[Mapping[str, int]] = MappingProxyType(
        {"train": 2251, "validation": 570, "test": 1188, "private": 1188}
    )
    public: ClassVar[PublicData] = PublicData("mib-worker/arc_easy")
    data: ClassVar[_Set] = EASY


@dataclass(frozen=True)
class ARCChallenge(ARC):
    """Questions of ARC's challenge set, or like them."""

    name: ClassVar[str] = "arc-challenge"
    published_sizes: ClassVar[Mapping[str, int]] = MappingProxyType(
        {"train": 1119, "validation": 299, "test": 586, "private": 586}
    )
    public: ClassVar[PublicData] = PublicData("mib-worker/arc_challenge")
    data: ClassVar[_Set] = CHALLENGE


def _sample(level: str) -> dict[str, list[_Item]]:
    def question(row: Mapping[str, Any]) -> Question:
        choices = tuple(row["choices"])
        return Question(row["question"], choices, letters(N_CHOICES), choices.index(row["answer"]))

    lists = word_lists("science")[level]
    return {
        split: [_Item(row["id"], question(row)) for row in rows] for split, rows in lists.items()
    }


def _counts(question: Question) -> bool:
    """Whether a question has four different choices."""
    return len(question.choices) == len(set(question.choices)) == N_CHOICES


def _key(question: Question) -> tuple[str, ...]:
    return (question.stem, *sorted(question.choices))


def _read(rows: Iterable[tuple[int, Any]], where: str) -> list[_Item]:
    """Questions in ARC's original formats, from rows with their places."""
    items: list[_Item] = []
    seen: set[tuple[str, ...]] = set()
    for place, row in rows:
        try:
            item = _item(row, place)
        except ROW_ERRORS as error:
            raise BadFile(
                f"{where}: row {place} is not a question of ARC: {type(error).__name__} {error}."
            ) from error
        key = _key(item.question)
        items.append(replace(item, again=key in seen))
        seen.add(key)
    return items


def _item(row: object, place: int) -> _Item:
    if not isinstance(row, Mapping):
        raise TypeError(f"a row is an object, got {type(row).__name__}")
    inner = row["question"]
    nested = isinstance(inner, Mapping)
    stem, choices = (inner["stem"], inner["choices"]) if nested else (inner, row["choices"])
    labels, texts = labelled(choices)
    correct = answer_index(str(row["answerKey"]), labels)
    stem, lines = one_line(stem), tuple(map(one_line, texts))
    question = Question(stem, lines, letters(len(texts)), correct)
    name = row.get("split")
    split = None if name is None else split_named(str(name))
    if name is not None and split is None:
        raise ValueError(
            f"a split is one of {', '.join(SPLITS)} or a usual name of one (val, dev); got {name!r}"
        )
    return _Item(str(row.get("id") or place), question, place, split)


def _allotted(items: Sequence[_Item], where: str, shares: Mapping[str, int]) -> list[_Item]:
    """The questions of a file, each with its split."""
    rows: dict[tuple[str, ...], int] = {}
    for item in items:
        first = rows.setdefault(_key(item.question), item.place)
        if first != item.place:
            raise BadFile(
                f"{where}: rows {first} and {item.place} have the same question with the same"
                f" choices: {item.question.stem!r}."
            )
    if not items:
        raise BadFile(f"{where} has no questions.")
    without = [item.place for item in items if item.split is None]
    if 0 < len(without) < len(items):
        raise BadFile(
            f"{where}: either all rows have a field split or none has; row {without[0]} has none."
        )
    if not without:
        return list(items)
    # In proportion to the shares, by a hash of the question.
    ends = list(accumulate(shares.values()))
    splits = list(shares)
    hashes = [int(_digest(item.question.stem), 16) % ends[-1] for item in items]
    return [
        replace(item, split=splits[bisect_right(ends, place)])
        for item, place in zip(items, hashes, strict=True)
    ]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
