"""`mechassay report`: any kind of run, and an index over several."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mechassay as ma
from mechassay.progress import SILENT
from small_jobs import SMALL_JOBS

Run = Callable[..., Any]
KINDS = ("circuits", "accuracy", "adversarial")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for kind in KINDS:
        ma.run(SMALL_JOBS[kind], folder / kind, progress=SILENT)
    one_model = replace(SMALL_JOBS["circuits"], models=("truth-ioi",))
    ma.run(one_model, folder / "one-model", progress=SILENT)
    return folder


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    """A copy whose pages are gone."""
    copy = Path(shutil.copytree(made, tmp_path / "runs"))
    for page in copy.glob("*/report.html"):
        page.unlink()
    return copy


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("one-model", "random"),
        ("circuits", "truth-induction"),
        ("accuracy", "greedy"),
        ("adversarial", "random@0.5"),
    ],
)
def test_a_stored_run_is_reported(name: str, shown: str, runs: Path, run: Run) -> None:
    done = run("report", runs / name)
    assert shown in done.out and "Report: " in done.out, done.err
    page = (runs / name / "report.html").read_text()
    assert shown in page and "<script" not in page


def test_several_runs_are_an_index(runs: Path, run: Run) -> None:
    run("report", runs / "circuits")
    done = run("report", runs)
    assert done.code == 0 and "Index: " in done.out
    page = (runs / "index.html").read_text()
    assert 'href="circuits/report.html"' in page and "truth-ioi" in page
    assert "passed" in page and "mean, nats" in page


def test_a_folder_without_runs_is_one_line(tmp_path: Path, run: Run) -> None:
    done = run("report", tmp_path)
    assert done.code == 2 and "not the folder of a run" in done.line


def test_a_plan_without_a_kind_is_one_line(runs: Path, run: Run) -> None:
    (runs / "accuracy" / "plan.json").write_text("{}")
    done = run("report", runs / "accuracy")
    assert done.code == 2 and "kind of run" in done.line
