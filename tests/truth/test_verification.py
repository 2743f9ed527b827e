"""Verification by intervention: worked by hand, against exact patching,
and on the shipped models.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.ablation import ablate
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.circuits.methods.exact_patching import ExactPatching
from mechassay.errors import BadUsage, GraphMismatch, UnknownName
from mechassay.models.graph import Graph
from mechassay.models.sources import truth_names
from mechassay.truth.compiled import BLUEPRINTS
from mechassay.truth.ground_truth import load_truth
from mechassay.truth.verification import (
    ABLATIONS,
    LEAST_SHARE,
    MARGIN,
    Backup,
    Verification,
    above_the_gap,
    effects_by_pair,
    verify,
)

truth_of = cache(load_truth)
NAMES = sorted(BLUEPRINTS)
SMALL = Graph(1, 1)


def effects_of(**named: float) -> torch.Tensor:
    """Effects of a graph of one layer and one head, 0 where not named."""
    effects = torch.where(SMALL.legal, 0.0, float("nan")).double()
    for name, value in named.items():
        effects[SMALL.index(EDGES[name])] = value
    return effects


EDGES = {"v": "input->a0.h0<v>", "mlp": "a0.h0->m0", "out": "m0->logits", "direct": "input->logits"}


# --- by hand
# -------------------------------------------------------------------------------------------


def test_the_gap_is_the_widest_ratio() -> None:
    found = above_the_gap(SMALL, effects_of(v=8, mlp=4, out=2, direct=0.02))
    # 8:4 and 4:2 are 2; 2:0.02 is 100; 0.02 to the floor of 0.0008 is 25; below it nothing counts.
    assert found == Circuit.from_names(SMALL, [EDGES[name] for name in ("v", "mlp", "out")])


def test_effects_below_the_floor_are_no_gap() -> None:
    # 1e-9 and 1e-14 both count as the floor of 1e-4: their ratio of 1e5 is none.
    assert above_the_gap(SMALL, effects_of(v=1, out=1e-9, direct=1e-14)) == Circuit.from_names(
        SMALL, [EDGES["v"]]
    )


def test_no_effect_is_the_empty_circuit_and_equal_effects_the_full_one() -> None:
    assert above_the_gap(SMALL, effects_of()) == Circuit.empty(SMALL)
    assert above_the_gap(
        SMALL, torch.where(SMALL.legal, 3.0, float("nan")).double()
    ) == Circuit.full(SMALL)


@pytest.mark.parametrize("bad", [-1.0, float("inf"), float("nan")])
def test_impossible_effects_are_refused(bad: float) -> None:
    with pytest.raises(BadUsage, match="finite and not negative"):
        above_the_gap(SMALL, effects_of(v=bad))


def done_with(claimed: Circuit, *pairs: torch.Tensor, together: float = 0.0) -> Verification:
    return Verification("zero", claimed, torch.stack(pairs), together)


def test_margins_by_hand() -> None:
    right = Circuit.from_names(SMALL, [EDGES["v"], EDGES["mlp"]])
    done = done_with(right, effects_of(v=8, mlp=4, direct=0.5), together=0.2)
    assert (done.smallest_inside, done.largest_outside, done.margin, done.n_pairs) == (4, 0.5, 8, 1)
    assert done.joint_margin == pytest.approx(20)
    assert not done.holds  # 8 is less than MARGIN, and 0.5 to the floor is the widest gap
    assert not done_with(right, effects_of(v=8, mlp=4, direct=1e-9), together=0.5).holds
    clear = done_with(right, effects_of(v=8, mlp=4, direct=4 / MARGIN / 1000))
    assert (
        clear.holds
        and clear.margin == pytest.approx(1000 * MARGIN)
        and clear.joint_margin == math.inf
    )


def test_shares_by_hand() -> None:
    """The largest effect outside is 0.5, in the first pair."""
    claimed = Circuit.from_names(SMALL, [EDGES["v"], EDGES["mlp"]])
    done = done_with(
        claimed,
        effects_of(v=8, mlp=4, direct=0.5),
        effects_of(v=8, mlp=0, direct=0.01),
        effects_of(v=0.5, mlp=0.4, direct=0.01, out=0.4),
        effects_of(v=0.005, mlp=3, direct=0.01),
    )
    v, mlp, direct = (SMALL.index(EDGES[name]) for name in ("v", "mlp", "direct"))
    assert (float(done.shares[v]), float(done.shares[mlp]), float(done.shares[direct])) == (
        2 / 4,
        2 / 4,
        0,
    )
    # In the third pair 0.5 exceeds 0.4, and 0.4 does not; in the fourth 0.005 does not exceed 0.01.
    assert (
        float(done.shares_in_pair[v]),
        float(done.shares_in_pair[mlp]),
        float(done.shares_in_pair[direct]),
    ) == (3 / 4, 2 / 4, 0)
    assert done.least_share == 1 / 2
    assert bool((done.shares.isnan() == ~SMALL.legal).all()) and bool(
        (done.shares_in_pair.isnan() == ~SMALL.legal).all()
    )


def test_an_edge_that_few_pairs_show_does_not_hold_whatever_its_margin() -> None:
    claimed = Circuit.from_names(SMALL, [EDGES["v"], EDGES["mlp"]])
    common, rare = effects_of(v=8, direct=1e-3), effects_of(v=8, mlp=8, direct=1e-3)
    n = int(1 / LEAST_SHARE)
    enough, few = (
        done_with(claimed, rare, *[common] * (n - 1)),
        done_with(claimed, rare, *[common] * n),
    )
    assert enough.holds and enough.least_share == LEAST_SHARE
    # The margin is that of a maximum: the same, or none in the pairs that lack the rare one.
    assert few.margin == enough.margin == 8000 and few.recovered == claimed and not few.holds
    assert done_with(claimed, common).margin == 0 and not done_with(claimed, common).holds


def test_a_claim_of_nothing_or_of_all_has_no_margin() -> None:
    for claim in (Circuit.empty(SMALL), Circuit.full(SMALL)):
        done = done_with(claim, effects_of(v=8))
        assert math.isnan(done.margin) and math.isnan(done.least_share) and not done.holds


def test_no_effect_anywhere_has_no_margin() -> None:
    done = done_with(Circuit.from_names(SMALL, [EDGES["v"]]), effects_of())
    assert math.isnan(done.margin) and done.least_share == 0 and not done.holds


def test_a_backup_by_hand() -> None:
    """Four pairs: without the primary head three answers are ahead, without both one is."""
    values = np.array([[8, 8, 8, 8], [4, 4, 4, -1], [8, 8.25, 7.5, 8], [-8, -8, 1, 0]])
    backup = Backup("a0.h0", "m0", values)
    assert (backup.survives, backup.lost, backup.heard) == (0.75, 0.75, 0.5)


def test_a_circuit_holds_only_with_a_backup_that_saves_the_answer_and_is_silent() -> None:
    right = Circuit.from_names(SMALL, [EDGES["v"], EDGES["mlp"]])
    plain = done_with(right, effects_of(v=8, mlp=4, direct=0.004))
    good = np.array([[8.0] * 20, [4.0] * 20, [8.25] * 20, [-8.0] * 20])
    assert replace(plain, backups=(Backup("a0.h0", "m0", good),)).holds
    for row, value in ((1, -1.0), (2, 8.5), (3, 1.0)):  # 0.5 is more than a tenth of 4.
        bad = good.copy()
        bad[row, :2] = value
        assert not replace(plain, backups=(Backup("a0.h0", "m0", bad),)).holds


def test_edges_that_show_only_without_a_head_by_hand() -> None:
    """The largest effect outside is 0.4: an effect has to reach 4, and 0.4 in a quarter of five."""
    claimed = Circuit.from_names(SMALL, [EDGES["v"], EDGES["mlp"], EDGES["out"]])
    plain = done_with(claimed, *[effects_of(v=8, mlp=8, out=8, direct=0.4)] * 5)
    assert plain.contingent == ()
    alone = [effects_of(v=4, mlp=3.9, out=8), effects_of(v=0.5, mlp=3.9)]
    alone += [effects_of(mlp=3.9)] * 3
    done = replace(plain, alone=torch.stack(alone))
    assert done.contingent == (EDGES["mlp"], EDGES["out"])


def test_with_a_backup_effects_are_the_largest_with_and_without_each_head_of_the_pair() -> None:
    truth = truth_of("truth-induction")
    model, circuit = truth.model, truth.circuits["counterfactual"]
    pairs = truth.task.pairs("train", model, limit=2)
    primary, other = "a0.h1", "a1.h3"
    done = verify(model, pairs, circuit, backups={other: primary})
    plain = verify(model, pairs, circuit)
    assert done.alone is not None and torch.equal(
        done.alone.nan_to_num(-1), plain.by_pair.nan_to_num(-1)
    )
    (backup,) = done.backups
    every = Circuit.full(model.graph).names()

    def value(kept: list[str]) -> np.ndarray:
        return evaluate(model, Circuit.from_names(model.graph, kept), pairs, "logit_diff")

    def less(names: list[str], *heads: str) -> list[str]:
        return [name for name in names if name.partition("->")[0] not in heads]

    ablated = ((), (primary,), (other,), (primary, other))
    by_hand = np.stack([value(less(every, *heads)) for heads in ablated])
    np.testing.assert_allclose(backup.values, by_hand, atol=1e-4)
    for name in (*circuit.names(), "input->logits", "a0.h0->a1.h3<v>"):
        there = model.graph.index(name)
        largest = plain.by_pair[:, *there].numpy()
        for head in (primary, other):
            names = less(every, head)
            gone = np.abs(value(names) - value([one for one in names if one != name]))
            largest = np.maximum(largest, gone)  # 0 for an edge of the head itself.
        np.testing.assert_allclose(done.by_pair[:, *there].numpy(), largest, atol=1e-3)
    apart = [
        np.abs(value(less(every, head)) - value(less(circuit.names(), head))).max()
        for head in (primary, other)
    ]
    assert done.together == pytest.approx(max(plain.together, *apart), abs=1e-3)


# --- against exact patching
# ----------------------------------------------------------------------------


@pytest.mark.parametrize("ablation", ["counterfactual", "mean"])
def test_effects_are_those_of_exact_patching_of_single_pairs(ablation: str) -> None:
    truth = truth_of("truth-induction")
    batch = ablate(truth.model, truth.task.pairs("train", truth.model, limit=2), ablation)
    single = [
        ExactPatching().score(truth.model, batch.select([row])).values.abs()
        for row in range(len(batch))
    ]
    torch.testing.assert_close(
        effects_by_pair(truth.model, batch).float(),
        torch.stack(single),
        atol=1e-3,
        rtol=1e-4,
        equal_nan=True,
    )


@pytest.mark.slow
def test_means_of_other_pairs() -> None:
    truth = truth_of("truth-fraction-trained")
    pairs, others = (truth.task.pairs("train", truth.model, limit=4, seed=seed) for seed in (0, 1))
    claimed = truth.circuits["mean"]
    given, own, theirs = (
        verify(truth.model, pairs, claimed, "mean", data=data) for data in (others, None, pairs)
    )
    by_hand = effects_by_pair(truth.model, ablate(truth.model, pairs, "mean", data=others))
    assert torch.equal(given.by_pair.nan_to_num(), by_hand.nan_to_num())
    assert torch.equal(own.by_pair.nan_to_num(), theirs.by_pair.nan_to_num())
    assert not torch.allclose(given.by_pair.nan_to_num(), own.by_pair.nan_to_num(), atol=1e-3)


# --- the shipped models
# --------------------------------------------------------------------------------


@pytest.mark.parametrize("ablation", ABLATIONS)
@pytest.mark.parametrize("name", NAMES)
def test_the_shipped_circuit_is_the_one_claimed(name: str, ablation: str) -> None:
    truth = truth_of(name)
    assert truth.circuits[ablation] == Circuit.from_names(
        truth.model.graph, list(BLUEPRINTS[name]().claimed(ablation))
    )
    assert truth.margins[ablation] > 1000


@pytest.mark.parametrize("name", truth_names())
def test_what_shipping_depends_on_is_stored(name: str) -> None:
    truth = truth_of(name)
    assert truth.n_pairs == 500
    for ablation, each in truth.verified.items():
        assert len(each.shares) == len(each.shares_in_pair) == len(each.circuit), ablation
        assert each.least_share >= LEAST_SHARE, ablation
        assert each.margin >= MARGIN and each.joint_margin >= MARGIN, ablation
        assert all(
            pair >= share for share, pair in zip(each.shares, each.shares_in_pair, strict=True)
        )


def test_what_is_stored_is_what_verification_finds() -> None:
    truth = truth_of("truth-previous-token-trained")
    done = verify(truth.model, truth.pairs(), truth.circuits["zero"], "zero")
    stored, inside = truth.verified["zero"], truth.circuits["zero"].edges
    assert (stored.smallest_inside, stored.largest_outside, stored.together) == pytest.approx(
        (done.smallest_inside, done.largest_outside, done.together), rel=1e-3
    )
    assert stored.shares == pytest.approx(done.shares[inside].tolist(), abs=0.004)
    assert stored.shares_in_pair == pytest.approx(done.shares_in_pair[inside].tolist(), abs=0.004)


# Every edge in every pair takes seconds: each model and each ablation here, all of both in
# tools/truth_models.py --check.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ablation"),
    [
        ("truth-previous-token", "zero"),
        ("truth-induction", "counterfactual"),
        ("truth-ioi", "mean"),
    ],
)
def test_the_shipped_circuit_holds_on_other_pairs(name: str, ablation: str) -> None:
    truth = truth_of(name)
    pairs = truth.task.pairs("train", truth.model, limit=200, seed=7)
    done = verify(truth.model, pairs, truth.circuits[ablation], ablation)
    assert done.recovered == truth.circuits[ablation]
    assert done.holds and done.margin > 1000
    assert done.smallest_inside == pytest.approx(truth.verified[ablation].smallest_inside, rel=0.2)


def test_a_wrong_claim_does_not_hold() -> None:
    truth = truth_of("truth-previous-token")
    pairs = truth.task.pairs("train", truth.model, limit=30)
    right = truth.circuits["counterfactual"]
    lacking = Circuit.from_names(right.graph, right.names()[1:])
    excessive = Circuit.from_names(right.graph, [*right.names(), "a0.h0->a1.h1<v>"])
    done = verify(truth.model, pairs, right)
    assert done.holds
    for claimed in (lacking, excessive):
        wrong = replace(done, claimed=claimed)
        assert not wrong.holds and wrong.margin < 1.5 and wrong.recovered == right


@pytest.mark.parametrize(
    ("name", "edge"),
    [
        ("truth-previous-token", "input->a1.h1<q>"),
        ("truth-ioi", "input->a1.h0<q>"),
        ("truth-ioi", "input->a2.h2<q>"),
    ],
)
def test_an_edge_that_carries_the_same_everywhere_is_invisible_to_counterfactuals(
    name: str, edge: str
) -> None:
    truth = truth_of(name)
    index = truth.model.graph.index(edge)
    assert not truth.circuits["counterfactual"].edges[index]
    assert truth.circuits["mean"].edges[index] and truth.circuits["zero"].edges[index]


def test_a_circuit_of_another_graph_is_refused() -> None:
    truth = truth_of("truth-induction")
    pairs = truth.task.pairs("train", truth.model, limit=2)
    with pytest.raises(GraphMismatch, match="The claimed circuit belongs to"):
        verify(truth.model, pairs, Circuit.full(SMALL))
    with pytest.raises(UnknownName, match="Unknown ablation 'zeros'"):
        verify(truth.model, pairs, truth.circuits["zero"], "zeros")
    with pytest.raises(GraphMismatch, match="The optional circuit belongs to"):
        verify(truth.model, pairs, truth.circuits["zero"], optional=Circuit.full(SMALL))
