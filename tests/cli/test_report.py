"""`mechassay report`: any kind of run, and an index over several."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import mechassay as ma
from helpers.edits import sealed
from helpers.experiments import SMALL_EXPERIMENTS
from mechassay.results.reading import read_record
from mechassay.utils.display import SILENT

Run = Callable[..., Any]
EXPERIMENTS = {
    **{kind: SMALL_EXPERIMENTS[kind] for kind in ("circuits", "accuracy", "adversarial")},
    "one-model": replace(SMALL_EXPERIMENTS["circuits"], models=("truth-ioi",)),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a run, which is made at first use."""
    folder = tmp_path_factory.mktemp("runs")

    @cache
    def of(name: str) -> Path:
        ma.run(EXPERIMENTS[name], folder / name, progress=SILENT)
        return folder / name

    return of


@pytest.fixture
def runs(made: Callable[[str], Path], tmp_path: Path) -> Callable[..., Path]:
    """A folder of copies of runs, whose pages are gone."""

    def copies(*names: str) -> Path:
        for name in names:
            copy = Path(shutil.copytree(made(name), tmp_path / "runs" / name))
            (copy / "report.html").unlink()
        return tmp_path / "runs"

    return copies


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("one-model", "random"),
        ("circuits", "truth-induction"),
        ("accuracy", "greedy"),
        ("adversarial", "random@0.5"),
    ],
)
def test_a_stored_run_is_reported(
    name: str, shown: str, runs: Callable[..., Path], run: Run
) -> None:
    folder = runs(name) / name
    done = run("report", folder)
    assert shown in done.out and "Report: " in done.out, done.err
    page = (folder / "report.html").read_text()
    assert shown in page and "<script" not in page


@pytest.mark.slow
def test_several_runs_are_an_index(runs: Callable[..., Path], run: Run) -> None:
    folder = runs(*EXPERIMENTS)
    run("report", folder / "circuits")
    done = run("report", folder)
    assert done.code == 0 and "Index: " in done.out
    page = (folder / "index.html").read_text()
    assert 'href="circuits/report.html"' in page and "truth-ioi" in page
    assert "passed" in page and "mean, nats" in page


def test_a_folder_without_runs_is_one_line(tmp_path: Path, run: Run) -> None:
    done = run("report", tmp_path)
    assert done.code == 2 and "not the folder of a run" in done.line


@pytest.mark.slow
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


def test_a_report_shows_the_others_and_says_which_record_was_refused(
    runs: Callable[..., Path], run: Run
) -> None:
    """A number was edited and its hash made anew; all records of another run are truncated."""
    folder = runs("circuits", "accuracy")
    own, *others = sorted((folder / "circuits" / "records").rglob("*.json"))
    plain = json.loads(own.read_text())
    plain["measures"][0]["value"] = 0.93
    sealed(own, plain)
    done = run("report", folder / "circuits")
    refused = f"{own}: {plain['measures'][0]['name']} is 0.93, its values give"
    assert done.code == 1 and refused in done.err and "0.93 [" not in done.out
    page = unescape((folder / "circuits" / "report.html").read_text())
    assert refused in page and others
    for other in others:
        assert read_record(other).method.name in page
    run("report", folder)
    assert refused in unescape((folder / "index.html").read_text())
    for file in (folder / "accuracy" / "records").rglob("*.json"):
        file.write_text(file.read_text()[:300])
    none = run("report", folder / "accuracy")
    assert none.code == 2 and "not a record" in none.line


def test_a_plan_without_a_kind_is_one_line(runs: Callable[..., Path], run: Run) -> None:
    folder = runs("accuracy") / "accuracy"
    (folder / "plan.json").write_text("{}")
    done = run("report", folder)
    assert done.code == 2 and "kind of run" in done.line
