"""Search jobs: a task by its name or itself, prompts without fields,
and circuits found on other pairs.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from mechassay.errors import BadUsage, UnknownName
from mechassay.models.model import Model, load_model
from mechassay.progress import SILENT
from mechassay.records import Record
from mechassay.report.kinds.search import BOUND
from mechassay.runs.adversarial_search import SearchJob
from mechassay.runs.execute import run
from mechassay.tasks import load_task
from mechassay.tasks.task import Task
from mechassay.tasks.template import Template

TRUTH = "truth-ioi"
JOB = SearchJob(
    TRUTH,
    TRUTH,
    ("eap-ig-inputs@4",),
    n_clean=6,
    n_corrupted=6,
    budget=60,
    starts=1,
    restarts=0,
    compare=False,
    train_limit=8,
)


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(TRUTH)


def searched(job: SearchJob, folder: Path, model: Model, task: Task | None = None) -> Record:
    tasks = {} if task is None else {job.task: task}
    results = run(job, folder, models={TRUTH: model}, tasks=tasks, progress=SILENT)
    (record,) = results.records
    return record


def test_a_task_is_searched_like_its_name(model: Model, tmp_path: Path) -> None:
    named = searched(JOB, tmp_path / "name", model)
    given = searched(JOB, tmp_path / "itself", model, load_task(TRUTH))
    assert named.tables == given.tables and not named.warnings and not given.warnings
    assert len(named.table("steps").where(climb=1)) > 1
    assert named.measure(BOUND, "control:random") is None


def test_a_task_of_ones_own(model: Model, tmp_path: Path) -> None:
    rows = [
        {"one": "Ann", "other": name, "filler": filler}
        for name in ("Bob", "Cid", "Dan", "Eve")
        for filler in ("so", "and", ",", ".")
    ]
    own = Template("own", "then {one} {other} {filler} so so so . {one} to", " {other}", rows)
    job = replace(JOB, task="own", n_clean=2, n_corrupted=1, train_limit=3)
    record = searched(job, tmp_path, model, own)
    first = {str(text).split()[1] for text in record.table("climbs").columns["clean"]}
    assert not record.warnings and first == {"Ann"}
    assert record.task.name == "own" and record.task.args["sha256"]


def test_no_fields_are_said_in_a_line(model: Model, tmp_path: Path) -> None:
    text = "then {} {} so so so so . {} to"
    pairs = [("Ann", "Bob"), ("Cid", "Dan"), ("Eve", "Fay"), ("Ann", "Dan")]
    rows = [
        {
            "clean": text.format(a, b, a),
            "counterfactual": text.format(b, a, b),
            "answer": f" {b}",
            "foil": f" {a}",
        }
        for a, b in pairs
    ]
    file = tmp_path / "own.jsonl"
    file.write_text(
        "\n".join(json.dumps({**row, "split": "test"}) for row in rows), encoding="utf-8"
    )
    job = replace(JOB, task=str(file), circuits=("random@0.5",), n_clean=2, n_corrupted=2)
    record = searched(job, tmp_path / "out", model)
    assert record.warnings[0].endswith(
        "have no fields, so nothing was changed: the search compared pairs of the prompts as they"
        " are."
    )
    assert set(record.table("climbs").columns["changes"]) == {0}


def test_the_circuit_may_be_found_on_other_pairs(model: Model, tmp_path: Path) -> None:
    for pairing in ("matched", "same-template"):
        job = replace(JOB, objective="kl", pairing=pairing)
        record = searched(job, tmp_path / pairing, model)
        assert record.value(BOUND) > 0
        about = record.specs["search"].args
        assert (about["objective"], about["pairing"]) == ("kl", pairing)


def test_what_is_wrong_is_said_before_the_model_is_loaded(tmp_path: Path) -> None:
    for job, error in (
        (replace(JOB, circuits=("eap",)), BadUsage),
        (replace(JOB, circuits=()), BadUsage),
        (replace(JOB, pairing="unmatched"), UnknownName),
        (replace(JOB, objective="nope"), UnknownName),
        (replace(JOB, task="nope"), UnknownName),
    ):
        with pytest.raises(error):
            run(replace(job, model="no such model"), tmp_path / "out", progress=SILENT)
        assert not (tmp_path / "out").exists()
