"""Edits of stored records, with the hash made anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mechassay.errors import BadFile
from mechassay.results.reading import read_record, recomputed
from mechassay.results.records import Measure, Record, Table, content_hash


def sealed(file: Path, plain: dict[str, Any]) -> Path:
    """Write plain values as a record with the hash of their content."""
    plain["sha256"] = content_hash(plain)
    file.write_text(json.dumps(plain))
    return file


def unnoticed(record: Record, folder: Path) -> set[tuple[str, str]]:
    """Name and `of` of each measure whose number may be edited, with the hash made anew."""
    file, found = folder / "edited.json", set[tuple[str, str]]()
    for place, measure in enumerate(record.measures):
        plain = json.loads(record.model_dump_json())
        plain["measures"][place]["value"] = (plain["measures"][place]["value"] or 0.0) + 0.01
        sealed(file, plain)
        line = refusal(file)
        if not line:
            found.add((measure.name, measure.of))
            continue
        assert line.startswith(f"{file}: {measure.name}"), line
        assert line.endswith("; the record was edited.") and "\n" not in line, line
    return found


def consistent(record: Record, by: float) -> Record:
    """A record with other values of examples, and the numbers that follow from them.

    Args:
        by: what is added to every circuit's value of every example.
    """
    assert record.values is not None
    columns = {
        name: column if name in ("clean", "empty") else [value + by for value in column]
        for name, column in record.values.columns.items()
    }
    changed = record.changed(values=record.values.model_copy(update={"columns": columns}))
    again = recomputed(changed)
    measures = {(part.name, part.of): part for part in again if isinstance(part, Measure)}
    tables = {part.name: part for part in again if isinstance(part, Table)}
    rest = {table.name: table for table in record.tables}
    for name, table in tables.items():
        # Rows of controls have no values and stay.
        kept = [row for row in rest[name].rows() if str(row["of"]) != "result"]
        rest[name] = Table.of(name, table.keys, [*table.rows(), *kept])
    return changed.changed(
        measures=[measures.get((each.name, each.of), each) for each in record.measures],
        tables=list(rest.values()),
    )


def refusal(file: Path) -> str:
    """Why a file is not read; "" if it is."""
    try:
        read_record(file)
    except BadFile as error:
        return str(error)
    return ""
