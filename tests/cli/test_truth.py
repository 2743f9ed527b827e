"""`mechassay truth`: what it lists and verifies; and how well methods find what is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mechassay.models.sources import truth_names
from mechassay.runs.folder import RunFolder
from mechassay.truth.ground_truth import load_truth, truth_folder

Run = Callable[..., Any]


@pytest.mark.slow
def test_list_names_models_circuits_and_folders(run: Run) -> None:
    out = run("truth", "list").out
    for name in truth_names():
        assert name in out
    circuits = sum(len(load_truth(name).circuits) for name in truth_names())
    assert out.count("in 500 pairs") == circuits
    assert "11 of 262 edges" in out and "least share" in out


@pytest.mark.slow
def test_verify_holds_on_fresh_pairs(run: Run) -> None:
    done = run("truth", "verify", "truth-induction", "--ablation", "zero", "--limit", "20")
    assert done.code == 0 and done.out.startswith(
        "zero: holds; 5 of 110 edges, smallest effect inside"
    )
    assert "over all outside at once, 20 pairs" in done.out
    assert (
        "rarest edge: " in done.out
        and "above every effect outside in 100% of the pairs" in done.out
    )
    assert (
        "Did you mean 'mean'?"
        in run("truth", "verify", "truth-induction", "--ablation", "means").line
    )
    assert "Did you mean 'truth-ioi'?" in run("truth", "verify", "truth-oi").line


@pytest.mark.slow
def test_known_sites_hold_on_fresh_prompts(run: Run) -> None:
    done = run("truth", "sites", "truth-fraction-trained", "--limit", "20", "--json")
    assert done.code == 0 and '"heads.0.2@last"' in done.out
    other = run("truth", "sites", "truth-ioi", "--like", "truth-ioi-trained", "--limit", "30")
    assert other.code == 1 and "truth-ioi: the known sites do not hold" in other.err
    assert "Did you mean 'truth-ioi-trained'?" in run("truth", "sites", "truth-ioi-traned").line


@pytest.mark.slow
def test_methods_are_ranked_by_the_known_circuit(run: Run, tmp_path: Path) -> None:
    """Whole nodes say less than edges: .86 on this model, as in the table of methods."""
    words = ("-m", "truth-induction", "-M", "eap-ig-inputs", "-M", "nap", "--limit", "5")
    done = run("circuits", "run", *words, "--train-limit", "40", "-o", tmp_path / "out")
    assert done.code == 0, done.err
    folder = RunFolder(tmp_path / "out")
    group = "truth-induction--truth-induction"
    edges, nodes = (folder.record(f"{group}/{name}") for name in ("eap-ig-inputs", "nap"))
    assert edges and nodes
    assert edges.value("auroc") == 1.0 and round(nodes.value("auroc"), 2) == 0.86
    assert "AUROC" in done.out and "R-precision" in done.out


@pytest.mark.slow
def test_recovery_is_undefined_without_a_circuit_for_the_ablation(run: Run, tmp_path: Path) -> None:
    words = ("circuits", "run", "-M", "random", "--train-limit", "2", "--limit", "2")
    models = ("-m", "truth-ioi", "-m", "truth-ioi-trained")
    done = run(*words, *models, "--ablation", "mean", "-o", tmp_path / "out")
    assert done.code == 0, done.err
    folder = RunFolder(tmp_path / "out")
    known, unknown = (folder.record(f"{name}--{name}/random") for name in models[1::2])
    assert known and unknown and known.value("auroc") > 0
    assert math.isnan(unknown.value("auroc")) and any(
        "not for mean" in text for text in unknown.warnings
    )
    done = run(*words, *models, "--ablation", "means", "-o", tmp_path / "other")
    assert "Did you mean 'mean'" in done.line


@pytest.mark.slow
def test_train_refuses_a_circuit_that_is_not_clear_and_an_unknown_name(
    run: Run, tmp_path: Path
) -> None:
    short = (
        "--steps",
        "2",
        "--batch-size",
        "12",
        "--limit",
        "10",
        "--pool",
        "100",
        "--output",
        str(tmp_path / "mine"),
    )
    done = run("truth", "train", "truth-previous-token-trained", *short)
    assert done.code == 1 and "does not hold" in done.out and "loss: first" in done.out
    assert "the circuit is not clear; no truth.json was written" in done.err
    assert (
        "Did you mean 'truth-ioi-trained'?"
        in run("truth", "train", "truth-ioi-traned", *short).line
    )
    assert (
        "steps of at least 1; got 0"
        in run("truth", "train", "truth-ioi-trained", *short, "--steps", "0").line
    )


def test_verify_takes_the_folder_of_a_trained_model(run: Run) -> None:
    folder = truth_folder("truth-induction-trained")
    done = run("truth", "verify", str(folder), "--ablation", "mean", "--limit", "10")
    assert done.code == 0 and done.out.startswith("mean: holds; 5 of 110 edges")


def test_train_writes_over_nothing_and_refuses_before_it_trains(run: Run, tmp_path: Path) -> None:
    words = (
        "truth",
        "train",
        "truth-previous-token-trained",
        "--steps",
        "2",
        "--batch-size",
        "12",
        "--pool",
        "100",
    )
    (tmp_path / "config.json").write_text("mine")
    assert "holds no interrupted training" in run(*words, "--output", tmp_path).line
    assert (tmp_path / "config.json").read_text() == "mine"
    new = tmp_path / "new"
    assert "limit must be 1 or more; got 0" in run(*words, "--output", new, "--limit", "0").line
    for rate in ("-1", "nan", "inf"):
        assert (
            "Truth training needs rate above 0; got "
            in run(*words, "--output", new, "--rate", rate).line
        )
    assert not new.exists()
