"""Robust discovery: its loop by a slow one, pairs drawn anew,
what it refuses, and a failure that it must find.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch

from helpers.pairs import unequal_pairs
from mechassay.circuits import (
    EAP,
    EAPIGInputs,
    EdgeScores,
    Random,
    SubnetworkProbing,
    ablate,
    evaluate,
)
from mechassay.circuits.methods.eap import NAP
from mechassay.circuits.methods.method import paired
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.prompts.batch import Batch
from mechassay.prompts.pairs import Pair
from mechassay.testing.tiny import Subject, subject
from mechassay.truth.ground_truth import load_truth
from mechassay.utils.display import SILENT
from studies.robust.discovery import Redrawn, Robust, check_apart, labels_of
from studies.robust.tails import MEAN, CVaR, Mixture, Tail, Weights, WorstGroup

pytestmark = pytest.mark.guard

METHOD = EAPIGInputs(steps=2)
LABELS = ["a", "b", "a", "b", "a", "b"]


@pytest.fixture(scope="module")
def tiny() -> Subject:
    return unequal_pairs()


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


@pytest.mark.slow
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


def test_groups_weights_go_from_step_to_step_of_a_training() -> None:
    """With a step of 0 groups count alike for good: the mean, where each example is a group.
    Else the worst one comes to rule.
    """
    tiny = subject("gpt2", torch.float64)
    pairs = Redrawn.of(tiny.batch, "matched", (), ["a", "b", "c"])
    seen: list[torch.Tensor] = []

    @dataclasses.dataclass(frozen=True)
    class Watched(WorstGroup):
        def weights(
            self, losses: torch.Tensor, groups: torch.Tensor, standing: torch.Tensor
        ) -> Weights:
            seen.append(standing)
            return super().weights(losses, groups, standing)

    method = SubnetworkProbing(steps=6, lr=0.1)
    plain, even, ruled = (
        Robust(method, tail, 20).score(tiny.model, pairs, progress=SILENT).values.nan_to_num(7.0)
        for tail in (MEAN, Watched(0.0), Watched(1e3))
    )
    torch.testing.assert_close(even, plain, rtol=1e-9, atol=1e-12)
    assert not torch.allclose(ruled, plain, rtol=1e-6, atol=1e-9)
    assert all(torch.allclose(each, torch.full_like(each, 1 / 3)) for each in seen[:7])
    assert float(seen[-1].max()) > 0.999
