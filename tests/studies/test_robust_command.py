"""`mechassay robust run`: tables and files, and what is wrong as one line."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mechassay.circuits import EAPIGInputs
from mechassay.circuits.scores import EdgeScores
from mechassay.cli import execution
from mechassay.runs.experiment import command_line, experiment_of
from mechassay.runs.folder import RunFolder
from studies.robust.discovery import Robust
from studies.robust.experiment import RobustExperiment

Run = Callable[..., Any]
SMALL = (
    "-m",
    "truth-ioi",
    "-t",
    "truth-ioi",
    "--edges",
    "6",
    "--size",
    ".03",
    "--rounds",
    "1",
    "--tail",
    "cvar:alpha=.5",
    "--pairing",
    "random",
    "--base",
    "4",
    "--held-out",
    "6",
)
NAMES = ("matched", "random")


def test_tables_and_files(run: Run, tmp_path: Path) -> None:
    done = run("robust", "run", *SMALL, "-o", tmp_path / "out")
    assert done.code == 0, done.err
    assert "KL, 3\u00a0% of the edges" in done.out and "Report: " in done.out
    plan = RunFolder(tmp_path / "out").plan()
    assert (plan["edges"], plan["sizes"], plan["tails"]) == (6, [0.03], ["cvar:alpha=.5"])
    record = RunFolder(tmp_path / "out").record("repeat-0")
    assert record is not None
    circuits = record.table("circuits").columns
    assert set(circuits["edges"]) == {7}  # 3 % of 262
    assert circuits["ranking"] == ["matched", "random", "cvar:alpha=.5"]
    assert "<table" in (tmp_path / "out/report.html").read_text("utf-8")
    assert run("robust", "run", *SMALL, "-o", tmp_path / "out").out == done.out
    assert run("report", tmp_path / "out").out == done.out
    other = run("robust", "run", *SMALL, "--size", "1.0", "-o", tmp_path / "out")
    assert other.code == 2 and "holds a run with sizes" in other.line


@pytest.mark.guard
def test_a_killed_repeat_takes_up_its_rankings(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("robust", "run", *SMALL, "-o")
    assert run(*words, tmp_path / "whole").code == 0
    score = Robust.score

    def killed(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Robust, "score", killed)
    assert run(*words, tmp_path / "out").code == 130
    assert [path.name for path in (tmp_path / "out/scores").iterdir()] == [
        "repeat-0--matched.safetensors"
    ]
    monkeypatch.setattr(Robust, "score", score)
    monkeypatch.setattr(
        EAPIGInputs, "score", lambda self, *args, **options: _but_matched(self, *args, **options)
    )
    assert run(*words, tmp_path / "out").code == 0
    folders = RunFolder(tmp_path / "out"), RunFolder(tmp_path / "whole")
    records = [folder.record("repeat-0") for folder in folders]
    assert records[0] and records[1] and records[0].tables == records[1].tables
    for ranking in NAMES:
        scores = [EdgeScores.load(folder.scores_file(f"repeat-0--{ranking}")) for folder in folders]
        assert torch.equal(*(each.values.nan_to_num(7.0) for each in scores))


_SCORE = EAPIGInputs.score


def _but_matched(self: EAPIGInputs, model: Any, pairs: Any, *args: Any, **options: Any) -> Any:
    """Single pairs are scored; the matched ranking, of four, is there already."""
    assert len(pairs) == 1
    return _SCORE(self, model, pairs, *args, **options)


def test_rankings_of_other_prompts_are_not_taken_up(run: Run, tmp_path: Path) -> None:
    words = ("robust", "run", *SMALL, "-o", tmp_path / "out")
    assert run(*words).code == 0
    (tmp_path / "out/records/repeat-0.json").unlink()
    file = tmp_path / "out/data/repeat-0.json"
    chosen = json.loads(file.read_text("utf-8"))
    chosen["held-out"]["hash"] = "other"
    file.write_text(json.dumps(chosen))
    done = run(*words)
    assert done.code == 2 and "holds a run on other held-out pairs" in done.line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--size", "1000"], "must be between 0 and 262 edges; got 1000"),
        (["--edges", "1000"], "must be between 0 and 262 edges; got 1000"),
        (
            ["--edges", "inf"],
            "number of edges (500) or a share of them, between 0 and 1 (0.01); got 'inf'",
        ),
        (["--edges", "nan"], "got 'nan'"),
        (["--edges", "7.9"], "got '7.9'"),
        (["--size", ".03"], "different sizes to compare rankings at; got 0.03, 0.03"),
    ],
)
def test_sizes_are_refused_before_anything_is_scored(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    def scored(*args: Any, **options: Any) -> Any:
        raise AssertionError("scored")

    monkeypatch.setattr(EAPIGInputs, "score", scored)
    done = run("robust", "run", *SMALL, *words, "-o", tmp_path / "out")
    assert done.code == 2 and message in done.line
    assert not (tmp_path / "out" / "records").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--method", "eap"], "use eap-ig-inputs"),
        (["--cut", "gredy"], "Did you mean 'greedy'"),
        (["--tail", "cvar:alpha=2.0"], "above 0 and at most 1; got 2"),
        (["--tail", "cvr"], "Did you mean 'cvar'"),
        (["--tail", "mean"], "not the mean, which is there anyway"),
        (["--pairing", "matched"], "the pairing is same-template or random"),
        (["--objective", "logit_diff"], "compares with the clean run (kl, js); got 'logit_diff'"),
        (["--objective", "kll"], "Did you mean 'kl'"),
        (["--group", "colour"], "Unknown field of prompts 'colour'"),
        (["--repeats", "0"], "Repeats must be 1 or more"),
        (["--method", "nope"], "Unknown method 'nope'"),
    ],
)
def test_bad_input_is_one_line(run: Run, tmp_path: Path, words: list[str], message: str) -> None:
    done = run("robust", "run", *SMALL, *words, "-o", tmp_path / "out")
    assert done.code == 2 and message.lower() in done.line.lower()


@pytest.mark.parametrize(
    "experiment",
    [
        RobustExperiment("gpt2", "ioi", "eap"),
        RobustExperiment("gpt2", "ioi", "eap", edges=1, sizes=(1, 1.0, 0.5), cut="greedy"),
        RobustExperiment("gpt2", "ioi", "eap", edges=1.0),
    ],
    ids=["defaults", "edges", "share"],
)
def test_the_command_gives_the_experiment_again(
    run: Run, monkeypatch: pytest.MonkeyPatch, experiment: RobustExperiment
) -> None:
    """One edge is typed 1, all edges 1.0."""
    found: list[RobustExperiment] = []
    monkeypatch.setattr(execution, "run_and_show", lambda experiment, **_: found.append(experiment))
    assert run(*shlex.split(command_line(experiment))[1:]).code == 0
    assert found == [experiment]
    assert [type(size) for size in found[0].sizes] == [type(size) for size in experiment.sizes]
    plan = json.loads(json.dumps({"kind": experiment.kind, **dataclasses.asdict(experiment)}))
    assert command_line(experiment_of(plan)) == command_line(experiment)
