"""Robust discovery from the command: the experiment of several rankings, and what it refuses."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.pairs import unequal_pairs
from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.pools import Pool
from mechassay.circuits import (
    EAPIGInputs,
    EdgeScores,
)
from mechassay.errors import BadPairs, BadUsage
from mechassay.prompts.pairs import Prompt
from mechassay.results.page import Report
from mechassay.results.records import Record
from mechassay.runs.run import run
from mechassay.stats.intervals import Estimate
from mechassay.testing import check_experiment
from mechassay.testing.tiny import Subject
from mechassay.truth.ground_truth import load_truth
from mechassay.utils.display import SILENT
from studies.robust.discovery import strata_grid
from studies.robust.experiment import RobustExperiment
from studies.robust.page import EMPTY, OWN, RobustPage, over_repeats

pytestmark = pytest.mark.guard

METHOD = EAPIGInputs(steps=2)


@pytest.fixture(scope="module")
def tiny() -> Subject:
    return unequal_pairs()


def test_a_grid_of_strata_is_the_whole_grid_where_they_agree(tiny: Subject) -> None:
    """Against the whole grid of the five-token prompts;
    those of seven tokens are another stratum, and one has no partner.
    """
    model, batch = tiny.model, tiny.batch
    scores = METHOD.score(model, batch, "kl", progress=SILENT)
    circuits = [scores.top(n, by="magnitude") for n in (20, 60)]
    strata = ["5", "5", "5", "7", "5", "8"], ["5", "5", "5", "7", "5", "7"]
    found = strata_grid(model, circuits, batch, batch, strata, SILENT)
    assert found.shape == (3, 6, 6)
    assert np.array_equal(
        ~np.isnan(found[0]), np.array([[a == b for b in strata[1]] for a in strata[0]])
    )
    rows = [0, 1, 2, 4]
    part = batch.select(rows)
    clean, corrupted = (
        Pool((Prompt(""),) * 4, tokens) for tokens in (part.clean, part.counterfactual)
    )
    whole = evaluate_pairs(model, circuits, clean, corrupted, progress=SILENT)
    np.testing.assert_allclose(
        found[:2][(slice(None), *np.ix_(rows, rows))], whole.circuits, rtol=1e-5, atol=1e-7
    )
    np.testing.assert_allclose(found[2][np.ix_(rows, rows)], whole.corrupted, rtol=1e-5, atol=1e-7)
    with pytest.raises(BadPairs, match="there is no grid"):
        strata_grid(model, circuits, batch, batch, (["a"] * 6, ["b"] * 6), SILENT)


JOB = RobustExperiment(
    "truth-ioi",
    "truth-ioi",
    tails=("cvar", "worst-group:step=2.0"),
    group="subject",
    edges=6,
    sizes=(6, 9),
    rounds=2,
    n_base=8,
    n_held_out=9,
    repeats=2,
    seed=4,
)


def values(record: Record, table: str, **of: Any) -> dict[str, float]:
    """The statistics of a circuit, or of a difference."""
    rows = record.table(table).where(**of).rows()
    return {str(row["statistic"]): float(str(row["value"])) for row in rows}


@pytest.mark.slow
def test_the_experiment_compares_rankings_and_goes_on_where_it_was(tmp_path: Path) -> None:
    truth = load_truth("truth-ioi")
    results = run(JOB, tmp_path, progress=SILENT)
    first, second = results.records
    assert [record.provenance.seed for record in (first, second)] == [4, 5]
    assert first.measures != second.measures
    names = ["matched", "random", "same-template", "cvar", "worst-group:step=2.0"]
    pairs = first.table("circuits").where(size=6).columns["pairs"]
    assert pairs[:4] == [8, 16, 16, 4]
    assert first.measures[0].n == 81 and first.data["train"].kept == 8
    at = {name: values(first, "rankings", ranking=name, size=6) for name in names}
    # All prompts of this task are built alike, so these two are one.
    assert at["random"] == at["same-template"]
    differences = first.table("differences")
    assert len(differences.where(statistic="mean")) == 2 * (1 + 2 + 3 + 3)
    for row in differences.where(size=6).rows():
        name = str(row["statistic"])
        if name in (OWN, "mean", "worst 10%", "max"):
            by_hand = at[str(row["of"])][name] - at[str(row["minus"])][name]
            assert row["value"] == pytest.approx(by_hand, abs=1e-6)
    # The true circuit has nine edges: with them every ranking does what the model does, and without
    # edges none does.
    true, empty = (
        values(first, "rankings", ranking=name, size=size)
        for name, size in (("matched", 9), (EMPTY, 0))
    )
    assert true["max"] < 1e-4 < 1 < empty["mean"] and true[OWN] < 1e-4 < 1 < empty[OWN]
    assert first.table("rounds").where(ranking="cvar").columns["round"] == [1, 2]

    assert (tmp_path / "report.html").read_text("utf-8").count("<table") >= 5
    assert "cvar minus same-template" in (tmp_path / "tables.md").read_text("utf-8")
    file = tmp_path / "scores" / "repeat-0--cvar.safetensors"
    kept = EdgeScores.load(file, truth.model.graph)
    edges = first.table("circuits").where(ranking="cvar", size=6).columns["edges"]
    assert kept.provenance["n_examples"] == 4 and edges == [len(kept.top(6, by="magnitude"))]
    titles = [table.title for table in RobustPage().tables(Report(results.records))]
    assert titles[:2] == ["KL, 6 edges", "Differences of KL, 6 edges"] and len(titles) == 5

    (tmp_path / "records" / "repeat-1.json").unlink()
    again = run(JOB, tmp_path, progress=SILENT)
    assert [record.tables for record in again.records] == [first.tables, second.tables]
    with pytest.raises(BadUsage, match="rounds"):
        run(dataclasses.replace(JOB, rounds=1), tmp_path, progress=SILENT)


@pytest.mark.slow
def test_a_method_that_trains_a_mask_has_no_rounds(tmp_path: Path) -> None:
    name = "truth-induction-trained"
    method = "subnetwork-probing:steps=6,lr=0.1"
    experiment = dataclasses.replace(
        JOB, model=name, task=name, method=method, group="", pairing="random", repeats=1
    )
    (record,) = run(experiment, tmp_path, progress=SILENT).records
    assert not record.table("rounds").columns
    assert record.table("circuits").where(size=6).columns["pairs"] == [8, 8, 8, 8]
    assert len(RobustPage().tables(Report([record]))) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pairing": "matched"}, "the pairing is same-template or random"),
        ({"pairing": "any"}, "pairing"),
        ({"tails": ("cvar", "cvar:alpha=0.2")}, "different tails"),
        ({"tails": ("mean",)}, "not the mean"),
        ({"tails": ("cvr",)}, "Did you mean 'cvar'"),
        ({"group": "colour"}, "colour"),
    ],
)
def test_runs_that_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadUsage, match=message):
        run(dataclasses.replace(JOB, **settings), tmp_path, progress=SILENT)


def test_a_task_without_templates_needs_another_pairing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = load_truth("truth-ioi").task
    monkeypatch.setattr(type(task), "template", lambda self, tags: None)
    with pytest.raises(BadUsage, match="take the pairing random"):
        run(JOB, tmp_path, progress=SILENT)


def test_over_repeats_by_hand() -> None:
    found = over_repeats([Estimate(value, value - 9, value + 9) for value in (1.0, 2.0, 3.0)])
    # Student's t with 2 degrees of freedom; the standard deviation is 1.
    half = 4.302653 / np.sqrt(3)
    assert [found.value, found.low, found.high] == pytest.approx([2, 2 - half, 2 + half], rel=1e-6)
    assert over_repeats([Estimate(1.0, 0.0, 2.0)]) == Estimate(1.0, 0.0, 2.0)


@pytest.mark.slow
def test_the_experiment_keeps_its_promises(tmp_path: Path) -> None:
    experiment = dataclasses.replace(
        JOB, tails=("cvar",), group="", sizes=(6,), rounds=1, n_base=4, n_held_out=5
    )
    check_experiment(experiment, tmp_path, workers=0)
