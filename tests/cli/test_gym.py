"""The commands of gym tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from helpers.jobs import SMALL_GYM_TASK
from mechassay.cli.main import app_for
from mechassay.errors import BadUsage
from mechassay.gym import FAMILIES


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


def test_few_steps_need_no_other_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["--layers", "1", "--width", "16", "--heads", "2", "--sentences", "2"]
    said = invoke("gym", "train", "--steps", "20", "--batch-size", "4", *small)
    assert "runs/gym-train@step20" in said
    about = json.loads(Path("runs/gym-train/training.json").read_text("utf-8"))
    assert about["steps"] == 20 and about["checkpoints"] == [] and len(about["tasks"]) == 29
    done = CliRunner().invoke(app_for(["gym"]), ["gym", "train", "--steps", "20", *small])
    assert done.exit_code and isinstance(done.exception, BadUsage)
    assert "runs/gym-train holds a training that is finished" in str(done.exception)


def test_a_model_is_trained_and_run(tmp_path: Path) -> None:
    size = ["--layers", "1", "--width", "16", "--heads", "2", "--sentences", "5"]
    length = ["--steps", "6", "--batch-size", "8", "--checkpoint", "0", "--checkpoint", "3"]
    folder = str(tmp_path / "mine")
    said = invoke("gym", "train", "-o", folder, "-t", "agreement", "-t", "cleft", *size, *length)
    about = json.loads((tmp_path / "mine" / "training.json").read_text("utf-8"))
    assert set(about["tasks"]) == {*FAMILIES["agreement"], "cleft"}
    assert "nats a token" in said and "mine@step3" in said
    assert [each.name for each in sorted((tmp_path / "mine").glob("step*"))] == [
        "step0",
        "step3",
        "step6",
    ]
    words = ["gym", "run", "-m", f"{folder}@step3", "-t", "agr_gender", "-M", "mean"]
    limits = ["--train-limit", "8", "--validation-limit", "4", "--limit", "4"]
    said = invoke(*words, *limits, "-o", str(tmp_path / "run"))
    assert "mine@step3" in said
