"""Directions of others as a run: the numbers of the run that found them, pages, and refusals.

Gym tasks as a run: records, pages, and what is typed wrong.

Gym tasks over checkpoints: folders as revisions, what the pages show, and table 1.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM
from typer.testing import CliRunner

import mechassay as ma
from helpers.experiments import SMALL_EXPERIMENTS, SMALL_GYM_TASK
from helpers.planted_gym import PLACES, TIMES, WORDS, planted_model
from helpers.tiny_gguf import of_words
from mechassay.cli.main import app_for
from mechassay.errors import BadFile, BadUsage, MechassayError, UnknownName
from mechassay.features import DAS, Fit
from mechassay.features.featurizer import Directions
from mechassay.gym import FAMILIES, evaluate, load_gym_task
from mechassay.gym.checkpoint_pages import GymCheckPage
from mechassay.gym.experiments import (
    GIVEN_CONTROL,
    DirectionsExperiment,
    GymCheckExperiment,
    GymExperiment,
    _warnings,  # pyright: ignore[reportPrivateUsage]
    with_revisions,
)
from mechassay.gym.methods import gym_method
from mechassay.gym.names import with_shuffled
from mechassay.gym.options import PAPER_STEPS
from mechassay.gym.pages import DirectionsPage, GymPage
from mechassay.gym.paper_tables import means_table
from mechassay.interventions.site import load_site
from mechassay.leaderboard.board import paired_differences
from mechassay.leaderboard.cells import cells_of
from mechassay.leaderboard.rules import rules_of
from mechassay.results.page import Report
from mechassay.results.reading import read_record
from mechassay.results.records import Record
from mechassay.runs.experiment import command_line
from mechassay.runs.folder import RunFolder
from mechassay.runs.run import run
from mechassay.runs.worker import Worker
from mechassay.utils.display import SILENT

JOB: DirectionsExperiment = SMALL_EXPERIMENTS["directions"]
NEOX, TASK = "gym-neox", "agr_gender"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, dict[str, Record]]:
    """A run of methods on gym-neox, and what it found handed in, by method."""
    folder = tmp_path_factory.mktemp("found")
    about: dict[str, Any] = {"validation_limit": 12, "limit": 12, "layers": "::3"}
    methods = ("das:steps=8", "mean", "random", "vanilla")
    experiment = GymExperiment(
        (NEOX,), (TASK,), methods, controls=("labels",), train_limit=16, **about
    )
    [record] = run(experiment, folder / "run", progress=SILENT).records
    given = str(folder / "run" / "features" / f"{NEOX}--{TASK}")
    again = run(
        DirectionsExperiment((given,), NEOX, TASK, **about), folder / "again", progress=SILENT
    ).records
    return record, {each.method.name: each for each in again}


def value(record: Record, name: str, of: str = "result") -> float:
    measure = record.measure(name, of)
    assert measure is not None, name
    return measure.value


@pytest.mark.slow
def test_what_a_run_found_handed_in_gives_the_numbers_of_its_record(
    found: tuple[Record, dict[str, Record]],
) -> None:
    run_record, given = found
    assert list(given) == ["das steps=8", "mean", "random", "vanilla"]
    for method, record in given.items():
        typed = method.replace(" ", ":")
        assert value(record, f"odds_{method}") == pytest.approx(
            value(run_record, f"odds_{typed}"), abs=1e-6
        )
        assert record.values is not None and run_record.values is not None
        assert record.values.ids == run_record.values.ids
        np.testing.assert_allclose(
            np.array(record.values.columns[method], dtype=float),
            np.array(run_record.values.columns[typed], dtype=float),
            atol=1e-4,
        )
    das = given["das steps=8"]
    for name in ("selectivity", "control"):
        ours, theirs = value(das, f"{name}_das steps=8"), value(run_record, f"{name}_das:steps=8")
        assert ours == pytest.approx(theirs, abs=1e-6)
    assert GIVEN_CONTROL in das.warnings and GIVEN_CONTROL not in given["mean"].warnings
    assert np.isnan(value(given["mean"], "selectivity_mean"))


def test_a_random_direction_does_about_nothing(found: tuple[Record, dict[str, Record]]) -> None:
    _, given = found
    whole = value(given["mean"], "odds_mean", "control:whole vector")
    assert value(given["vanilla"], "odds_vanilla") == pytest.approx(whole, abs=1e-6)
    assert abs(value(given["random"], "odds_random")) < 0.1 * whole
    assert value(given["mean"], "odds_mean") > 0.7 * whole


def test_on_the_board_it_stands_beside_the_run_as_a_row_of_its_own(
    found: tuple[Record, dict[str, Record]],
) -> None:
    run_record, given = found
    rules = rules_of("gym")
    theirs = {(cell.row, cell.column): cell for cell in cells_of(rules, run_record)}
    for method in ("mean", "random", "vanilla"):
        odds, selectivity = cells_of(rules, given[method])
        sha256 = str(given[method].method.args["features_sha256"])
        assert odds.row == selectivity.row == f"{method} (file {sha256[:8]})"
        assert odds.row_in_record == method
        beside = theirs[method, "odds"]
        assert odds.under == beside.under and odds.place == beside.place
        assert odds.value == pytest.approx(beside.value, abs=1e-6)
        assert set(odds.controls) == {"whole vector", "random directions"}
        assert np.isnan(selectivity.value) and selectivity.n_undefined == 12
    column = rules.column("odds")
    pair = {"mean": run_record, "mean (file 01234567)": given["mean"], "any": given["random"]}
    differences = paired_differences(column, pair)
    assert differences["mean", "mean (file 01234567)"].value == pytest.approx(0, abs=1e-6)
    assert differences["mean", "any"].low > 0


def test_the_page_says_what_is_not_told_apart_from_random_directions(
    found: tuple[Record, dict[str, Record]], tmp_path: Path
) -> None:
    _, given = found
    [table] = DirectionsPage().tables(Report(list(given.values())))
    assert len(table.rows) == 4 and "undefined" in table.rows[1].cells[-1]
    results = run(JOB, tmp_path / "run", progress=SILENT)
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "Directions for gym_small.yaml" in page and page.count("<svg") >= 2
    assert results.records[0].plot() is not None
    markdown = (tmp_path / "run" / "tables.md").read_text("utf-8")
    assert "whole vector" in markdown
    for method, said in (("random", "not told apart from"), ("mean", "more than")):
        assert said in str(DirectionsPage().sections(Report([given[method]]))[0].blocks[0])


def test_more_than_one_direction_and_chance_are_warned_of(
    found: tuple[Record, dict[str, Record]],
) -> None:
    run_record, given = found
    said = {method: "\n".join(record.warnings) for method, record in given.items()}
    assert given["vanilla"].method.args["k"] == 48 and given["mean"].method.args["k"] == 1
    assert "vanilla exchanges up to 48 directions at a site" in said["vanilla"]
    assert all("directions at a site" not in said[name] for name in ("mean", "random"))
    assert "random is not told apart from as many random directions" in said["random"]
    assert "not told apart" not in said["mean"] + "".join(run_record.warnings)
    # An effect without an interval, as that of few items that agree, is not told apart either.
    measures = [
        x.model_copy(update={"low": math.nan, "high": math.nan}) for x in given["mean"].measures
    ]
    (bare,) = _warnings(given["mean"].changed(measures=measures), "mean", 1)
    assert "it has no interval" in bare and "nan" not in bare
    # A board shows them beside the number.
    odds, _ = cells_of(rules_of("gym"), given["vanilla"])
    assert "k=48" in odds.settings and odds.warnings == given["vanilla"].warnings


# --- what is refused ------------------------------------------------------------------------------


def saved(folder: Path, name: str, site: str, vector: torch.Tensor) -> str:
    Fit({load_site(site): Directions.of(vector)}).save(folder / f"{name}-0.safetensors")
    return str(folder)


def test_the_command_is_typed_with_the_folders() -> None:
    text = command_line(replace(JOB, directions=("a b", "c"), task="agr_gender"), Path("out"))
    assert text.startswith("mechassay gym evaluate 'a b' c --model truth-ioi --task agr_gender")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"directions": ("nowhere",)}, "there is no such folder: nowhere"),
        ({"task": "agr_gendre"}, "Did you mean 'agr_gender'"),
        ({"task": TASK}, "the task has the regions name, completion, because"),
        ({"layers": "first"}, "such as 0,3,6"),
        ({"dtype": "float8"}, "float8"),
        ({"control_labels": (" Ann",)}, "Control labels are"),
        ({"directions": JOB.directions * 2}, "are both 'mean'"),
    ],
)
def test_a_plan_that_cannot_be_run_leaves_no_folder(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(MechassayError, match=said) as error:
        run(replace(JOB, **changes), tmp_path / "run", progress=SILENT)
    assert "\n" not in str(error.value) and not (tmp_path / "run").exists()


def test_directions_of_another_model_fail_alone(tmp_path: Path) -> None:
    folder = saved(tmp_path / "wide", "wide", "resid.0@who", torch.ones(48))
    results = run(
        replace(JOB, directions=(*JOB.directions, folder)), tmp_path / "run", progress=SILENT
    )
    assert len(results.records) == 1
    [failure] = results.failures
    assert failure.error == "BadFile" and "truth-ioi has 64 numbers there" in failure.message


def test_changed_directions_are_another_plan(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    shutil.copytree(JOB.directions[0], folder)
    experiment = replace(JOB, directions=(str(folder),))
    run(experiment, tmp_path / "run", progress=SILENT)
    (folder / "mean-0-control.safetensors").unlink()
    with pytest.raises(BadUsage, match="has other content than on"):
        run(replace(experiment), tmp_path / "run", progress=SILENT)
    (folder / "mean-0.safetensors").write_bytes(b"PK")
    with pytest.raises(BadFile, match="not a readable safetensors file"):
        run(replace(experiment), tmp_path / "other", progress=SILENT)


def test_a_run_has_what_an_evaluation_has(tmp_path: Path) -> None:
    experiment = SMALL_EXPERIMENTS["gym"]
    results = run(experiment, tmp_path, progress=SILENT)
    (record,) = results.records
    model = ma.load_model("truth-ioi")
    limits = {"train": 16, "validation": 8, "test": 8}
    found = evaluate(
        model,
        load_gym_task(SMALL_GYM_TASK),
        with_shuffled(experiment.methods),
        control=(" Ann", " Bob"),
        limits=limits,
        progress=SILENT,
    )
    table = record.table("methods")
    for name in ("odds", "control", "selectivity", "odds_low", "odds_2024"):
        np.testing.assert_allclose(table.numbers(name), found.columns()[name], atol=1e-6)
    undefined = np.isnan(table.numbers("untrained"))
    assert [m for m, no in zip(table.columns["method"], undefined, strict=True) if no] == [
        "das-shuffled:steps=3",
        "mean-shuffled",
    ]
    assert record.data["train"].kept == 16 and record.cell == {
        "model": "truth-ioi",
        "task": "gym_small.yaml",
    }
    # What was found can be used again.
    files = sorted(path.name for path in (tmp_path / "features").rglob("*.safetensors"))
    assert files == [
        "das steps=3-0-control.safetensors",
        "das steps=3-0.safetensors",
        "das-shuffled steps=3-0.safetensors",
        "mean-0.safetensors",
        "mean-shuffled-0.safetensors",
        "random-0.safetensors",
        "vanilla-0.safetensors",
    ]
    (file,) = (tmp_path / "features").rglob("mean-0.safetensors")
    batch = load_gym_task(SMALL_GYM_TASK).interchanges("test", model, limit=8).batch(model)
    again = ma.gym.odds(Fit.load(file), batch, model=model, progress=SILENT)
    ours = found["mean"].odds("odds")[0].reshape(8, -1)
    np.testing.assert_allclose(again.values, ours, atol=1e-5)


def test_the_page_and_its_tables(tmp_path: Path) -> None:
    experiment = replace(SMALL_EXPERIMENTS["gym"], methods=("mean", "random"), controls=("labels",))
    results = run(experiment, tmp_path, progress=SILENT)
    page = (tmp_path / "report.html").read_text("utf-8")
    for text in ("Selectivity, truth-ioi", "The rule that chooses regions", "random direction"):
        assert text in page
    assert "truth-ioi untrained" not in page
    assert page.count("<svg") == 3 and "As published (causalgym-2024)" in page
    assert results.records[0].plot() is not None
    markdown = (tmp_path / "tables.md").read_text("utf-8")
    assert "gym_small.yaml (which it does not do: accuracy 0.00" in markdown
    assert "As published (causalgym-2024)" in markdown
    assert "| difference of means | 0.00 |" in markdown and "| average" not in markdown


def test_names_of_tasks(tmp_path: Path) -> None:
    experiment = GymExperiment(("truth-ioi",))
    assert len(experiment.cells()) == 29
    some = replace(experiment, tasks=("agreement", "cleft", "agr_gender"))
    assert [cell.labels["task"] for cell in some.cells()] == [*FAMILIES["agreement"], "cleft"]
    assert load_gym_task("gss_subord").with_filler().lengths == "filler"
    worker = Worker(RunFolder(tmp_path), progress=SILENT)
    for wrong, error, said in (
        ({"tasks": ("agr_gendre",)}, UnknownName, "agr_gender"),
        ({"methods": ("dsa",)}, UnknownName, "das"),
        ({"methods": ("das:kk=3",)}, UnknownName, "setting of das"),
        ({"methods": ("das",), "steps": 2, "epochs": 2}, BadUsage, "steps or epochs; got both"),
        ({"methods": ("das",), "lr": -1.0}, BadUsage, "lr above 0"),
        ({"controls": ("untraind",)}, UnknownName, "untrained"),
        ({"compat": "causalgym"}, UnknownName, "causalgym-2024"),
        ({"seeds": (1, 1)}, BadUsage, "each once"),
        ({"layers": "x"}, BadUsage, "Layers are"),
        ({"control_labels": (" dog",)}, BadUsage, "Control labels"),
    ):
        with pytest.raises(error, match=said):
            replace(experiment, **wrong).check(worker)


def test_settings_of_trainings_become_those_of_the_methods_that_are_trained() -> None:
    experiment = GymExperiment((NEOX,), methods=("das", "das:k=4,lr=0.1", "mean"), steps=7, lr=0.02)
    assert experiment.methods == ("das:steps=7,lr=0.02", "das:k=4,lr=0.1,steps=7", "mean")
    assert (experiment.steps, experiment.lr) == (None, None) and replace(experiment) == experiment
    with pytest.raises(BadUsage, match="--lr: for methods that are trained.* got probe, mean"):
        GymExperiment((NEOX,), methods=("probe", "mean"), lr=0.1)
    (das,) = gym_method("das:epochs=2", 64).candidates.values()
    assert isinstance(das, DAS) and das.steps is None and das.plan(10).steps == 2 * 3


def test_slices_of_layers_need_no_model(tmp_path: Path) -> None:
    experiment = replace(SMALL_EXPERIMENTS["gym"], layers="5::6")
    experiment.check(Worker(RunFolder(tmp_path)))
    with pytest.raises(BadUsage, match="Layers are all, numbers such as 0,3,6, or a slice"):
        replace(experiment, layers="some").check(Worker(RunFolder(tmp_path)))


SMALL = {"train_limit": 24, "validation_limit": 8, "limit": 12}


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
def the_run(folder: Path, task: str, tmp_path_factory: pytest.TempPathFactory) -> Report:
    revisions = ("main", "checkpoint-8", "step0")
    methods = ("mean", "random", "vanilla", "pca-mean:components=1", "pca-mean:components=2")
    experiment = GymExperiment(
        (str(folder),), (task,), methods, revisions, controls=("labels",), **SMALL
    )
    return run(experiment, tmp_path_factory.mktemp("run") / "out", progress=SILENT)


def test_revisions_are_models(folder: Path, task: str) -> None:
    experiment = GymExperiment(
        (str(folder),), (task,), revisions=("step0", "checkpoint-8", "step0")
    )
    folder = Path(os.path.relpath(folder))
    assert (
        experiment.models == (f"{folder}@step0", f"{folder}@checkpoint-8")
        and experiment.revisions == ()
    )
    assert [cell.labels["model"] for cell in experiment.cells()] == [
        "planted@step0",
        "planted@checkpoint-8",
    ]
    assert replace(experiment, seed=1).models == experiment.models
    assert f"-m {folder}@step0" in command_line(experiment).replace("--model", "-m")
    assert with_revisions(("a/b",), (PAPER_STEPS, "main")) == tuple(
        f"a/b@{name}"
        for name in ("step0", "step1000", "step2000", "step3000", "step10000", "step143000", "main")
    )
    assert with_revisions(("a@b",), ()) == ("a@b",)
    for kind in (GymExperiment, GymCheckExperiment):
        with pytest.raises(BadUsage, match="named once"):
            kind(("a/b@step0",), revisions=("step1",))


@pytest.mark.slow
def test_records_of_checkpoints(results: Report) -> None:
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


@pytest.mark.slow
def test_the_page_of_checkpoints(results: Report) -> None:
    records = results.records
    sections = {section.title: section for section in GymPage().sections(Report(records))}
    assert list(sections) == [
        "",
        "Methods beside their controls",
        "Settings that the paper compares",
        "More",
    ]
    folds = [block.title for block in sections["More"].blocks]  # pyright: ignore[reportAttributeAccessIssue]
    assert {"Over training, planted: planted", "Accuracy by scale and step"} <= set(folds)
    means, _ = means_table(records)
    # By step; what has none is last, and has the tables of its own.
    assert [row.cells[0] for row in means.rows] == [
        "planted@step0",
        "planted@checkpoint-8",
        "planted@main",
    ]
    assert means.rows[0].cells[1:] == ("1", "0.00", "0.00", "0.00", "0.00")
    assert means.rows[1].cells[3] == f"{_odds(results, 'planted@checkpoint-8'):.2f}"
    page = (results.folder / "report.html").read_text("utf-8")
    for text in ("Odds, planted@main", "Earlier checkpoints", "step 8, accuracy 1.00", "step 0, "):
        assert text in page, text
    assert (
        "Over 3 checkpoints, step 0 to main, the mean accuracy of all tasks goes from 0.00 to 1.00"
        in page
    )
    # The sweep's methods have a table of their own and are in no other.
    assert "Principal axes, by how many are averaged (table 2b)" in page
    assert "pca-mean" not in "".join(means.headings)


def _odds(results: Report, model: str) -> float:
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
        GymCheckExperiment((f"{folder}@checkpoint-8",), (task,), limit=12),
        tmp_path / "one",
        progress=SILENT,
    )
    (table,) = GymCheckPage().tables(Report(one.records))
    assert table.headings[:5] == ("task", "family", "sentences", "dropped", "planted@checkpoint-8")
    row = table.rows[0]
    assert row.cells[:4] == ("planted.yaml", "agreement", "12", "0") and row.kind == ""
    assert row.cells[4].startswith("1.00 [") and row.cells[5] == "many 1.00, one 1.00"
    assert one.records[0].values is not None and one.records[0].n == 12
    other = run(
        GymCheckExperiment((str(folder),), (task,), ("step0",), limit=12),
        tmp_path / "no",
        progress=SILENT,
    )
    assert GymCheckPage().tables(Report(other.records))[0].rows[0].kind == "control"


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
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    for title in ("Mean odds", "Mean selectivity", "Odds, pythia-70m", "Selectivity, pythia-70m-2"):
        assert title in page
    records = [read_record(path) for path in (tmp_path / "run" / "records").iterdir()]
    odds, _ = means_table(records)
    for row in odds.rows:
        assert row.cells[1] == "2" and len(row.cells) == 3 + 8
        assert np.isfinite([float(cell) for cell in row.cells[2:]]).all()
    markdown = (tmp_path / "run" / "tables.md").read_text("utf-8")
    assert "| pythia-70m | DAS (steps=2) |" in markdown
