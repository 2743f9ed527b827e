"""Rows of a file as data, each with its place: CSV, TSV, JSON, JSON Lines or parquet.

    .jsonl .ndjson .jsonl.gz    JSON Lines; also in a .json file
    .json                       a list of objects, also within an object: {"prompts": [...]},
                                {"train": [...], "test": [...]}, [{"row": {...}}]
    .csv .tsv                   commas or tabs; also semicolons, where the header shows it

A file is read as a whole, and nothing in it is executed. All rows that cannot be read are named in
one error, by kind and with their places. A file for another command gets that command's name.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from mechassay.errors import BadFile, BadPairs, MissingExtra, first_line
from mechassay.prompts.tokenization import Span

# How the names of files of pairs end.
FILES = (".jsonl", ".json", ".csv", ".tsv", ".ndjson", ".jsonl.gz", ".parquet")
DELIMITERS = {".csv": ",", ".tsv": "\t"}
# Bytes that a packed file may have when it is expanded.
MOST_EXPANDED = 1 << 30
_POINTER = "version https://git-lfs.github.com/spec/v1"
WRAPPERS = frozenset(["prompts", "pairs", "data", "rows", "examples", "items", "records"])
"""Keys that hold the list of rows of a JSON file."""
_SPLITS = frozenset(["train", "validation", "valid", "val", "dev", "test", "private"])
# Keys of files for other commands, all of which such a file has, and the command.
_OTHERS = (
    (("meta", "items"), "a SyntaxGym suite: mechassay gym suite reads it"),
    (("cfg", "nodes", "edges"), "a circuit or its scores: mechassay circuits evaluate reads it"),
)
# A "line" beyond this is no line of text.
LONGEST_LINE = 1 << 24
# Places that a message names, and kinds of mistake that it tells.
NAMED_ROWS = 3
NAMED_MISTAKES = 4

_BAR = re.compile(r"(?<!\\)\|")
_SURROGATE = re.compile("[\ud800-\udfff]")

T = TypeVar("T")
Rows = list[tuple[int, dict[str, Any]]]


class Mistake(ValueError):
    """What is wrong with a row.

    Attributes:
        what: a kind to count by.
        detail: what it looks like in this row.
        error: the error that it makes.
    """

    def __init__(
        self, what: str, detail: str = "", error: type[BadFile | BadPairs] = BadFile
    ) -> None:
        super().__init__(what + (f" ({detail})" if detail else ""))
        self.what, self.detail, self.error = what, detail, error


def check_ending(path: Path) -> None:
    """Refuse a file of pairs of another ending than `FILES`.

    Raises:
        BadFile: it has another.
    """
    if not path.name.lower().endswith(FILES):
        message = f"pairs are read from files that end in {', '.join(FILES)}; this one does not"
        raise BadFile(f"{path}: {message}.")


def read_rows(path: Path) -> Rows:
    """The rows of a file, each with its place: its number or, in text by lines, where it begins.

    Empty lines are no rows; places count from 1.

    Raises:
        BadFile: not a file of the kind that its name says, or rows that are none, by their places.
        MissingExtra: parquet without `pyarrow`.
    """
    ending = path.suffix.lower()
    if ending == ".parquet":
        return list(enumerate(_parquet(path), 1))
    text = _text(path)
    if text.startswith(_POINTER):
        raise BadFile(
            f"{path}: a Git LFS pointer, which stands for the file; git lfs pull gets the file."
        )
    if ending in DELIMITERS:
        return _cells(path, text, _delimiter(text, DELIMITERS[ending]))
    if ending == ".json" and not _is_lines(text):
        return _read_rows(path, enumerate(_list(path, text), 1), lambda row: _object(row, text))
    lines = enumerate(text.split("\n"), 1)
    filled = ((number, line) for number, line in lines if line and not line.isspace())
    return _read_rows(path, filled, _line)


def raise_mistakes(path: Path | str, mistakes: Sequence[tuple[int, Mistake]]) -> None:
    """One error for the mistakes of a file's rows, if there are any; those of its format first."""
    for error in (BadFile, BadPairs):
        kinds: dict[str, list[tuple[int, Mistake]]] = {}
        for place, mistake in mistakes:
            if mistake.error is error:
                kinds.setdefault(mistake.what, []).append((place, mistake))
        if kinds:
            lines = [_mistakes_text(rows) for rows in kinds.values()]
            if len(lines) > NAMED_MISTAKES:
                left = len(lines) - NAMED_MISTAKES
                lines = [*lines[:NAMED_MISTAKES], f"and {left} other kinds of mistakes"]
            raise error(f"{path}: {'; '.join(lines)}.")


def where(places: Sequence[int]) -> str:
    """Some rows as a message names them."""
    first, more = list(map(str, places[:NAMED_ROWS])), len(places) - NAMED_ROWS
    if len(places) == 1:
        return f"row {first[0]}"
    last = f"{more} more" if more > 0 else first.pop()
    return f"rows {', '.join(first)} and {last}"


def short(value: Any) -> str:
    """A value as a message shows it."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."


def several(value: Any, in_cells: bool, what: str = "answers or foils") -> Any:
    r"""Texts of which there may be several, "a|b" in cells; another value as it is.

    Raises:
        Mistake: one of several is empty.
    """
    if in_cells and isinstance(value, str) and "|" in value:
        pieces = tuple(piece.replace("\\|", "|") for piece in _BAR.split(value))
        if not all(pieces):
            hint = "a bar that is meant is written \\|"
            raise Mistake(f"one of several {what} is empty", hint, BadPairs)
        return pieces
    return (value,) if isinstance(value, str) else tuple(value) if type(value) is list else value


def spans_of(column: str, value: Any, text: str) -> dict[str, Span]:
    """Parts that a row gives itself, as `Pair.as_dict` writes them.

    Raises:
        Mistake: they are no such parts of the text.
    """
    spans: list[Any] = list(value.values()) if isinstance(value, dict) else [None]
    for span in spans:
        whole = isinstance(span, list) and [type(end) for end in span] == [int, int]
        if not whole or not 0 <= span[0] < span[1] <= len(text):
            raise Mistake(
                f"{column!r} must be an object of [begin, end] in characters of the prompt",
                f"got {short(value)}",
            )
    return {name: (begin, end) for name, (begin, end) in value.items()}


def _mistakes_text(rows: Sequence[tuple[int, Mistake]]) -> str:
    (place, first), places = rows[0], [place for place, _ in rows]
    detail = f"row {place}: {first.detail}" if len(rows) > 1 else first.detail
    return f"{where(places)}: {first.what}" + (f" ({detail})" if first.detail else "")


def _read_rows(
    path: Path, rows: Iterable[tuple[int, T]], read: Callable[[T], dict[str, Any]]
) -> Rows:
    """Rows read one by one; mistakes are told together."""
    done: Rows = []
    mistakes: list[tuple[int, Mistake]] = []
    for place, row in rows:
        try:
            done.append((place, read(row)))
        except Mistake as mistake:
            mistakes.append((place, mistake))
    raise_mistakes(path, mistakes)
    return done


def _text(path: Path) -> str:
    r"""UTF-8 text without a byte order mark, with "\n" at the end of its lines."""
    try:
        text = _content(path).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:
        message = getattr(error, "strerror", None) or first_line(error)
        raise BadFile(f"{path}: {message}.") from error
    except UnicodeDecodeError as error:
        before = error.object[: error.start].split(b"\n")
        message = (
            f"line {len(before)} is not UTF-8 ({error.reason} at its byte {len(before[-1]) + 1})"
        )
        raise BadFile(f"{path}: {message}.") from error
    return text.replace("\r\n", "\n")


def _content(path: Path) -> bytes:
    if path.suffix.lower() != ".gz":
        return path.read_bytes()
    with gzip.open(path) as stream:
        content = stream.read(MOST_EXPANDED + 1)
    if len(content) > MOST_EXPANDED:
        raise BadFile(f"{path}: expands to more than {MOST_EXPANDED:,} bytes.")
    return content


def _delimiter(text: str, usual: str) -> str:
    """Return the delimiter of cells: semicolons or tabs if the header has these alone."""
    header = text.partition("\n")[0]
    others = [other for other in (";", "\t", ",") if other in header]
    return others[0] if others and usual not in header else usual


def _is_lines(text: str) -> bool:
    """Return whether a text is JSON Lines: its first line is an object, and others follow."""
    first, _, rest = text.strip().partition("\n")
    if not rest.lstrip().startswith("{"):
        return False
    try:
        return isinstance(_decoded(first), dict)
    except Mistake:
        return False


def _cells(path: Path, text: str, delimiter: str) -> Rows:
    # Strict: a quote that is never closed is an error, and not one long cell.
    reader = csv.reader(io.StringIO(text), delimiter=delimiter, strict=True)
    rows: list[tuple[int, list[str]]] = []
    begin = 1
    try:
        for cells in reader:
            rows += [(begin, cells)] if cells else []
            begin = reader.line_num + 1
    except csv.Error as error:
        raise BadFile(f"{path}: row {begin} is not CSV ({error}).") from error
    if not rows:
        return []
    (place, header), *rows = rows
    twice = [name for name, count in Counter(header).items() if count > 1 and name]
    if twice:
        raise BadFile(f"{path}: row {place} names the column {twice[0]!r} twice.")

    def named(cells: list[str]) -> dict[str, str]:
        if len(cells) != len(header):
            detail = f"{len(cells)} for {len(header)}"
            raise Mistake("another number of cells than the header", detail)
        return dict(zip(header, cells, strict=True))

    return _read_rows(path, rows, named)


def _list(path: Path, text: str) -> list[Any]:
    try:
        rows = _decoded(text)
    except Mistake as mistake:
        raise BadFile(f"{path} is {mistake}.") from mistake
    if isinstance(rows, dict):
        rows = _unwrapped(path, rows)
    if not isinstance(rows, list):
        raise BadFile(f"{path}: a .json file of rows is a list of objects; got {short(rows)}.")
    nested = [row.get("row") for row in rows if isinstance(row, dict)]
    is_nested = len(nested) == len(rows) and all(isinstance(row, dict) for row in nested)
    return nested if is_nested and nested else rows


def _unwrapped(path: Path, whole: dict[str, Any]) -> Any:
    """Return the list of rows within an object; rows of lists by split get a column "split"."""
    for keys, text in _OTHERS:
        if all(key in whole for key in keys):
            raise BadFile(f"{path}: {text}.")
    lists = {key: rows for key, rows in whole.items() if isinstance(rows, list)}
    if lists and all(key.lower() in _SPLITS for key in lists) and len(lists) == len(whole):
        return [
            {**row, "split": key} if isinstance(row, dict) else row
            for key, rows in lists.items()
            for row in rows
        ]
    known = [key for key in lists if key.lower() in WRAPPERS]
    if not whole:
        return whole
    if len(known) != 1:
        raise BadFile(
            f"{path}: a .json file of rows is a list of objects, or an object with one such list"
            f" ({', '.join(sorted(WRAPPERS))}); this object has {', '.join(map(repr, whole))}."
        )
    return lists[known[0]]


def _line(line: str) -> dict[str, Any]:
    if len(line) > LONGEST_LINE:
        raise Mistake(f"more than {LONGEST_LINE:,} characters in one line")
    return _object(_decoded(line), line)


def _object(row: Any, text: str) -> dict[str, Any]:
    """A row that is an object; `text` is where it was read."""
    if "\\u" in text and _SURROGATE.search(json.dumps(row, ensure_ascii=False)):
        raise Mistake("half of a surrogate pair, which is no text")
    if not isinstance(row, dict):
        raise Mistake("a row is a JSON object", f"got {short(row)}")
    return row


def _decoded(text: str) -> Any:
    try:
        return _JSON.decode(text)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        detail = f"{error.msg} at {line}character {error.colno}"
        raise Mistake("not JSON", detail) from error
    except RecursionError as error:
        raise Mistake("not JSON", "nested too deeply") from error
    except ValueError as error:
        raise Mistake("not JSON", str(error)) from error


def _without_repeats(items: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(items)
    if len(made) < len(items):
        names = Counter(name for name, _ in items)
        raise ValueError(f"{next(name for name in names if names[name] > 1)!r} comes twice")
    return made


_JSON = json.JSONDecoder(object_pairs_hook=_without_repeats)


def _parquet(path: Path) -> list[dict[str, Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("Reading parquet files", "pyarrow", "hub") from error
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            return file.read().to_pylist()
    except (OSError, pyarrow.ArrowException) as error:
        raise BadFile(f"{path}: {first_line(error).rstrip('.')}.") from error
