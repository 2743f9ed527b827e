"""Robust discovery from the command: the experiment of several rankings, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.pools import Pool
from mechassay.circuits import (
    EAPIGInputs,
    EdgeScores,
)
from mechassay.errors import BadPairs, BadUsage
from mechassay.examples import Prompt
from mechassay.pairs import Batch
from mechassay.progress import SILENT
from mechassay.runs.robust import (
    OWN,
    RobustRun,
    robust_grids,
    run_robust,
    strata_grid,
    write_robust,
)
from mechassay.testing.tiny import VOCABULARY, Subject, subject
from mechassay.truth.models import load_truth

METHOD = EAPIGInputs(steps=2)


@pytest.fixture(scope="module")
def tiny() -> Subject:
    """In double precision: which pair is worst must not hang on rounding.
    Six pairs of 5 and 7 tokens.
    """
    found = subject("llama", torch.float64)
    rng = np.random.default_rng(0)
    lengths = (5, 5, 5, 7, 5, 7)
    clean, other = ([rng.integers(VOCABULARY, size=n).tolist() for n in lengths] for _ in range(2))
    return dataclasses.replace(found, batch=Batch.from_tokens(clean, other, [[]] * 6, [[]] * 6))


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


RUN = RobustRun(
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


def test_the_experiment_compares_rankings_and_goes_on_where_it_was(tmp_path: Path) -> None:
    truth, run = load_truth("truth-ioi"), RUN
    found = run_robust(run, tmp_path, truth.model, truth.task, progress=SILENT)
    assert [repeat["seed"] for repeat in found] == [4, 5] and found[0] != found[1]
    cells = {(cell["ranking"], cell["size"]): cell for cell in found[0]["cells"]}
    names = ["matched", "random", "same-template", "cvar", "worst-group:step=2.0"]
    assert [cells[name, 6]["pairs"] for name in names[:3]] == [8, 16, 16] and cells["cvar", 6][
        "pairs"
    ] == 4
    assert found[0]["n_grid"] == 81 and found[0]["n_pairs"] == 8
    # All prompts of this task are built alike, so these two are one.
    assert cells["random", 6]["statistics"] == cells["same-template", 6]["statistics"]
    assert len(found[0]["differences"]) == 2 * (1 + 2 + 3 + 3)
    for row in found[0]["differences"]:
        for name in (OWN, "mean", "worst 10%", "max"):
            values = [
                cells[row[side], row["size"]]["statistics"][name][0] for side in ("of", "minus")
            ]
            assert row["statistics"][name][0] == pytest.approx(values[0] - values[1], abs=1e-6)
    # The true circuit has nine edges: there every ranking does what the model does, and no edges do
    # not.
    assert cells["matched", 9]["statistics"]["max"][0] < 1e-4 < 1 < found[0]["empty"]["mean"][0]
    assert cells["matched", 9]["statistics"][OWN][0] < 1e-4 < 1 < found[0]["empty"][OWN][0]
    assert [entry["round"] for entry in found[0]["rounds"]["cvar"]] == [1, 2]

    assert write_robust(run, tmp_path, found).read_text("utf-8").count("<table") >= 5
    assert "cvar minus same-template" in (tmp_path / "tables.md").read_text("utf-8")
    assert json.loads((tmp_path / "result.json").read_text("utf-8"))["repeats"] == found
    kept = EdgeScores.load(tmp_path / "scores" / "0-cvar.safetensors", truth.model.graph)
    assert (
        kept.provenance["n_examples"] == 4
        and len(kept.top(6, by="magnitude")) == cells["cvar", 6]["edges"]
    )
    assert (tmp_path / "scores" / "0-worst-group_step_2.0.safetensors").is_file()
    titles = [table.title for table in robust_grids(run, found)]
    assert titles[:2] == ["KL, 6 edges", "Differences of KL, 6 edges"] and len(titles) == 5

    (tmp_path / "repeats" / "1.json").unlink()
    assert run_robust(run, tmp_path, truth.model, truth.task, progress=SILENT) == found
    with pytest.raises(BadUsage, match="rounds"):
        run_robust(
            dataclasses.replace(run, rounds=1), tmp_path, truth.model, truth.task, progress=SILENT
        )


def test_a_method_that_trains_a_mask_has_no_rounds(tmp_path: Path) -> None:
    truth = load_truth("truth-induction-trained")
    method = "subnetwork-probing:steps=6,lr=0.1"
    run = dataclasses.replace(
        RUN,
        model="truth-induction-trained",
        task="truth-induction-trained",
        method=method,
        group="",
        pairing="random",
        repeats=1,
    )
    (found,) = run_robust(run, tmp_path, truth.model, truth.task, progress=SILENT)
    assert not any(found["rounds"].values())
    assert [cell["pairs"] for cell in found["cells"] if cell["size"] == 6] == [8, 8, 8, 8]
    assert len(robust_grids(run, [found])) == 4


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
    truth = load_truth("truth-ioi")
    with pytest.raises(BadUsage, match=message):
        run_robust(
            dataclasses.replace(RUN, **settings), tmp_path, truth.model, truth.task, progress=SILENT
        )


def test_a_task_without_templates_needs_another_pairing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = load_truth("truth-ioi")
    monkeypatch.setattr(type(truth.task), "template", lambda self, tags: None)
    with pytest.raises(BadUsage, match="take the pairing random"):
        run_robust(RUN, tmp_path, truth.model, truth.task, progress=SILENT)
