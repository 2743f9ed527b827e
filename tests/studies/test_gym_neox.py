"""gym-neox is what the study trains: its settings and tasks, and what a short training gives."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, fields, replace
from pathlib import Path

import pytest
import torch

from mechassay.models.model import load_model
from mechassay.models.sources import GYM_FOLDERS
from studies.gym_neox import __main__ as study
from studies.gym_neox.corpus import TRAINING, corpus_tasks
from studies.gym_neox.training import GymTraining, untrained_neox


def test_the_training_of_the_study_is_that_of_the_packaged_model() -> None:
    file = GYM_FOLDERS / "gym-neox" / "training.json"
    about = json.loads(file.read_text("utf-8"))
    settings = json.loads(json.dumps(asdict(TRAINING)))
    assert {name: about[name] for name in settings} == settings
    tasks = corpus_tasks()
    assert len(tasks) == 29 + 8 + 8
    assert about["tasks"] == {task.name: task.sha256 for task in tasks}


def test_without_training_it_is_what_its_training_began_with() -> None:
    about = json.loads((GYM_FOLDERS / "gym-neox" / "training.json").read_text("utf-8"))
    settings = {each.name: about[each.name] for each in fields(GymTraining) if each.name in about}
    training = GymTraining(**{**settings, "checkpoints": tuple(settings["checkpoints"])})
    model = load_model("untrained:gym-neox")
    begun = untrained_neox(training, len(model.tokenizer)).state_dict()
    for name, value in model.hf.state_dict().items():
        assert torch.equal(value, begun[name]), name


@pytest.mark.slow
def test_a_short_training_and_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = replace(TRAINING, layers=1, width=16, heads=2, sentences=3, steps=3, checkpoints=(0, 2))
    monkeypatch.setattr(study, "TRAINING", short)
    for _ in range(2):  # the second time nothing is trained
        study.main(tmp_path, tmp_path / "accuracy.csv")
    with (tmp_path / "accuracy.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 29 * 3 and {row["step"] for row in rows} == {"0", "2", "3"}
    assert all(0 <= float(row["low"]) <= float(row["accuracy"]) <= 1 for row in rows)
    assert {row["n"] for row in rows} == {"100"}
