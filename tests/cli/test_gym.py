"""The commands of gym tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from helpers.experiments import SMALL_GYM_TASK
from mechassay.cli.main import app_for


def invoke(*words: str) -> str:
    done = CliRunner().invoke(app_for(list(words)), list(words))
    assert done.exit_code == 0, done.output
    return done.output


def test_tasks_are_listed_and_shown() -> None:
    rows = json.loads(invoke("gym", "list", "--json"))
    assert len(rows) == 29 and rows[0]["task"] == "agr_gender"
    said = invoke("gym", "show", "npi_any_subj-relc", "--limit", "2")
    assert "regions: det1, np, that" in said and "any" in said
    pairs = json.loads(invoke("gym", "show", SMALL_GYM_TASK, "--limit", "4", "--json"))
    assert len(pairs) == 4 and pairs[0]["base"] == pairs[1]["source"]


@pytest.mark.slow
def test_a_run(tmp_path: Path) -> None:
    words = ["gym", "run", "-m", "truth-ioi", "-t", SMALL_GYM_TASK, "-M", "mean", "-M", "vanilla"]
    limits = ["--train-limit", "8", "--validation-limit", "4", "--limit", "4"]
    labels = ["--control-label", " Ann", "--control-label", " Bob", "--layers", "0"]
    said = invoke(*words, *limits, *labels, "-o", str(tmp_path / "run"))
    assert "Odds beside those of controls" in said and (tmp_path / "run" / "report.html").is_file()
