"""Gym tasks as a run: records, pages, and what is typed wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import mechassay as ma
from mechassay.errors import BadUsage, UnknownName
from mechassay.features import Fit
from mechassay.gym import FAMILIES, evaluate, load_gym_task
from mechassay.progress import SILENT
from mechassay.runs.execute import run
from mechassay.runs.folder import RunFolder
from mechassay.runs.gym import GymJob
from mechassay.runs.job import Bench
from small_jobs import SMALL_GYM_TASK, SMALL_JOBS


def test_a_run_has_what_an_evaluation_has(tmp_path: Path) -> None:
    job = SMALL_JOBS["gym"]
    results = run(job, tmp_path, progress=SILENT)
    (record,) = results.records
    model = ma.load_model("truth-ioi")
    limits = {"train": 16, "validation": 8, "test": 8}
    found = evaluate(
        model,
        load_gym_task(SMALL_GYM_TASK),
        job.methods,
        control=(" Ann", " Bob"),
        limits=limits,
        progress=SILENT,
    )
    table = record.table("methods")
    for name in ("odds", "control", "selectivity", "odds_low", "odds_2024"):
        np.testing.assert_allclose(table.numbers(name), found.columns()[name], atol=1e-6)
    assert np.isfinite(table.numbers("untrained")).all()
    assert record.data["train"].kept == 16 and record.cell == {
        "model": "truth-ioi",
        "task": "gym_small",
    }
    # What was found can be used again.
    files = sorted(path.name for path in (tmp_path / "features").rglob("*.safetensors"))
    assert files == [
        "das steps=3-0-control.safetensors",
        "das steps=3-0.safetensors",
        "mean-0.safetensors",
        "random-0.safetensors",
        "vanilla-0.safetensors",
    ]
    (file,) = (tmp_path / "features").rglob("mean-0.safetensors")
    batch = load_gym_task(SMALL_GYM_TASK).interchanges("test", model, limit=8).batch(model)
    again = ma.gym.odds(Fit.load(file), batch, model=model, progress=SILENT)
    ours = found["mean"].odds("odds")[0].reshape(8, -1)
    np.testing.assert_allclose(again.values, ours, atol=1e-5)


def test_the_page_and_its_tables(tmp_path: Path) -> None:
    job = replace(SMALL_JOBS["gym"], methods=("mean", "random"), controls=("labels",))
    results = run(job, tmp_path, progress=SILENT)
    page = (tmp_path / "report.html").read_text("utf-8")
    for text in ("Selectivity, truth-ioi", "The rule that chooses regions", "random directions"):
        assert text in page
    assert "truth-ioi untrained" not in page
    assert page.count("<svg") == 2
    assert results.records[0].plot() is not None
    markdown = (tmp_path / "tables.md").read_text("utf-8")
    assert "| average" not in markdown and "As published (causalgym-2024)" in markdown


def test_names_of_tasks(tmp_path: Path) -> None:
    job = GymJob(("truth-ioi",))
    assert len(job.cells()) == 29
    some = replace(job, tasks=("agreement", "cleft", "agr_gender"))
    assert [cell.of["task"] for cell in some.cells()] == [*FAMILIES["agreement"], "cleft"]
    bench = Bench(RunFolder(tmp_path), progress=SILENT)
    for wrong, error, said in (
        ({"tasks": ("agr_gendre",)}, UnknownName, "agr_gender"),
        ({"methods": ("dsa",)}, UnknownName, "das"),
        ({"methods": ("das:kk=3",)}, UnknownName, "setting of das"),
        ({"controls": ("untraind",)}, UnknownName, "untrained"),
        ({"compat": "causalgym"}, UnknownName, "causalgym-2024"),
        ({"seeds": (1, 1)}, BadUsage, "each once"),
        ({"layers": "x"}, BadUsage, "Layers are"),
        ({"control_labels": (" dog",)}, BadUsage, "Control labels"),
    ):
        with pytest.raises(error, match=said):
            replace(job, **wrong).check(bench)


def test_slices_of_layers_need_no_model(tmp_path: Path) -> None:
    job = replace(SMALL_JOBS["gym"], layers="5::6")
    job.check(Bench(RunFolder(tmp_path)))
    with pytest.raises(BadUsage, match="Layers are all, numbers such as 0,3,6, or a slice"):
        replace(job, layers="some").check(Bench(RunFolder(tmp_path)))
