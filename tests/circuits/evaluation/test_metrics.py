"""Metrics of scores on circuits that are known: perfect, worthless and undefined answers.

Recovery of a known circuit: counted by hand, against slow definitions,
and what must not change it.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import Tensor

from mechassay.circuits import (
    Circuit,
    EdgeScores,
    NeuronScores,
    NodeScores,
    Random,
    RandomPaths,
)
from mechassay.circuits.evaluation import METRICS
from mechassay.circuits.evaluation.ablation import ablate
from mechassay.circuits.evaluation.metrics import (
    Scored,
    _of_another,
    auprc_by_chance,
    auroc_interval,
    by_chance,
    by_edge,
    recovery_of,
)
from mechassay.circuits.scores import Scores
from mechassay.errors import BadUsage, GraphMismatch, UnknownName
from mechassay.models.graph import Graph
from mechassay.models.objectives import load_objective
from mechassay.results.records import Measure
from mechassay.stats.intervals import Interval
from mechassay.truth.ground_truth import Truth, load_truth
from mechassay.utils.display import SILENT

GRAPH = Graph(1, 1)


def test_an_edge_has_its_writer_s_score() -> None:
    # Eight edges: five out of input, two out of the head, one out of the MLP.
    nodes = NodeScores(GRAPH, torch.tensor([-2.0, 3.0, 1.0]))
    truth = Circuit.from_names(GRAPH, ["a0.h0->logits", "input->logits"])
    # The head's true edge lies above 5 false ones and ties with 1; that of the input above 1, and
    # ties with 4.
    assert recovery_of(by_edge(nodes), truth, by="magnitude").auroc == pytest.approx((5.5 + 3) / 12)
    neurons = NeuronScores(GRAPH, torch.tensor([[-4.0, 2.0], [0.0, 3.0], [0.5, 0.5]]))
    assert torch.equal(by_edge(neurons).values.nan_to_num(9), by_edge(nodes).values.nan_to_num(9))
    assert not bool(by_edge(nodes).values[~GRAPH.legal].isfinite().any())


def test_chance_is_what_random_rankings_are_between() -> None:
    graph = Graph(2, 4)
    truth = Circuit(graph, graph.legal & (torch.arange(graph.n_readers) < 2))
    found = [
        recovery_of(Random(seed=seed).draw(graph), truth, by="magnitude").auroc
        for seed in range(150)
    ]
    low, high, _ = by_chance(len(truth), graph.n_edges - len(truth))
    assert low + high == pytest.approx(1)
    assert np.quantile(found, (0.025, 0.975)) == pytest.approx((low, high), abs=0.06) and np.mean(
        found
    ) == pytest.approx(0.5, abs=0.03)


def test_the_average_precision_of_random_rankings() -> None:
    # One true edge of two is first or second: (1 + 1/2) / 2.
    assert auprc_by_chance(1, 1) == pytest.approx(0.75)
    assert auprc_by_chance(3, 0) == pytest.approx(1)
    for n_true, n_false in ((1, 4), (2, 3), (3, 3)):
        edges = range(n_true + n_false)
        precisions = [
            np.mean([(k + 1) / (place + 1) for k, place in enumerate(places)])
            for places in combinations(edges, n_true)
        ]
        assert auprc_by_chance(n_true, n_false) == pytest.approx(float(np.mean(precisions)))


@pytest.fixture(scope="module")
def truth() -> Truth:
    return load_truth("truth-previous-token")


def measured(
    truth: Truth, metric: str, scores: Scores, n_pairs: int = 12
) -> dict[tuple[str, str], Measure]:
    """The measures of a metric, by name and what they are of."""
    model = truth.model
    batch = ablate(model, model.batch(truth.task.pairs("test", model, limit=n_pairs)), "zero")
    scored = Scored(
        model,
        scores,
        batch,
        load_objective("logit_diff"),
        truth.circuits["zero"],
        progress=SILENT,
    )
    return {(each.name, each.of): each for each in METRICS.make(metric).measure(scored).measures}


def exact(truth: Truth) -> EdgeScores:
    circuit = truth.circuits["zero"]
    return EdgeScores.of(circuit.graph, circuit.edges.float())


def test_the_known_circuit_is_complete_and_minimal(truth: Truth) -> None:
    both = measured(truth, "completeness", exact(truth))
    assert both["circuit", "result"].value == pytest.approx(1, abs=0.02)
    assert both["complement", "result"].value == pytest.approx(0, abs=0.02)
    both = measured(truth, "minimality", exact(truth))
    result, control = both["unneeded", "result"], both["unneeded", "control:random-paths"]
    assert result.value == 0 and result.n == len(truth.circuits["zero"])
    assert control.value > 0.5 and both["dead", "result"].value == 0


def test_what_another_random_circuit_may_reach_by_hand() -> None:
    """0 to 4: mean 2, variance 2.5; t of 3 degrees at .98 is 3.4819, with noise of 1 joined."""
    narrow = [Interval(x, x) for x in range(5)]
    low, high, _ = _of_another(np.arange(5.0), narrow)
    assert (low, high) == pytest.approx((2 - 6.0308, 2 + 6.0308), abs=1e-3)
    wide = [Interval(x - 1.95996, x + 1.95996) for x in range(5)]
    low, high, _ = _of_another(np.arange(5.0), wide)
    assert high == pytest.approx(2 + 3.48191 * math.sqrt(2.5 * 1.2 + 1), abs=1e-3)
    assert _of_another(np.array([0.5]), [Interval(0.4, 0.7)]) == Interval(0.4, 0.7)


def test_a_random_circuit_is_no_more_than_another_may_reach(truth: Truth) -> None:
    """The true circuit is beyond its controls; a random one, claimed, is not."""
    graph, n = truth.model.graph, len(truth.circuits["zero"])
    for scores, beyond in ((exact(truth), True), (RandomPaths(seed=9).draw(graph), False)):
        both = measured(truth, f"completeness:size={n}", scores, n_pairs=24)
        own = both[f"circuit@{n}", "result"]
        controls = [both[f"circuit@{n}", f"control:{kind}"] for kind in ("random", "random-paths")]
        rounding = 1e-9
        for each in controls:
            assert each.low - rounding <= each.value <= each.high + rounding
        assert (own.low > max(each.high for each in controls)) is beyond


@pytest.mark.parametrize("n_dead", [0, 5, 40])
def test_edges_that_carry_nothing_are_unneeded(truth: Truth, n_dead: int) -> None:
    """Edges beside the true circuit that nothing reaches, as out of a head without a reader."""
    graph, true = truth.model.graph, truth.circuits["zero"]
    edges = true.edges.clone()
    for place in (graph.legal & ~true.edges).nonzero().tolist():
        wider = edges | _edge(graph, place)
        if len(Circuit(graph, wider)) - n_dead <= len(true) and (
            Circuit(graph, wider).pruned() == true
        ):
            edges = wider
    claimed = Circuit(graph, edges)
    assert len(claimed) == len(true) + n_dead and claimed.pruned() == true
    at = f"@{len(claimed)}"
    found = measured(truth, f"minimality:size={len(claimed)}", EdgeScores.of(graph, edges.float()))
    assert found[f"dead{at}", "result"].value == n_dead
    unneeded = found[f"unneeded{at}", "result"]
    assert unneeded.value == pytest.approx(n_dead / len(claimed))
    assert unneeded.n == len(claimed) and unneeded.low == unneeded.high == unneeded.value


def _edge(graph: Graph, place: list[int]) -> torch.Tensor:
    mask = torch.zeros_like(graph.legal)
    mask[tuple(place)] = True
    return mask


def test_a_circuit_that_does_nothing(truth: Truth) -> None:
    nothing = EdgeScores.of(truth.model.graph, -exact(truth).values)
    both = measured(truth, "completeness:size=0", nothing)
    assert both["circuit@0", "result"].value == 0 and both["complement@0", "result"].value == 1
    result = measured(truth, "minimality:size=0", nothing)["unneeded@0", "result"]
    assert math.isnan(result.value) and result.n == 0


def test_a_size_is_edges_or_a_share_of_them(truth: Truth) -> None:
    whole = measured(truth, "completeness:size=1.0", exact(truth))
    assert whole["circuit@1.0", "result"].value == pytest.approx(1)
    assert whole["complement@1.0", "result"].value == 0
    n = measured(truth, "minimality:size=3", exact(truth))["unneeded@3", "control:random-paths"].n
    assert n == 3


def test_an_unneeded_edge_is_counted(truth: Truth) -> None:
    circuit, graph = truth.circuits["zero"], truth.model.graph
    direct = torch.zeros_like(circuit.edges)
    direct[0, graph.logits] = True
    with_one = EdgeScores.of(graph, circuit.edges.float() * 2 + (direct & ~circuit.edges).float())
    extra = int(not circuit.edges[0, graph.logits])
    name = f"minimality:size={len(circuit) + extra}"
    result = next(iter(measured(truth, name, with_one).values()))
    assert result.value == pytest.approx(extra / (len(circuit) + extra))


def test_scores_of_neurons_are_summed_to_nodes(truth: Truth) -> None:
    graph = truth.model.graph
    shape = (graph.n_writers, truth.model.decoder.d_model)
    neurons = NeuronScores(graph, torch.rand(shape, generator=torch.Generator().manual_seed(0)))
    for name in ("completeness:size=0.5", "minimality:size=0.5", "recovery"):
        own, summed = measured(truth, name, neurons), measured(truth, name, neurons.nodes())
        assert repr(own) == repr(summed) and own


NAN = float("nan")
# input->q, k, v, m0, logits; a0->m0, logits; m0->logits: eight edges.
SMALL = Graph(1, 1)
MIDDLE = Graph(2, 3)


def scores_of(graph: Graph, named: dict[str, float]) -> EdgeScores:
    values = torch.full((graph.n_writers, graph.n_readers), NAN)
    for name, value in named.items():
        values[graph.index(name)] = value
    return EdgeScores(graph, values)


def some_scores(graph: Graph, generator: torch.Generator, distinct: int = 10**6) -> EdgeScores:
    drawn = torch.randint(
        -distinct, distinct + 1, (graph.n_writers, graph.n_readers), generator=generator
    ).float()
    return EdgeScores.of(graph, drawn)


def some_truth(graph: Graph, generator: torch.Generator, n: int) -> Circuit:
    return some_scores(graph, generator).top(n)


HAND = {
    "input->a0.h0<q>": 5.0,
    "input->a0.h0<k>": 4.0,
    "input->a0.h0<v>": 4.0,
    "input->m0": 3.0,
    "input->logits": -9.0,
    "a0.h0->m0": 2.0,
    "a0.h0->logits": 1.0,
}


def test_worked_by_hand() -> None:
    """Order: q | k, v | m0 | a0->m0 | a0->logits | input->logits | m0->logits without a score;
    q, k and a0->m0 are true.
    """
    truth = Circuit.from_names(SMALL, ["input->a0.h0<q>", "input->a0.h0<k>", "a0.h0->m0"])
    found = recovery_of(scores_of(SMALL, HAND), truth)
    assert (found.n_true, found.n_false, found.n_unscored) == (3, 5, 1)
    # Wins over the five false edges: q all 5; k 4 and a tie; a0->m0 3.
    assert found.auroc == pytest.approx((5 + 4.5 + 3) / 15)
    # Recall 1/3 at precision 1, 2/3 at 2/3 (q, k and v), 1 at 3/5.
    assert found.auprc == pytest.approx((1 + 2 / 3 + 3 / 5) / 3)
    assert found.r_precision == pytest.approx(2 / 3)


def test_worked_by_hand_by_magnitude() -> None:
    """Only input->logits is true: the largest magnitude,
    and the smallest value but for the edge without a score.
    """
    truth = Circuit.from_names(SMALL, ["input->logits"])
    by_magnitude, by_value = (
        recovery_of(scores_of(SMALL, HAND), truth, by=by) for by in ("magnitude", "value")
    )
    assert (by_magnitude.auroc, by_magnitude.auprc, by_magnitude.r_precision) == (1.0, 1.0, 1.0)
    assert (by_value.auroc, by_value.auprc, by_value.r_precision) == pytest.approx(
        (1 / 7, 1 / 7, 0.0)
    )


def test_a_cut_among_ties_is_an_expectation() -> None:
    truth = Circuit.from_names(SMALL, ["input->a0.h0<q>", "input->a0.h0<k>"])
    assert recovery_of(scores_of(SMALL, HAND), truth).r_precision == pytest.approx((1 + 1 / 2) / 2)


def by_definition(scores: EdgeScores, truth: Circuit, by: str) -> tuple[float, float, float]:
    """Areas and precision from loops over pairs of edges and over thresholds;
    without a score is below all scores.
    """
    graph = scores.graph
    keyed: dict[str, float] = {}
    for name in Circuit.full(graph).names():
        value = float(scores.values[graph.index(name)])
        keyed[name] = -math.inf if math.isnan(value) else abs(value) if by == "magnitude" else value
    true = set(truth.names())
    false = set(keyed) - true
    wins = sum(
        Fraction(keyed[t] > keyed[f]) + Fraction(keyed[t] == keyed[f]) / 2
        for t in true
        for f in false
    )
    precision_sum, before = Fraction(0), 0
    for threshold in sorted(set(keyed.values()), reverse=True):
        kept = {name for name, key in keyed.items() if key >= threshold}
        precision_sum += Fraction(len(kept & true) - before, len(true)) * Fraction(
            len(kept & true), len(kept)
        )
        before = len(kept & true)
    threshold = sorted(keyed.values(), reverse=True)[len(true) - 1]
    above = {name for name, key in keyed.items() if key > threshold}
    tied = {name for name, key in keyed.items() if key == threshold}
    hits = len(above & true) + Fraction(len(true) - len(above)) * len(tied & true) / len(tied)
    return float(wins / (len(true) * len(false))), float(precision_sum), float(hits / len(true))


@pytest.mark.parametrize("by", ["value", "magnitude"])
@pytest.mark.parametrize("distinct", [1, 4, 10**6])
def test_agrees_with_the_definitions(distinct: int, by: str) -> None:
    generator = torch.Generator().manual_seed(distinct)
    scores, truth = some_scores(MIDDLE, generator, distinct), some_truth(MIDDLE, generator, 17)
    values = scores.values.clone()
    values[:, ::5] = NAN
    for each in (scores, EdgeScores(MIDDLE, values)):
        found = recovery_of(each, truth, by=by)  # pyright: ignore[reportArgumentType]
        np.testing.assert_allclose(
            (found.auroc, found.auprc, found.r_precision),
            by_definition(each, truth, by),
            rtol=1e-12,
        )


def test_the_truth_itself_its_complement_and_a_constant() -> None:
    truth = some_truth(MIDDLE, torch.Generator().manual_seed(0), 20)
    perfect = recovery_of(EdgeScores.of(MIDDLE, truth.edges.float()), truth)
    assert (perfect.auroc, perfect.auprc, perfect.r_precision) == (1.0, 1.0, 1.0)
    worst = recovery_of(EdgeScores.of(MIDDLE, -truth.edges.float()), truth)
    assert worst.auroc == 0.0
    constant = recovery_of(EdgeScores.of(MIDDLE, torch.ones(truth.edges.shape)), truth)
    share = 20 / MIDDLE.n_edges
    assert (constant.auroc, constant.auprc, constant.r_precision) == pytest.approx(
        (0.5, share, share)
    )


def test_only_the_order_counts() -> None:
    generator = torch.Generator().manual_seed(3)
    scores, truth = some_scores(MIDDLE, generator), some_truth(MIDDLE, generator, 11)
    assert recovery_of(
        EdgeScores(MIDDLE, torch.atan(scores.values / 1e6) * 7 - 2), truth
    ) == recovery_of(scores, truth)


def test_what_stands_where_there_is_no_edge_does_not_count() -> None:
    generator = torch.Generator().manual_seed(4)
    scores, truth = some_scores(MIDDLE, generator), some_truth(MIDDLE, generator, 11)
    garbage = torch.where(MIDDLE.legal, scores.values, torch.tensor(1e9))
    for profile in ("strict", "mib-2025"):
        ours, theirs = (
            recovery_of(scores, truth, profile=profile),
            recovery_of(EdgeScores(MIDDLE, garbage), truth, profile=profile),
        )
        np.testing.assert_equal(vars(ours), vars(theirs))


def in_greedy_order(scores: EdgeScores, by: str) -> EdgeScores:
    """The slow way: the circuits of 1, 2, 3 ... edges say when each edge comes in;
    those that none has get 0.
    """
    graph, n = scores.graph, scores.graph.n_edges
    values = torch.where(graph.legal, 0.0, NAN)
    for size in range(n, 0, -1):
        values[scores.greedy(size, by=by).edges] = n + 1.0 - size  # pyright: ignore[reportArgumentType]
    return EdgeScores(graph, values)


@pytest.mark.parametrize("by", ["value", "magnitude"])
@pytest.mark.parametrize("unscored", [False, True])
def test_greedy_ranks_are_the_order_in_which_circuits_grow(by: str, unscored: bool) -> None:
    generator = torch.Generator().manual_seed(11)
    scores, truth = some_scores(MIDDLE, generator), some_truth(MIDDLE, generator, 17)
    if (
        unscored
    ):  # a layer's readers and an edge into the logits: some edges with a score are never reached
        values = scores.values.clone()
        values[:, MIDDLE.index("input->m0")[1]] = NAN
        values[MIDDLE.index("m1->logits")] = NAN
        values[MIDDLE.index("a0.h1->logits")] = NAN
        scores = EdgeScores(MIDDLE, values)
    slow = recovery_of(in_greedy_order(scores, by), truth)
    fast = recovery_of(scores, truth, by=by, greedy=True)  # pyright: ignore[reportArgumentType]
    assert (fast.auroc, fast.auprc, fast.r_precision) == (slow.auroc, slow.auprc, slow.r_precision)
    assert fast.greedy and fast.auroc_interval == slow.auroc_interval
    assert fast.auroc != recovery_of(scores, truth, by=by).auroc  # pyright: ignore[reportArgumentType]


def test_greedy_order_by_hand() -> None:
    """m0->logits has no score, so the MLP is never in and input->m0 and a0->m0 are never reached:
    they tie for the last places.
    """
    truth = Circuit.from_names(SMALL, ["input->a0.h0<q>", "a0.h0->logits", "a0.h0->m0"])
    # By magnitude: input->logits (9), a0->logits (1), then a0's readers: q (5), k and v (4, by
    # index); three never.
    found = recovery_of(scores_of(SMALL, HAND), truth, by="magnitude", greedy=True)
    # False: input->logits, k, v, and two of the three last. a0->logits beats 4, q beats 4, a0->m0
    # ties with two.
    assert found.auroc == pytest.approx((4 + 4 + 1) / 15)
    # Recall 1/3 at precision 1/2, 2/3 at 2/3, 1 at 3/8.
    assert found.auprc == pytest.approx((1 / 2 + 2 / 3 + 3 / 8) / 3)
    assert found.r_precision == pytest.approx(2 / 3)
    assert not recovery_of(scores_of(SMALL, HAND), truth).greedy


@pytest.mark.parametrize("profile", ["strict", "mib-2025"])
def test_scores_whose_circuits_are_grown_are_ranked_so_unasked(profile: str) -> None:
    generator = torch.Generator().manual_seed(12)
    scores, truth = some_scores(MIDDLE, generator), some_truth(MIDDLE, generator, 17)
    marked = EdgeScores(MIDDLE, scores.values, {"selection": "greedy"})
    unasked, asked, raw = (
        recovery_of(each, truth, by="magnitude", profile=profile, greedy=greedy)  # pyright: ignore[reportArgumentType]
        for each, greedy in ((marked, False), (scores, True), (scores, False))
    )
    np.testing.assert_equal(vars(unasked), vars(asked))
    assert unasked.auprc != raw.auprc and unasked.greedy and not raw.greedy


def mib_area(scores: EdgeScores, truth: Circuit) -> float:
    """Ten circuits, each grown from the logits edge by edge and pruned by names;
    rates and area by sums.
    """
    graph = scores.graph
    size = {
        name: abs(float(scores.values[graph.index(name)])) for name in Circuit.full(graph).names()
    }

    def ends(name: str) -> tuple[str, str]:
        source, target = name.split("->")
        return source, target.split("<")[0]

    def pruned(names: set[str]) -> set[str]:
        while True:
            sources, targets = (
                {ends(n)[0] for n in names} | {"logits"},
                {ends(n)[1] for n in names} | {"input"},
            )
            kept = {n for n in names if ends(n)[0] in targets and ends(n)[1] in sources}
            if kept == names:
                return kept
            names = kept

    true = set(truth.names())
    points: list[tuple[float, float]] = []
    for share in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0):
        chosen: set[str] = set()
        inside = {"logits"}
        while len(chosen) < share * graph.n_edges:
            best = max(
                (n for n in size if n not in chosen and ends(n)[1] in inside), key=size.__getitem__
            )
            chosen.add(best)
            inside.add(ends(best)[0])
        kept = pruned(chosen)
        points.append((len(kept - true) / (len(size) - len(true)), len(kept & true) / len(true)))
    area = sum((x1 - x0) * (y0 + y1) / 2 for (x0, y0), (x1, y1) in itertools.pairwise(points))
    return area / points[-1][0]


@pytest.mark.parametrize("seed", range(3))
def test_mib_area_agrees_with_a_slow_one(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores, truth = some_scores(MIDDLE, generator), some_truth(MIDDLE, generator, 25).pruned()
    found = recovery_of(scores, truth, profile="mib-2025")
    assert found.auroc == pytest.approx(mib_area(scores, truth), rel=1e-12)
    assert found.by == "magnitude"
    assert np.isnan(found.auroc_interval).tolist() == [True, True, False]


def test_mib_area_has_no_segment_from_the_origin() -> None:
    """Eight edges, sizes 1 (seven times), 2, 4, 8:
    a true edge first starts at FPR 0, a false one does not.
    """
    truth = Circuit.from_names(SMALL, ["input->m0", "m0->logits"])
    order = [
        "m0->logits",
        "input->m0",
        "input->logits",
        "a0.h0->logits",
        "a0.h0->m0",
        *(f"input->a0.h0<{s}>" for s in "qkv"),
    ]
    perfect = scores_of(SMALL, {name: 8.0 - place for place, name in enumerate(order)})
    # Size 1 is pruned away; 2 is the truth; 4 adds input->logits (a0.h0->logits dangles): FPR 0, 0,
    # 1/6, 1.
    assert recovery_of(perfect, truth, profile="mib-2025").auroc == pytest.approx(1.0)
    order[0], order[2] = order[2], order[0]
    # Size 1: FPR 1/6, TPR 0. 2: input->logits and, as m0 is not in, m0->logits, which dangles: the
    # same. 4: input->logits, m0->logits, input->m0, a0.h0->logits (dangles): FPR 1/6, TPR 1. 8: 1,
    # 1.
    other = scores_of(SMALL, {name: 8.0 - place for place, name in enumerate(order)})
    assert recovery_of(other, truth, profile="mib-2025").auroc == pytest.approx(5 / 6)


@pytest.mark.parametrize("profile", ["strict", "mib-2025"])
@pytest.mark.parametrize("truth", [Circuit.empty(SMALL), Circuit.full(SMALL)])
def test_undefined_without_true_or_false_edges(truth: Circuit, profile: str) -> None:
    found = recovery_of(scores_of(SMALL, HAND), truth, profile=profile)  # pyright: ignore[reportArgumentType]
    assert np.isnan(
        [
            found.auroc,
            found.auprc,
            found.r_precision,
            found.auroc_interval.low,
            found.auroc_interval.high,
        ]
    ).all()
    assert found.n_true + found.n_false == SMALL.n_edges


@pytest.mark.parametrize(
    ("estimate", "n_true", "n_false"), [(0.8, 12, 90), (0.55, 90, 12), (0.1, 12, 90)]
)
def test_interval_solves_its_equation(estimate: float, n_true: int, n_false: int) -> None:
    """Both ends are 1.96 of Hanley and McNeil's standard errors from the estimate,
    written with their Q1 and Q2.
    """
    for end in auroc_interval(estimate, n_true, n_false)[:2]:
        q1, q2 = end / (2 - end), 2 * end**2 / (1 + end)
        variances = [
            end * (1 - end) + (m - 1) * (q1 - end**2) + (n - 1) * (q2 - end**2)
            for m, n in ((n_true, n_false), (n_false, n_true))
        ]
        assert abs(estimate - end) == pytest.approx(
            1.959964 * math.sqrt(max(variances) / (n_true * n_false)), rel=1e-6
        )


def test_interval_has_width_at_the_ends_and_shrinks() -> None:
    perfect, worst = auroc_interval(1.0, 20, 300), auroc_interval(0.0, 20, 300)
    assert perfect.high == 1.0
    assert 0.7 < perfect.low < 0.95
    assert worst[:2] == pytest.approx((0.0, 1 - perfect.low))
    widths = [np.diff(auroc_interval(0.7, m, 1000)[:2]).item() for m in (5, 20, 80, 320)]
    assert widths == sorted(widths, reverse=True)


def test_interval_of_opposite_scores_is_mirrored() -> None:
    generator = torch.Generator().manual_seed(6)
    scores, truth = some_scores(MIDDLE, generator), some_truth(MIDDLE, generator, 9)
    ours, theirs = (
        recovery_of(each, truth).auroc_interval
        for each in (scores, EdgeScores(MIDDLE, -scores.values))
    )
    assert (ours.low, ours.high) == pytest.approx((1 - theirs.high, 1 - theirs.low))
    assert ours.contains(recovery_of(scores, truth).auroc)


@pytest.mark.parametrize("shift", [0.0, 1.2, 2.3])
def test_interval_covers_the_area_of_two_normals(shift: float) -> None:
    rng = np.random.default_rng(0)
    area, m, n, repeats = 0.5 * (1 + math.erf(shift / 2)), 15, 120, 400
    hits = 0
    for _ in range(repeats):
        true, false = rng.normal(shift, 1, m), np.sort(rng.normal(0, 1, n))
        estimate = float(np.searchsorted(false, true).sum() / (m * n))
        hits += auroc_interval(estimate, m, n).contains(area)
    assert 0.92 < hits / repeats < 0.995


def test_refusals() -> None:
    scores, truth = scores_of(SMALL, HAND), Circuit.empty(SMALL)
    with pytest.raises(GraphMismatch, match="the truth belongs to"):
        recovery_of(scores, Circuit.empty(MIDDLE))
    with pytest.raises(UnknownName, match="magnitude"):
        recovery_of(scores, truth, by="magnitud")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnknownName, match="mib-2025"):
        recovery_of(scores, truth, profile="mib")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadUsage, match="by magnitude"):
        recovery_of(scores, truth, by="value", profile="mib-2025")


def test_nothing_is_changed() -> None:
    generator = torch.Generator().manual_seed(5)
    scores, truth = some_scores(MIDDLE, generator), some_truth(MIDDLE, generator, 9)
    before: list[Tensor] = [scores.values.clone(), truth.edges.clone()]
    recovery_of(scores, truth)
    recovery_of(scores, truth, profile="mib-2025")
    assert torch.equal(scores.values.nan_to_num(0.5), before[0].nan_to_num(0.5))
    assert torch.equal(truth.edges, before[1])
