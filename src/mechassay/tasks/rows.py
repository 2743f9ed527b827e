r"""The rows of a JSONL or CSV file of pairs: what they say, and what is wrong with them.

Lines are read one at a time and never held; nothing in them is executed. A row that is wrong is
a `Mistake`, so that all of a file can be told at once; a file that stops being lines of UTF-8 or
CSV is an error there and then. What the columns mean is said in `mechassay.tasks.files`.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from io import BufferedReader
from typing import Any, NamedTuple

from mechassay.errors import BadFile, BadPairs

# What a row must say, and the columns that can say it, the usual one first.
REQUIRED = {
    "clean": ("clean",),
    "counterfactual": ("counterfactual", "corrupted"),
    "answer": ("answer", "answers", "correct_idx"),
    "foil": ("foil", "foils", "incorrect_idx"),
}
TOKEN_IDS = ("correct_idx", "incorrect_idx")
OPTIONAL = ("id", "group")
RESERVED = frozenset([*OPTIONAL, *(column for columns in REQUIRED.values() for column in columns)])
# A "line" beyond this is no line of text, and would have to be held as a whole.
LONGEST_LINE = 1 << 24
# Sets of column names that are remembered.
LAYOUTS = 64

_BAR = re.compile(r"(?<!\\)\|")
_IDS = re.compile(r"\s*(?:\d{1,9}|\[\s*\d{1,9}(?:\s*,\s*\d{1,9})*\s*\])\s*", re.ASCII)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

Texts = tuple[str, ...]
Tokens = tuple[int, ...]


class Row(NamedTuple):
    """A row as the file has it; answers and foils are both texts, or both token ids."""

    number: int
    id: str | None
    clean: str
    counterfactual: str
    answers: Texts | Tokens
    foils: Texts | Tokens
    group: str | None
    split: str | None
    tags: Mapping[str, str]


@dataclass(frozen=True)
class Mistake:
    """What is wrong with a row: a kind to count by, what it looks like there, and the error it makes."""

    what: str
    detail: str = ""
    error: type[BadFile | BadPairs] = BadFile


class Columns(NamedTuple):
    """The column of each required text, and those of the tags."""

    clean: str
    counterfactual: str
    answer: str
    foil: str
    tags: Texts


class Reader:
    """Reads the rows of one file."""

    def __init__(self, path: str, split_column: str) -> None:
        self.path, self.split_column = path, split_column
        self.is_csv = path.lower().endswith(".csv")
        self._known: dict[Texts, Columns | Mistake] = {}

    def rows(self, stream: BufferedReader) -> Iterator[tuple[int, Row | Mistake]]:
        """Each row with its number: the line on which it begins, from 1. Empty lines are no rows.

        Raises:
            BadFile: something that is not UTF-8 or not CSV, or a header without the columns needed.
        """
        lines = _lines(self.path, stream)
        for number, raw in self._csv(lines) if self.is_csv else _json_rows(lines):
            yield number, raw if isinstance(raw, Mistake) else self._row(number, raw)

    def _csv(self, lines: Iterator[str]) -> Iterator[tuple[int, dict[str, Any] | Mistake]]:
        # Strict: a quote that is never closed is an error, and not one long cell.
        cells = csv.reader(lines, strict=True)
        header: list[str] = []
        while True:
            number = cells.line_num + 1
            try:
                row = next(cells, None)
            except csv.Error as error:
                raise BadFile(f"{self.path}: row {number} is not CSV ({error}).") from error
            if row is None:
                return
            if row and not header:
                header = row
                self._check_header(number, header)
            elif row and len(row) != len(header):
                yield number, Mistake("another number of cells than the header", f"{len(row)} for {len(header)}")
            elif row:
                yield number, dict(zip(header, row, strict=True))

    def _check_header(self, number: int, header: list[str]) -> None:
        twice = [name for name, count in Counter(header).items() if count > 1 and name]
        if twice:
            raise BadFile(f"{self.path}: row {number} names the column {twice[0]!r} twice.")
        columns = self._columns(tuple(header))
        if isinstance(columns, Mistake):
            raise BadFile(f"{self.path}: row {number}: {columns.what} ({columns.detail}).")

    def _columns(self, names: Texts) -> Columns | Mistake:
        """What columns of these names mean; nearly all rows of a file have the same."""
        if names not in self._known:
            if len(self._known) == LAYOUTS:
                self._known.clear()
            self._known[names] = self._meaning(names)
        return self._known[names]

    def _meaning(self, names: Texts) -> Columns | Mistake:
        found: dict[str, str] = {}
        for meaning, spellings in REQUIRED.items():
            there = [name for name in spellings if name in names]
            if len(there) > 1:
                return Mistake(f"the columns {there[0]!r} and {there[1]!r} mean the same", "keep one of them")
            if there:
                found[meaning] = there[0]
        missing = [meaning for meaning in REQUIRED if meaning not in found]
        if missing:
            return Mistake(f"no column{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}", _there(missing, names))
        if (found["answer"] in TOKEN_IDS) != (found["foil"] in TOKEN_IDS):
            return Mistake(f"{found['answer']!r} and {found['foil']!r} are not of one kind", "both must be texts, or both token ids")
        # A column without a name is no tag: it is the row number that pandas writes, or nothing.
        special = {*found.values(), *OPTIONAL, self.split_column, ""}
        return Columns(**found, tags=tuple(name for name in names if name not in special))

    def _row(self, number: int, raw: dict[str, Any]) -> Row | Mistake:
        columns = self._columns(tuple(raw))
        if isinstance(columns, Mistake):
            return columns
        clean, other = raw[columns.clean], raw[columns.counterfactual]
        name, group, split = raw.get("id"), raw.get("group"), raw.get(self.split_column)
        wrong = _text_mistake(columns.clean, clean) or _text_mistake(columns.counterfactual, other)
        if not (name is group is split is None):
            wrong = wrong or _name_mistake("id", name) or _name_mistake("group", group) or _split_mistake(self.split_column, split)
        if wrong:
            return wrong
        if clean == other:
            return Mistake(f"{columns.clean!r} equals {columns.counterfactual!r}", short(clean), BadPairs)
        answers = self._several(columns.answer, raw[columns.answer])
        if isinstance(answers, Mistake):
            return answers
        foils = self._several(columns.foil, raw[columns.foil])
        if isinstance(foils, Mistake):
            return foils
        for one in answers:
            if one in foils:
                return Mistake("an answer equals a foil", short(one), BadPairs)
        tags = {tag: _as_text(raw[tag]) for tag in columns.tags if raw[tag] is not None}
        return Row(number, _name(name), clean, other, answers, foils, _name(group), split or None, tags)

    def _several(self, column: str, value: Any) -> Texts | Tokens | Mistake:
        """Answers or foils, one or several."""
        if column in TOKEN_IDS:
            return _token_ids(column, value)
        if isinstance(value, str) and value and not (self.is_csv and "|" in value):
            return (value,)
        if self.is_csv:
            found = [piece.replace("\\|", "|") for piece in _BAR.split(value)]
        else:
            found = value if isinstance(value, list) else [value]
        if not all(isinstance(one, str) for one in found):
            return Mistake(f"{column!r} must be text or a list of texts", f"got {_kind(value)}")
        if not found or not all(found):
            return Mistake(f"{column!r} is empty", "a bar that is meant is written \\|" if self.is_csv and "|" in value else "", BadPairs)
        return tuple(found)


# --- lines -------------------------------------------------------------------------------------------


def _lines(path: str, stream: BufferedReader) -> Iterator[str]:
    """The lines of UTF-8 text, each with a line feed at its end if it has one."""
    number = 0
    while line := stream.readline(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise BadFile(f"{path}: row {number} has more than {LONGEST_LINE:,} bytes in one line.")
        if line.endswith(b"\r\n"):
            line = line[:-2] + b"\n"
        try:
            # Only the first line may begin with a byte order mark.
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise BadFile(f"{path}: row {number} is not UTF-8 ({error.reason} at byte {error.start + 1} of the line).") from error


def _json_rows(lines: Iterator[str]) -> Iterator[tuple[int, dict[str, Any] | Mistake]]:
    for number, line in enumerate(lines, 1):
        if not line.isspace():
            yield number, _json_row(line)


def _json_row(line: str) -> dict[str, Any] | Mistake:
    try:
        row = _JSON.decode(line)
        if "\\u" in line and _SURROGATE.search(line):
            json.dumps(row, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        return Mistake("not JSON", f"{error.msg} at character {error.pos + 1}")
    except UnicodeEncodeError:
        return Mistake("half of a surrogate pair, which is no text")
    except RecursionError:
        return Mistake("not JSON", "nested too deeply")
    except ValueError as error:
        return Mistake("not JSON", str(error))
    return row if isinstance(row, dict) else Mistake("a row is a JSON object", f"got {_kind(row)}")


def _object(items: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(items)
    if len(made) < len(items):
        twice = next(name for name, count in Counter(name for name, _ in items).items() if count > 1)
        raise ValueError(f"{twice!r} comes twice")
    return made


_JSON = json.JSONDecoder(object_pairs_hook=_object)


# --- cells -------------------------------------------------------------------------------------------


def _there(missing: Sequence[str], names: Sequence[str]) -> str:
    """The columns that there are, and which of them may be one of the missing."""
    there = f"there are {', '.join(map(repr, names))}" if names else "there are none"
    free = {name.lower(): name for name in names if name not in RESERVED}
    close = [(spelling, found) for each in missing for spelling in REQUIRED[each] for found in get_close_matches(spelling, free, n=1)]
    return there + (f"; did you mean {close[0][0]!r} by {free[close[0][1]]!r}?" if close else "")


def _text_mistake(column: str, value: Any) -> Mistake | None:
    if not isinstance(value, str):
        return Mistake(f"{column!r} must be text", f"got {_kind(value)}")
    return Mistake(f"{column!r} is empty", error=BadPairs) if not value or value.isspace() else None


def _name_mistake(column: str, value: Any) -> Mistake | None:
    """Ids and groups may be whole numbers."""
    fits = value is None or isinstance(value, str) or (isinstance(value, int) and not isinstance(value, bool))
    return None if fits else Mistake(f"{column!r} must be text or a whole number", f"got {_kind(value)}")


def _name(value: str | int | None) -> str | None:
    return None if value is None or value == "" else str(value)


def _split_mistake(column: str, value: Any) -> Mistake | None:
    return None if value is None or isinstance(value, str) else Mistake(f"{column!r} must be text", f"got {_kind(value)}")


def _token_ids(column: str, value: Any) -> Tokens | Mistake:
    text = json.dumps(value) if isinstance(value, int | list) else value
    if not isinstance(text, str) or not _IDS.fullmatch(text):
        return Mistake(f"{column!r} must be a token id or a list of them, as 7 or [7, 8]", f"got {short(value)}")
    return tuple(int(digits) for digits in re.findall(r"\d+", text))


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _kind(value: Any) -> str:
    return {"NoneType": "null", "dict": "an object", "list": "a list", "str": "a text"}.get(type(value).__name__, short(value))


def short(value: Any) -> str:
    """A value as a message shows it."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."
