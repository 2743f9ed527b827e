r"""Pairs of your own, from a JSONL, JSON, CSV or TSV file: one row, one pair.

    clean            the prompt
    counterfactual   the counterfactual prompt; `corrupted` means the same
    answer           right continuations of `clean`, or `answers`
    foil             what they are compared with, or `foils`
    id, group        optional, see `mechassay.pairs.Pair`
    split            optional: train, validation, test or private, or a usual name of one (val, dev)
    anything else    a tag, and a part of the prompt where its value is a word of it

Several answers are a list in JSON, and "a|b" in CSV and TSV, where a bar that is meant is "\|".
EAP-IG's layouts are read too (`mechassay.tasks.columns`), token ids through their tokenizer
(`mechassay.tasks.token_ids`); how words become parts says `mechassay.tasks.fields`.

*Reading.* The file is read twice and, but for JSON, never held. The first pass looks at every row
and reports what is wrong with row numbers (`mechassay.tasks.contents`); the second yields examples
in the order of the file, whatever the seed. A line break within a CSV cell is always "\n".

*Splits.* With a split column, its own; a prompt in two of them is an error. Without one, rows are
allotted to train, validation and test (60, 20 and 20 %). Rows connected through a prompt, clean or
counterfactual, or through a group stay together, and a hash of what connects them decides
(`mechassay.tasks.splits`): the order of the rows does not matter.
"""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any

from mechassay.errors import BadFile, BadUsage
from mechassay.examples import Example, Prompt
from mechassay.tasks.columns import RESERVED, Mistake
from mechassay.tasks.contents import SPLIT, Contents, Seen, own_id
from mechassay.tasks.fields import parts_of
from mechassay.tasks.greater_than import GreaterThan, usual
from mechassay.tasks.rows import ENDINGS, Reader, Row
from mechassay.tasks.task import FILES, SPLITS, Task
from mechassay.tasks.token_ids import Continuations, TokenIds

KIND = "counterfactual"
# Rows that are tokenized together. Few, so that they die young: what is held long costs the garbage
# collector half as much again.
AT_ONCE = 64


@dataclass(frozen=True)
class FileTask(Task):
    """The pairs of a file; see the module.

    Attributes:
        path: a .jsonl, .json, .csv or .tsv file. It is not stored with results; `file` and `sha256`
            are.
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
    name: str = field(init=False, repr=False)
    _stamp: tuple[int, int] = field(init=False, repr=False, compare=False)

    version = 2
    counterfactuals = (KIND,)
    default_counterfactual = KIND

    def __post_init__(self) -> None:
        path = Path(self.path)
        object.__setattr__(self, "path", str(path))
        if path.suffix.lower() not in FILES:
            raise BadFile(
                f"{self.path}: pairs are read from files that end in {', '.join(FILES)}; this one"
                " does not."
            )
        if self.split_column in RESERVED:
            raise BadUsage(f"split_column must be a column of its own; got {self.split_column!r}.")
        if not path.is_file():
            raise BadFile(f"{self.path}: there is no such file.")
        found: dict[str, Any] = {"file": path.name, "name": path.stem}
        with _opened(path) as stream:
            found |= {
                "_stamp": _stamp(stream),
                "sha256": hashlib.file_digest(stream, "sha256").hexdigest(),
            }
        for name, value in found.items():
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
        return {split: counts[index] for index, split in enumerate(SPLITS) if counts[index]}

    @property
    def objective(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The difference of probability where all answers are years, of logits elsewhere.
        Errors are those of `sizes`.
        """
        return GreaterThan.objective if self._contents.years else Task.objective

    def notes(self, split: str, tokenizer: Any = None) -> dict[str, str]:
        """What a reader should know of the file:
        prompts that come again, and what token ids were read as.
        """
        notes = dict(self._contents.notes)
        first = next(
            (row for _, row in self._placed(split) if isinstance(row.answers[0], int)), None
        )
        if first is not None and tokenizer is not None:
            ids = TokenIds(self.path, tokenizer)
            ids.texts([first])
            notes["token ids"] = ids.note
        return notes

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
        """The examples of one split, or of all, in the order of the file; each with its split.

        Errors are those of `generate`.
        """
        rows = self._placed(split)
        joined = self._contents.joined
        ids = TokenIds(self.path, tokenizer)
        while chunk := list(islice(rows, AT_ONCE)):
            found = self._continuations([row for _, row in chunk], ids)
            for (place, row), texts in zip(chunk, found, strict=True):
                first = int(joined[place]) if len(joined) else 0
                group = f"{self.name}, rows like {first}" if first else row.group
                yield SPLITS[self._contents.splits[place]], _example(self.name, row, group, *texts)

    def _placed(self, split: str | None) -> Iterator[tuple[int, Row]]:
        """The rows of one split, or of all, each with its place among all rows."""
        wanted = range(len(SPLITS)) if split is None else (SPLITS.index(split),)
        splits = self._contents.splits
        return ((place, row) for place, row in enumerate(self._rows()) if splits[place] in wanted)

    @cached_property
    def _contents(self) -> Contents:
        """What all rows have in common: the first pass."""
        seen = Seen(self.path, self.name)
        for number, row in self._read():
            seen.add(number, row)
        return seen.contents(self.split_column)

    def _rows(self) -> Iterator[Row]:
        """The second pass."""
        for _, row in self._read():
            assert isinstance(row, Row), "the first pass found no mistakes"
            yield row

    def _read(self) -> Iterator[tuple[int, Row | Mistake]]:
        with _opened(Path(self.path)) as stream:
            if _stamp(stream) != self._stamp:
                raise BadFile(
                    f"{self.path}: the file has changed since it was first read; load the task"
                    " again."
                )
            yield from Reader(self.path, self.split_column).rows(stream)

    def _no_split(self, split: str) -> BadUsage:
        there = ", ".join(self.sizes)
        ask = next(iter(self.sizes))
        return BadUsage(
            f"{self.name} has no split {split!r}, only {there}: ask for {ask!r}, or say in a column"
            f" {self.split_column!r} which rows are {split}."
        )

    def _continuations(self, rows: Sequence[Row], ids: TokenIds) -> list[Continuations]:
        """The answers and foils of each row as text."""
        coded = [row for row in rows if isinstance(row.answers[0], int)]
        if coded and ids.tokenizer is None:
            raise BadUsage(
                f"{self.path}: answers and foils are token ids; reading them needs the model they"
                " were made for."
            )
        decoded = iter(ids.texts(coded) if coded else ())
        return [
            next(decoded) if isinstance(row.answers[0], int) else _texts(row, ids.tokenizer)
            for row in rows
        ]


def _opened(path: Path) -> BufferedReader:
    try:
        return path.open("rb")
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror or type(error).__name__}.") from error


def _stamp(stream: BufferedReader) -> tuple[int, int]:
    """What changes when somebody writes to the file."""
    status = os.fstat(stream.fileno())
    return status.st_size, status.st_mtime_ns


# --- examples
# ----------------------------------------------------------------------------------------


def _example(
    name: str, row: Row, group: str | None, answers: tuple[str, ...], foils: tuple[str, ...]
) -> Example:
    other = Prompt(
        row.counterfactual,
        row.other_answers,
        spans=parts_of(row.counterfactual, row.other_values, row.other_spans),
    )
    return Example(
        id=own_id(name, row.number) if row.id is None else row.id,
        prompt=Prompt(
            row.clean, answers, (*answers, *foils), parts_of(row.clean, row.values, row.spans)
        ),
        counterfactuals={KIND: other},
        foils=foils,
        group=group,
        tags=row.tags,
    )


def _texts(row: Row, tokenizer: Any) -> Continuations:
    """Answers and foils that are texts;
    of years those that the tokenizer writes in its usual way.
    """
    answers, foils = (tuple(map(str, each)) for each in (row.answers, row.foils))
    if not row.years or tokenizer is None:
        return answers, foils
    kept = set(usual(row.clean, ENDINGS, tokenizer))
    left = tuple(tuple(text for text in each if text in kept) for each in (answers, foils))
    return (left[0], left[1]) if all(left) else (answers, foils)
