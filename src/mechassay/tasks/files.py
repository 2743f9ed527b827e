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

import csv
import hashlib
import json
import os
import re
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from jaxtyping import Int64, UInt8, UInt64

from mechassay.alignment import encode
from mechassay.errors import BadFile, BadPairs, BadUsage, MechassayError, UnknownName
from mechassay.examples import Example, Prompt
from mechassay.tasks.splits import HASH_BYTES, SHARES, least_hash, text_hash, uniform
from mechassay.tasks.task import CHUNK, SPLITS, Task

KIND = "counterfactual"
SPLIT = "split"
NO_SPLIT = 255
# What a row must say, and the columns that can say it, the usual one first.
REQUIRED = {
    "clean": ("clean",),
    "counterfactual": ("counterfactual", "corrupted"),
    "answer": ("answer", "answers", "correct_idx"),
    "foil": ("foil", "foils", "incorrect_idx"),
}
TOKEN_IDS = ("correct_idx", "incorrect_idx")
OPTIONAL = ("id", "group")
RESERVED = {*OPTIONAL, *(column for columns in REQUIRED.values() for column in columns)}
# Row numbers that a message names, and kinds of mistake that it tells.
NAMED_ROWS = 3
NAMED_MISTAKES = 4
# Sets of column names that are remembered.
LAYOUTS = 64
# A "line" beyond this is no line of text, and would have to be held as a whole.
LONGEST_LINE = 1 << 24

_BAR = re.compile(r"(?<!\\)\|")
_IDS = re.compile(r"\s*(?:\d+|\[\s*\d+(?:\s*,\s*\d+)*\s*,?\s*\])\s*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


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
        if path.suffix.lower() not in (".jsonl", ".csv"):
            raise BadFile(f"{self.path}: pairs are read from .jsonl and .csv files; got a file that ends in {path.suffix or 'nothing'!r}.")
        if self.split_column in RESERVED:
            raise BadUsage(f"split_column must be a column of its own; got {self.split_column!r}.")
        if not path.is_file():
            raise BadFile(f"{self.path}: there is no such file.")
        with _opened(path) as stream:
            found = {"file": path.name, "name": path.stem, "_stamp": _stamp(stream)}
            found["sha256"] = hashlib.file_digest(stream, "sha256").hexdigest()
        for name, value in found.items():
            object.__setattr__(self, name, value)

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
        """The examples of one or all splits in the order of the file, each with its split.

        Arguments and errors are those of `generate`.
        """
        splits = self._splits
        rows = ((SPLITS[place], row) for place, row in zip(splits, self._rows(), strict=True) if split is None or SPLITS[place] == split)
        while chunk := list(islice(rows, CHUNK)):
            for (place, row), (answers, foils) in zip(chunk, self._continuations([row for _, row in chunk], tokenizer), strict=True):
                yield place, _example(row, answers, foils)

    def _stream(self, split: str, tokenizer: Any, seed: int, private_seed: int | None) -> Iterator[Example]:
        # The rows of a file are there whoever reads it: its private split is as private as the file.
        return super()._stream(split, tokenizer, seed, 0 if private_seed is None else private_seed)

    @cached_property
    def _splits(self) -> bytes:
        """The index of each row's split, in the order of the file: the first pass."""
        seen = _Seen(self.path)
        for number, row in self._raw_rows():
            seen.add(number, row if isinstance(row, _Mistake) else _parsed(number, row, self._parser))
        return seen.splits(self.split_column)

    def _rows(self) -> Iterator[_Row]:
        """The rows, which the first pass found to be right."""
        for number, raw in self._raw_rows():
            row = raw if isinstance(raw, _Mistake) else _parsed(number, raw, self._parser)
            if isinstance(row, _Mistake):
                raise self._changed()
            yield row

    @cached_property
    def _parser(self) -> _Parser:
        return _Parser(self.name, self.split_column, is_csv=Path(self.path).suffix.lower() == ".csv")

    def _raw_rows(self) -> Iterator[tuple[int, dict[str, Any] | _Mistake]]:
        with _opened(Path(self.path)) as stream:
            if _stamp(stream) != self._stamp:
                raise self._changed()
            lines = _lines(self.path, stream)
            yield from _csv_rows(self.path, lines, self._parser) if self._parser.is_csv else _json_rows(lines)

    def _changed(self) -> BadFile:
        return BadFile(f"{self.path}: the file has changed since it was opened; load the task again.")

    def _continuations(self, rows: Sequence[_Row], tokenizer: Any) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """The answers and foils of each row as text."""
        if not any(isinstance(one, int) for row in rows for one in row.answers):
            return [(_texts(row.answers), _texts(row.foils)) for row in rows]
        if tokenizer is None:
            raise BadUsage(f"{self.path}: correct_idx and incorrect_idx are token ids; reading them needs the model they were made for.")
        return _decoded(self.path, rows, tokenizer)


# --- lines -------------------------------------------------------------------------------------------


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise BadFile(f"{path}: {error.strerror or type(error).__name__}.") from error


def _stamp(stream: BinaryIO) -> tuple[int, int]:
    """What changes when somebody writes to the file."""
    status = os.fstat(stream.fileno())
    return status.st_size, status.st_mtime_ns


def _lines(path: str, stream: BinaryIO) -> Iterator[str]:
    """The lines of UTF-8 text, each with "\\n" at its end if it has one."""
    for number, line in enumerate(iter(lambda: stream.readline(LONGEST_LINE + 1), b""), 1):
        if len(line) > LONGEST_LINE:
            raise BadFile(f"{path}: row {number} has more than {LONGEST_LINE:,} bytes in one line.")
        if line.endswith(b"\r\n"):
            line = line[:-2] + b"\n"
        try:
            # Only the first line may begin with a byte order mark.
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise BadFile(f"{path}: row {number} is not UTF-8 ({error.reason} at byte {error.start + 1} of the line).") from error


@dataclass(frozen=True)
class _Mistake:
    """What is wrong with a row: a kind to count by, what it looks like there, and the error it makes."""

    what: str
    detail: str = ""
    error: type[MechassayError] = BadFile


def _json_rows(lines: Iterator[str]) -> Iterator[tuple[int, dict[str, Any] | _Mistake]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, _json_row(line)


def _json_row(line: str) -> dict[str, Any] | _Mistake:
    try:
        row = json.loads(line, object_pairs_hook=_object)
        if _SURROGATE.search(line):
            json.dumps(row, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        return _Mistake("not JSON", f"{error.msg} at character {error.pos + 1}")
    except UnicodeEncodeError:
        return _Mistake("half of a surrogate pair, which is no text")
    except RecursionError:
        return _Mistake("not JSON", "nested too deeply")
    except ValueError as error:
        return _Mistake("not JSON", str(error))
    return row if isinstance(row, dict) else _Mistake("a row is a JSON object", f"got {_kind(row)}")


def _object(items: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(items)
    if len(made) < len(items):
        twice = next(name for name, count in Counter(name for name, _ in items).items() if count > 1)
        raise ValueError(f"{twice!r} comes twice")
    return made


def _csv_rows(path: str, lines: Iterator[str], parser: _Parser) -> Iterator[tuple[int, dict[str, Any] | _Mistake]]:
    # Strict: a quote that is never closed is an error, and not one long cell.
    cells = csv.reader(lines, strict=True)
    header: list[str] | None = None
    while True:
        number = cells.line_num + 1
        try:
            row = next(cells, None)
        except csv.Error as error:
            raise BadFile(f"{path}: row {number} is not CSV ({error}).") from error
        if row is None:
            return
        if not row:
            continue
        if header is None:
            header = row
            _check_header(path, number, header, parser)
        elif len(row) != len(header):
            yield number, _Mistake("another number of cells than the header", f"{len(row)} for {len(header)}")
        else:
            yield number, dict(zip(header, row, strict=True))


def _check_header(path: str, number: int, header: list[str], parser: _Parser) -> None:
    twice = [name for name, count in Counter(header).items() if count > 1 and name]
    if twice:
        raise BadFile(f"{path}: row {number} names the column {twice[0]!r} twice.")
    columns = parser.columns(tuple(header))
    if isinstance(columns, _Mistake):
        raise BadFile(f"{path}: row {number}: {columns.what} ({columns.detail}).")


# --- rows --------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """A row as the file has it; answers and foils are texts or token ids."""

    number: int
    id: str
    clean: str
    counterfactual: str
    answers: tuple[str, ...] | tuple[int, ...]
    foils: tuple[str, ...] | tuple[int, ...]
    group: str | None
    split: str | None
    tags: Mapping[str, str]


class _Columns(NamedTuple):
    """The column of each required text, and those of the tags."""

    clean: str
    counterfactual: str
    answer: str
    foil: str
    tags: tuple[str, ...]


class _Parser:
    """What rows of one file mean."""

    def __init__(self, name: str, split_column: str, *, is_csv: bool) -> None:
        self.name, self.split_column, self.is_csv = name, split_column, is_csv
        self._known: dict[tuple[str, ...], _Columns | _Mistake] = {}

    def columns(self, names: tuple[str, ...]) -> _Columns | _Mistake:
        """What columns of these names mean; nearly all rows of a file have the same."""
        if names not in self._known:
            if len(self._known) == LAYOUTS:
                self._known.clear()
            self._known[names] = self._meaning(names)
        return self._known[names]

    def _meaning(self, names: tuple[str, ...]) -> _Columns | _Mistake:
        found: dict[str, str] = {}
        for meaning, spellings in REQUIRED.items():
            there = [name for name in spellings if name in names]
            if len(there) > 1:
                return _Mistake(f"the columns {there[0]!r} and {there[1]!r} mean the same", "keep one of them")
            if there:
                found[meaning] = there[0]
        missing = [meaning for meaning in REQUIRED if meaning not in found]
        if missing:
            which = " and ".join(map(repr, missing))
            return _Mistake(f"no column{'s' if len(missing) > 1 else ''} {which}", _there(missing, names))
        if (found["answer"] in TOKEN_IDS) != (found["foil"] in TOKEN_IDS):
            return _Mistake(f"{found['answer']!r} and {found['foil']!r} are not of one kind", "both must be texts, or both token ids")
        # A column without a name is the row number that pandas writes.
        special = {*found.values(), *OPTIONAL, self.split_column, ""}
        return _Columns(**found, tags=tuple(name for name in names if name not in special))


def _there(missing: Sequence[str], names: Sequence[str]) -> str:
    """The columns that there are, and which of them may be one of the missing."""
    hints: list[str] = []
    lower = {name.lower(): name for name in names if name not in RESERVED}
    for meaning in missing:
        for spelling in REQUIRED[meaning]:
            close = get_close_matches(spelling, lower, n=1, cutoff=0.6)
            if close:
                hints.append(f"did you mean {spelling!r} by {lower[close[0]]!r}?")
                break
    return "; ".join([f"there are {', '.join(map(repr, names))}" if names else "there are none", *hints])


def _parsed(number: int, raw: dict[str, Any], parser: _Parser) -> _Row | _Mistake:
    columns = parser.columns(tuple(raw))
    if isinstance(columns, _Mistake):
        return columns
    clean, other = raw[columns.clean], raw[columns.counterfactual]
    group, split, name = raw.get("group"), raw.get(parser.split_column), raw.get("id")
    wrong = (
        _text_mistake(columns.clean, clean)
        or _text_mistake(columns.counterfactual, other)
        or (_Mistake(f"{columns.clean!r} equals {columns.counterfactual!r}", _short(clean), BadPairs) if clean == other else None)
        or _name_mistake("id", name)
        or _name_mistake("group", group)
        or (None if split is None or isinstance(split, str) else _Mistake(f"{parser.split_column!r} must be text", f"got {_kind(split)}"))
    )
    if wrong:
        return wrong
    answers = _several(columns.answer, raw[columns.answer], parser)
    foils = _several(columns.foil, raw[columns.foil], parser)
    if isinstance(answers, _Mistake) or isinstance(foils, _Mistake):
        return answers if isinstance(answers, _Mistake) else foils
    both = [one for one in answers if one in foils]
    if both:
        return _Mistake("an answer equals a foil", _short(both[0]), BadPairs)
    return _Row(
        number,
        f"{parser.name}-{number:06d}" if name is None or name == "" else str(name),
        clean,
        other,
        answers,
        foils,
        None if group is None or group == "" else str(group),
        split or None,
        {
            name: raw[name] if isinstance(raw[name], str) else json.dumps(raw[name], ensure_ascii=False)
            for name in columns.tags
            if raw[name] is not None
        },
    )


def _text_mistake(column: str, value: Any) -> _Mistake | None:
    if not isinstance(value, str):
        return _Mistake(f"{column!r} must be text", f"got {_kind(value)}")
    return None if value.strip() else _Mistake(f"{column!r} is empty", error=BadPairs)


def _name_mistake(column: str, value: Any) -> _Mistake | None:
    """Ids and groups may be whole numbers."""
    fits = value is None or isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))
    return None if fits else _Mistake(f"{column!r} must be text or a whole number", f"got {_kind(value)}")


def _several(column: str, value: Any, parser: _Parser) -> tuple[str, ...] | tuple[int, ...] | _Mistake:
    """Answers or foils, one or several."""
    if column in TOKEN_IDS:
        return _token_ids(column, value)
    if parser.is_csv:
        found = [piece.replace("\\|", "|") for piece in _BAR.split(value)]
    else:
        found = value if isinstance(value, list) else [value]
    for one in found:
        if not isinstance(one, str):
            return _Mistake(f"{column!r} must be text or a list of texts", f"got {_kind(value)}")
    if not all(found) or not found:
        return _Mistake(f"{column!r} is empty", "a bar that is meant is written \\|" if parser.is_csv and "|" in value else "", BadPairs)
    return tuple(found)


def _token_ids(column: str, value: Any) -> tuple[int, ...] | _Mistake:
    text = json.dumps(value) if isinstance(value, int | list) else value
    if not isinstance(text, str) or not _IDS.fullmatch(text):
        return _Mistake(f"{column!r} must be a token id or a list of them, as 7 or [7, 8]", f"got {_short(value)}")
    return tuple(int(digits) for digits in re.findall(r"\d+", text))


def _kind(value: Any) -> str:
    return {"NoneType": "null", "dict": "an object", "list": "a list", "str": "a text"}.get(type(value).__name__, repr(value)[:30])


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."


# --- all rows together -------------------------------------------------------------------------------


@dataclass
class _Tally:
    """How often a mistake was made, and where first."""

    mistake: _Mistake
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

    def __init__(self, path: str) -> None:
        self.path = path
        self.tallies: dict[str, _Tally] = {}
        self.numbers, self.given = array("Q"), bytearray()
        # Of each row: clean, counterfactual and group; and the id.
        self.hashes, self.ids = bytearray(), bytearray()

    def add(self, number: int, row: _Row | _Mistake) -> None:
        if not isinstance(row, _Mistake) and row.split is not None and row.split not in SPLITS:
            row = _Mistake("unknown split", row.split, UnknownName)
        if isinstance(row, _Mistake):
            self.tallies.setdefault(row.what, _Tally(row)).add(number)
            return
        self.numbers.append(number)
        self.given.append(NO_SPLIT if row.split is None else SPLITS.index(row.split))
        self.ids += text_hash(row.id)
        self.hashes += text_hash(row.clean) + text_hash(row.counterfactual)
        self.hashes += bytes(HASH_BYTES) if row.group is None else text_hash(row.group, b"group")

    def splits(self, split_column: str) -> bytes:
        """The index of each row's split.

        Raises:
            BadFile, BadPairs, UnknownName: what was wrong with any of the rows.
        """
        self._raise_mistakes()
        if not self.numbers:
            raise BadFile(f"{self.path}: there are no rows.")
        self._raise_repeated_ids()
        given, hashes = np.frombuffer(self.given, np.uint8), _numbers(self.hashes, 3)
        without = np.flatnonzero(given == NO_SPLIT)
        if len(without) == len(given):
            if split_column != SPLIT:
                raise BadFile(f"{self.path}: no row has the column {split_column!r}, which split_column names.")
            places = np.searchsorted(np.cumsum(list(SHARES.values()))[:-1], uniform(least_hash(hashes)), side="right")
            return places.astype(np.uint8).tobytes()
        if len(without):
            tally = _Tally(_Mistake(f"no {split_column!r}, which other rows have"))
            for row in without.tolist():
                tally.add(self.numbers[row])
            raise BadFile(f"{self.path}: {tally}.")
        self._raise_shared_prompts(given, hashes[:, :2])
        return bytes(self.given)

    def _raise_mistakes(self) -> None:
        """Mistakes of one class: those of the format first, as they may be why there are others."""
        for error in (BadFile, UnknownName, BadPairs):
            found = [tally for tally in self.tallies.values() if tally.mistake.error is error]
            if found and error is UnknownName:
                raise UnknownName(f"split ({self.path}, {found[0].where()})", found[0].mistake.detail, SPLITS)
            if found:
                more = [f"and {len(found) - NAMED_MISTAKES} other kinds of mistakes"] if len(found) > NAMED_MISTAKES else []
                raise error(f"{self.path}: {'; '.join([*map(str, found[:NAMED_MISTAKES]), *more])}.")

    def _raise_repeated_ids(self) -> None:
        first = _first_alike(_numbers(self.ids, 1)[:, 0])
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


def _so_do(more: int) -> str:
    return f" ({more} more such row{'s' if more > 1 else ''})" if more else ""


def _numbers(data: bytearray, columns: int) -> UInt64[np.ndarray, "rows columns"]:
    return np.frombuffer(data, "<u8").astype(np.uint64).reshape(-1, columns)


def _first_alike(hashes: UInt64[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
    """For each hash, where it comes first."""
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    return first[inverse]


# --- examples ----------------------------------------------------------------------------------------


def _example(row: _Row, answers: tuple[str, ...], foils: tuple[str, ...]) -> Example:
    return Example(
        id=row.id,
        prompt=Prompt(row.clean, answers, (*answers, *foils)),
        counterfactuals={KIND: Prompt(row.counterfactual)},
        foils=foils,
        group=row.group,
        tags=row.tags,
    )


def _texts(found: tuple[str, ...] | tuple[int, ...]) -> tuple[str, ...]:
    return tuple(map(str, found))


def _decoded(path: str, rows: Sequence[_Row], tokenizer: Any) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
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
