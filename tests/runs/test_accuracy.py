"""Accuracy of a task: all kinds of prompts are scored together, and told apart again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

import mechassay as ma
from mechassay.models.model import make_model
from mechassay.progress import SILENT
from mechassay.report.kinds.accuracy import ORIGINAL
from mechassay.runs.accuracy import AccuracyJob, score_task
from mechassay.tasks import load_task
from mechassay.tasks.behaviour import score_prompts
from mechassay.testing.tiny import with_words


def test_columns_are_those_of_each_kind_by_itself() -> None:
    model, task = make_model(*with_words(), name="tiny"), load_task("ioi")
    job = AccuracyJob(models=("tiny",), tasks=("ioi",), limit=20)
    record = score_task(model, task, job, progress=SILENT)
    assert record.values is not None
    examples = task.examples("test", model, limit=20, seed=0)
    kinds = (ORIGINAL, *task.counterfactuals)
    assert set(record.values.columns) == {f"{n}@{k}" for n in ("greedy", "ranked") for k in kinds}
    seen: set[float] = set()
    for kind in kinds:
        prompts = [x.prompt if kind == ORIGINAL else x.counterfactuals.get(kind) for x in examples]
        there = [row for row, prompt in enumerate(prompts) if prompt is not None and prompt.answers]
        alone = score_prompts(model, [prompt for prompt in prompts if prompt and prompt.answers])
        for name in ("greedy", "ranked"):
            expected = np.full(len(examples), np.nan)
            expected[there] = getattr(alone, name)
            column = np.array(record.values.columns[f"{name}@{kind}"], dtype=float)
            np.testing.assert_array_equal(column, expected)
            seen |= set(column[~np.isnan(column)])
    assert seen == {0.0, 1.0}


def test_a_record_of_accuracy_draws_itself(tmp_path: Path) -> None:
    job = AccuracyJob(("truth-ioi",), ("truth-ioi",), limit=4)
    record = ma.run(job, tmp_path / "run", progress=SILENT).records[0]
    figure = record.plot()
    assert figure.axes[0].get_xlabel() == "accuracy" and "<svg" in record.html()
    axes = Figure().subplots()
    assert record.plot(axes) is axes.figure and axes.get_xlabel() == "accuracy"
