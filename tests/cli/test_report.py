"""`mechassay report`: any kind of run, those of earlier versions, and an index over several."""

from __future__ import annotations

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
