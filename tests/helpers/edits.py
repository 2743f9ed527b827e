"""Edits of stored records, with the hash made anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mechassay.errors import BadFile
from mechassay.results.reading import read_record
from mechassay.results.records import Record, content_hash


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


def refusal(file: Path) -> str:
    """Why a file is not read; "" if it is."""
    try:
        read_record(file)
    except BadFile as error:
        return str(error)
    return ""
