"""Causal variables as a run: what its folder holds, how it goes on, and what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import mechassay as ma
from mechassay.errors import BadUsage, UnknownName
from mechassay.examples import Examples
from mechassay.files import read_tensors
from mechassay.interventions.site import Site
from mechassay.models.model import make_model
from mechassay.models.untrained import untrained
from mechassay.progress import SILENT
from mechassay.runs.execute import run
from mechassay.runs.job import Results
from mechassay.runs.layers import layers_of
from mechassay.runs.variables import VariablesJob
from mechassay.testing.jobs import numbers
from mechassay.testing.tiny import with_words
from mechassay.variables.homes import true_sites
from mechassay.variables.variable_alignment import VariableAlignment
from planted_ioi import HALF, PlantedIOI, planted_ioi
from small_jobs import SMALL_JOBS

ONE = replace(
    SMALL_JOBS["variables"],
    models=("truth-ioi-trained",),
    variables=("answer",),
    featurizers=("das",),
    layers="2",
)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Right and wrong hypotheses of one ground truth."""
    job = replace(SMALL_JOBS["variables"], models=("truth-ioi-trained",))
    return run(job, tmp_path_factory.mktemp("run") / "all", progress=SILENT)


@pytest.mark.slow
def test_ground_truths_run_on_their_own_tasks_with_right_and_wrong_hypotheses(
    tmp_path: Path,
) -> None:
    results = run(SMALL_JOBS["variables"], tmp_path / "run", progress=SILENT)
    assert not results.failures
    told = {
        (record.model.name, record.specs["variable"].name): record.specs["variable"].args
        for record in results.records
    }
    assert {name for name, _ in told} == {"truth-ioi-trained", "truth-previous-token-trained"}
    of_ioi = {name: args["hypothesis"] for (model, name), args in told.items() if "ioi" in model}
    assert of_ioi == {"duplicate": "right", "answer": "right", "name_place": "wrong"}
    assert told["truth-ioi-trained", "name_place"]["causal_model"] == "truth-ioi by place"


def test_what_is_found_is_at_its_home_and_a_wrong_hypothesis_is_not_found(
    results: Results,
) -> None:
    for record in results.records:
        about, gain = record.specs["variable"], record.measure("gain")
        assert gain is not None
        if about.args["hypothesis"] == "wrong":
            assert not gain.low > 0.5
        elif record.method.name == "full-vector":
            home = true_sites(record.model.name, about.name)
            assert record.method.args["site"] in map(str, home)
            assert record.measure("iia").value >= 0.85  # pyright: ignore


def test_a_cell_leaves_its_features_and_says_what_it_ran_on(results: Results) -> None:
    for cell, record in results.done:
        kept = VariableAlignment.load(results.folder.path / "alignments" / cell.name)
        (site,) = kept.fit.sites
        assert kept.method == record.method.name
        assert str(site) == record.method.args["site"]
        assert list(record.data) == ["train", "validation", "test"]
        for chosen in record.data.values():
            assert chosen.kept > 0 and chosen.counts["label changes"] <= chosen.kept
        assert record.values is not None and len(record.values.ids) == record.data["test"].kept
    assert not list((results.folder.path / "training").rglob("*.pt")), "trainings are done"


def test_a_folder_grows_by_a_featurizer(tmp_path: Path) -> None:
    first = run(ONE, tmp_path / "run", progress=SILENT)
    wider = run(replace(ONE, featurizers=("das", "dbm")), tmp_path / "run", progress=SILENT)
    assert [record.method.name for record in wider.records] == ["das", "dbm"]
    assert numbers(first).items() <= numbers(wider).items()
    with pytest.raises(BadUsage, match="layers"):
        run(replace(ONE, layers="1"), tmp_path / "run", progress=SILENT)


def test_private_prompts_are_not_in_what_is_written(tmp_path: Path) -> None:
    job = replace(ONE, test_split="private", private_seed=11)
    results = run(job, tmp_path / "run", progress=SILENT)
    assert not results.failures
    task = ma.load_task("truth-ioi")
    examples = task.examples("private", limit=8, private_seed=11)
    texts = [x.prompt.text for x in examples]
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            said = path.read_bytes().decode("utf-8", "replace")
            assert not any(text in said for text in texts), path
    plan = json.loads((tmp_path / "run" / "plan.json").read_text("utf-8"))
    assert plan.get("private_seed") is None
    assert results.records[0].data["test"].split == "private"
    with pytest.raises(BadUsage, match="needs private_seed"):
        run(replace(job, private_seed=None), tmp_path / "none", progress=SILENT)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"variables": ("anser",)}, UnknownName, "Did you mean 'answer'"),
        ({"featurizers": ("dass",)}, UnknownName, "Did you mean 'das'"),
        ({"featurizers": ()}, BadUsage, "Name a featurizer"),
        ({"layers": "first"}, BadUsage, r"such as 0,3,6, or a slice such as ::3; got 'first'"),
        ({"layers": ""}, BadUsage, "Layers are all"),
        ({"part": "residual"}, UnknownName, "Did you mean 'resid'"),
        ({"profile": "papers"}, UnknownName, "Did you mean 'paper'"),
        ({"controls": ("random",)}, UnknownName, "arbitrary, untrained"),
        ({"ks": (4, 0)}, BadUsage, "k is 1 or more; got 0"),
        ({"featurizers": ("dbm+sae",)}, BadUsage, "dbm\\+sae needs --saes"),
        ({"models": ("gpt2",)}, BadUsage, "gpt2 needs a task"),
        ({"test_split": "train"}, UnknownName, "split to report on"),
        ({"models": ("truth-ioi-traind",)}, UnknownName, "Did you mean 'truth-ioi-trained'"),
    ],
)
def test_a_plan_that_cannot_be_run_leaves_no_folder(
    changes: dict[str, Any], error: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said):
        run(replace(ONE, **changes), tmp_path / "run", progress=SILENT)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"positions": ("nowhere",)}, "nowhere"),
        ({"layers": "1,9"}, "9"),
        ({"layers": "5:"}, "Layers 5: are none of the model's, 0 to 2"),
        ({"kinds": ("flip",)}, "flip"),
        ({"ks": (49,)}, "49"),
        ({"saes": "nowhere", "featurizers": ("dbm+sae",)}, "nowhere has no SAE of resid.2@last"),
    ],
)
def test_what_only_the_model_can_refuse_is_one_line(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(BadUsage) as error:
        run(replace(ONE, **changes), tmp_path / "run", progress=SILENT)
    assert said in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "found"),
    [("all", None), ("0,3", (0, 3)), ("::3", (0, 3, 6)), ("-1,2", (-1, 2)), ("5:", (5, 6, 7))],
)
def test_layers_as_they_are_typed(text: str, found: tuple[int, ...] | None) -> None:
    assert layers_of(text, 8) == found


# --- SAEs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resid.2@last", "resid.2"])
def test_masks_over_features_of_saes_from_files(name: str, tmp_path: Path) -> None:
    eye = torch.eye(48)
    arrays = {
        "W_enc": torch.cat((eye, -eye), 1),
        "W_dec": torch.cat((eye, -eye)),
        "b_enc": torch.zeros(96),
        "b_dec": torch.zeros(48),
    }
    save_file(arrays, tmp_path / f"{name}.safetensors")
    job = replace(ONE, featurizers=("dbm+sae",), saes=str(tmp_path), train_limit=40)
    (record,) = run(job, tmp_path / "run", progress=SILENT).records
    chosen = record.table("sites").where(chosen=True).rows()[0]
    assert 0 < chosen["features"] < 96 and record.measure("iia").value > 0.6  # pyright: ignore
    fit = VariableAlignment.load(tmp_path / "run" / "alignments" / record_name(record)).fit
    assert type(fit.featurizer(Site(2, "last"))).__name__ == "SAE"


def record_name(record: Any) -> str:
    return next(cell.name for cell in replace(ONE, featurizers=("dbm+sae",)).cells())


# --- killed and taken up --------------------------------------------------------------------------

SLOW = """
import sys, time
from mechassay import checkpoint
from mechassay.cli.main import main

checkpoint.EVERY_SECONDS = 0.0
pause = float(sys.argv.pop(1))
done = checkpoint.State.done
checkpoint.State.done = lambda state, cursor: (done(state, cursor), time.sleep(pause))[0]
main(sys.argv[1:])
"""


def start(out: Path, pause: float) -> subprocess.Popen[str]:
    words = ["variables", "run", "-m", "truth-ioi-trained", "--variable", "answer"]
    words += ["--featurizer", "das", "--layers", "2", "--position", "last", "--k", "3"]
    words += ["--train-limit", "12", "--validation-limit", "6", "--limit", "8", "-o", str(out)]
    return subprocess.Popen(
        [sys.executable, "-c", SLOW, str(pause), *words],
        # One thread, as in the run that they are compared with: sums depend on it.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.guard
def test_a_run_that_is_killed_in_a_training_is_taken_up(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        whole = run(ONE, tmp_path / "whole", progress=SILENT)
    finally:
        torch.set_num_threads(threads)
    out = tmp_path / "out"
    process = start(out, 0.3)
    deadline = time.monotonic() + 200
    files: list[Path] = []
    while not any(read_tensors(file, "checkpoint")[1]["cursor"] >= 1 for file in files):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
        files = list((out / "training").rglob("*.pt"))
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert not (out / "records").exists() or not list((out / "records").rglob("*.json"))
    again = start(out, 0.0)
    shown = again.communicate(timeout=300)
    assert again.returncode == 0, shown
    assert "isolated" in shown[0] or "found" in shown[0]
    assert numbers(run(ONE, out, progress=SILENT)) == numbers(whole)
    assert not list((out / "training").rglob("*.pt"))


def test_all_truths_are_one_word() -> None:
    job = VariablesJob(("truth",))
    assert "truth-ioi-trained" in job.models and len(job.cells()) > 2 * len(job.models)


# --- a model that does not do the task, counterfactuals that cannot tell --------------------------


def test_a_model_that_answers_nothing_is_told_with_counts(tmp_path: Path) -> None:
    nothing = untrained(ma.load_model("truth-ioi-trained"))
    job = replace(ONE, models=("mine",), tasks=("truth-ioi",), featurizers=("das", "dbm"))
    with pytest.raises(BadUsage, match=r"answers none of \d+ .*: \d+ model wrong on base"):
        run(job, tmp_path / "run", models={"mine": nothing}, progress=SILENT)


def test_counterfactuals_that_cannot_tell_the_variable_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other letters leave the place of the right choice as it is."""

    def all_of(model: Any, task: Any, split: str, n: int, *rest: Any, **how: Any) -> Examples:
        return task.examples(split, limit=n)

    monkeypatch.setattr("mechassay.runs.variables_study.answered_examples", all_of)
    kinds = ("symbol_counterfactual",)
    job = replace(
        ONE, models=("mine",), tasks=("mcqa",), variables=("answer_pointer",), kinds=kinds
    )
    tiny = make_model(*with_words(), name="mine")
    with pytest.raises(BadUsage, match="cannot tell mcqa: answer_pointer from mcqa: nothing"):
        run(job, tmp_path / "run", models={"mine": tiny}, progress=SILENT)


# --- IOI: heads instead of sites ------------------------------------------------------------------


@pytest.mark.slow
def test_variables_of_a_logit_difference_are_looked_for_in_heads(tmp_path: Path) -> None:
    job = VariablesJob(
        ("mine",),
        ("ioi",),
        featurizers=("full-vector", "das"),
        # Not the last layer: its head says the name, whatever the signals are.
        layers="1",
        ks=(2, 8),
        train_limit=8,
        validation_limit=6,
        test_limit=6,
    )
    about: dict[str, Any] = {"models": {"mine": planted_ioi()}, "tasks": {"ioi": PlantedIOI()}}
    results = run(job, tmp_path / "run", progress=SILENT, **about)
    assert not results.failures
    names = [record.specs["variable"].name for record in results.records]
    assert sorted(names) == ["subject_position"] * 2 + ["subject_token"] * 2
    for record in results.records:
        whole = record.method.name == "full-vector"
        home = "1.0" if record.specs["variable"].name == "subject_position" else "1.1"
        assert home in str(record.method.args["heads"])
        error, constant = record.measure("mse"), record.measure("mse", "control:best constant")
        assert error is not None and constant is not None
        assert not whole or error.value < constant.value / 4
        assert ("k" in record.method.args) == (not whole)
        linear = record.specs["variable"].args
        assert linear["linear r2"] > 0.999
        assert linear["linear position"] == pytest.approx(HALF, abs=1e-3)
        assert linear["linear token"] == pytest.approx(HALF, abs=1e-3)
    heads = tmp_path / "run" / "heads"
    found = json.loads((heads / "mine--ioi.json").read_text("utf-8"))
    assert len(found["site"]) == 4 and (heads / "mine--ioi-linear.json").is_file()
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "mean squared error" in page and "best constant" in page
