"""Robust discovery: its loop by a slow one, its choice by hand, what it refuses, and a failure that it must find."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.paired import Estimate, Resampled, over_repeats
from mechassay.adversarial.pools import Pool
from mechassay.adversarial.robust import Robust, check_apart, worst_pairs
from mechassay.circuits import EAP, EAPIGInputs, EdgeScores, Random
from mechassay.circuits.methods.nap import NAP
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.examples import Prompt
from mechassay.models.model import Model
from mechassay.pairs import Batch
from mechassay.progress import SILENT
from mechassay.runs.robust import RobustRun, robust_grids, run_robust, write_robust
from mechassay.truth.models import load_truth
from tiny import VOCABULARY, Subject, subject

METHOD = EAPIGInputs(steps=2)


def pool(tokens: torch.Tensor) -> Pool:
    return Pool(tuple(Prompt(" ".join(map(str, row))) for row in tokens.tolist()), tokens)


def random_pool(n: int, seed: int, length: int = 6) -> Pool:
    return pool(torch.randint(0, VOCABULARY, (n, length), generator=torch.Generator().manual_seed(seed)))


@pytest.fixture(scope="module")
def tiny() -> Subject:
    """In double precision: which pair is worst must not hang on rounding. Base pairs have 5 and 7 tokens, the grid has 6."""
    return subject("llama", torch.float64)


CLEAN, CORRUPTED = random_pool(4, 10), random_pool(5, 11)


# --- which pairs --------------------------------------------------------------------------------------


def test_the_worst_pairs_by_hand() -> None:
    values = np.array([[9.0, 8.0, 1.0], [7.0, 2.0, 3.0], [0.0, 4.0, 5.0]])
    assert worst_pairs(values, 3) == [(0, 0), (2, 2), (1, 1)]
    assert worst_pairs(values, 2, [(0, 0)]) == [(0, 1), (1, 0)]
    assert worst_pairs(values, 3, above=4.5) == [(0, 0), (2, 2)]
    assert worst_pairs(values, 3, above=9.0) == []
    # The worst third of nine pairs are 9, 8 and 7, of which 8 and 7 have a prompt in common with 9.
    assert worst_pairs(values, 1 / 3) == [(0, 0)]
    assert worst_pairs(values, 1 / 3, [(0, 0)]) == [(0, 1), (1, 0)]
    with pytest.raises(BadUsage, match="3 x 3 prompts has no 4 pairs"):
        worst_pairs(values, 4)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 10**6))
def test_no_pair_that_was_free_is_worse_than_the_one_taken(n: int, m: int, seed: int) -> None:
    values = np.random.default_rng(seed).normal(size=(n, m)).astype(np.float32)
    before = values.copy()
    taken = worst_pairs(values, min(n, m))
    assert np.array_equal(values, before)
    assert len({row for row, _ in taken}) == len({column for _, column in taken}) == len(taken) == min(n, m)
    for number, place in enumerate(taken):
        rows = [row for row in range(n) if row not in {r for r, _ in taken[:number]}]
        columns = [column for column in range(m) if column not in {c for _, c in taken[:number]}]
        assert values[place] == values[np.ix_(rows, columns)].max()


# --- the loop -----------------------------------------------------------------------------------------


def slowly(tiny: Subject, n_edges: int, rounds: int, worst: int) -> tuple[EdgeScores, list[tuple[int, int]]]:
    """The loop with one pair at a time, and a mean over single pairs' scores."""
    base = [tiny.batch.select([row]) for row in range(len(tiny.batch))]
    added: list[tuple[int, int]] = []

    def scored() -> torch.Tensor:
        singles = [one(CLEAN.tokens[row], CORRUPTED.tokens[column]) for row, column in added]
        each = [METHOD.score(tiny.model, batch, "kl", progress=SILENT).values for batch in (*base, *singles)]
        return torch.stack(each).mean(dim=0)

    for _ in range(rounds):
        circuit = EdgeScores(tiny.model.graph, scored()).top(n_edges, by="magnitude")
        places = [(row, column) for row in range(4) for column in range(5)]
        found = {
            (i, j): float(evaluate_pairs(tiny.model, [circuit], CLEAN.select([i]), CORRUPTED.select([j]), grid=False).circuits[0, 0])
            for i, j in places
        }
        left = sorted((place for place in places if place not in added), key=lambda place: -found[place])
        for _ in range(worst):
            added.append(left[0])
            left = [place for place in left if place[0] != added[-1][0] and place[1] != added[-1][1]]
    return EdgeScores(tiny.model.graph, scored()), added


def one(clean: torch.Tensor, corrupted: torch.Tensor) -> Batch:
    return Batch.from_tokens([clean.tolist()], [corrupted.tolist()], [[]], [[]])


def test_the_loop_is_the_slow_one(tiny: Subject) -> None:
    found = Robust(METHOD, n_edges=20, rounds=2, worst=2).score(tiny.model, tiny.batch, CLEAN, CORRUPTED, progress=SILENT)
    scores, added = slowly(tiny, 20, 2, 2)
    torch.testing.assert_close(found.values, scores.values, rtol=1e-4, atol=1e-6, equal_nan=True)
    texts = [(pair["clean"], pair["corrupted"]) for entry in found.provenance["rounds"] for pair in entry["added"]]
    assert texts == [(CLEAN.prompts[row].text, CORRUPTED.prompts[column].text) for row, column in added]
    assert len(set(added)) == 4


def test_the_history_says_what_each_circuit_did(tiny: Subject) -> None:
    robust = Robust(METHOD, n_edges=0.1, rounds=2, worst=3, cut="greedy", by="value")
    found = robust.score(tiny.model, tiny.batch, CLEAN, CORRUPTED, progress=SILENT)
    first, _, last = found.provenance["rounds"]
    plain = METHOD.score(tiny.model, tiny.batch, "kl", progress=SILENT)
    for entry, scores in ((first, plain), (last, found)):
        circuit = scores.greedy(0.1)
        values = evaluate_pairs(tiny.model, [circuit], CLEAN, CORRUPTED, progress=SILENT).circuits[0]
        expected = [values.mean(dtype=float), np.quantile(values, 0.99), values.max(), len(circuit), len(circuit.pruned())]
        assert [entry[name] for name in ("mean", "p99", "max", "edges", "edges_on_a_path")] == pytest.approx(expected)
    assert first["added"][0]["kl"] == pytest.approx(first["max"]) and not last["added"]
    about = found.provenance
    assert about["n_added"] == 6 and about["n_examples"] == len(tiny.batch) + 6 == about["scored"]["n_examples"]
    assert about["settings"]["method"] == {"name": "eap-ig-inputs", "version": 1, "steps": 2, "points": "left", "backward": "plain"}
    json.dumps(about)


def test_a_weight_mixes_means(tiny: Subject) -> None:
    """With the share that the added pairs have among all, the mixture is the mean over all."""
    alike = Robust(METHOD, n_edges=20, rounds=1, worst=3)
    score = {weight: dataclasses.replace(alike, weight=weight) for weight in (0.5, 0.9, None)}
    found = {w: each.score(tiny.model, tiny.batch, CLEAN, CORRUPTED, progress=SILENT).values for w, each in score.items()}
    assert len(tiny.batch) == 3
    whole, half, most = found[None], found[0.5], found[0.9]
    torch.testing.assert_close(half, whole, rtol=1e-4, atol=1e-7, equal_nan=True)
    base = METHOD.score(tiny.model, tiny.batch, "kl", progress=SILENT).values
    torch.testing.assert_close(most, base + (half - base) * 0.9 / 0.5, rtol=1e-4, atol=1e-7, equal_nan=True)


def test_a_circuit_that_never_fails_ends_the_rounds(tiny: Subject) -> None:
    found = Robust(METHOD, n_edges=1.0, rounds=3, worst=2).score(tiny.model, tiny.batch, CLEAN, CORRUPTED, progress=SILENT)
    assert len(found.provenance["rounds"]) == 1 and found.provenance["n_added"] == 0
    plain = METHOD.score(tiny.model, tiny.batch, "kl", progress=SILENT)
    assert torch.equal(found.values.nan_to_num(9), plain.values.nan_to_num(9))


def test_the_control_has_as_many_pairs_by_its_seed(tiny: Subject) -> None:
    robust = Robust(METHOD, n_edges=20, weight=0.5)

    def control(seed: int, n: int) -> EdgeScores:
        return robust.score_random(tiny.model, tiny.batch, CLEAN, CORRUPTED, n, np.random.default_rng(seed), progress=SILENT)

    # Nine pairs are more than any round of four has: all are different, and all of the grid's twenty can be had.
    assert control(0, 9).provenance["n_examples"] == 12
    assert torch.equal(control(0, 9).values.nan_to_num(9), control(0, 9).values.nan_to_num(9))
    assert not torch.allclose(control(0, 9).values.nan_to_num(9), control(1, 9).values.nan_to_num(9))
    rows, columns = np.divmod(np.arange(20), 5)
    whole = Batch.from_tokens(CLEAN.tokens[rows], CORRUPTED.tokens[columns], [[]] * 20, [[]] * 20)
    both = (METHOD.score(tiny.model, batch, "kl", progress=SILENT).values for batch in (tiny.batch, whole))
    torch.testing.assert_close(control(3, 20).values, sum(both) / 2, rtol=1e-4, atol=1e-7, equal_nan=True)


def test_the_failure_that_base_pairs_hide_is_found() -> None:
    """One corrupted prompt of twelve has other names; in all other pairs just fillers differ, and no edge matters."""
    truth = load_truth("truth-ioi")
    model, circuit = truth.model, truth.circuits["counterfactual"]
    clean = words(model, [f"then Ann Bob {a} {b} . , so Ann to" for a, b in (",.", ".,", ",,")])
    fillers = [f"then Ann Bob {a} {b} {c} . . Ann to" for a in (",", ".") for b in (",", ".") for c in (",", ".")]
    corrupted = words(model, [*fillers, "then Cid Dan . . . . . Dan to", *(text.replace(". . Ann", "so , Ann") for text in fillers[:3])])
    base = one(*words(model, ["then Ann Bob so so so so so Ann to", "then Ann Bob so so so so . Ann to"]).tokens)

    robust = Robust(EAPIGInputs(), n_edges=len(circuit), rounds=1, worst=1)
    found = robust.score(model, base, clean, corrupted, progress=SILENT)
    (added,) = found.provenance["rounds"][0]["added"]
    assert added["corrupted"] == "then Cid Dan . . . . . Dan to"
    before, after = found.provenance["rounds"]
    assert before["max"] > 1 and after["max"] < 1e-4
    # One key does not move the output in this one pair; the base pairs alone show no edge of the circuit.
    plain = EAPIGInputs().score(model, base, "kl", progress=SILENT)
    shared = [int((robust.circuit(scores).edges & circuit.edges).sum()) for scores in (plain, found)]
    assert shared[0] < 3 and shared[1] == 8


def words(model: Model, texts: list[str]) -> Pool:
    assert model.tokenizer is not None
    return Pool(tuple(map(Prompt, texts)), torch.tensor(model.tokenizer(texts)["input_ids"]))


# --- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rounds": 0}, "at least 1 round; got 0"),
        ({"worst": 0}, "1 or more, or a share between 0 and 1 as a float; got 0"),
        ({"worst": 1.0}, "got 1.0"),
        ({"weight": 1.0}, "between 0 and 1; got 1.0"),
        ({"cut": "gredy"}, "Did you mean 'greedy'"),
    ],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadUsage, match=message):
        Robust(METHOD, **settings)


def test_what_no_round_could_use(tiny: Subject) -> None:
    def score(method: Any = METHOD, batch: Batch = tiny.batch, objective: str = "kl", clean: Pool = CLEAN, **more: Any) -> EdgeScores:
        return Robust(method, n_edges=20, **more).score(tiny.model, batch, clean, CORRUPTED, objective, progress=SILENT)

    with pytest.raises(BadUsage, match=r"compares with the clean run \(kl, js\); got 'logit_diff'"):
        score(objective="logit_diff")
    with pytest.raises(BadUsage, match="use eap-ig-inputs"):
        score(EAP())
    with pytest.raises(BadUsage, match="nap"):
        score(NAP(), objective="js")
    with pytest.raises(BadUsage, match="has no 5 pairs"):
        score(worst=5)
    shorter = pool(tiny.batch.clean[:1, -5:])
    with pytest.raises(BadPairs, match="base pairs and the discovery grid share 1 prompts"):
        score(clean=shorter)  # the first base pair without its padding
    with pytest.raises(UnknownName):
        score(by="size")


def test_prompts_are_shared_whichever_side_they_are_on() -> None:
    with pytest.raises(BadPairs, match="a and the b share 2 prompts"):
        check_apart("a", [CLEAN], "b", [CORRUPTED, CLEAN.select([3, 1])])
    check_apart("a", [CLEAN], "b", [CORRUPTED])


def test_any_method_of_edges_will_do(tiny: Subject) -> None:
    found = Robust(Random(seed=3), n_edges=20, rounds=1, worst=1).score(tiny.model, tiny.batch, CLEAN, CORRUPTED, "js", progress=SILENT)
    assert found.provenance["n_added"] == 1 and found.provenance["objective"] == "js"


# --- circuits on the same pairs -----------------------------------------------------------------------


def grid(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.gamma(1.0, size=(120, 1)) + rng.gamma(1.0, size=(1, 101)) + 0.1 * rng.gamma(1.0, size=(120, 101))


def test_differences_are_of_the_same_resamples() -> None:
    values = grid(0)
    ours = Resampled.of(values, 1)
    same = ours.minus(ours).estimates()
    assert all(each.value == 0 for each in same.values())
    assert same["mean"].low == same["mean"].high == same["95%"].low == same["95%"].high == 0
    shifted = Resampled.of(values + 2, 1).minus(ours).estimates()
    assert [each.value for each in shifted.values()] == pytest.approx([2, 2, 2, 2])
    assert [shifted["mean"].low, shifted["mean"].high] == pytest.approx([2, 2], abs=1e-5)
    # A mean is linear: the resampled difference is that of the grid of differences.
    other = values + 0.3 * grid(5)
    paired, direct = Resampled.of(other, 1).minus(ours).estimates()["mean"], Resampled.of(other - values, 1).estimates()["mean"]
    assert [paired.value, paired.low, paired.high] == pytest.approx([direct.value, direct.low, direct.high], abs=1e-5)
    alone = Resampled.of(other, 1).estimates()["mean"]
    assert paired.high - paired.low < 0.5 * (alone.high - alone.low)
    for wrong in (Resampled.of(values[:3], 1), Resampled.of(values, 2), Resampled.of(values, 1, (0.5, 0.9))):
        with pytest.raises(BadUsage, match="same resamples"):
            ours.minus(wrong)


def test_statistics_of_a_grid() -> None:
    values = grid(2)
    found = Resampled.of(values, 0, (0.5, 0.9)).estimates()
    assert list(found) == ["mean", "50%", "90%", "max"]
    expected = [values.mean(), *np.quantile(values, (0.5, 0.9)), values.max()]
    assert [each.value for each in found.values()] == pytest.approx(expected)
    assert found["mean"].low < values.mean() < found["mean"].high and np.isnan(found["max"].low)


def test_percentiles_that_few_inputs_lie_beyond_have_no_interval() -> None:
    """101 columns: 5 lie beyond the 95th percentile, 1 beyond the 99th. Of 99 not even 5, of 4 nothing is known."""
    one, other = (Resampled.of(grid(seed), 0) for seed in (3, 4))
    for found in (one.estimates(), one.minus(other).estimates()):
        assert np.isfinite([each.value for each in found.values()]).all()
        assert [bool(np.isfinite([each.low, each.high]).all()) for each in found.values()] == [True, True, False, False]
        assert np.isnan([found["99%"].low, found["99%"].high]).all()
    less, few = (Resampled.of(grid(3)[:, :n], 0, n_resamples=50).estimates() for n in (99, 4))
    assert np.isnan(less["95%"].low) and np.isfinite(less["mean"].low)
    assert all(np.isnan(each.low) and np.isnan(each.high) for each in few.values())
    with pytest.raises(BadUsage, match="at least 1 resample"):
        Resampled.of(grid(3), 0, n_resamples=0)


def test_over_repeats_by_hand() -> None:
    found = over_repeats([Estimate(value, value - 9, value + 9) for value in (1.0, 2.0, 3.0)])
    half = 4.302653 / np.sqrt(3)  # Student's t with 2 degrees of freedom; the standard deviation is 1
    assert [found.value, found.low, found.high] == pytest.approx([2, 2 - half, 2 + half], rel=1e-6)
    assert over_repeats([Estimate(1.0, 0.0, 2.0)]) == Estimate(1.0, 0.0, 2.0)


# --- the experiment -----------------------------------------------------------------------------------


def test_the_experiment_compares_three_rankings_and_goes_on_where_it_was(tmp_path: Path) -> None:
    truth = load_truth("truth-ioi")
    run = RobustRun(
        "truth-ioi", "truth-ioi", edges=6, sizes=(6, 9), rounds=2, worst=3, n_base=8, n_discovery=8, n_held_out=9, repeats=2, seed=4
    )
    found = run_robust(run, tmp_path, truth.model, truth.task, progress=SILENT)
    assert [repeat["seed"] for repeat in found] == [4, 5] and found[0] != found[1]
    cells = {(cell["ranking"], cell["size"]): cell for cell in found[0]["cells"]}
    assert [cells[name, 6]["pairs"] for name in ("plain", "plain + random pairs", "robust")] == [8, 14, 14]
    for row in found[0]["differences"]:
        means = [cells[row[side], row["size"]]["statistics"]["mean"][0] for side in ("of", "minus")]
        assert row["statistics"]["mean"][0] == pytest.approx(means[0] - means[1], abs=1e-6)
    # The true circuit has nine edges: there every ranking does what the model does, and no edges do not.
    assert cells["plain", 9]["statistics"]["max"][0] < 1e-4 < 1 < found[0]["empty"]["mean"][0]

    assert write_robust(run, tmp_path, found).read_text("utf-8").count("<table") >= 5
    assert "robust minus plain + random pairs" in (tmp_path / "tables.md").read_text("utf-8")
    assert json.loads((tmp_path / "result.json").read_text("utf-8"))["repeats"] == found
    kept = EdgeScores.load(tmp_path / "scores" / "0-robust.safetensors", truth.model.graph)
    assert kept.provenance["n_added"] == 6 and len(kept.top(6, by="magnitude")) == cells["robust", 6]["edges"]
    titles = [table.title for table in robust_grids(run, found)]
    assert titles[:2] == ["KL, 6 edges", "Differences of KL, 6 edges"]

    (tmp_path / "repeats" / "1.json").unlink()
    assert run_robust(run, tmp_path, truth.model, truth.task, progress=SILENT) == found
    with pytest.raises(BadUsage, match="rounds"):
        run_robust(dataclasses.replace(run, rounds=1), tmp_path, truth.model, truth.task, progress=SILENT)
