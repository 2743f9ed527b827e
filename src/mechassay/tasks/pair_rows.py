"""Rows of a file of pairs: what each value must be, and what is wrong with them.

pydantic looks at all rows; mistakes are told by kind, with the places of the rows. What the columns
mean is said in `mechassay.tasks.columns` and `mechassay.tasks.files`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import ErrorDetails

from mechassay.alignment import Span
from mechassay.errors import BadFile, BadPairs
from mechassay.rows import (
    DELIMITERS,
    Mistake,
    raise_mistakes,
    read_rows,
    several,
    short,
    spans_of,
)
from mechassay.tasks.columns import ANSWERS_OF_OTHER, SPANS, TAGS, Columns, meaning

ENDINGS = tuple(f"{number:02d}" for number in range(100))

_IDS = re.compile(r"\s*(?:\d{1,9}|\[\s*\d{1,9}(?:\s*,\s*\d{1,9})*\s*\])\s*", re.ASCII)
_YEAR = re.compile(r"\s*\d{1,2}\s*", re.ASCII)
_CENTURY = re.compile(r"(?<!\d)\d\d$", re.ASCII)


def _as_name(value: Any) -> Any:
    """Ids and groups may be whole numbers; an empty one is none."""
    return str(value) if type(value) is int else None if value == "" else value


Name = Annotated[str | None, BeforeValidator(_as_name)]
Shown = Annotated[str, StringConstraints(pattern=r"\S")]
Continuation = Annotated[str, StringConstraints(min_length=1)]
# What a value must be that is not just text.
_SEVERAL, _NAME = "text or a list of texts", "text or a whole number"
_WANTED = {"answer": _SEVERAL, "foil": _SEVERAL, "id": _NAME, "group": _NAME}


class PairRow(BaseModel):
    """A row as the file has it.

    Attributes:
        place: of the row in the file.
        answer_ids, foil_ids: token ids, in place of the texts.
        counterfactual_answers: right continuations of `counterfactual`, if the row says them.
        values: what may be parts of the clean prompt, by name.
        other_values: the same of the counterfactual.
        spans, other_spans: parts that the row gives itself.
        years: whether answers and foils are the years of a century.
    """

    model_config = ConfigDict(strict=True, frozen=True)

    place: int
    clean: Shown
    counterfactual: Shown
    answers: tuple[Continuation, ...] = Field((), alias="answer", min_length=1)
    foils: tuple[Continuation, ...] = Field((), alias="foil", min_length=1)
    answer_ids: tuple[int, ...] = ()
    foil_ids: tuple[int, ...] = ()
    id: Name = None
    group: Name = None
    split: str | None = None
    counterfactual_answers: tuple[Continuation, ...] = ()
    tags: dict[str, str] = {}
    values: dict[str, str] = {}
    other_values: dict[str, str] = {}
    spans: dict[str, Span] = {}
    other_spans: dict[str, Span] = {}
    years: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_columns(cls, placed: tuple[int, dict[str, Any]], info: ValidationInfo) -> Any:
        """The values of a row's columns by the names of the fields."""
        place, raw = placed
        split_column, in_cells = info.context or ("", False)
        columns = meaning(tuple(raw), split_column)
        clean, other = raw[columns.clean], raw[columns.counterfactual]
        made = {"place": place, "clean": clean, "counterfactual": other}
        if not isinstance(clean, str) or not isinstance(other, str):
            return made
        names = {"id": raw.get("id"), "group": raw.get("group"), "split": raw.get(split_column)}
        made |= names | _parts(raw, columns, in_cells, clean, other)
        answers = raw[columns.answer]
        if columns.years:
            return _with_years(made, columns.answer, answers)
        foils = raw[columns.foil]
        if columns.token_ids:
            ids = _token_ids(columns.answer, answers), _token_ids(columns.foil, foils)
            return made | {"answer_ids": ids[0], "foil_ids": ids[1]}
        return made | {"answer": several(answers, in_cells), "foil": several(foils, in_cells)}

    @model_validator(mode="after")
    def _different(self) -> PairRow:
        if self.clean == self.counterfactual:
            raise Mistake("'clean' equals 'counterfactual'", short(self.clean), BadPairs)
        foils = {*self.foils, *self.foil_ids}
        for answer in (*self.answers, *self.answer_ids):
            if answer in foils:
                raise Mistake("an answer equals a foil", short(answer), BadPairs)
        return self


_ROWS = TypeAdapter(list[PairRow])


def pair_rows(path: str, split_column: str) -> list[PairRow]:
    """The rows of a file of pairs.

    Raises:
        BadFile: the file cannot be read as rows of these columns.
        BadPairs: rows that cannot be compared.
    """
    rows, in_cells = read_rows(Path(path)), Path(path).suffix.lower() in DELIMITERS
    if not rows:
        raise BadFile(f"{path}: there are no rows.")
    if in_cells:
        try:
            meaning(tuple(rows[0][1]), split_column)
        except Mistake as mistake:
            raise BadFile(f"{path}: row 1: {mistake}.") from mistake
    try:
        return _ROWS.validate_python(rows, context=(split_column, in_cells))
    except ValidationError as error:
        # One mistake a row is enough.
        first = {details["loc"][0]: details for details in reversed(error.errors())}
        raise_mistakes(path, [(rows[int(row)][0], _mistake(first[row])) for row in sorted(first)])
        raise


def _mistake(details: ErrorDetails) -> Mistake:
    if details["type"] == "value_error":
        return details["ctx"]["error"]  # pyright: ignore[reportTypedDictNotRequiredAccess]
    column = str(details["loc"][1])
    if details["type"] in ("string_pattern_mismatch", "string_too_short", "too_short"):
        return Mistake(f"{column!r} is empty", error=BadPairs)
    wanted = _WANTED.get(column, "text")
    return Mistake(f"{column!r} must be {wanted}", f"got {short(details['input'])}")


# --- values of columns ----------------------------------------------------------------------------


def _parts(
    raw: dict[str, Any], columns: Columns, in_cells: bool, clean: str, other: str
) -> dict[str, Any]:
    """What a row says beside its prompts, answers and foils."""
    said = {name: raw[name] for name in columns.tags if raw[name] is not None}
    given = {
        name: spans_of(name, said.pop(name), text)
        for name, text in zip(SPANS, (clean, other), strict=True)
        if name in said and not in_cells
    }
    nested: dict[str, Any] = said.pop(TAGS) if isinstance(said.get(TAGS), dict) else {}
    # A row that gives its parts itself has them from its columns besides, not from its tags.
    sought = said if given else said | nested
    values = {name: str(value) for name, value in sought.items() if type(value) in (str, int)}
    ours = {name: text for name, text in values.items() if name not in columns.others.values()}
    theirs = {name: raw[column] for name, column in columns.others.items() if column in values}
    return {
        "tags": {
            name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            for name, value in (said | nested).items()
            if value is not None
        },
        "values": ours,
        "other_values": {name: str(theirs.get(name, text)) for name, text in ours.items()},
        "spans": given.get(SPANS[0], {}),
        "other_spans": given.get(SPANS[1], {}),
        "counterfactual_answers": several(raw.get(ANSWERS_OF_OTHER) or (), in_cells),
    }


def _token_ids(column: str, value: Any) -> tuple[int, ...]:
    text = json.dumps(value) if isinstance(value, int | list) else value
    if not isinstance(text, str) or not _IDS.fullmatch(text):
        raise Mistake(
            f"{column!r} must be a token id or a list of them, as 7 or [7, 8]",
            f"got {short(value)}",
        )
    return tuple(int(digits) for digits in re.findall(r"\d+", text))


def _with_years(made: dict[str, Any], column: str, value: Any) -> dict[str, Any]:
    """The years of a prompt's century after the one it names, those up to it, and its parts."""
    clean: str = made["clean"]
    text = str(value) if type(value) is int else value
    century = _CENTURY.search(clean)
    year = f"{int(text):02d}" if isinstance(text, str) and _YEAR.fullmatch(text) else None
    if century is None or year is None or century[0] + year not in clean or year == ENDINGS[-1]:
        raise Mistake(
            f"{column!r} without a foil is a year YY, 0 to 98, of a prompt with CCYY that ends"
            " in CC",
            f"got {short(value)} after {short(clean[-30:])}",
        )
    later, place = int(year) + 1, clean.rfind(century[0] + year)
    return made | {
        "answer": ENDINGS[later:],
        "foil": ENDINGS[:later],
        "tags": made["tags"] | {"century": century[0], "year": year},
        "spans": _year_spans(clean, place) | made["spans"],
        "other_spans": _year_spans(made["counterfactual"], place) | made["other_spans"],
        "years": True,
    }


def _year_spans(text: str, place: int) -> dict[str, Span]:
    """The parts of a prompt with CCYY at a place, named as in greater-than, if digits are there."""
    if not text[place : place + 4].isdigit():
        return {}
    century_2 = {"century_2": (len(text) - 2, len(text))} if _CENTURY.search(text) else {}
    return {"century": (place, place + 2), "year": (place + 2, place + 4), **century_2}
