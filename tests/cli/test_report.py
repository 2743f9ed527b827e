"""`mechassay report`: any kind of run, those of earlier versions, and an index over several."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

STORED = Path(__file__).parents[1] / "data" / "format1"
Run = Callable[..., Any]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    return Path(shutil.copytree(STORED, tmp_path / "runs"))


@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        ("faithfulness", "eap"),
        ("suite", "nap"),
        ("accuracy", "greedy"),
        ("adversarial", "random@0.3"),
    ],
)
def test_a_run_of_an_earlier_version_is_reported(
    kind: str, shown: str, stored: Path, run: Run
) -> None:
    done = run("report", stored / kind)
    assert shown in done.out and "Report: " in done.out, done.err
    page = (stored / kind / "report.html").read_text()
    assert shown in page and "<script" not in page


def test_several_runs_are_an_index(stored: Path, run: Run) -> None:
    run("report", stored / "faithfulness")
    done = run("report", stored)
    assert done.code == 0 and "Index: " in done.out
    page = (stored / "index.html").read_text()
    assert 'href="faithfulness/report.html"' in page and "truth-ioi" in page


def test_a_folder_without_runs_is_one_line(tmp_path: Path, run: Run) -> None:
    done = run("report", tmp_path)
    assert done.code == 2 and "not the folder of a run" in done.line


def test_a_run_of_an_earlier_version_is_not_gone_on_with(stored: Path, run: Run) -> None:
    words = ("circuits", "run", "-m", "truth-ioi", "-M", "eap", "-o", stored / "faithfulness")
    assert "holds a run of an earlier version" in run(*words).line


def test_an_edited_record_is_refused_and_not_shown_in_an_index(tmp_path: Path, run: Run) -> None:
    folder = tmp_path / "own"
    words = ("circuits", "run", "-m", "truth-ioi", "-M", "eap", "--train-limit", "4")
    assert run(*words, "--limit", "8", "-o", folder).code == 0
    [file] = (folder / "records").rglob("*.json")
    plain = json.loads(file.read_text())
    plain["measures"][0]["value"] = 99.0
    file.write_text(json.dumps(plain))
    report = run("report", folder)
    assert report.code == 2 and "99" not in report.out
    assert f"{file}: was edited after it was written" in report.line
    resumed = run(*words, "--limit", "8", "-o", folder)
    assert resumed.code == 2 and "was edited after it was written" in resumed.line
    assert run("report", tmp_path).code == 0
    index = (tmp_path / "index.html").read_text()
    assert "was edited after it was written" in index and "99.0" not in index
    file.unlink()
    assert run(*words, "--limit", "8", "-o", folder).code == 0
    assert run("report", folder).code == 0
