"""`mechassay tasks` on a tiny model: what it prints, writes, resumes and refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.experiments import held
from mechassay.prompts.pairs import content_hash
from mechassay.results.records import Record
from mechassay.tasks import TASKS, load_task

Run = Callable[..., Any]


def test_list_has_every_task_with_kinds_splits_and_sizes(run: Run) -> None:
    done = run("tasks", "list")
    for name in TASKS.names():
        task = load_task(name)
        assert name in done.out
        for kind in task.counterfactuals:
            assert kind in done.out
        for size in task.sizes.values():
            assert f"={size}" in done.out
        for split, size in task.published_sizes.items():
            assert size > task.sizes[split] and f"{split}={size}" in done.out
    assert "│ s2_io_flip_counterfactual, " in done.out  # the default first


def test_show_prints_tokens_side_by_side(folder: Path, run: Run) -> None:
    done = run("tasks", "show", "ioi", "--split", "test", "--limit", "2", "-m", folder)
    assert done.code == 0, done.err
    assert done.out.count("clean ") == done.out.count("compared ") == 2
    first = load_task("ioi").pairs("test", limit=1)[0]
    assert f"{first.answers!r}"[1:-2] in done.out
    assert "|" in done.out


def test_score_writes_records_tables_and_a_page_and_goes_on(
    folder: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "out"
    words = ["tasks", "score", "-m", folder, "-t", "ioi", "--limit", "6", "-o", out]
    done = run(*words)
    assert done.code == 0, done.err
    (file,) = out.glob("records/*.json")
    record = Record.model_validate_json(file.read_text())
    assert record.kind == "accuracy" and record.n == record.data["test"].kept == 6
    by_name = {each.name: each for each in record.measures}
    assert by_name["greedy@original"].n == 6 and by_name["chance@original"].value == 0.5
    assert (
        by_name["greedy@abc_counterfactual"].n == 0
        and by_name["greedy@abc_counterfactual"].n_undefined == 6
    )
    assert (
        by_name["ranked@original"].low
        <= by_name["ranked@original"].value
        <= by_name["ranked@original"].high
    )
    page, tables = (out / "report.html").read_text(), (out / "accuracy.md").read_text()
    assert "<svg" in page and "<script" not in page
    assert "| ioi |" in tables and "| s2 io flip |" in tables and "abc" not in tables
    before = os.stat(file).st_mtime_ns
    assert run(*words).code == 0
    assert os.stat(file).st_mtime_ns == before
    assert "Original prompts" in run("report", out).out
    assert "holds a run with limit" in run(*words[:-4], "--limit", "7", "-o", out).line


def test_score_with_the_scoring_of_mib_beside_the_exact_one(
    folder: Path, tmp_path: Path, run: Run
) -> None:
    words = ["tasks", "score", "-m", folder, "-t", "ioi", "--limit", "4", "-o", tmp_path / "out"]
    done = run(*words, "--scoring", "mib-2025")
    assert done.code == 0, done.err
    (file,) = (tmp_path / "out/records").glob("*.json")
    found = {each.name: each for each in Record.model_validate_json(file.read_text()).measures}
    assert (
        found["mib-2025@original"].n == 4
        and found["mib-2025@original"].value >= found["greedy@original"].value
    )
    assert found["mib-2025@abc_counterfactual"].n == 0
    assert ": mib-2025 |" in (tmp_path / "out/accuracy.md").read_text()
    assert "Unknown scoring of tasks score 'mib'" in run(*words, "--scoring", "mib").line


def test_score_keeps_going_when_a_model_fails(folder: Path, tmp_path: Path, run: Run) -> None:
    done = run(
        "tasks",
        "score",
        "-m",
        tmp_path / "nothing",
        "-m",
        folder,
        "-t",
        "ioi",
        "--limit",
        "3",
        "-o",
        tmp_path / "out",
    )
    assert done.code == 1
    assert len(list((tmp_path / "out/records").glob("*.json"))) == 1
    assert str(tmp_path / "nothing") in done.line
    assert "failed" in (tmp_path / "out/accuracy.md").read_text()


def test_export_and_read_back(tmp_path: Path, run: Run) -> None:
    done = run(
        "tasks",
        "export",
        "ioi",
        "--split",
        "test",
        "--limit",
        "5",
        "-o",
        tmp_path / "data/test.jsonl",
    )
    assert done.code == 0 and "5 rows" in done.out
    own = load_task("ioi").pairs("test", limit=5)
    read = load_task(f"ioi:source={tmp_path / 'data'}").pairs("test", limit=5)
    assert content_hash(own) == content_hash(read)
    assert "no public schema" in run("tasks", "export", "docstring", "-o", tmp_path / "x").line


def test_examples_that_cannot_be_read_are_counted_and_said(
    folder: Path, tmp_path: Path, run: Run
) -> None:
    rows = [{"prompt": "x"}, *load_task("ioi").rows("test", limit=2)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "out"
    words = ["tasks", "score", "-m", folder, "-t", f"ioi:source={tmp_path}", "--limit", "2"]
    done = run(*words, "-o", out)
    assert done.code == 0, done.err
    (file,) = (out / "records").glob("*.json")
    record = Record.model_validate_json(file.read_text())
    said = "Examples that could not be read and are left out: 1 (a row without 'metadata')."
    assert record.data["test"].kept == 2 and record.warnings == [said]
    assert record.data["test"].dropped == {"a row without 'metadata'": 1}
    assert "could not be read and are left out" in (out / "report.html").read_text()


@pytest.mark.slow
def test_records_say_what_was_chosen_and_whether_the_model_can_do_it(
    folder: Path, tmp_path: Path, run: Run
) -> None:
    out = tmp_path / "out"
    words = [
        "circuits",
        "run",
        "-m",
        folder,
        "-t",
        "ioi",
        "--train-limit",
        "4",
        "--limit",
        "20",
        "--method",
        "random",
        "-o",
        out,
    ]
    assert run(*words).code == 0
    record = Record.model_validate_json(held(out, "records", "random.json").read_text())
    assert record.data["train"].kept == 4 and record.data["test"].kept == 20
    assert record.data["test"].hash == record.provenance.data_hash != record.data["train"].hash
    assert (
        record.data["test"].dropped == {}
        and record.data["test"].counterfactual == "s2_io_flip_counterfactual"
    )
    by_name = {each.name: each for each in record.measures}
    assert by_name["chance"].value == 0.5 and 0 <= by_name["accuracy"].value <= 1
    at_chance = by_name["accuracy"].low <= 0.5
    assert any("not above chance" in warning for warning in record.warnings) == at_chance
    assert ("not above chance" in (out / "report.html").read_text()) == at_chance


@pytest.mark.slow
def test_a_random_model_gets_nothing_right_and_keep_says_so(folder: Path, run: Run) -> None:
    done = run("tasks", "show", "ioi", "-m", folder, "--limit", "2", "--keep", "both")
    assert done.code == 2
    assert "0 usable pairs of 2 asked for" in done.line and "model wrong on base" in done.line
    assert "Did you mean 'base'?" in run("tasks", "show", "ioi", "--keep", "bas").line
    assert "needs a model with a tokenizer" in run("tasks", "show", "ioi", "--keep", "base").line


def test_check_a_file(folder: Path, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "mine.jsonl"
    pairs = load_task("ioi").pairs("test", limit=6)
    rows = [
        {
            "clean": p.clean,
            "counterfactual": p.counterfactual,
            "answer": p.answers[0],
            "foil": p.foils[0],
        }
        for p in pairs
    ]
    rows[2]["counterfactual"] = "And then " + rows[2]["counterfactual"]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run("tasks", "check", file, "-m", folder, "-o", tmp_path / "check.json")
    assert done.code == 0, done.err
    assert "unequal lengths" in done.out
    assert "unequal lengths" in (tmp_path / "check.json").read_text()
    file.write_text(json.dumps({"clean": "a", "answer": " b"}) + "\n")
    done = run("tasks", "check", file)
    assert done.code == 2 and "counterfactual" in done.line
