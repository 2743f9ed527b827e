"""Gym tasks over checkpoints: folders as revisions, what the pages show, and table 1."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM
from typer.testing import CliRunner

from gym_planted import PLACES, TIMES, WORDS, planted_model
from gym_tokenizers import of_words
from mechassay.cli.main import app_for
from mechassay.errors import BadUsage
from mechassay.gym import load_gym_task
from mechassay.progress import SILENT
from mechassay.report.kinds.gym import GymPage
from mechassay.report.kinds.gym_check import GymCheckPage
from mechassay.runs.command_line import command_line
from mechassay.runs.execute import run
from mechassay.runs.gym import PAPER_STEPS, GymJob, with_revisions
from mechassay.runs.gym_check import GymCheckJob
from mechassay.runs.job import Results

SMALL = {"train_limit": 24, "validation_limit": 8, "test_limit": 12}


@pytest.fixture(scope="module", name="folder")
def the_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Before training nothing is said, at step 8 the task is done; `main` is the same."""
    folder = tmp_path_factory.mktemp("models") / "planted"
    for name in ("checkpoint-8", "main", "step0"):
        model = planted_model(torch.float32)
        if name == "step0":
            model.hf.get_output_embeddings().weight.data.zero_()
        model.hf.save_pretrained(folder / name)
        assert model.tokenizer is not None
        model.tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="module", name="task")
def the_task(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("tasks") / "planted.yaml"
    options = {"noun": WORDS, "place": PLACES, "time": TIMES}
    task = {
        "template": "The {noun} {place} {time}",
        "labels": {"one": "is", "many": "are"},
        "options": options,
    }
    file.write_text(json.dumps({"family": "agreement", "tasks": {"planted": task}}))
    return str(file)


@pytest.fixture(scope="module", name="results")
def the_run(folder: Path, task: str, tmp_path_factory: pytest.TempPathFactory) -> Results:
    revisions = ("main", "checkpoint-8", "step0")
    methods = ("mean", "random", "vanilla", "pca-mean:components=1", "pca-mean:components=2")
    job = GymJob((str(folder),), (task,), methods, revisions, controls=("labels",), **SMALL)
    return run(job, tmp_path_factory.mktemp("run") / "out", progress=SILENT)


def test_revisions_are_models(folder: Path, task: str) -> None:
    job = GymJob((str(folder),), (task,), revisions=("step0", "checkpoint-8", "step0"))
    assert job.models == (f"{folder}@step0", f"{folder}@checkpoint-8") and job.revisions == ()
    assert [cell.of["model"] for cell in job.cells()] == ["planted@step0", "planted@checkpoint-8"]
    assert replace(job, seed=1).models == job.models
    assert f"-m {folder}@step0" in command_line(job).replace("--model", "-m")
    assert with_revisions(("a/b",), (PAPER_STEPS, "main")) == tuple(
        f"a/b@{name}"
        for name in ("step0", "step1000", "step2000", "step3000", "step10000", "step143000", "main")
    )
    assert with_revisions(("a@b",), ()) == ("a@b",)
    for kind in (GymJob, GymCheckJob):
        with pytest.raises(BadUsage, match="named once"):
            kind(("a/b@step0",), revisions=("step1",))


@pytest.mark.slow
def test_records_of_checkpoints(results: Results) -> None:
    by_name = {record.model.name: record for record in results.records}
    assert set(by_name) == {"planted@main", "planted@checkpoint-8", "planted@step0"}
    before, after = by_name["planted@step0"], by_name["planted@checkpoint-8"]
    assert before.model.args["step"] == 0 and after.model.args["step"] == 8
    assert "step" not in by_name["planted@main"].model.args
    assert before.model.args["parameters"] == after.model.args["parameters"] > 1000
    # Where nothing is said, nothing changes it.
    for record, accuracy in ((before, 0.0), (after, 1.0)):
        measure = record.measure("accuracy")
        assert measure is not None and measure.value == accuracy
    assert not before.table("cells").numbers("odds").any()
    odds = [record.measure("odds_mean") for record in (after, by_name["planted@main"])]
    assert odds[0] is not None and odds[0].value > 3 and odds[0] == odds[1]


def test_the_page_of_checkpoints(results: Results) -> None:
    records = results.records
    sections = {section.title: section for section in GymPage().sections(records)}
    assert {"Means over tasks", "Over training, planted", "Accuracy by scale and step"} <= set(
        sections
    )
    means = GymPage().tables(records)[0]
    # By step; what has none is last, and has the tables of its own.
    assert [row.cells[0] for row in means.rows] == [
        "planted@step0",
        "planted@checkpoint-8",
        "planted@main",
    ]
    assert means.rows[0].cells[1:] == ("1", "0.00", "0.00", "0.00", "0.00")
    assert means.rows[1].cells[3] == f"{_odds(results, 'planted@checkpoint-8'):.2f}"
    page = (results.folder.path / "report.html").read_text("utf-8")
    for text in ("Odds, planted@main", "Earlier checkpoints", "step 8, accuracy 1.00", "step 0, "):
        assert text in page, text
    assert "Over 3 checkpoints, step 0 to main, the mean accuracy goes from 0.00 to 1.00" in page
    # The sweep's methods have a table of their own and are in no other.
    assert "Principal axes, by how many are averaged (table 2b)" in page
    assert "pca-mean" not in "".join(means.headings)


def _odds(results: Results, model: str) -> float:
    (measure,) = (r.measure("odds_mean") for r in results.records if r.model.name == model)
    assert measure is not None
    return measure.value


def test_accuracies_of_checkpoints(folder: Path, task: str, tmp_path: Path) -> None:
    words = ["gym", "check", "-m", str(folder), "-t", task, "--limit", "12"]
    revisions = ["--revision", "step0", "--revision", "checkpoint-8"]
    done = CliRunner().invoke(app_for(words), [*words, *revisions, "-o", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "it does 0 of 1 to 1 of 1 tasks better than 60 %" in page
    assert "Accuracy over training, planted" in page
    one = run(
        GymCheckJob((f"{folder}@checkpoint-8",), (task,), limit=12),
        tmp_path / "one",
        progress=SILENT,
    )
    (table,) = GymCheckPage().tables(one.records)
    assert table.headings[:5] == ("task", "family", "sentences", "dropped", "planted@checkpoint-8")
    row = table.rows[0]
    assert row.cells[:4] == ("planted", "agreement", "12", "0") and row.kind == ""
    assert row.cells[4].startswith("1.00 [") and row.cells[5] == "many 1.00, one 1.00"
    assert one.records[0].values is not None and one.records[0].n == 12
    other = run(
        GymCheckJob((str(folder),), (task,), ("step0",), limit=12), tmp_path / "no", progress=SILENT
    )
    assert GymCheckPage().tables(other.records)[0].rows[0].kind == "control"


@pytest.mark.slow
def test_table_1_on_a_model_of_the_shape_of_pythia_70m(tmp_path: Path) -> None:
    """The documented command, with fewer interchanges, layers and steps."""
    tasks = ("agr_gender", "npi_ever_obj-relc")
    texts = [
        text
        for name in tasks
        for split in ("train", "validation", "test")
        for pair in load_gym_task(name).interchanges(split)
        for text in (pair.base, pair.source, str(pair.base_label), str(pair.label))
    ]
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=50_304,
        hidden_size=512,
        num_hidden_layers=6,
        num_attention_heads=8,
        intermediate_size=2048,
        rotary_pct=0.25,
    )
    for name in ("pythia-70m", "pythia-70m-2"):
        hf: Any = GPTNeoXForCausalLM(config)
        hf.save_pretrained(tmp_path / name)
        of_words([*texts, "dog give"]).save_pretrained(tmp_path / name)
    words = ["gym", "run", "--control", "labels", "--layers", "0,5", "-o", str(tmp_path / "run")]
    for name in ("pythia-70m", "pythia-70m-2"):
        words += ["--model", str(tmp_path / name)]
    for method in ("das:steps=2", "probe", "mean", "pca", "k-means", "lda", "random", "vanilla"):
        words += ["--method", method]
    limits = ["--train-limit", "16", "--validation-limit", "4", "--limit", "4"]
    words += [word for task in tasks for word in ("--task", task)] + limits
    done = CliRunner().invoke(app_for(words), words)
    assert done.exit_code == 0, done.output
    markdown = (tmp_path / "run" / "tables.md").read_text("utf-8")
    for title in ("Mean odds", "Mean selectivity", "Odds, pythia-70m", "Selectivity, pythia-70m-2"):
        assert title in markdown
    row = next(line for line in markdown.splitlines() if line.startswith("| pythia-70m |"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1] == "2" and np.isfinite([float(cell) for cell in cells[2:]]).all()
    assert len(cells) == 3 + 8
