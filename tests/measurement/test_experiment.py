"""The run of metrics of measurement: what is skipped and why, circuits, prompts, the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.features.featurizer import Identity
from mechassay.measurement.experiment import MeasureExperiment, MeasureInputs
from mechassay.measurement.gauges import all_gauges
from mechassay.measurement.metric import GaugeInputs, missing_inputs
from mechassay.results.records import Record
from mechassay.runs.experiment import command_line
from mechassay.runs.folder import RunFolder
from mechassay.runs.run import run
from mechassay.runs.worker import Worker
from mechassay.saes import save_sae
from mechassay.saes.feature_matching import random_sae
from mechassay.truth.ground_truth import load_truth
from mechassay.utils.display import SILENT
from mechassay.utils.files import path_hash

JOB = MeasureExperiment(("EX1_dprime", "F06", "EX2"), ("truth-ioi",), n_prompts=6, train_limit=6)


def test_what_is_missing_is_said_and_the_rest_is_run(tmp_path: Path) -> None:
    results = run(JOB, tmp_path, progress=SILENT)
    assert [record.method.name for record in results.records] == ["EX1"]
    said = {each.cell["metric"]: each for each in results.failures}
    assert said["F06"].status == "skipped" and "--method, twice" in said["F06"].message
    assert "English names" in said["EX2"].message
    page = (tmp_path / "report.html").read_text("utf-8")
    assert "false alarm" in page and "missing input" in page
    record: Record = results.records[0]
    assert record.n == 6 and record.task.args["n_prompts"] == 6
    assert record.specs["circuit"].name == "truth"


def test_rankings_are_found_once_and_kept(tmp_path: Path) -> None:
    experiment = replace(JOB, metrics=("F06", "F03"), methods=("eap", "random"), circuit="eap@0.1")
    results = run(experiment, tmp_path, progress=SILENT)
    assert len(results.records) == 2
    files = sorted(path.name for path in (tmp_path / "scores").rglob("*.safetensors"))
    assert files == ["eap.safetensors", "random.safetensors"]


def test_the_number_of_prompts_is_that_of_the_page() -> None:
    free = replace(JOB, n_prompts=None)
    assert (free.size("EX1"), free.size("EX25"), free.size("F01")) == (40, 50, 40)
    assert JOB.size("EX25") == 6


def test_all_stands_for_all_gauges() -> None:
    every = replace(JOB, metrics=("all",))
    assert list(every.gauges()) == all_gauges()
    assert command_line(every).startswith("mechassay measure run all --model")
    assert command_line(JOB).startswith("mechassay measure run EX1_dprime F06 EX2")


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"metrics": ("M99",)}, UnknownName, "M99"),
        ({"models": ("gpt2",)}, BadUsage, "needs a task"),
        ({"sae": "no.npz"}, BadUsage, "both --sae and --site"),
        ({"other_saes": ("no.npz",)}, BadUsage, "both --sae and --site"),
        ({"texts": "sotu"}, BadUsage, "both --texts and --site"),
        ({"texts": "sotus", "site": "resid.1@last"}, UnknownName, "Did you mean 'sotu'"),
        ({"sae": "no.npz", "site": "resid.1@last"}, BadFile, "no such file"),
        ({"circuit": "eap"}, BadUsage, "needs a size"),
        ({"methods": ("epa",)}, UnknownName, "Did you mean 'eap'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_run(
    tmp_path: Path, changes: dict, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        run(replace(JOB, **changes), tmp_path / "run", progress=SILENT)
    assert not (tmp_path / "run").exists()


def test_a_field_that_prompts_do_not_have(tmp_path: Path) -> None:
    experiment = replace(JOB, metrics=("F07",), methods=("eap", "random"), by="color")
    with pytest.raises(BadUsage, match="answer.*got 'color'"):
        run(experiment, tmp_path, progress=SILENT)


def test_metrics_of_dictionaries_get_what_they_ask_for(tmp_path: Path) -> None:
    """SAEs of any format, activations of texts, and a trainer that keeps what it trained."""
    model = load_truth("truth-ioi").model
    random = random_sae(model.decoder.d_model, 20, 3, torch.zeros(model.decoder.d_model))
    folders = [str(save_sae(random, tmp_path / name, site="resid.1")) for name in ("one", "two")]
    experiment = replace(
        JOB,
        sae=folders[0],
        other_saes=(folders[1],),
        site="resid.1@last",
        texts=str(Path(__file__).parents[1] / "data" / "words.jsonl"),
        tokens=None,
        window=8,
        n_features=24,
        k=3,
        steps=4,
    )
    worker = Worker(RunFolder(tmp_path / "run"), progress=SILENT)
    experiment.check(worker)
    assert (
        missing_inputs(("sae", "other sae", "texts", "trainer"), experiment.given("truth-ioi"))
        == []
    )
    study = MeasureInputs(experiment, worker, "truth-ioi", "truth-ioi")
    inputs = study.inputs(study.test(4), "")
    assert inputs.dictionary.hook == "resid.1" and inputs.dictionary.n_features == 20
    [other] = inputs.other_saes
    assert torch.equal(other.w_dec, random.w_dec)
    assert inputs.texts.values("train").shape == (inputs.texts.n_rows("train"), random.d_in)
    found = inputs.get("trainer").train(seed=1, n_features=12)
    assert found.sae.n_features == 12 and found.sae.k == 3 and len(found.losses) == 4
    again = study.inputs(study.test(4), "").get("trainer").train(seed=1, n_features=12)
    assert torch.equal(again.sae.w_dec, found.sae.w_dec)
    [kept] = (tmp_path / "run" / "dictionaries").iterdir()
    assert (kept / "cfg.json").is_file() and (tmp_path / "run" / "activations").is_dir()
    for wrong, match in (
        (random_sae(3, 4, 1, torch.zeros(3)), "reads values of 3 numbers; those of resid.1@last"),
        (replace(random, hook="resid.0"), "trained on resid.0"),
        (Identity(), "weights of a sparse autoencoder"),
    ):
        given = GaugeInputs(model, sae=wrong, site="resid.1@last")
        with pytest.raises(BadUsage, match=match):
            given.dictionary  # noqa: B018


def test_metrics_of_dictionaries_are_about_no_task(tmp_path: Path) -> None:
    """Their cells are of the model; their records name what was measured, and no prompts."""
    d_model = load_truth("truth-ioi").model.decoder.d_model
    sae = random_sae(d_model, 20, 3, torch.zeros(d_model))
    folder = save_sae(sae, tmp_path / "sae", site="resid.1")
    experiment = replace(
        JOB,
        metrics=("M12", "EX25:n_runs=2"),
        sae=str(folder),
        site="resid.1",
        texts=str(Path(__file__).parents[1] / "data" / "words.jsonl"),
        tokens=None,
        window=8,
    )
    names = [cell.name for cell in experiment.cells()]
    assert names == ["truth-ioi--truth-ioi/EX25 n_runs=2", "truth-ioi/M12"]
    results = run(experiment, tmp_path / "run", progress=SILENT)
    assert not results.failures
    [of_task, of_dictionary] = results.records
    assert {"task", "circuit"} <= set(of_task.specs) and "sae" not in of_task.specs
    assert set(of_dictionary.specs) == {"model", "method", "metric", "corpus", "site", "sae"}
    assert dict(of_dictionary.cell) == {"metric": "M12", "model": "truth-ioi"}
    assert of_dictionary.specs["sae"].args["sha256"] == path_hash(folder)
    assert of_dictionary.specs["corpus"].args["window"] == 8
    assert of_dictionary.data["test"].task == of_dictionary.specs["corpus"].name
    assert of_dictionary.metric.name == ""
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "truth-ioi, words" in page


def test_a_real_model_needs_a_task_only_where_a_metric_is_about_one(tmp_path: Path) -> None:
    worker = Worker(RunFolder(tmp_path), progress=SILENT)
    experiment = replace(JOB, metrics=("M14", "M12"), models=("smollm2-135m",))
    experiment.check(worker)
    assert [cell.name for cell in experiment.cells()] == ["smollm2-135m/M14", "smollm2-135m/M12"]
    with pytest.raises(BadUsage, match="smollm2-135m needs a task to run on"):
        replace(experiment, metrics=("M14", "EX1", "F01")).check(worker)


def test_inputs_of_dictionaries_that_are_missing_are_named(tmp_path: Path) -> None:
    needs = ("sae", "other sae", "texts", "trainer")
    said = "; ".join(missing_inputs(needs, JOB.given("truth-ioi")))
    for name in ("--sae, --site", "--other-sae", "texts, and a site", "train dictionaries on"):
        assert name in said
