"""What submitters say of their submissions: its form is checked, and nothing else."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from mechassay.errors import BadFile
from mechassay.leaderboard.declaration import LARGEST, Declaration

FULL: dict[str, Any] = {
    "name": "EAP-IG (20 steps), ours",
    "method": "eap-ig-inputs",
    "description": "Two lines,\n<b>as they are</b>.",
    "training_data": "100 pairs of train",
    "train_hashes": ["0" * 64],
    "compute": "one laptop",
    "gpu_hours": 0.5,
    "url": "https://example.org/a?b=c#d",
}


def test_files_of_both_kinds_are_read(tmp_path: Path) -> None:
    (tmp_path / "submission.json").write_text(json.dumps(FULL))
    (tmp_path / "submission.yaml").write_text("name: Ännchen 2\ngpu_hours: 2\n")
    read = Declaration.read(tmp_path / "submission.json")
    assert read.train_hashes == ("0" * 64,) and read.gpu_hours == 0.5
    assert read.description == FULL["description"]
    assert Declaration.of(json.loads(read.model_dump_json())) == read
    short = Declaration.read(tmp_path / "submission.yaml")
    assert short.name == "Ännchen 2" and math.isfinite(short.gpu_hours) and short.url == ""
    assert math.isnan(Declaration.of({"name": "a"}).gpu_hours)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": "<img src=x onerror=alert(1)>"}, "a name has letters, digits"),
        ({"name": "=HYPERLINK(1)"}, "a name has letters, digits"),
        ({"name": "a\nb"}, "a name has letters, digits"),
        ({"name": "a\u202eb"}, "a name has letters, digits"),
        ({"name": ""}, "a name has letters, digits"),
        ({"name": "x" * 81}, "at most 80"),
        ({"method": "a\x1b[31m"}, "control characters are not allowed"),
        ({"description": "a\u202eb"}, "control characters are not allowed"),
        ({"description": "x" * 5001}, "description"),
        ({"url": "javascript:alert(1)"}, "an address begins with https://"),
        ({"url": "http://example.org"}, "an address begins with https://"),
        ({"url": 'https://a.org/"onclick=1'}, "an address begins with https://"),
        ({"train_hashes": ["abc"]}, "a SHA-256 has 64 digits"),
        ({"gpu_hours": -1}, "hours are 0 or more"),
        ({"gpu_hours": math.inf}, "hours are 0 or more"),
        ({"more": 1}, "more"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(BadFile, match=said) as error:
        Declaration.of({**FULL, **changes})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["name: [", "- 1", "", "!!python/object/apply:os.system [ls]"])
def test_files_that_are_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "submission.yaml").write_text(text)
    with pytest.raises(BadFile):
        Declaration.read(tmp_path / "submission.yaml")


def test_a_large_file_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "submission.yaml").write_text("a" * (LARGEST + 1))
    with pytest.raises(BadFile, match="was not opened"):
        Declaration.read(tmp_path / "submission.yaml")
