r"""Pairs of your own, from a JSONL, JSON, CSV or TSV file: one row, one pair.

    clean            the prompt
    counterfactual   the counterfactual prompt; `corrupted` means the same
    answer           right continuations of `clean`, or `answers`
    foil             what they are compared with, or `foils`
    id, group        optional, see `mechassay.pairs.Pair`
    split            optional: train, validation, test or private, or a usual name of one (val, dev)
    anything else    a tag, and a part of the prompt where its value is a word of it

Several answers are a list in JSON, and "a|b" in CSV and TSV, where a bar that is meant is "\|".
EAP-IG's layouts are read too (`mechassay.tasks.columns`). The file is read once, when its rows are
first needed; mistakes are told with the places of rows. Examples come in the order of the file,
whatever the seed. A line break within a CSV cell is always "\n".

Without a split column, rows are allotted to train, validation and test (60, 20 and 20 %): rows
connected through a prompt, clean or counterfactual, or through a group stay together, and a hash of
what connects them decides (`mechassay.tasks.splits`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from mechassay.errors import BadFile, BadUsage
from mechassay.examples import Example, Prompt
from mechassay.rows import check_ending
from mechassay.tasks.columns import RESERVED
from mechassay.tasks.contents import SPLIT, Contents, contents_of, own_id
from mechassay.tasks.fields import parts_of
from mechassay.tasks.greater_than import GreaterThan, usual
from mechassay.tasks.pair_rows import ENDINGS, PairRow, pair_rows
from mechassay.tasks.task import SPLITS, Task
from mechassay.tasks.token_ids import TokenIds

KIND = "counterfactual"


@dataclass(frozen=True)
class FileTask(Task):
    """The pairs of a file; see the module.

    Attributes:
        path: a .jsonl, .json, .csv or .tsv file. Not stored with results; `file` and `sha256` are.
        split_column: the column that says each row's split.
        file: the file's name.
        sha256: of its content.
        name: the file's name without its ending.

    Raises:
        BadFile: no such file, or of another ending. What is in it is read when it is first needed.
        BadUsage: a `split_column` that means something else.
    """

    path: str = field(repr=False, compare=False)
    split_column: str = SPLIT
    file: str = field(init=False)
    sha256: str = field(init=False)
    name: str = field(init=False, repr=False)  # pyright: ignore[reportIncompatibleVariableOverride]

    version: ClassVar[int] = 2
    counterfactuals: ClassVar[tuple[str, ...]] = (KIND,)
    default_counterfactual: ClassVar[str] = KIND

    def __post_init__(self) -> None:
        path = Path(self.path)
        object.__setattr__(self, "path", str(path))
        check_ending(path)
        if self.split_column in RESERVED:
            raise BadUsage(f"split_column must be a column of its own; got {self.split_column!r}.")
        if not path.is_file():
            raise BadFile(f"{self.path}: there is no such file.")
        known = {"file": path.name, "name": path.stem, "sha256": _sha256(path)}
        for name, value in known.items():
            object.__setattr__(self, name, value)

    @property
    def seeded(self) -> bool:
        """No seed makes what a file holds: its private split is as private as the file."""
        return False

    # `sizes` and `objective` are known only after reading.
    @cached_property
    def sizes(self) -> Mapping[str, int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Rows of each split that has any.

        Raises:
            BadFile: the file cannot be read as rows of these columns.
            BadPairs: rows that cannot be compared.
            UnknownName: a split that is none of `SPLITS`.
        """
        counts = Counter(self._contents.splits)
        return {split: counts[split] for split in SPLITS if counts[split]}

    @property
    def objective(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The difference of probability where all answers are years, else of logits; errors as
        `sizes`.
        """
        years = all(row.years for row in self._contents.rows)
        return GreaterThan.objective if years else Task.objective

    def notes(self, split: str, tokenizer: Any = None) -> dict[str, str]:
        """Prompts that come again, and what token ids were read as."""
        coded = (row for row, _, _ in self._rows(split) if row.answer_ids)
        if tokenizer is None or (first := next(coded, None)) is None:
            return self._contents.notes
        ids = TokenIds(self.path, tokenizer)
        ids.texts(first)
        return self._contents.notes | {"token ids": ids.note}

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        """The examples of a split, in the order of the file; the seed changes nothing.

        Raises:
            BadFile, BadPairs, UnknownName: as for `sizes`.
            BadUsage: token ids, and no tokenizer to read them by.
        """
        return (example for _, example in self.located(tokenizer, split))

    def located(
        self, tokenizer: Any = None, split: str | None = None
    ) -> Iterator[tuple[str, Example]]:
        """The examples of one split, or of all, in the order of the file, each with its split.

        Errors are those of `generate`.
        """
        ids = TokenIds(self.path, tokenizer)
        for row, its_split, group in self._rows(split):
            if row.answer_ids and tokenizer is None:
                raise BadUsage(
                    f"{self.path}: answers and foils are token ids; reading them needs the model"
                    " they were made for."
                )
            if row.answer_ids:
                texts = ids.texts(row)
            elif row.years and tokenizer is not None:
                # Years that the tokenizer writes in its usual way, if some are left.
                kept = set(usual(row.clean, ENDINGS, tokenizer))
                answers, foils = (
                    tuple(year for year in years if year in kept)
                    for years in (row.answers, row.foils)
                )
                texts = (answers, foils) if answers and foils else (row.answers, row.foils)
            else:
                texts = row.answers, row.foils
            yield its_split, _example(self.name, row, group, *texts)

    def _rows(self, split: str | None) -> Iterator[tuple[PairRow, str, str | None]]:
        """The rows of one split, or of all, each with its split and group."""
        contents = self._contents
        placed = zip(contents.rows, contents.splits, contents.groups, strict=True)
        return (each for each in placed if split in (None, each[1]))

    @cached_property
    def _contents(self) -> Contents:
        rows = pair_rows(self.path, self.split_column)
        if _sha256(Path(self.path)) != self.sha256:
            said = "the file has changed since it was first read; load the task again"
            raise BadFile(f"{self.path}: {said}.")
        return contents_of(rows, self.path, self.name, self.split_column)

    def _no_split(self, split: str) -> BadUsage:
        there = ", ".join(self.sizes)
        ask = next(iter(self.sizes))
        return BadUsage(
            f"{self.name} has no split {split!r}, only {there}: ask for {ask!r}, or say in a column"
            f" {self.split_column!r} which rows are {split}."
        )


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror or type(error).__name__}.") from error


def _example(
    name: str, row: PairRow, group: str | None, answers: tuple[str, ...], foils: tuple[str, ...]
) -> Example:
    other_spans = parts_of(row.counterfactual, row.other_values, row.other_spans)
    other = Prompt(row.counterfactual, row.counterfactual_answers, spans=other_spans)
    spans = parts_of(row.clean, row.values, row.spans)
    return Example(
        id=own_id(name, row),
        prompt=Prompt(row.clean, answers, (*answers, *foils), spans),
        counterfactuals={KIND: other},
        foils=foils,
        group=group,
        tags=row.tags,
    )
