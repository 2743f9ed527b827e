"""Circuits at one size, without a curve: the same numbers, and a page."""

from __future__ import annotations

import copy
import inspect
import math
import shutil
from dataclasses import fields as fields_of
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import mechassay as ma
from mechassay.circuits.evaluation.ablation import load_ablated
from mechassay.circuits.evaluation.chance import against_chance
from mechassay.circuits.scores import EdgeScores
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.results.page import Report
from mechassay.results.reading import read_record
from mechassay.runs.folder import RunFolder
from mechassay.runs.run import run
from mechassay.testing.checks import numbers
from mechassay.utils.checkpoint import State
from mechassay.utils.display import SILENT
from mechassay.utils.files import read_tensors, write_tensors

JOB = CircuitsExperiment(
    ("truth-ioi",),
    methods=("eap",),
    metrics=("completeness:size=9", "minimality:size=9,most=3"),
    train_limit=8,
    limit=10,
    random_rankings=5,
)


@pytest.fixture(scope="module")
def with_curve(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return run(JOB, tmp_path_factory.mktemp("curve") / "run", progress=SILENT)


@pytest.fixture(scope="module")
def of_one_size(tmp_path_factory: pytest.TempPathFactory) -> Report:
    experiment = replace(JOB, limit=20, curve=False)
    return run(experiment, tmp_path_factory.mktemp("size") / "run", progress=SILENT)


def test_the_metrics_are_those_of_the_run_with_a_curve(tmp_path: Path, with_curve: Report) -> None:
    whole = with_curve.records[0]
    results = run(replace(JOB, curve=False), tmp_path / "bare", progress=SILENT)
    bare = results.records[0]
    assert (whole.kind, bare.kind) == ("circuits", "circuits")
    names = {(each.name, each.of) for each in bare.measures}
    assert ("circuit@9", "result") in names and ("cpr", "result") not in names
    assert bare.measures == [each for each in whole.measures if (each.name, each.of) in names]
    assert bare.values is not None and whole.values is not None
    columns = bare.values.columns
    assert {"clean", "empty", "circuit@9", "complement@9"} <= set(columns)
    assert columns == {name: whole.values.columns[name] for name in columns}
    # The values of pairs give the numbers: f is (m(C) - m(0)) / (m(N) - m(0)).
    full, empty = (np.mean(columns[name]) for name in ("clean", "empty"))
    for name in ("circuit@9", "complement@9"):
        f = (np.mean(columns[name]) - empty) / (full - empty)
        assert bare.value(name) == pytest.approx(f)
    assert bare.specs["task"] == whole.specs["task"]
    # A curve also chooses a size, on validation pairs.
    assert {role: own.hash for role, own in bare.data.items()} == {
        role: own.hash for role, own in whole.data.items() if role != "validation"
    }
    unneeded = bare.measure("unneeded@9")
    assert unneeded is not None and unneeded.n == 9 and unneeded.low < unneeded.high
    assert len(bare.table("minimality@9")) <= 3
    assert "f of one circuit" in (tmp_path / "bare" / "report.html").read_text("utf-8")


def test_a_file_of_scores_says_itself_where_it_was_found(
    tmp_path: Path, with_curve: Report
) -> None:
    file = RunFolder(with_curve.folder).scores_file(JOB.cells()[0].name)
    silent = tmp_path / "silent.safetensors"
    replace(EdgeScores.load(file), provenance={}).save(silent)
    metrics = ("completeness:size=9",)
    again = replace(JOB, methods=(), curve=False, metrics=metrics, train_split="validation")
    for scores, expected in ((file, "train"), (silent, "")):
        experiment = replace(again, scores=(str(scores),))
        (record,) = run(experiment, tmp_path / scores.stem / "again", progress=SILENT).records
        assert record.task.args["train_split"] == expected


def test_without_a_curve_and_a_metric_there_is_nothing_to_measure(tmp_path: Path) -> None:
    experiment = CircuitsExperiment(("smollm2-135m",), ("ioi",), ("eap",), curve=False)
    with pytest.raises(BadUsage, match="nothing to measure: name a metric"):
        run(experiment, tmp_path, progress=SILENT)


@pytest.mark.slow
def test_a_curve_has_the_smallest_circuit_and_its_sentence(tmp_path: Path) -> None:
    """Exact scores find a known circuit: chosen on validation pairs, measured on test pairs."""
    experiment = replace(
        JOB,
        methods=("exact", "random-paths"),
        train_limit=24,
        limit=24,
        metrics=("cma",),
        random_rankings=None,
    )
    results = run(experiment, tmp_path / "run", progress=SILENT)
    exact, random = results.records
    rows = {row["of"]: row for row in exact.table("smallest circuit").rows()}
    assert rows["chosen"]["split"] == "validation" and rows["chosen"]["n"] == 24
    assert (
        float(str(rows["result"]["value"])) > 0.9
        and rows["result"]["kept"] == rows["chosen"]["kept"]
    )
    assert abs(float(str(rows["without"]["value"]))) < 0.1
    model, (file,) = ma.load_model("truth-ioi"), (tmp_path / "run").glob("scores/*/exact.*")
    pairs = ma.load_task("truth-ioi").pairs("validation", model, limit=24)
    there = ma.circuits.faithfulness_curve(model, ma.load_scores(file), pairs)
    assert rows["chosen"]["cma"] == pytest.approx(there.cma, abs=1e-6)
    assert rows["result"]["cma"] == pytest.approx(exact.value("cma"), abs=1e-12)
    assert {row["of"] for row in random.table("smallest circuit").rows()} == {"chosen"}
    assert exact.values is not None and len(exact.values.columns["without it"]) == 24
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "The smallest circuit that keeps at least" in page
    # Two methods on a ground truth: 40 random rankings of each kind, and CMA once.
    assert len(exact.table("random areas").where(of="control:random")) == 40
    assert sum((each.name, each.of) == ("cma", "result") for each in exact.measures) == 1
    assert against_chance(exact, "cpr", 2).verdict == "better"
    assert against_chance(random, "cpr", 2).verdict != "better"


@pytest.mark.parametrize(
    ("curve", "name"), [(True, "cma"), (False, "agreement@9"), (False, "complement@9")]
)
def test_an_edited_number_is_refused(
    tmp_path: Path, with_curve: Report, of_one_size: Report, curve: bool, name: str
) -> None:
    """Also that of one size without a curve: f, what is left without the circuit, agreement."""
    (stored,) = (with_curve if curve else of_one_size).folder.glob("records/**/*.json")
    file = Path(shutil.copy(stored, tmp_path))
    record = read_record(file)
    edited = [
        own.model_copy(update={"value": 0.99}) if own.name == name and own.of == "result" else own
        for own in record.measures
    ]
    record.changed(measures=edited).save(file)
    with pytest.raises(BadFile, match=f"{name} is 0.99, its values give"):
        read_record(file)


def test_cma_without_a_curve_is_that_of_the_curve(tmp_path: Path, with_curve: Report) -> None:
    experiment = replace(JOB, metrics=("cma",), curve=False)
    (bare,) = run(experiment, tmp_path / "bare", progress=SILENT).records
    assert bare.value("cma") == pytest.approx(with_curve.records[0].value("cma"))
    assert not math.isnan(bare.value("cma", "control:random-paths"))


def test_a_circuit_in_three_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    about: dict[str, Any] = {"method": "eap", "train_limit": 4, "limit": 6, "progress": SILENT}
    result = ma.find_circuit("truth-ioi", output=tmp_path / "run", **about)
    sentence, report = str(result).split("\n")
    assert sentence == result.conclusion == result.report.answers[0] and "6" in sentence
    assert report == f"Report: {tmp_path / 'run' / 'report.html'}"
    result.open()
    assert opened == [(tmp_path / "run" / "report.html").resolve().as_uri()]
    again = ma.find_circuit("truth-ioi", output=tmp_path / "run", **about)
    assert numbers(again.report) == numbers(result.report)
    # Where nothing was done it says why.
    about["method"] = "exact"
    nothing = ma.find_circuit("truth-ioi", output=tmp_path / "none", max_minutes=1e-9, **about)
    assert str(nothing).startswith("skipped: ") and nothing.report.answers == []
    for attribute in ("record", "scores", "circuit", "curve"):
        with pytest.raises(BadUsage, match="No circuit was measured: skipped"):
            getattr(nothing, attribute)


def test_a_circuit_of_a_model_and_a_task_in_memory(tmp_path: Path) -> None:
    about: dict[str, Any] = {"train_limit": 20, "limit": 40, "progress": SILENT}
    truth = ma.load_truth("truth-ioi-trained")
    result = ma.find_circuit(truth.model, truth.task, output=tmp_path / "a", **about)
    named = ma.find_circuit("truth-ioi-trained", output=tmp_path / "b", **about)
    assert len(result.circuit) > 0 and result.circuit == named.circuit
    assert result.circuit.pruned() == result.circuit
    torch.testing.assert_close(result.scores.values, named.scores.values, equal_nan=True)
    assert result.curve.columns["f"] == named.curve.columns["f"]
    assert ma.open_run(tmp_path / "b").conclusion == named.conclusion
    assert result.plot() is not None
    few = ma.find_circuit(truth.model, truth.task, "random", output=tmp_path / "c", **about)
    with pytest.raises(BadUsage, match="No measured circuit keeps 90 %"):
        _ = few.circuit


def test_the_known_circuit_is_that_of_the_weights_and_not_of_the_name(tmp_path: Path) -> None:
    """An edited ground truth keeps its name, but its circuit is not known any more."""
    about: dict[str, Any] = {"train_limit": 10, "limit": 20, "progress": SILENT}
    model = copy.deepcopy(ma.load_truth("truth-ioi").model)
    whole = ma.find_circuit(model, "truth-ioi", "eap", output=tmp_path / "whole", **about)
    assert whole.record.measure("auroc") is not None
    assert len(ma.load_circuit("truth", model)) > 0
    next(model.hf.parameters()).data.mul_(1.5)
    with pytest.warns(UserWarning, match="its circuit is not known"):
        edited = ma.find_circuit(model, "truth-ioi", "eap", output=tmp_path / "edited", **about)
    assert edited.record.measure("auroc") is None
    with pytest.raises(BadUsage, match="weights of this model differ from those of the ground"):
        ma.load_circuit("truth", model)


def test_the_arguments_are_those_of_the_command() -> None:
    """Each option of the command is an argument of that name, with the same default."""
    parameters = inspect.signature(ma.find_circuit).parameters
    renamed = {"models": "model", "tasks": "task", "methods": "method"}
    not_here = {"scores", "stage", "curve"}
    fields = {field.name: field.default for field in fields_of(ma.CircuitsExperiment)}
    names = {renamed.get(name, name) for name in fields if name not in not_here}
    assert names == parameters.keys() - {"output", "device", "progress"}
    for name in names - set(renamed.values()):
        assert parameters[name].default == fields[name], name


@pytest.mark.slow
def test_rows_of_one_table_are_found_under_other_ablations(tmp_path: Path) -> None:
    """EAP by means and EAP by learned constants beside EAP, all measured by counterfactuals."""
    methods = ("eap", "eap:ablation=mean", "eap:ablation=optimal")
    experiment = replace(JOB, methods=methods, metrics=(), optimal="steps=4,check_every=2,lr=0.01")
    results = run(experiment, tmp_path, progress=SILENT)
    names = [record.method.name for record in results.records]
    assert names == ["eap", "eap (mean)", "eap (optimal)"]
    assert results.records[1].method.args == {**results.records[0].method.args, "ablation": "mean"}
    assert all(record.task.args["ablation"] == "counterfactual" for record in results.records)
    ends = [record.values.columns["clean"] for record in results.records if record.values]
    assert ends[0] == ends[1] == ends[2]
    model = ma.load_model("truth-ioi")
    task = ma.load_task("truth-ioi")
    train, test = task.pairs("train", model, limit=8), task.pairs("test", model, limit=10)
    scores = ma.circuits.EAP().score(
        model, ma.circuits.ablate(model, train, "mean", progress=SILENT), task.objective
    )
    kept = EdgeScores.load(RunFolder(tmp_path).scores_file(experiment.cells()[1].name))
    # A run sums over parts of the pairs.
    largest = float(scores.values.nan_to_num().abs().max())
    torch.testing.assert_close(
        kept.values, scores.values, rtol=0, atol=1e-6 * largest, equal_nan=True
    )
    assert kept.provenance["ablation"] == "mean"
    curve = ma.circuits.faithfulness_curve(model, scores, test, task.objective, progress=SILENT)
    assert results.records[1].value("cmd") == pytest.approx(curve.sweeps["magnitude"].cmd.value)
    constants = load_ablated(next(tmp_path.rglob("optimal.safetensors")))
    assert constants.content != load_ablated(next(tmp_path.rglob("mean.safetensors"))).content


def test_a_wrong_ablation_of_a_method_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'mean'"):
        run(replace(JOB, methods=("eap:ablation=maen",)), tmp_path, progress=SILENT)
    with pytest.raises(UnknownName, match="setting of optimal"):
        run(replace(JOB, optimal="speed=3"), tmp_path, progress=SILENT)
    with pytest.raises(BadUsage, match="pairing random with mean ablation"):
        run(
            replace(JOB, methods=("eap", "eap:ablation=mean"), pairing="random"),
            tmp_path,
            progress=SILENT,
        )
    with pytest.raises(BadUsage, match="Two rankings|construction"):
        run(replace(JOB, construction=cast("Any", "best")), tmp_path, progress=SILENT)


@pytest.mark.slow
def test_a_construction_is_a_choice_for_every_method(tmp_path: Path) -> None:
    """`greedy` is the curve of grown circuits, and `top` holds for a method that asks to grow."""
    experiment = replace(JOB, methods=("eap", "ifr"), metrics=())
    values = {
        construction: [
            record.value("cmd")
            for record in run(
                replace(experiment, construction=construction),
                tmp_path / construction,
                progress=SILENT,
            ).records
        ]
        for construction in ("own", "top", "greedy")
    }
    assert values["own"] == [values["top"][0], values["greedy"][1]]
    assert values["top"] != values["greedy"]
    model, task = ma.load_model("truth-ioi"), ma.load_task("truth-ioi")
    scores = EdgeScores.load(RunFolder(tmp_path / "own").scores_file(experiment.cells()[0].name))
    grown = ma.circuits.faithfulness_curve(
        model,
        scores,
        task.pairs("test", model, limit=10),
        task.objective,
        greedy=True,
        progress=SILENT,
    )
    assert values["greedy"][0] == pytest.approx(grown.sweeps["magnitude"].cmd.value)


def test_edges_are_chosen_by_faithfulness_on_validation_pairs(tmp_path: Path) -> None:
    """The choice is in the record and on the page, is kept, and does not see the test pairs."""
    experiment = replace(
        JOB, methods=("eap",), metrics=(), construction="faithful", random_rankings=5
    )
    (record,) = run(experiment, tmp_path / "run", progress=SILENT).records
    table = record.table("chosen mixtures")
    assert set(table.columns["split"]) == {"validation"} and len(table) == 9
    assert record.task.args["construction"] == "faithful"
    kept = (tmp_path / "run" / "kept").rglob("*.faithful-*.json")
    names = ["0", "0.25", "0.5", "0.75", "1", "ends"]
    assert sorted(file.stem.rpartition("-")[2] for file in kept) == names
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "whose mean faithfulness f is nearest to 1 on" in page
    model, task = ma.load_model("truth-ioi"), ma.load_task("truth-ioi")
    scores = EdgeScores.load(RunFolder(tmp_path / "run").scores_file(experiment.cells()[0].name))
    pairs = task.pairs("validation", model, limit=10)
    alone = ma.circuits.faithful_circuits(model, scores, pairs, task.objective, progress=SILENT)
    assert table.columns["positive"] == [row["positive"] for row in alone.rows]
    assert table.numbers("f") == pytest.approx([row["f"] for row in alone.rows])
    test = task.pairs("test", model, limit=10)
    curve = ma.circuits.faithfulness_curve(model, alone.series, test, progress=SILENT)
    assert record.value("cmd") == pytest.approx(curve.sweeps["magnitude"].cmd.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"methods": ("nap",)}, "chooses among scored edges; got scores of n"),
        ({"methods": ("eap",), "resamples": 8}, "construction faithful have no resamples"),
    ],
)
def test_what_has_no_edges_to_choose_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    experiment = replace(JOB, metrics=(), construction="faithful", **changes)
    with pytest.raises(BadUsage, match=message):
        run(experiment, tmp_path / "run", progress=SILENT)


def test_backward_rules_are_chosen_on_validation_pairs(tmp_path: Path) -> None:
    """The rules with the lowest CMD there; what is kept is their scores, and their stability."""
    experiment = replace(JOB, methods=("eap:backward=auto",), metrics=(), random_rankings=5)
    (record,) = run(experiment, tmp_path / "run", progress=SILENT).records
    kept = EdgeScores.load(RunFolder(tmp_path / "run").scores_file(experiment.cells()[0].name))
    tried = kept.provenance["CMD on validation pairs"]
    rules = ("gim", "attnlrp", "relp")
    assert set(tried) == {"eap", *(f"eap backward={name}" for name in rules)}
    assert kept.provenance["candidate"] == min(tried, key=tried.get)
    model, task = ma.load_model("truth-ioi"), ma.load_task("truth-ioi")
    chosen = kept.provenance["candidate"].partition("=")[2] or "plain"
    alone = ma.circuits.EAP(backward=chosen).score(
        model, task.pairs("train", model, limit=8), task.objective, progress=SILENT
    )
    torch.testing.assert_close(kept.values.nan_to_num(), alone.values.nan_to_num())
    assert record.method.args["backward"] == "auto" and record.has_table("stability")
    assert dict(zip(*record.table("candidates").columns.values(), strict=True)) == tried
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert f"{kept.provenance['candidate']}, of 4 by CMD on validation pairs" in page
    # Of pairs too few for parts, resamples are found by the candidate that was chosen.
    few = replace(experiment, train_limit=6, resamples=2)
    (record,) = run(few, tmp_path / "few", progress=SILENT).records
    assert len(record.table("resamples")) == 2 and not record.has_table("stability")


@pytest.mark.parametrize(
    ("method", "n_done"), [("subnetwork-probing:steps=4", 2), ("eap:backward=auto", 3)]
)
def test_seconds_of_a_resumed_method_are_of_all_its_parts(
    method: str, n_done: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if 1,000 s had been taken until the interrupt, and by the candidates before it."""
    experiment = replace(JOB, methods=(method,), metrics=(), random_rankings=5)
    done, calls = State.done, [0]

    def interrupted(state: State, cursor: int) -> None:
        done(state, cursor)
        calls[0] += 1
        if calls[0] == n_done:
            raise KeyboardInterrupt

    monkeypatch.setattr("mechassay.utils.checkpoint.EVERY_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        patch.setattr(State, "done", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(experiment, tmp_path, progress=SILENT)
    (checkpoint,) = tmp_path.rglob("*.checkpoint")
    tensors, header = read_tensors(checkpoint, "checkpoint")
    assert 0 < header["seconds"] < 100 and 0 < header["cpu_seconds"] < 100
    write_tensors(checkpoint, tensors, {**header, "seconds": 1000.0, "cpu_seconds": 500.0})
    candidates = sorted(checkpoint.parent.glob("*.safetensors"))
    assert len(candidates) == (n_done - 1 if "auto" in method else 0)
    for number, file in enumerate(candidates, 1):
        scores = EdgeScores.load(file)
        about = {**scores.provenance, "seconds": 1000.0 * number, "cpu_seconds": 500.0 * number}
        replace(scores, provenance=about).save(file)
    n_parts = 1 + len(candidates)
    (record,) = run(experiment, tmp_path, progress=SILENT).records
    assert 1000 * n_parts < record.spent["localize_seconds"] < 1000 * n_parts + 100
    assert 500 * n_parts < record.spent["localize_cpu_seconds"] < 500 * n_parts + 100


@pytest.mark.slow
def test_a_penalty_is_searched_on_validation_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prices of edges are scored one by one, and the one with the lowest CMD is kept."""
    monkeypatch.setattr("mechassay.circuits.methods.mask_learning.SPARSITIES", (10.0, 1e-3))
    method = "ugs:search=True,steps=20,samples=2,lr=0.3"
    experiment = replace(JOB, methods=(method,), metrics=(), random_rankings=5)
    (record,) = run(experiment, tmp_path / "run", progress=SILENT).records
    kept = EdgeScores.load(RunFolder(tmp_path / "run").scores_file(experiment.cells()[0].name))
    tried = kept.provenance["CMD on validation pairs"]
    assert len(tried) == 2
    best = min(tried, key=tried.get)
    price = 10.0 if "sparsity=10.0" in best else 1e-3
    model, task = ma.load_model("truth-ioi"), ma.load_task("truth-ioi")
    alone = ma.circuits.UniformGradientSampling(sparsity=price, steps=20, samples=2, lr=0.3).score(
        model, task.pairs("train", model, limit=8), task.objective, progress=SILENT
    )
    assert torch.equal(kept.values.nan_to_num(), alone.values.nan_to_num())
    assert record.method.args["search"] is True
    assert not list((tmp_path / "run").rglob("*.0.safetensors"))
    with pytest.raises(BadUsage, match="needs validation pairs"):
        ma.circuits.UniformGradientSampling(search=True).score(
            model, task.pairs("train", model, limit=2), progress=SILENT
        )


def test_results_are_kept_under_full_names() -> None:
    experiment = CircuitsExperiment(
        ("gpt2",), ("Greater_Than",), methods=("EAP-IG", "eactp"), metrics=("AUROC",)
    )
    assert experiment.methods == ("eap-ig-inputs", "exact")
    assert experiment.tasks == ("greater-than",) and experiment.metrics == ("recovery",)
    assert [cell.labels["method"] for cell in experiment.cells()] == ["eap-ig-inputs", "exact"]
