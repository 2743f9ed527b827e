"""Ground truths run on their own tasks, and whoever names another one for them sees that.

Ground truths by name in runs, and the recovery that their records have.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.experiments import held
from mechassay.circuits import EdgeScores
from mechassay.circuits.evaluation.ablation import OptimalAblation, load_ablated
from mechassay.circuits.evaluation.metrics import recovery_of
from mechassay.circuits.graph_files import load_scores
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.errors import BadUsage, UnknownName
from mechassay.models.model import load_model
from mechassay.models.sources import MADE_TRUTHS, truth_names, with_truths
from mechassay.results.records import Record
from mechassay.runs.run import run
from mechassay.tasks import load_task
from mechassay.truth.ground_truth import check_tasks, is_truth, load_truth, own_task_notes, tasks_of
from mechassay.truth.summary import truth_rows


def test_a_ground_truth_runs_on_its_own_task() -> None:
    assert tasks_of("gpt2", ("ioi", "mcqa")) == ("ioi", "mcqa")
    assert tasks_of("truth-ioi", ("ioi", "mcqa")) == ("truth-ioi",)
    assert tasks_of("truth-ioi", ("ioi", "truth-mcqa-trained")) == ("truth-mcqa-trained",)
    assert tasks_of("gpt2", ()) == ()


def test_a_letter_wrong_in_the_name_of_a_truth_is_no_missing_task() -> None:
    with pytest.raises(UnknownName, match=r"model 'truth-iio'\. Did you mean 'truth-ioi'\?"):
        check_tasks(("truth-iio",), ())


def test_truth_stands_for_all_of_them_once() -> None:
    assert with_truths(("gpt2", "truth", "truth-ioi")) == ("gpt2", *truth_names())


def test_the_list_says_what_the_models_have() -> None:
    """It is told from files; "circuit" has the edges of the circuit and of the model."""
    rows = truth_rows()
    assert {row["name"] for row in rows} == {*truth_names(), *MADE_TRUTHS}
    for name in ("truth-ioi", "truth-induction", "truth-addition-trained"):
        truth = load_truth(name)
        own = {row["ablation"]: row for row in rows if row["name"] == name}
        assert set(own) == set(truth.verified)
        for ablation, each in truth.verified.items():
            n_edges = truth.model.graph.n_edges
            assert own[ablation]["circuit"] == f"{len(each.circuit)} of {n_edges} edges"
            assert own[ablation]["margin"] == f"{each.margin:,.0f} in {truth.n_pairs} pairs"
            assert own[ablation]["least share"] == f"{each.least_share:.2f}"


@pytest.mark.parametrize(
    ("models", "tasks", "message"),
    [
        (("gpt2",), (), "gpt2 needs a task to run on"),
        (
            ("truth-ioi",),
            ("ioi",),
            "truth-ioi runs on its own task, truth-ioi, or on one of another ground truth;"
            " got ioi. Leave --task out.",
        ),
        (
            ("truth-ioi", "truth-induction"),
            ("truth-ioi", "ioi", "ravel"),
            "Ground truths run on their own tasks, or on one of another ground truth;"
            " got ioi, ravel. Leave --task out.",
        ),
    ],
)
def test_a_task_that_nothing_runs_on_is_refused(
    models: tuple[str, ...], tasks: tuple[str, ...], message: str
) -> None:
    with pytest.raises(BadUsage) as error:
        check_tasks(models, tasks)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("models", "tasks", "notes"),
    [
        (("gpt2",), ("ioi",), ()),
        (("truth-ioi",), (), ()),
        (("truth-ioi",), ("truth-induction",), ()),
        (("gpt2", "truth-ioi"), ("ioi",), ("truth-ioi runs on its own task, not on ioi.",)),
        (
            ("gpt2", "truth-ioi", "truth-induction"),
            ("ioi", "mcqa"),
            ("2 ground truths run on their own tasks, not on ioi, mcqa.",),
        ),
        (
            ("gpt2", "truth-ioi", "truth-induction"),
            ("ioi", "truth-ioi"),
            ("2 ground truths run on truth-ioi, not on ioi.",),
        ),
    ],
)
def test_a_mixed_run_says_which_tasks_are_for_the_others(
    models: tuple[str, ...], tasks: tuple[str, ...], notes: tuple[str, ...]
) -> None:
    check_tasks(models, tasks)
    assert own_task_notes(models, tasks) == notes


def test_names() -> None:
    assert is_truth("truth-ioi") and not is_truth("ioi")
    model = load_model("truth-ioi", dtype="float64")
    assert model.name == "truth-ioi" and model.dtype == torch.float64
    assert load_task("truth-ioi").name == "truth-ioi" and load_task("ioi").name == "ioi"
    with pytest.raises(
        UnknownName,
        match=(
            r"task 'truth-fraction'. Did you mean 'truth-fraction-trained'\? Known: arc-challenge,"
            r" .*truth-ioi"
        ),
    ):
        load_task("truth-fraction")
    with pytest.raises(UnknownName, match="'digits'") as error:
        load_task("ioi:digits=3")
    assert "truth-ioi" not in str(error.value)


def experiment(out: Path, **changes: Any) -> Record:
    """The record of a run of one method on one ground truth."""
    settings: dict[str, Any] = {
        "models": ("truth-previous-token",),
        "methods": ("eap",),
        "random_rankings": 5,
        **changes,
    }
    (record,) = run(CircuitsExperiment(**settings, train_limit=6, limit=8), out).records
    return record


@pytest.mark.slow
def test_optimal_constants_are_learned_once_and_kept(tmp_path: Path) -> None:
    """On the train pairs, until the validation pairs say so."""
    out = tmp_path / "out"
    before = experiment(out, ablation="optimal", optimal="steps=20", seed=3)
    file = held(out, "kept", "optimal.safetensors")
    model, task = load_model("truth-previous-token"), load_task("truth-previous-token")
    train, validation = (
        task.pairs(split, model, limit=n, seed=3) for split, n in (("train", 6), ("validation", 8))
    )
    learned = OptimalAblation(steps=20, seed=3).learn(model, train, validation)
    assert load_ablated(file).name == "optimal" and load_ablated(file).content == learned.content
    assert before.task.args["ablation"] == "optimal"
    when = os.stat(file).st_mtime_ns
    for kind, name in (
        ("records", "eap.json"),
        ("scores", "eap.safetensors"),
        ("kept", "controls-20.safetensors"),
    ):
        held(out, kind, name).unlink()
    again = experiment(out, ablation="optimal", optimal="steps=20", seed=3)
    assert again.values == before.values and os.stat(file).st_mtime_ns == when
    means = experiment(tmp_path / "means", ablation="mean", seed=3)
    assert means.values is not None and before.values is not None
    mine, theirs = before.values.columns, means.values.columns
    assert theirs["clean"] == mine["clean"] and theirs["empty"] != mine["empty"]


def test_routes_are_ranked_in_the_order_in_which_their_circuit_grows(tmp_path: Path) -> None:
    """Their importances are shares of one reader's input:
    as one ranking of all edges they say something else.
    """
    record = experiment(tmp_path, models=("truth-previous-token-trained",), methods=("ifr",))
    scores = load_scores(held(tmp_path, "scores", "ifr.safetensors"))
    assert isinstance(scores, EdgeScores) and scores.provenance["selection"] == "greedy"
    truth = load_truth("truth-previous-token-trained").circuits["counterfactual"]
    order = scores.greedy_order("magnitude").tolist()
    assert len(order) == truth.graph.n_edges  # all are reached: no ties
    places = [
        order.index(writer * truth.graph.n_readers + reader)
        for writer, reader in truth.edges.nonzero().tolist()
    ]
    false = set(range(len(order))) - set(places)
    wins = sum(place < other for place in places for other in false)
    found = {each.name: each.value for each in record.measures if each.of == "result"}
    assert (
        found["auroc"] == pytest.approx(wins / (len(places) * len(false))) and found["auroc"] > 0.9
    )
    raw = recovery_of(EdgeScores(scores.graph, scores.values), truth, by="magnitude")
    assert found["auroc"] - raw.auroc > 0.1 and found["auprc"] - raw.auprc > 0.1


def test_without_a_verified_circuit_recovery_is_undefined(tmp_path: Path) -> None:
    found = experiment(tmp_path, ablation="positional-mean")
    auroc = next(each for each in found.measures if each.name == "auroc")
    assert auroc.value != auroc.value
    (why,) = [warning for warning in found.warnings if "not for positional-mean" in warning]
    assert why.endswith("undefined are recovery, completeness, minimality.")


def test_every_measure_of_recovery_stands_beside_that_of_random_rankings(tmp_path: Path) -> None:
    record = experiment(tmp_path, methods=("random",))
    truth = load_truth("truth-previous-token").circuits["counterfactual"]
    chance = {each.name: each.value for each in record.measures if each.of == "control:random"}
    share = len(truth) / truth.graph.n_edges
    assert chance["auroc"] == 0.5 and chance["r_precision"] == pytest.approx(share)
    assert share < chance["auprc"] < 3 * share


@pytest.mark.parametrize(
    ("task", "known"), [("truth-previous-token", True), ("truth-induction", False)]
)
def test_only_its_own_task_has_a_known_circuit(task: str, known: bool, tmp_path: Path) -> None:
    found = experiment(tmp_path, tasks=(task,))
    assert any(each.name == "auroc" for each in found.measures) is known


def test_circuits_run_takes_a_ground_truth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from mechassay.cli.main import main

    words = [
        "circuits",
        "run",
        "-m",
        "truth-ioi",
        "-t",
        "truth-ioi",
        "--method",
        "eap",
        "--train-limit",
        "4",
        "--limit",
        "8",
    ]
    call: Callable[..., Any] = main
    with pytest.raises(SystemExit) as stopped:
        call([*words, "-o", str(tmp_path / "out")])
    assert not stopped.value.code, capsys.readouterr().err
    record = Record.model_validate_json(held(tmp_path / "out", "records", "eap.json").read_text())
    assert record.model.name == "truth-ioi"
