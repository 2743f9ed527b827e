"""Files of pairs for tests, and small tokenizers."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mechassay.errors import MechassayError
from mechassay.tasks import SPLITS
from mechassay.tasks.files import FileTask


def row(number: int, **changes: Any) -> dict[str, Any]:
    """A right row; `changes` replace values, None takes a column away."""
    made: dict[str, Any] = {
        "clean": f"Visitor {number} of the Eiffel Tower is in",
        "counterfactual": f"Visitor {number} of the Colosseum is in",
        "answer": " Paris",
        "foil": " Rome",
    }
    return {name: value for name, value in {**made, **changes}.items() if value is not None}


def jsonl(rows: Sequence[Any]) -> str:
    return "".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in rows)


def as_csv(rows: Sequence[dict[str, Any]], header: Sequence[str] | None = None) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(
        text,
        header or list(dict.fromkeys(name for each in rows for name in each)),
        lineterminator="\n",
    )
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write(folder: Path, content: str | bytes, name: str = "my.jsonl") -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def read(path: str, **options: Any) -> dict[str, list[Any]]:
    """The pairs of every split that has any."""
    task = FileTask(path, **options)
    return {split: list(task.pairs(split)) for split in SPLITS if split in task.sizes}


def everything(path: str, **options: Any) -> list[Any]:
    return [example.pair("counterfactual") for _, example in FileTask(path, **options).located()]


def refused(path: str, kind: type[MechassayError], **options: Any) -> str:
    """The one line with which a file is refused, the path left out."""
    with pytest.raises(MechassayError) as caught:
        everything(path, **options)
    assert type(caught.value) is kind, caught.value
    assert "\n" not in str(caught.value) and path in str(caught.value)
    return str(caught.value).replace(path, "my")
