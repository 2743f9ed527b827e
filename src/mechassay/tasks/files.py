r"""Pairs of your own, from a JSONL or CSV file: one row, one pair.

    clean            the prompt
    counterfactual   the counterfactual prompt; `corrupted` means the same
    answer           right continuations of `clean`, or `answers`
    foil             what they are compared with, or `foils`
    id, group        optional, see `mechassay.pairs.Pair`
    split            optional: train, validation, test or private
    anything else    a tag

In JSONL an answer is a string or a list of strings. In CSV several answers are separated by a bar,
"a|b", and a bar that is meant is written "\|". An answer is taken as written, with or without a
leading space (`mechassay.tasks.check` notes those without). The rows of a CSV are numbered by the
line on which they begin, as those of JSONL: a header is row 1.

*Reading.* The file is read twice, line by line, and never held. The first pass looks at every row,
reports what is wrong with row numbers, and keeps eight bytes for each text and the split of each
row; the second yields examples in the order of the file, whatever the seed. A byte order mark and
the kind of line ends make no difference, so a line break within a CSV cell is always "\n".

*Splits.* With a split column, its own; a prompt in two of them is an error. Without one, rows are
allotted to train, validation and test (60, 20 and 20 %). Rows connected through a prompt, clean or
counterfactual, or through a group stay together, also over several rows, and a hash of what
connects them decides (`mechassay.tasks.splits`): the order of the rows does not matter.

*Token ids.* EAP-IG's own CSV files (Hanna et al. 2024) have the columns clean, corrupted,
correct_idx and incorrect_idx. The last two are token ids of one particular tokenizer, one or a list
"[1, 2]", so these files need a model or its tokenizer. An id is read as the text that it adds to
its prompt, and that text must give back the id; a file made for another tokenizer is refused.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BufferedReader
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, UInt8, UInt64

from mechassay.alignment import encode
from mechassay.errors import BadFile, BadPairs, BadUsage, UnknownName
from mechassay.examples import Example, Prompt
from mechassay.tasks.rows import RESERVED, Mistake, Reader, Row
from mechassay.tasks.splits import HASH_BYTES, NONE, SHARES, least_hash, text_hash, uniform
from mechassay.tasks.task import SPLITS, Task

KIND = "counterfactual"
SPLIT = "split"
NO_SPLIT = 255
ENDINGS = (".jsonl", ".csv")
# Row numbers that a message names, and kinds of mistake that it tells.
NAMED_ROWS = 3
NAMED_MISTAKES = 4
# Rows that are tokenized together. Few, so that they die young: what is held long costs the garbage collector half as much again.
AT_ONCE = 64

Continuations = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class FileTask(Task):
    """The pairs of a file; see the module.

    Attributes:
        path: a .jsonl or .csv file. It is not stored with results; `file` and `sha256` are.
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

    version = 1
    counterfactuals = (KIND,)
    default_counterfactual = KIND

    def __post_init__(self) -> None:
        path = Path(self.path)
        object.__setattr__(self, "path", str(path))
        if path.suffix.lower() not in ENDINGS:
            raise BadFile(f"{self.path}: pairs are read from files that end in {' or '.join(ENDINGS)}; this one does not.")
        if self.split_column in RESERVED:
            raise BadUsage(f"split_column must be a column of its own; got {self.split_column!r}.")
        if not path.is_file():
            raise BadFile(f"{self.path}: there is no such file.")
        found: dict[str, Any] = {"file": path.name, "name": path.stem}
        with _opened(path) as stream:
            found |= {"_stamp": _stamp(stream), "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
        for name, value in found.items():
            object.__setattr__(self, name, value)

    @property
    def seeded(self) -> bool:
        """No seed makes what a file holds: its private split is as private as the file."""
        return False

    @cached_property
    def sizes(self) -> Mapping[str, int]:  # pyright: ignore[reportIncompatibleVariableOverride] - known only after reading
        """Rows of each split that has any.

        Raises:
            BadFile: the file cannot be read as rows of these columns.
            BadPairs: rows that cannot be compared.
            UnknownName: a split that is none of `SPLITS`.
        """
        counts = Counter(self._splits)
        return {split: counts[index] for index, split in enumerate(SPLITS) if counts[index]}

    def generate(self, split: str, seed: int, tokenizer: Any = None) -> Iterator[Example]:
        """The examples of a split, in the order of the file; the seed changes nothing.

        Raises:
            BadFile, BadPairs, UnknownName: as for `sizes`.
            BadUsage: token ids, and no tokenizer to read them by.
        """
        return (example for _, example in self.located(tokenizer, split))

    def located(self, tokenizer: Any = None, split: str | None = None) -> Iterator[tuple[str, Example]]:
        """The examples of one split, or of all, in the order of the file; each with its split.

        Errors are those of `generate`.
        """
        wanted = range(len(SPLITS)) if split is None else (SPLITS.index(split),)
        rows = ((SPLITS[place], row) for place, row in zip(self._splits, self._rows(), strict=True) if place in wanted)
        while chunk := list(islice(rows, AT_ONCE)):
            found = self._continuations([row for _, row in chunk], tokenizer)
            yield from ((place, _example(self.name, row, *texts)) for (place, row), texts in zip(chunk, found, strict=True))

    @cached_property
    def _splits(self) -> bytes:
        """The index of each row's split, in the order of the file: the first pass."""
        seen = _Seen(self.path, self.name)
        for number, row in self._read():
            seen.add(number, row)
        return seen.splits(self.split_column)

    def _rows(self) -> Iterator[Row]:
        """The second pass."""
        for _, row in self._read():
            assert isinstance(row, Row), "the first pass found no mistakes"
            yield row

    def _read(self) -> Iterator[tuple[int, Row | Mistake]]:
        with _opened(Path(self.path)) as stream:
            if _stamp(stream) != self._stamp:
                raise BadFile(f"{self.path}: the file has changed since it was first read; load the task again.")
            yield from Reader(self.path, self.split_column).rows(stream)

    def _continuations(self, rows: Sequence[Row], tokenizer: Any) -> list[Continuations]:
        """The answers and foils of each row as text."""
        ids = [row for row in rows if isinstance(row.answers[0], int)]
        if ids and tokenizer is None:
            raise BadUsage(f"{self.path}: correct_idx and incorrect_idx are token ids; reading them needs the model they were made for.")
        decoded = iter(_decoded(self.path, ids, tokenizer) if ids else ())
        return [next(decoded) if isinstance(row.answers[0], int) else (_texts(row.answers), _texts(row.foils)) for row in rows]


def _opened(path: Path) -> BufferedReader:
    try:
        return path.open("rb")
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror or type(error).__name__}.") from error


def _stamp(stream: BufferedReader) -> tuple[int, int]:
    """What changes when somebody writes to the file."""
    status = os.fstat(stream.fileno())
    return status.st_size, status.st_mtime_ns


# --- all rows together -------------------------------------------------------------------------------


@dataclass
class _Tally:
    """How often a mistake was made, and where first."""

    mistake: Mistake
    rows: list[int] = field(default_factory=list)
    count: int = 0

    def add(self, number: int) -> None:
        self.count += 1
        if self.count <= NAMED_ROWS:
            self.rows.append(number)

    def where(self) -> str:
        listed = ", ".join(map(str, self.rows))
        if self.count == 1:
            return f"row {listed}"
        more = self.count - len(self.rows)
        return f"rows {listed} and {more} more" if more else f"rows {' and '.join(listed.rsplit(', ', 1))}"

    def __str__(self) -> str:
        detail = self.mistake.detail
        if detail and self.count > 1:
            detail = f"row {self.rows[0]}: {detail}"
        return f"{self.where()}: {self.mistake.what}" + (f" ({detail})" if detail else "")


class _Seen:
    """What the first pass keeps: numbers of fixed size for each row, and what is wrong."""

    def __init__(self, path: str, name: str) -> None:
        self.path, self.name = path, name
        self.tallies: dict[str, _Tally] = {}
        self.unknown: _Tally | None = None
        self.numbers, self.given = array("Q"), bytearray()
        # Of each row: clean, counterfactual and group; and the id.
        self.hashes, self.ids = bytearray(), bytearray()

    def add(self, number: int, row: Row | Mistake) -> None:
        if isinstance(row, Mistake):
            self.tallies.setdefault(row.what, _Tally(row)).add(number)
            return
        if row.split is not None and row.split not in SPLITS:
            self.unknown = self.unknown or _Tally(Mistake(row.split))
            self.unknown.add(number)
            return
        self.numbers.append(number)
        self.given.append(NO_SPLIT if row.split is None else SPLITS.index(row.split))
        self.ids += bytes(HASH_BYTES) if row.id is None else text_hash(row.id)
        self.hashes += text_hash(row.clean) + text_hash(row.counterfactual)
        self.hashes += bytes(HASH_BYTES) if row.group is None else text_hash(row.group, b"group")

    def splits(self, split_column: str) -> bytes:
        """The index of each row's split.

        Raises:
            BadFile, BadPairs, UnknownName: what was wrong with any of the rows.
        """
        # Mistakes of the format first, as they may be why there are others.
        self._raise_mistakes(BadFile)
        if self.unknown is not None:
            raise UnknownName(f"split ({self.path}, {self.unknown.where()})", self.unknown.mistake.what, SPLITS)
        self._raise_mistakes(BadPairs)
        if not self.numbers:
            raise BadFile(f"{self.path}: there are no rows.")
        self._raise_repeated_ids()
        given, hashes = np.frombuffer(self.given, np.uint8), _numbers(self.hashes, 3)
        if not hashes[:, 2].any():
            hashes = hashes[:, :2]
        without = np.flatnonzero(given == NO_SPLIT)
        if len(without) == len(given):
            if split_column != SPLIT:
                raise BadFile(f"{self.path}: no row has the column {split_column!r}, which split_column names.")
            places = np.searchsorted(np.cumsum(list(SHARES.values()))[:-1], uniform(least_hash(hashes)), side="right")
            return places.astype(np.uint8).tobytes()
        if len(without):
            tally = _Tally(Mistake(f"no {split_column!r}, which other rows have"))
            for row in without.tolist():
                tally.add(self.numbers[row])
            raise BadFile(f"{self.path}: {tally}.")
        self._raise_shared_prompts(given, hashes[:, :2])
        return bytes(self.given)

    def _raise_mistakes(self, error: type[BadFile | BadPairs]) -> None:
        found = [tally for tally in self.tallies.values() if tally.mistake.error is error]
        if found:
            more = [f"and {len(found) - NAMED_MISTAKES} other kinds of mistakes"] if len(found) > NAMED_MISTAKES else []
            raise error(f"{self.path}: {'; '.join([*map(str, found[:NAMED_MISTAKES]), *more])}.")

    def _raise_repeated_ids(self) -> None:
        ids = _numbers(self.ids, 1)[:, 0]
        if not ids.any():
            return
        without = np.flatnonzero(ids == NONE)
        made = b"".join(text_hash(_own_id(self.name, self.numbers[row])) for row in without.tolist())
        ids[without] = np.frombuffer(made, "<u8")
        first = _first_alike(ids)
        again = np.flatnonzero(first != np.arange(len(first)))
        if len(again):
            row, before = self.numbers[again[0]], self.numbers[first[again[0]]]
            raise BadPairs(f"{self.path}: row {row} has the id of row {before}; ids must differ{_so_do(len(again) - 1)}.")

    def _raise_shared_prompts(self, given: UInt8[np.ndarray, "rows"], hashes: UInt64[np.ndarray, "rows 2"]) -> None:
        first = _first_alike(hashes.reshape(-1)) // 2
        rows = np.arange(len(first)) // 2
        shared = np.flatnonzero(given[rows] != given[first])
        if len(shared):
            row, before = rows[shared[0]], first[shared[0]]
            a, b = (f"row {self.numbers[each]} ({SPLITS[given[each]]})" for each in (row, before))
            more = len(np.unique(rows[shared])) - 1
            raise BadPairs(f"{self.path}: {a} has a prompt of {b}; splits must not share prompts{_so_do(more)}.")


def _own_id(name: str, number: int) -> str:
    """The id of a row that has none."""
    return f"{name}-{number:06d}"


def _so_do(more: int) -> str:
    return f" ({more} more such row{'s' if more > 1 else ''})" if more else ""


def _numbers(data: bytearray, columns: int) -> UInt64[np.ndarray, "rows columns"]:
    return np.frombuffer(data, "<u8").astype(np.uint64).reshape(-1, columns)


def _first_alike(hashes: UInt64[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
    """For each hash, where it comes first."""
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    return first[inverse]


# --- examples ----------------------------------------------------------------------------------------


def _example(name: str, row: Row, answers: tuple[str, ...], foils: tuple[str, ...]) -> Example:
    return Example(
        id=_own_id(name, row.number) if row.id is None else row.id,
        prompt=Prompt(row.clean, answers, (*answers, *foils)),
        counterfactuals={KIND: Prompt(row.counterfactual)},
        foils=foils,
        group=row.group,
        tags=row.tags,
    )


def _texts(found: tuple[str, ...] | tuple[int, ...]) -> tuple[str, ...]:
    return tuple(map(str, found))


def _decoded(path: str, rows: Sequence[Row], tokenizer: Any) -> list[Continuations]:
    """The text that each row's token ids add to its prompt.

    A token is decoded after its prompt, as some tokenizers write a space before a word only there.
    """
    prompts = encode(tokenizer, [row.clean for row in rows])
    before = tokenizer.batch_decode(prompts)
    asked = [(place, int(token)) for place, row in enumerate(rows) for token in (*row.answers, *row.foils)]
    for place, token in asked:
        if token >= len(tokenizer):
            raise BadPairs(f"{path}: row {rows[place].number}: there is no token {token}; the tokenizer has {len(tokenizer):,}.")
    whole = tokenizer.batch_decode([[*prompts[place], token] for place, token in asked])
    texts = [text[len(before[place]) :] for (place, _), text in zip(asked, whole, strict=True)]
    again = encode(tokenizer, [rows[place].clean + text for (place, _), text in zip(asked, texts, strict=True)])
    for (place, token), text, ids in zip(asked, texts, again, strict=True):
        if ids != [*prompts[place], token]:
            raise BadPairs(
                f"{path}: row {rows[place].number}: token {token} is {text!r} after its prompt, which this tokenizer does not read "
                "as that token; was the file made for another model?"
            )
    each = iter(texts)
    return [(tuple(next(each) for _ in row.answers), tuple(next(each) for _ in row.foils)) for row in rows]
