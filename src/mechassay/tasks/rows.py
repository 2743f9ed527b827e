r"""The rows of a file of pairs: what they say, and what is wrong with them.

JSONL, CSV and TSV are read one line at a time and never held; a JSON file is one value, and is held
while it is read. Nothing in them is executed. A row that is wrong is a `Mistake`, so that all of a
file can be told at once; a file that stops being UTF-8, CSV or JSON is an error there and then.
What the columns mean is said in `mechassay.tasks.columns` and `mechassay.tasks.files`.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from io import BufferedReader
from typing import Any, NamedTuple

from mechassay.alignment import Span
from mechassay.errors import BadFile, BadPairs
from mechassay.pairs import EMPTY, NO_SPANS
from mechassay.tasks.columns import ANSWERS_OF_OTHER, SPANS, TAGS, Columns, Mistake, Texts, meaning

# A "line" beyond this is no line of text, and would have to be held as a whole.
LONGEST_LINE = 1 << 24
# Sets of column names that are remembered.
LAYOUTS = 64
DELIMITERS = {".csv": ",", ".tsv": "\t"}

_BAR = re.compile(r"(?<!\\)\|")
_IDS = re.compile(r"\s*(?:\d{1,9}|\[\s*\d{1,9}(?:\s*,\s*\d{1,9})*\s*\])\s*", re.ASCII)
_YEAR = re.compile(r"\s*\d{1,2}\s*", re.ASCII)
_CENTURY = re.compile(r"(?<!\d)\d\d$", re.ASCII)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
ENDINGS = tuple(f"{number:02d}" for number in range(100))

Tokens = tuple[int, ...]


class Row(NamedTuple):
    """A row as the file has it; answers and foils are both texts, or both token ids.

    Attributes:
        values: what may be parts of the clean prompt, by name.
        other_values: the same of the counterfactual.
        spans, other_spans: parts that the row gives itself.
        years: whether answers and foils are the years of a century.
    """

    number: int
    id: str | None
    clean: str
    counterfactual: str
    answers: Texts | Tokens
    foils: Texts | Tokens
    group: str | None
    split: str | None
    tags: Mapping[str, str]
    values: Mapping[str, str] = EMPTY
    other_values: Mapping[str, str] = EMPTY
    spans: Mapping[str, Span] = NO_SPANS
    other_spans: Mapping[str, Span] = NO_SPANS
    other_answers: Texts = ()
    years: bool = False


class Reader:
    """Reads the rows of one file."""

    def __init__(self, path: str, split_column: str) -> None:
        self.path, self.split_column = path, split_column
        ending = path[path.rfind(".") :].lower()
        self.delimiter, self.is_json = DELIMITERS.get(ending), ending == ".json"
        self._known: dict[Texts, Columns | Mistake] = {}

    def rows(self, stream: BufferedReader) -> Iterator[tuple[int, Row | Mistake]]:
        """Each row with its number: the line on which it begins, from 1. Empty lines are no rows.

        Raises:
            BadFile: something that is not UTF-8, CSV or JSON, or a header without the columns
                needed.
        """
        if self.is_json:
            found = _json_list(self.path, stream)
        else:
            lines = _lines(self.path, stream)
            found = (
                _json_rows(lines) if self.delimiter is None else self._csv(lines, self.delimiter)
            )
        for number, raw in found:
            yield number, raw if isinstance(raw, Mistake) else self._row(number, raw)

    def _csv(
        self, lines: Iterator[str], delimiter: str
    ) -> Iterator[tuple[int, dict[str, Any] | Mistake]]:
        # Strict: a quote that is never closed is an error, and not one long cell.
        cells = csv.reader(lines, delimiter=delimiter, strict=True)
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
                yield (
                    number,
                    Mistake(
                        "another number of cells than the header", f"{len(row)} for {len(header)}"
                    ),
                )
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
            self._known[names] = meaning(names, self.split_column)
        return self._known[names]

    def _row(self, number: int, raw: dict[str, Any]) -> Row | Mistake:
        columns = self._columns(tuple(raw))
        if isinstance(columns, Mistake):
            return columns
        clean, other = raw[columns.clean], raw[columns.counterfactual]
        name, group, split = raw.get("id"), raw.get("group"), raw.get(self.split_column)
        wrong = _text_mistake(columns.clean, clean) or _text_mistake(columns.counterfactual, other)
        if not (name is group is split is None):
            wrong = (
                wrong
                or _name_mistake("id", name)
                or _name_mistake("group", group)
                or _split_mistake(self.split_column, split)
            )
        if wrong:
            return wrong
        if clean == other:
            return Mistake(
                f"{columns.clean!r} equals {columns.counterfactual!r}", short(clean), BadPairs
            )
        said = self._continuations(columns, raw, clean)
        if isinstance(said, Mistake):
            return said
        own = self._parts(columns, raw, clean, other)
        if isinstance(own, Mistake):
            return own
        answers, foils, year = said
        if columns.years:
            own["tags"] = {**own["tags"], **year}
            place = clean.rfind(year["century"] + year["year"])
            for part, text in (("spans", clean), ("other_spans", other)):
                own[part] = {**_year_spans(text, place), **own.get(part, NO_SPANS)}
        return Row(
            number,
            _name(name),
            clean,
            other,
            answers,
            foils,
            _name(group),
            split or None,
            years=columns.years,
            **own,
        )

    def _continuations(
        self, columns: Columns, raw: dict[str, Any], clean: str
    ) -> tuple[Texts | Tokens, Texts | Tokens, dict[str, str]] | Mistake:
        """Answers, foils, and the tags that a year makes."""
        if columns.years:
            return _later_years(columns.answer, raw[columns.answer], clean)
        answers = self._several(columns.answer, raw[columns.answer], columns.token_ids)
        if isinstance(answers, Mistake):
            return answers
        foils = self._several(columns.foil, raw[columns.foil], columns.token_ids)
        if isinstance(foils, Mistake):
            return foils
        for one in answers:
            if one in foils:
                return Mistake("an answer equals a foil", short(one), BadPairs)
        return answers, foils, {}

    def _parts(
        self, columns: Columns, raw: dict[str, Any], clean: str, other: str
    ) -> dict[str, Any] | Mistake:
        """What a row says beside its prompts, answers and foils, by the names of `Row`."""
        if not columns.tags and not raw.get(ANSWERS_OF_OTHER):
            return {"tags": EMPTY}
        given: dict[str, dict[str, Span]] = {}
        for name, text in zip(SPANS, (clean, other), strict=True):
            if name in columns.tags and raw[name] is not None and self.delimiter is None:
                spans = _spans(name, raw[name], text)
                if isinstance(spans, Mistake):
                    return spans
                given[name] = spans
        nested = raw.get(TAGS) if isinstance(raw.get(TAGS), dict) else None
        left_out = {*given, *([TAGS] if nested is not None else [])}
        found = {
            name: raw[name]
            for name in columns.tags
            if raw[name] is not None and name not in left_out
        }
        # A row that gives its parts itself has them from its columns besides, not from its tags.
        sought = {**found, **(nested or {})} if not given else found
        values = {
            name: str(value)
            for name, value in sought.items()
            if isinstance(value, str | int) and not isinstance(value, bool)
        }
        theirs = {name: column for name, column in columns.others.items() if column in values}
        values = {
            name: value for name, value in values.items() if name not in columns.others.values()
        }
        answers = (
            self._several(ANSWERS_OF_OTHER, raw[ANSWERS_OF_OTHER], False)
            if raw.get(ANSWERS_OF_OTHER)
            else ()
        )
        if isinstance(answers, Mistake):
            return answers
        return {
            "tags": {
                name: _as_text(value)
                for name, value in {**found, **(nested or {})}.items()
                if value is not None
            },
            "values": values,
            "other_values": {
                name: str(raw[theirs[name]]) if name in theirs else value
                for name, value in values.items()
            },
            "spans": given.get(SPANS[0], NO_SPANS),
            "other_spans": given.get(SPANS[1], NO_SPANS),
            "other_answers": answers,
        }

    def _several(self, column: str, value: Any, token_ids: bool) -> Any:
        """Answers or foils, one or several; a `Mistake` if they are none."""
        if token_ids:
            return _token_ids(column, value)
        in_cells = self.delimiter is not None
        if isinstance(value, str) and value and not (in_cells and "|" in value):
            return (value,)
        if in_cells:
            found = [piece.replace("\\|", "|") for piece in _BAR.split(value)]
        else:
            found = value if isinstance(value, list) else [value]
        if not all(isinstance(one, str) for one in found):
            return Mistake(f"{column!r} must be text or a list of texts", f"got {_kind(value)}")
        if not found or not all(found):
            return Mistake(
                f"{column!r} is empty",
                "a bar that is meant is written \\|" if in_cells and "|" in value else "",
                BadPairs,
            )
        return tuple(found)


# --- lines
# -------------------------------------------------------------------------------------------


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
            raise BadFile(
                f"{path}: row {number} is not UTF-8 ({error.reason} at byte {error.start + 1} of"
                " the line)."
            ) from error


def _json_rows(lines: Iterator[str]) -> Iterator[tuple[int, dict[str, Any] | Mistake]]:
    for number, line in enumerate(lines, 1):
        if not line.isspace():
            yield number, _json_row(line)


def _json_list(path: str, stream: BufferedReader) -> Iterator[tuple[int, dict[str, Any] | Mistake]]:
    """The rows of a JSON file, which is a list of objects; numbered from 1."""
    try:
        rows = _JSON.decode(stream.read().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadFile(f"{path} is not UTF-8 ({error.reason} at byte {error.start + 1}).") from error
    except json.JSONDecodeError as error:
        raise BadFile(
            f"{path} is not JSON ({error.msg} at line {error.lineno}, character {error.colno})."
        ) from error
    except RecursionError as error:
        raise BadFile(f"{path} is not JSON (nested too deeply).") from error
    except ValueError as error:
        raise BadFile(f"{path} is not JSON ({error}).") from error
    if not isinstance(rows, list):
        raise BadFile(f"{path}: a .json file of pairs is a list of objects; got {_kind(rows)}.")
    for number, row in enumerate(rows, 1):
        yield number, _text_of(row)


def _text_of(row: Any) -> dict[str, Any] | Mistake:
    """A row of a JSON file, whose texts can be written."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return Mistake("half of a surrogate pair, which is no text")
    return row if isinstance(row, dict) else Mistake("a row is a JSON object", f"got {_kind(row)}")


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
        twice = next(
            name for name, count in Counter(name for name, _ in items).items() if count > 1
        )
        raise ValueError(f"{twice!r} comes twice")
    return made


_JSON = json.JSONDecoder(object_pairs_hook=_object)


# --- cells
# -------------------------------------------------------------------------------------------


def _text_mistake(column: str, value: Any) -> Mistake | None:
    if not isinstance(value, str):
        return Mistake(f"{column!r} must be text", f"got {_kind(value)}")
    return Mistake(f"{column!r} is empty", error=BadPairs) if not value or value.isspace() else None


def _name_mistake(column: str, value: Any) -> Mistake | None:
    """Ids and groups may be whole numbers."""
    fits = (
        value is None
        or isinstance(value, str)
        or (isinstance(value, int) and not isinstance(value, bool))
    )
    return (
        None
        if fits
        else Mistake(f"{column!r} must be text or a whole number", f"got {_kind(value)}")
    )


def _name(value: str | int | None) -> str | None:
    return None if value is None or value == "" else str(value)


def _split_mistake(column: str, value: Any) -> Mistake | None:
    return (
        None
        if value is None or isinstance(value, str)
        else Mistake(f"{column!r} must be text", f"got {_kind(value)}")
    )


def _token_ids(column: str, value: Any) -> Tokens | Mistake:
    text = json.dumps(value) if isinstance(value, int | list) else value
    if not isinstance(text, str) or not _IDS.fullmatch(text):
        return Mistake(
            f"{column!r} must be a token id or a list of them, as 7 or [7, 8]",
            f"got {short(value)}",
        )
    return tuple(int(digits) for digits in re.findall(r"\d+", text))


def _later_years(
    column: str, value: Any, clean: str
) -> tuple[Texts, Texts, dict[str, str]] | Mistake:
    """The years of a prompt's century after the one it names, those up to it, and both as tags."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    century = _CENTURY.search(clean)
    year = f"{int(text):02d}" if isinstance(text, str) and _YEAR.fullmatch(text) else None
    if century is None or year is None or century[0] + year not in clean or year == ENDINGS[-1]:
        return Mistake(
            f"{column!r} without a foil is a year YY, 0 to 98, of a prompt with CCYY that ends"
            " in CC",
            f"got {short(value)} after {short(clean[-30:])}",
        )
    later = int(year) + 1
    return ENDINGS[later:], ENDINGS[:later], {"century": century[0], "year": year}


def _year_spans(text: str, place: int) -> dict[str, Span]:
    """The parts of a prompt with CCYY at a place, if it has digits there:
    the names are those of greater-than.
    """
    if not text[place : place + 4].isdigit():
        return {}
    century_2 = {"century_2": (len(text) - 2, len(text))} if _CENTURY.search(text) else {}
    return {"century": (place, place + 2), "year": (place + 2, place + 4), **century_2}


def _spans(column: str, value: Any, text: str) -> dict[str, Span] | Mistake:
    """Parts that a row gives itself, as `Pair.as_dict` writes them."""
    wrong = Mistake(
        f"{column!r} must be an object of [begin, end] in characters of the prompt",
        f"got {short(value)}",
    )
    if not isinstance(value, dict):
        return wrong
    found: dict[str, Span] = {}
    for name, span in value.items():
        whole = (
            isinstance(span, list) and len(span) == 2 and all(type(place) is int for place in span)
        )
        if not whole or not 0 <= span[0] < span[1] <= len(text):
            return wrong
        found[name] = (span[0], span[1])
    return found


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _kind(value: Any) -> str:
    return {"NoneType": "null", "dict": "an object", "list": "a list", "str": "a text"}.get(
        type(value).__name__, short(value)
    )


def short(value: Any) -> str:
    """A value as a message shows it."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:36]} ..."
