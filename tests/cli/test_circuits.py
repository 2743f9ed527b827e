"""`mechassay circuits run` of several tiny models and tasks: one table over cells, resumed, grown,
and with what fails or is skipped as cells.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mechassay.circuits import EdgeScores
from mechassay.errors import BadUsage
from mechassay.models.sources import truth_names
from mechassay.records import Failure, Record
from mechassay.runs.circuits import CircuitsJob
from mechassay.runs.job import Cell
from mechassay.truth.models import load_truth

Run = Callable[..., Any]


def words(folder: Path, out: Path, *more: object) -> list[object]:
    return [
        "circuits",
        "run",
        "--skip-at-chance",
        "-m",
        folder,
        "-t",
        "ioi",
        "--train-limit",
        "6",
        "--limit",
        "12",
        "-o",
        out,
        *more,
    ]


def truth_words(out: Path, *more: object) -> list[object]:
    return [
        "circuits",
        "run",
        "--skip-at-chance",
        "-m",
        "truth-ioi",
        "--train-limit",
        "6",
        "--limit",
        "12",
        "-o",
        out,
        *more,
    ]


def record(file: Path) -> Record:
    return Record.model_validate_json(file.read_text())


def measures(found: Record) -> dict[str, float]:
    return {each.name: each.value for each in found.measures if each.of == "result"}


@pytest.mark.slow
def test_a_table_over_cells_that_is_resumed(folder: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    line = words(
        folder,
        out,
        "--method",
        "eap",
        "--method",
        "nap-ig:steps=2",
        "-t",
        "ioi:source=own",
        "--even-at-chance",
    )
    done = run(*line)
    assert done.code == 0, done.err
    tables = (out / "tables.md").read_text()
    assert (
        "## CMD (lower is better), " in tables
        and "## CPR (higher is better), " in tables
        and "AUROC" not in tables
    )
    for method in ("eap", "nap-ig steps=2", "random edges", "random paths", "differences resolved"):
        assert f"| {method} |" in tables
    assert (
        tables.count("| method | ioi | ioi:source=own |") == 5
        and "## Rank by CMD, " in tables
        and "Accuracy of the model itself" in tables
    )
    assert "| eap, nap-ig steps=2 | s2_io_flip_counterfactual |" in tables
    page = (out / "report.html").read_text()
    assert "<script" not in page
    # For each of two tasks: the first test pair, and what eap scores highest.
    assert page.count("An example pair") == page.count("Strongest edges") == 2
    files = sorted(out.glob("records/*/*.json"))
    assert len(files) == 4
    before = [os.stat(file).st_mtime_ns for file in files]
    files[0].unlink()
    assert run(*line).code == 0
    after = [os.stat(file).st_mtime_ns for file in files]
    assert after[1:] == before[1:] and after[0] > before[0]


@pytest.mark.slow
def test_what_fails_is_a_cell_with_its_reason(folder: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    done = run(
        *words(
            folder,
            out,
            "--method",
            "eap",
            "-t",
            "docstring",
            "-m",
            tmp_path / "no-model",
            "--even-at-chance",
        )
    )
    assert done.code == 1
    tables = (out / "tables.md").read_text()
    assert "| eap |" in tables and "| failed |" in tables and "Failed and skipped cells" in tables
    assert "docstring" in done.err and "no-model" in done.err
    assert len(list(out.glob("records/*/eap.json"))) == 1


@pytest.mark.slow
def test_a_method_that_cannot_fails_beside_the_others(tmp_path: Path, run: Run) -> None:
    done = run(
        *truth_words(
            tmp_path / "out",
            "--method",
            "eap",
            "--method",
            "acdc:threshold=1e30",
            "--method",
            "exact:layers=(9,)",
        )
    )
    assert done.code == 1 and "between 0 and 2" in done.err
    tables = (tmp_path / "out/tables.md").read_text()
    assert "| truth-ioi | failed: BadUsage | exact layers=(9,) | Layers to patch" in tables


@pytest.mark.slow
def test_a_task_that_the_model_does_not_do_is_skipped_unless_asked_for(
    folder: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "out"
    line = words(folder, out, "--method", "eap", "--method", "nap")
    done = run(*line)
    assert done.code == 0 and not done.err
    assert not list(out.glob("scores/*/*")) and not list(out.glob("records/*/*"))
    tables = (out / "tables.md").read_text()
    assert (
        "| eap | skipped |" in tables
        and "| skipped: at chance | eap, nap | The model itself is not above chance" in tables
    )
    assert "of 12 pairs (" in tables and "guessing does in 50%" in tables
    stored = [
        Failure.model_validate_json(file.read_text())
        for file in sorted(out.glob("failures/*/*.json"))
    ]
    assert [(each.cell["method"], each.status) for each in stored] == [
        ("eap", "skipped"),
        ("nap", "skipped"),
    ]
    page = (out / "report.html").read_text()
    assert (
        "There are no results" in page and "cells failed" not in page and "not above chance" in page
    )
    assert run(*line, "--even-at-chance").code == 0
    assert len(list(out.glob("records/*/*.json"))) == 2 and not list(out.glob("failures/*/*"))


@pytest.mark.slow
def test_what_would_take_too_long_is_skipped_with_its_estimate(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mechassay.runs.circuits_study.forward_seconds", lambda model, batch: 2.0)
    # eap: 3 forwards x 6 pairs x 2 s = 0.6 min; exact: (2 + 0.2 x 262) x 6 x 2 s = 10.9 min; ugs is
    # hours.
    line = truth_words(
        tmp_path / "out",
        "--method",
        "eap",
        "--method",
        "exact",
        "--method",
        "ugs",
        "--max-minutes",
        "1",
    )
    assert run(*line).code == 0
    tables = (tmp_path / "out/tables.md").read_text()
    assert (
        "| truth-ioi | skipped: too expensive | exact, ugs | exact: about 11 min: 54 forwards a"
        " pair x 6 pairs; ugs: about" in tables
    )
    assert " h: " in tables and [file.stem for file in tmp_path.glob("out/records/*/*")] == ["eap"]
    # Scores that are there cost nothing any more, and a longer limit is no other plan.
    monkeypatch.setattr("mechassay.runs.circuits_study.forward_seconds", lambda model, batch: 0.5)
    assert run(*line[:-2], "--max-minutes", "3").code == 0
    assert sorted(file.stem for file in tmp_path.glob("out/records/*/*")) == ["eap", "exact"]


@pytest.mark.slow
def test_a_known_circuit_gives_an_auroc(tmp_path: Path, run: Run) -> None:
    out, line = (
        tmp_path / "out",
        truth_words(
            tmp_path / "out", "--method", "eap", "--method", "nap", "--ablation", "counterfactual"
        ),
    )
    assert run(*line).code == 0
    group = "truth-ioi--truth-ioi"
    # Eight of the nine true edges above all others (by magnitude), one below: 8 / 9 of all
    # comparisons are right.
    circuit = load_truth("truth-ioi").circuits["counterfactual"]
    values = torch.where(circuit.edges, -2.0, 1.0)
    values[tuple(circuit.edges.nonzero()[4].tolist())] = 0.5
    EdgeScores.of(circuit.graph, values).save(out / "scores" / group / "eap.safetensors")
    (out / "records" / group / "eap.json").unlink()
    assert run(*line).code == 0
    found = record(out / "records" / group / "eap.json")
    assert measures(found)["auroc"] == pytest.approx(8 / 9) and measures(found)[
        "r_precision"
    ] == pytest.approx(8 / 9)
    assert next(each for each in found.measures if each.name == "auroc").n == len(circuit) == 9
    chance = found.measure("auroc", "control:random")
    # The standard deviation is sqrt((9 + 253 + 1) / (12 x 9 x 253)) = 0.0981.
    assert (
        chance
        and chance.value == 0.5
        and chance.high == pytest.approx(0.5 + 1.96 * 0.0981, abs=1e-3)
    )
    tables = (out / "tables.md").read_text()
    auroc = tables.split("## AUROC (higher is better), ground truths")[1].split("##")[0]
    assert (
        "| method | truth-ioi |" in auroc
        and "| eap | 0.89 [0." in auroc
        and "| random edges | 0.50 [0.31, 0.69] |" in auroc
    )
    assert 0.5 < measures(record(out / "records" / group / "nap.json"))["auroc"] < 1


@pytest.mark.slow
def test_a_run_grows(folder: Path, tmp_path: Path, run: Run) -> None:
    out = tmp_path / "out"
    assert run(*truth_words(out, "--method", "eap")).code == 0
    file = out / "records/truth-ioi--truth-ioi/eap.json"
    before = os.stat(file).st_mtime_ns
    more = truth_words(out, "--method", "nap", "-m", folder, "-t", "ioi", "--even-at-chance")
    assert run(*more).code == 0
    assert os.stat(file).st_mtime_ns == before
    plan = json.loads((out / "plan.json").read_text())
    assert (
        plan["methods"] == ["eap", "nap"]
        and plan["models"] == ["truth-ioi", str(folder)]
        and plan["tasks"] == ["ioi"]
    )
    assert len(list(out.glob("records/*/*.json"))) == 3
    tables = (out / "tables.md").read_text()
    assert "| nap |" in tables and "| eap |" not in tables, "a run with less shows only that"
    assert "AUROC (higher is better), ground truths" in tables
    assert (
        "seed = 0; this one has 1" in run(*truth_words(out, "--method", "eap", "--seed", "1")).line
    )
    assert (
        "train_limit = 6; this one has 7"
        in run(*truth_words(out, "--method", "eap", "--train-limit", "7")).line
    )


def test_truth_stands_for_all_ground_truths(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    def refuse(job: CircuitsJob, cell: Cell, bench: object) -> None:
        asked.append((cell.of["model"], cell.of["task"]))
        raise BadUsage("not now")

    monkeypatch.setattr(CircuitsJob, "skip", refuse)
    assert (
        run("circuits", "run", "-m", "truth", "--method", "eap", "-o", tmp_path / "out").code == 2
    )
    assert asked == [(name, name) for name in truth_names()]
    assert json.loads((tmp_path / "out/plan.json").read_text())["models"] == truth_names()


def test_wrong_names_are_found_before_anything_runs(folder: Path, tmp_path: Path, run: Run) -> None:
    assert "Did you mean 'eap'?" in run(*words(folder, tmp_path / "out", "--method", "eapp")).line
    assert (
        "Did you mean 'strict'?"
        in run(*words(folder, tmp_path / "out", "--profile", "stricd")).line
    )
    assert "Did you mean 'ioi'?" in run(*words(folder, tmp_path / "out", "-t", "iio")).line
    assert "needs a task" in run("circuits", "run", "-m", folder, "-o", tmp_path / "out").line
    assert not (tmp_path / "out").exists()


def test_a_run_that_cannot_begin_is_refused_before_it_leaves_anything(
    tmp_path: Path, run: Run
) -> None:
    words = ("circuits", "run", "-m", "truth-induction", "--method", "eap", "-o", tmp_path / "out")
    assert "Did you mean 'ioi'?" in run(*words, "-t", "iooi").line
    assert "Did you mean 'zero'?" in run(*words, "--ablation", "zer").line
    for minutes in ("nan", "-1"):
        assert "max_minutes must be 0 or more" in run(*words, "--max-minutes", minutes).line
    assert not (tmp_path / "out").exists()
