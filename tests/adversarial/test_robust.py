"""Robust discovery: its loop by a slow one, pairs drawn anew,
what it refuses, and a failure that it must find.
"""

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
from mechassay.adversarial.robust import Redrawn, Robust, labels_of
from mechassay.circuits import (
    EAP,
    EAPIGInputs,
    EdgeScores,
    Random,
    SubnetworkProbing,
    ablate,
    evaluate,
)
from mechassay.circuits.methods.nap import NAP
from mechassay.circuits.pairing import paired
from mechassay.circuits.tail import MEAN, CVaR, Mixture, Tail, WorstGroup
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.examples import Prompt
from mechassay.pairs import Batch, Pair
from mechassay.progress import SILENT
from mechassay.runs.robust import (
    OWN,
    RobustRun,
    check_apart,
    robust_grids,
    run_robust,
    strata_grid,
    write_robust,
)
from mechassay.stats.resampled import IntervalEstimate, Resampled, over_repeats
from mechassay.stats.two_way import two_way_worst
from mechassay.truth.models import load_truth
from tiny import VOCABULARY, Subject, subject

METHOD = EAPIGInputs(steps=2)
LABELS = ["a", "b", "a", "b", "a", "b"]


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


# --- pairs drawn anew
# ---------------------------------------------------------------------------------


def test_pairs_and_their_groups_are_those_of_the_pairing(tiny: Subject) -> None:
    pairs = Redrawn.of(tiny.batch, "same-template", ["s", "s", "s", "t", "u", "t"], LABELS)
    batch, groups = pairs.draw(np.random.default_rng(3))
    expected = paired(
        tiny.batch, "same-template", np.random.default_rng(3), ["s", "s", "s", "t", "u", "t"]
    )
    assert batch.content == expected.batch.content and torch.equal(
        batch.counterfactual, expected.batch.counterfactual
    )
    # The fifth pair is alone in its template: five are left, of groups a, b, a, b, b.
    assert (
        expected.n_alone == 1
        and pairs.group_names == ("a", "b")
        and groups.tolist() == [0, 1, 0, 1, 1]
    )
    matched, whole = Redrawn.of(tiny.batch, "matched").draw(np.random.default_rng(0))
    assert matched is tiny.batch and whole.tolist() == [0] * 6


def test_what_cannot_be_drawn_anew(tiny: Subject) -> None:
    with pytest.raises(UnknownName, match="pairing"):
        Redrawn.of(tiny.batch, "randm")
    with pytest.raises(BadUsage, match="got 2 groups of 6 pairs"):
        Redrawn.of(tiny.batch, "random", (), ["a", "b"])
    constants = ablate(tiny.model, tiny.batch, "zero", progress=SILENT)
    with pytest.raises(BadUsage, match="constants in their place"):
        Redrawn.of(constants, "random")


def test_labels_are_tags_or_parts() -> None:
    pairs = [Pair("0", "Ann ran", "Bob ran", (), (), tags={"kind": "x"}, spans={"name": (0, 3)})]
    assert labels_of(pairs, "kind") == ["x"] and labels_of(pairs, "name") == ["Ann"]
    with pytest.raises(UnknownName, match="Did you mean 'name'"):
        labels_of(pairs, "nam")


# --- the loop
# -----------------------------------------------------------------------------------------


def slowly(tiny: Subject, robust: Robust, seed: int) -> list[dict[str, Any]]:
    """The rounds with one pair at a time; the last entry has the scores."""
    rng, standing = np.random.default_rng(seed), torch.full((2,), 0.5, dtype=torch.float64)
    pairs = Redrawn.of(tiny.batch, "random", (), LABELS)

    def each(batch: Batch) -> list[torch.Tensor]:
        rows = range(len(batch))
        return [
            METHOD.score(tiny.model, batch.select([row]), "kl", progress=SILENT).values
            for row in rows
        ]

    first, _ = pairs.draw(rng)
    scores = torch.stack(each(first)).mean(dim=0)
    found: list[torch.Tensor] = []
    seen: list[dict[str, Any]] = []
    for _ in range(robust.rounds):
        batch, groups = pairs.draw(rng)
        circuit = EdgeScores(tiny.model.graph, scores).top(robust.n_edges, by="magnitude")
        losses = [
            float(evaluate(tiny.model, circuit, batch.select([row]), "kl", progress=SILENT)[0])
            for row in range(len(batch))
        ]
        weights, standing = robust.tail.weights(
            torch.tensor(losses, dtype=torch.float64), groups, standing
        )
        found.append(
            sum(weight * one for weight, one in zip(weights.tolist(), each(batch), strict=True))
        )
        scores = torch.stack(found).mean(dim=0)
        seen.append({"losses": losses, "weights": weights, "groups": standing, "circuit": circuit})
    return [*seen, {"scores": scores}]


@pytest.mark.parametrize(
    "tail", [CVaR(0.4), Mixture(0.3, 0.2), WorstGroup(2.0)], ids=lambda tail: tail.name
)
def test_the_loop_is_the_slow_one(tiny: Subject, tail: Tail) -> None:
    robust = Robust(METHOD, tail, n_edges=20, rounds=2)
    found = robust.score(
        tiny.model, Redrawn.of(tiny.batch, "random", (), LABELS), seed=5, progress=SILENT
    )
    *rounds, last = slowly(tiny, robust, 5)
    torch.testing.assert_close(found.values, last["scores"], rtol=1e-4, atol=1e-7, equal_nan=True)
    for entry, expected in zip(found.provenance["rounds"], rounds, strict=True):
        losses, weights = torch.tensor(expected["losses"], dtype=torch.float64), expected["weights"]
        by_hand = [
            losses.mean(),
            losses @ weights,
            losses.max(),
            len(expected["circuit"]),
            len(expected["circuit"].pruned()),
        ]
        assert [
            entry[name] for name in ("mean", "tail", "max", "edges", "edges_on_a_path")
        ] == pytest.approx(list(map(float, by_hand)))
        assert entry["groups"] == pytest.approx(
            {"a": float(expected["groups"][0]), "b": float(expected["groups"][1])}
        )
    about = found.provenance
    assert about["n_examples"] == sum(int((each["weights"] > 0).sum()) for each in rounds)
    assert (
        about["settings"]["tail"]["name"] == tail.name and about["settings"]["method"]["steps"] == 2
    )
    json.dumps(about)


def test_the_mean_is_that_of_all_pairs_drawn(tiny: Subject) -> None:
    pairs, rng = Redrawn.of(tiny.batch, "random"), np.random.default_rng(7)
    drawn = [pairs.draw(rng)[0] for _ in range(3)]
    plain = [METHOD.score(tiny.model, batch, "kl", progress=SILENT).values for batch in drawn[1:]]
    found = Robust(METHOD, MEAN, rounds=2).score(tiny.model, pairs, seed=7, progress=SILENT)
    torch.testing.assert_close(found.values, sum(plain) / 2, rtol=1e-4, atol=1e-7, equal_nan=True)
    assert found.provenance["n_examples"] == 12 and found.provenance["rounds"] == []
    # What counts all pairs alike is the mean, by whatever way.
    for tail in (CVaR(1.0), Mixture(1.0), WorstGroup(0.0)):
        other = Robust(METHOD, tail, n_edges=20, rounds=2).score(
            tiny.model, pairs, seed=7, progress=SILENT
        )
        torch.testing.assert_close(other.values, found.values, rtol=1e-4, atol=1e-7, equal_nan=True)


def test_a_pair_is_scored_once(tiny: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    score = EAPIGInputs.score

    def counted(self: EAPIGInputs, *args: Any, **options: Any) -> EdgeScores:
        calls.append(1)
        return score(self, *args, **options)

    monkeypatch.setattr(EAPIGInputs, "score", counted)
    pairs, known = Redrawn.of(tiny.batch, "random"), dict[bytes, torch.Tensor]()
    alone = Robust(METHOD, CVaR(0.3), n_edges=20).score(tiny.model, pairs, seed=1, progress=SILENT)
    calls.clear()
    Robust(METHOD, MEAN).score(tiny.model, pairs, seed=1, known=known, progress=SILENT)
    assert len(calls) == len(known) <= 18
    before = len(calls)
    shared = Robust(METHOD, CVaR(0.3), n_edges=20).score(
        tiny.model, pairs, seed=1, known=known, progress=SILENT
    )
    assert len(calls) - before <= 6  # of the first draw, which the mean does not score
    torch.testing.assert_close(shared.values, alone.values, equal_nan=True)


def test_a_trained_mask_gets_other_pairs_each_step_and_a_tail(tiny: Subject) -> None:
    method = SubnetworkProbing(steps=6, batch_size=4, lr=0.1)
    pairs = Redrawn.of(tiny.batch, "random", (), LABELS)
    found = {
        name: Robust(method, tail).score(tiny.model, each, progress=SILENT).values.nan_to_num(7.0)
        for name, tail, each in (
            ("plain", MEAN, pairs),
            ("again", MEAN, pairs),
            ("whole", CVaR(1.0), pairs),
            ("tail", CVaR(0.3), pairs),
            ("groups", WorstGroup(3.0), pairs),
            ("matched", MEAN, Redrawn.of(tiny.batch, "matched")),
        )
    }
    assert torch.equal(found["plain"], found["again"])
    torch.testing.assert_close(found["whole"], found["plain"], rtol=1e-9, atol=1e-12)
    for name in ("tail", "groups", "matched"):
        assert not torch.allclose(found[name], found["plain"], rtol=1e-6, atol=1e-9), name


def words(*texts: list[str]) -> list[list[list[int]]]:
    tokenizer: Any = load_truth("truth-ioi").model.tokenizer
    return [tokenizer(side)["input_ids"] for side in texts]


def named_pairs() -> Batch:
    """Twelve pairs with names of their own;
    only fillers differ within one, and fillers do not matter.
    """
    names = [
        ("Ann", "Bob"),
        ("Cid", "Dan"),
        ("Eve", "Fay"),
        ("Bob", "Cid"),
        ("Dan", "Ann"),
        ("Fay", "Eve"),
    ]
    shapes = ("then {0} . {1} , so so {0} so to", "then . so {0} {1} , {1} . so to")
    clean = [shape.format(*both) for both in names for shape in shapes]
    return Batch.from_tokens(
        *words(clean, [text.replace(".", "and") for text in clean]), [[]] * 12, [[]] * 12
    )


def test_where_no_pair_fails_a_tail_is_the_mean() -> None:
    """The true circuit, and then some: it departs from the model by rounding alone,
    and by more in some pairs than in others.
    """
    truth, pairs = load_truth("truth-ioi"), Redrawn.of(named_pairs(), "random", (), ["a", "b"] * 6)
    scores = EAPIGInputs().score(
        truth.model, pairs.draw(np.random.default_rng(0))[0], "kl", progress=SILENT
    )
    losses = evaluate(
        truth.model,
        scores.top(12, by="magnitude"),
        pairs.draw(np.random.default_rng(1))[0],
        "kl",
        progress=SILENT,
    )
    assert len(set(losses.tolist())) > 1 and losses.max() < 1e-5
    found = [
        Robust(EAPIGInputs(), tail, n_edges=12, rounds=1).score(truth.model, pairs, progress=SILENT)
        for tail in (MEAN, CVaR(0.2), Mixture(0.5, 0.2), WorstGroup(5.0))
    ]
    for each in found[1:]:
        torch.testing.assert_close(
            each.values, found[0].values, rtol=1e-4, atol=1e-7, equal_nan=True
        )
        assert [entry["counted"] for entry in each.provenance["rounds"]] == [12]


def test_pairing_anew_shows_what_matched_pairs_hide() -> None:
    """Names are a pair's own, and only fillers differ within one:
    matched pairs show no edge of the circuit, others all nine.
    """
    truth = load_truth("truth-ioi")
    batch = named_pairs()
    circuit = truth.circuits["counterfactual"]
    shared: dict[str, int] = {}
    for pairing in ("matched", "random"):
        robust = Robust(EAPIGInputs(), MEAN, n_edges=len(circuit))
        found = robust.circuit(
            robust.score(truth.model, Redrawn.of(batch, pairing), progress=SILENT)
        )
        shared[pairing] = int((found.edges & circuit.edges).sum())
    assert shared["matched"] < 3 and shared["random"] == 9, shared


def test_a_tail_counts_the_one_pair_that_fails() -> None:
    """In seven pairs of eight just fillers differ, and nothing fails;
    the mean is an eighth of what the worst eighth says.
    """
    truth = load_truth("truth-ioi")
    fillers = [f"then Ann Bob {a} {b} so so so Ann to" for a in (",", ".") for b in (",", ".")]
    clean = [*fillers, *(text.replace("so so so", "so , so") for text in fillers)]
    other = [
        *(text.replace("so so so", "so . .") for text in clean[:7]),
        "then Cid Dan . . . . . Dan to",
    ]
    pairs = Redrawn.of(Batch.from_tokens(*words(clean, other), [[]] * 8, [[]] * 8), "random")
    plain, worst = (
        Robust(EAPIGInputs(), tail, n_edges=1, rounds=1).score(truth.model, pairs, progress=SILENT)
        for tail in (MEAN, CVaR(1 / 8))
    )
    (entry,) = worst.provenance["rounds"]
    assert (
        entry["counted"] == 1
        and entry["tail"] == entry["max"] > 1
        and entry["mean"] == pytest.approx(entry["max"] / 8, rel=1e-3)
    )
    large = plain.values.nan_to_num().abs() > 1e-3
    assert int(large.sum()) >= 7
    torch.testing.assert_close(worst.values[large], 8 * plain.values[large], rtol=1e-2, atol=1e-3)


# --- what is refused
# ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"rounds": 0}, "at least 1 round; got 0"), ({"cut": "gredy"}, "Did you mean 'greedy'")],
)
def test_bad_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadUsage, match=message):
        Robust(METHOD, **settings)


def test_what_no_round_could_use(tiny: Subject) -> None:
    def score(method: Any = METHOD, objective: str = "kl", **more: Any) -> EdgeScores:
        return Robust(method, CVaR(), n_edges=20, **more).score(
            tiny.model, Redrawn.of(tiny.batch, "random"), objective, progress=SILENT
        )

    with pytest.raises(BadUsage, match=r"compares with the clean run \(kl, js\); got 'logit_diff'"):
        score(objective="logit_diff")
    with pytest.raises(BadUsage, match="use eap-ig-inputs"):
        score(EAP())
    with pytest.raises(BadUsage, match="nap"):
        score(NAP(), objective="js")
    with pytest.raises(UnknownName):
        score(by="size")


def test_prompts_are_shared_whichever_side_they_are_on(tiny: Subject) -> None:
    batch = tiny.batch
    turned = dataclasses.replace(batch.select([1, 3]), clean=batch.select([1, 3]).counterfactual)
    with pytest.raises(BadPairs, match="a and the b share 2 prompts"):
        check_apart("a", batch, "b", turned)
    check_apart("a", batch.select([0, 1]), "b", batch.select([2, 3]))


def test_any_method_of_edges_will_do(tiny: Subject) -> None:
    pairs = Redrawn.of(tiny.batch, "random")
    found = Robust(Random(seed=3), CVaR(), n_edges=20, rounds=1).score(
        tiny.model, pairs, "js", progress=SILENT
    )
    assert found.provenance["objective"] == "js" and found.provenance["method"] == "robust"


# --- circuits on the same pairs
# -----------------------------------------------------------------------


def grid(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (
        rng.gamma(1.0, size=(120, 1))
        + rng.gamma(1.0, size=(1, 101))
        + 0.1 * rng.gamma(1.0, size=(120, 101))
    )


def test_differences_are_of_the_same_resamples() -> None:
    values = grid(0)
    ours = Resampled.of(values, 1)
    same = ours.minus(ours).estimates()
    assert all(each.value == 0 for each in same.values())
    assert (
        same["mean"].low
        == same["mean"].high
        == same["worst 10%"].low
        == same["worst 10%"].high
        == 0
    )
    shifted = Resampled.of(values + 2, 1).minus(ours).estimates()
    assert [each.value for each in shifted.values()] == pytest.approx([2, 2, 2, 2])
    assert [shifted["worst 10%"].low, shifted["worst 10%"].high] == pytest.approx([2, 2], abs=1e-5)
    assert [shifted["mean"].low, shifted["mean"].high] == pytest.approx([2, 2], abs=1e-5)
    # A mean is linear: the resampled difference is that of the grid of differences.
    other = values + 0.3 * grid(5)
    paired, direct = (
        Resampled.of(other, 1).minus(ours).estimates()["mean"],
        Resampled.of(other - values, 1).estimates()["mean"],
    )
    assert [paired.value, paired.low, paired.high] == pytest.approx(
        [direct.value, direct.low, direct.high], abs=1e-5
    )
    alone = Resampled.of(other, 1).estimates()["mean"]
    assert paired.high - paired.low < 0.5 * (alone.high - alone.low)
    for wrong in (
        Resampled.of(values[:3], 1),
        Resampled.of(values, 2),
        Resampled.of(values, 1, (0.5, 0.9)),
    ):
        with pytest.raises(BadUsage, match="same resamples"):
            ours.minus(wrong)


def test_statistics_of_a_grid() -> None:
    values = grid(2)
    found = Resampled.of(values, 0, (0.5, 0.9), 0.25).estimates()
    assert list(found) == ["mean", "worst 25%", "50%", "90%", "max"]
    # A quarter of 120 x 101 values are 3,030.
    expected = [
        values.mean(),
        np.sort(values, axis=None)[-3030:].mean(),
        *np.quantile(values, (0.5, 0.9)),
        values.max(),
    ]
    assert [each.value for each in found.values()] == pytest.approx(expected)
    assert found["mean"].low < values.mean() < found["mean"].high and np.isnan(found["max"].low)


def test_percentiles_that_few_inputs_lie_beyond_have_no_interval() -> None:
    """101 columns: 5 lie beyond the 95th percentile, 1 beyond the 99th.
    Of 99 not even 5, of 4 nothing is known.
    """
    one, other = (Resampled.of(grid(seed), 0, (0.95, 0.99)) for seed in (3, 4))
    for found in (one.estimates(), one.minus(other).estimates()):
        assert np.isfinite([each.value for each in found.values()]).all()
        assert [bool(np.isfinite([each.low, each.high]).all()) for each in found.values()] == [
            True,
            True,
            True,
            False,
            False,
        ]
        assert np.isnan([found["99%"].low, found["99%"].high]).all()
    less, few = (
        Resampled.of(grid(3)[:, :n], 0, (0.95, 0.99), n_resamples=50).estimates() for n in (99, 4)
    )
    assert (
        np.isnan(less["95%"].low)
        and np.isfinite(less["mean"].low)
        and np.isfinite(less["worst 10%"].low)
    )
    assert all(np.isnan(each.low) and np.isnan(each.high) for each in few.values())
    with pytest.raises(BadUsage, match="at least 1 resample"):
        Resampled.of(grid(3), 0, n_resamples=0)
    with pytest.raises(BadUsage, match="worst share"):
        Resampled.of(grid(3), 0, worst=1.0)


def test_the_worst_share_of_each_resample_slowly() -> None:
    """Every pair as often as its row and column were drawn, sorted, with the last one in part."""
    values = grid(6)[:7, :9].astype(np.float32)
    values[2:5, 3:6] = np.nan
    found = two_way_worst(values, np.random.default_rng(8), 0.3, 20)
    rng = np.random.default_rng(8)
    rows, columns = (rng.multinomial(n, np.full(n, 1 / n), size=20) for n in values.shape)
    for draw in range(20):
        drawn = np.repeat(np.repeat(values, rows[draw], axis=0), columns[draw], axis=1).ravel()
        drawn = np.sort(drawn[~np.isnan(drawn)].astype(float))[::-1]
        whole = int(0.3 * len(drawn))
        total = drawn[:whole].sum() + (0.3 * len(drawn) - whole) * drawn[whole]
        assert found[draw] == pytest.approx(total / (0.3 * len(drawn)))
    # What is alike everywhere has no tail.
    assert two_way_worst(
        np.full((5, 6), 2.0), np.random.default_rng(0), 0.1, 3
    ).tolist() == pytest.approx([2, 2, 2])


def test_values_that_are_not_there_are_left_out_of_everything() -> None:
    """Two templates: blocks of 60 x 40 and 60 x 61 in a grid of 120 x 101.
    No prompt is in more than 61 of 6,060 pairs.
    """
    values = grid(7)
    values[:60, 40:] = values[60:, :40] = np.nan
    known = values[~np.isnan(values)]
    found = Resampled.of(values, 0).estimates()
    expected = [known.mean(), np.sort(known)[-606:].mean(), np.quantile(known, 0.99), known.max()]
    assert [each.value for each in found.values()] == pytest.approx(expected)
    assert found["mean"].low < known.mean() < found["mean"].high
    # 6,060 / 61 = 99 prompts, of which one lies beyond the 99th percentile.
    assert np.isfinite(found["worst 10%"].low) and np.isnan(found["99%"].low)
    # Of one pair a prompt there are ten.
    sparse = np.where(np.eye(10, dtype=bool), grid(7)[:10, :10], np.nan)
    assert np.isfinite(Resampled.of(sparse, 0).estimates()["mean"].low) and np.isnan(
        Resampled.of(sparse, 0).estimates()["worst 10%"].low
    )
    with pytest.raises(BadUsage, match="all are NaN"):
        Resampled.of(np.full((3, 3), np.nan), 0)


def test_over_repeats_by_hand() -> None:
    found = over_repeats(
        [IntervalEstimate(value, value - 9, value + 9) for value in (1.0, 2.0, 3.0)]
    )
    half = 4.302653 / np.sqrt(
        3
    )  # Student's t with 2 degrees of freedom; the standard deviation is 1
    assert [found.value, found.low, found.high] == pytest.approx([2, 2 - half, 2 + half], rel=1e-6)
    assert over_repeats([IntervalEstimate(1.0, 0.0, 2.0)]) == IntervalEstimate(1.0, 0.0, 2.0)


# --- the experiment
# -----------------------------------------------------------------------------------


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
