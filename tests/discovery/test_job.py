"""Circuits at one size, without a curve: the same numbers, and a page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from mechassay.circuits.scores import EdgeScores
from mechassay.discovery.job import CircuitsJob
from mechassay.errors import BadUsage
from mechassay.runs.execute import run
from mechassay.runs.folder import RunFolder
from mechassay.utils.display import SILENT

JOB = CircuitsJob(
    ("truth-ioi",),
    methods=("eap",),
    metrics=("completeness:size=9", "minimality:size=9,most=3"),
    train_limit=8,
    test_limit=10,
)


def test_the_metrics_are_those_of_the_run_with_a_curve(tmp_path: Path) -> None:
    whole = run(JOB, tmp_path / "whole", progress=SILENT).records[0]
    results = run(replace(JOB, curve=False), tmp_path / "bare", progress=SILENT)
    bare = results.records[0]
    assert (whole.kind, bare.kind) == ("faithfulness", "one-size")
    names = {(each.name, each.of) for each in bare.measures}
    assert ("circuit@9", "result") in names and ("cpr", "result") not in names
    assert bare.measures == [each for each in whole.measures if (each.name, each.of) in names]
    assert bare.values is not None and whole.values is not None
    assert bare.values.columns == {name: whole.values.columns[name] for name in ("clean", "empty")}
    assert bare.specs["task"] == whole.specs["task"] and bare.data == whole.data
    unneeded = bare.measure("unneeded@9")
    assert unneeded is not None and unneeded.n <= 3
    assert "f of one circuit" in (tmp_path / "bare" / "report.html").read_text("utf-8")


def test_a_file_of_scores_says_itself_where_it_was_found(tmp_path: Path) -> None:
    run(JOB, tmp_path / "own", progress=SILENT)
    file = RunFolder(tmp_path / "own").scores_file(JOB.cells()[0].name)
    silent = tmp_path / "silent.safetensors"
    replace(EdgeScores.load(file), provenance={}).save(silent)
    metrics = ("completeness:size=9",)
    again = replace(JOB, methods=(), curve=False, metrics=metrics, train_split="validation")
    for scores, expected in ((file, "train"), (silent, "")):
        job = replace(again, scores=(str(scores),))
        (record,) = run(job, tmp_path / scores.stem / "again", progress=SILENT).records
        assert record.task.args["train_split"] == expected


def test_without_a_curve_and_a_metric_there_is_nothing_to_measure(tmp_path: Path) -> None:
    job = CircuitsJob(("smollm2-135m",), ("ioi",), ("eap",), curve=False)
    with pytest.raises(BadUsage, match="nothing to measure: name a metric"):
        run(job, tmp_path, progress=SILENT)
