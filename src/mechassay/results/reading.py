"""Reading stored records: one that was edited since it was written is refused, whoever reads it.

    1  The file has to have the hash of its own content.
    2  The numbers that follow from the values of single examples are computed again, without a
       model: by the page of the record's kind, `Page.recomputed`. They have to agree with the
       stored ones within `TOLERANCE` of the larger of 1 and the number. Ends of intervals come
       from random draws, which are the same for the same version of numpy; of another version
       they may differ by `MAX_INTERVAL_SHIFT` of the interval's width.

Neither is a signature. Whoever changes values, numbers and hash together is not noticed here, nor
is a change of a number that no values are stored for, such as an interval over random circuits.
`mechassay leaderboard recompute` runs the model again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from mechassay.errors import BadFile, BadUsage, first_line
from mechassay.results.records import (
    SEAL,
    Measure,
    Record,
    Table,
    content_hash,
    first_mistake,
    page_of,
)
from mechassay.utils.arguments import checked

TOLERANCE = 1e-6
MAX_INTERVAL_SHIFT = 0.1
"""Maximum shift of a bound with the version of numpy, as a fraction of the interval's width."""
ENDS = ("low", "high")

_agreeing = set[str]()
"""Hashes of records whose numbers were computed again: a run reads each of its records often."""


@checked
def read_record(source: Path | bytes | str, *, recompute: bool = True) -> Record:
    """Read a stored record from its file or its text, which begins with a brace.

    A text may lack the hash of its content; a file may not.

    Args:
        recompute: False leaves out the second check, which needs the page of the record's kind.

    Raises:
        BadFile: truncated, foreign, of another format, or edited after it was written.
    """
    path = source if isinstance(source, Path) else None
    if isinstance(source, str) and not source.lstrip().startswith("{"):
        path = Path(source)
    name = "text" if path is None else str(path)
    try:
        text: Any = source if path is None else path.read_bytes()
    except OSError as error:
        raise BadFile(f"{name}: cannot be read ({first_line(error)}).") from None
    try:
        record = Record.model_validate_json(text)
    except ValidationError as error:
        raise BadFile(f"{name}: not a record ({first_mistake(error)}).") from None
    digest = content_hash(json.loads(text))
    if path is not None and not record.sha256:
        raise BadFile(f"{name}: has no hash of its content; run it again.")
    if record.sha256 not in ("", digest):
        raise BadFile(
            f"{name}: was edited after it was written; remove it, and run its cell again."
        )
    record = record.model_copy(update={SEAL: ""})
    if recompute and digest not in _agreeing:
        _check_numbers(name, record)
        _agreeing.add(digest)
    return record


def recomputed(record: Record) -> Sequence[Measure | Table]:
    """What follows from the record's values of single examples; empty if nothing does.

    Raises:
        BadUsage, KeyError, TypeError, ValueError: the record's parts do not fit each other.
    """
    return page_of(record.kind).recomputed(record) if has_values(record) else ()


def has_values(record: Record) -> bool:
    """Whether the record itself holds values of single examples."""
    return record.values is not None and bool(record.values.columns)


def means(record: Record, columns: Mapping[str, str]) -> Iterator[Measure]:
    """The record's measures that are means of values of examples, with these means.

    The mean of a control is that of the column of the control's name; a difference from it is the
    difference of the two means. Columns with undefined values are left out.

    Args:
        columns: of the result, by the name of its measure.
    """
    if record.values is None:
        return
    n, columns_of = len(record.values.ids), record.values.columns
    mean = {name: float(np.mean(column)) for name, column in columns_of.items() if column}
    for measure in record.measures:
        kind, _, control = measure.of.partition(":")
        own, other = (mean.get(name, math.nan) for name in (columns.get(measure.name, ""), control))
        value = {"result": own, "control": other, "difference": own - other}.get(kind, math.nan)
        if measure.name in columns and not math.isnan(value):
            yield measure.model_copy(update={"value": value, "n": n})


def _check_numbers(name: str, record: Record) -> None:
    """Refuse a record whose numbers do not follow from its values."""
    try:
        again = dict(row for part in recomputed(record) for row in _rows(part))
    except (BadUsage, KeyError, TypeError, ValueError) as error:
        raise BadFile(f"{name}: no numbers follow from its values ({first_line(error)}).") from None
    same_draws = record.provenance.packages.get("numpy") == np.__version__
    for part in (*record.measures, *record.tables):
        for what, stored in _rows(part):
            for column, number in again.get(what, {}).items():
                own = stored.get(column, math.nan)
                room = TOLERANCE * max(1.0, abs(number))
                if column.endswith(ENDS) and not same_draws:
                    whose = column.removesuffix("high").removesuffix("low")
                    low, high = (again[what][f"{whose}{end}"] for end in ENDS)
                    room = max(room, MAX_INTERVAL_SHIFT * (high - low))
                if not (abs(own - number) <= room or (math.isnan(own) and math.isnan(number))):
                    what_differs = what if column == "value" else f"{column} of {what}"
                    raise BadFile(
                        f"{name}: {what_differs} is {own:.6g}, its values give {number:.6g};"
                        " the record was edited."
                    )


def _rows(part: Measure | Table) -> Iterator[tuple[str, dict[str, float]]]:
    """The numbers of a measure, or of each row of a table, and what they are of."""
    if isinstance(part, Measure):
        numbers = {key: float(getattr(part, key)) for key in ("value", *ENDS, "n", "n_undefined")}
        yield part.name + ("" if part.of == "result" else f" of {part.of}"), numbers
        return
    for row in part.rows():
        keys = [str(row.pop(key)) for key in part.keys]
        numbers = {
            key: math.nan if x is None else float(x)
            for key, x in row.items()
            if not isinstance(x, str)
        }
        yield f"{part.name} ({', '.join(keys)})", numbers
