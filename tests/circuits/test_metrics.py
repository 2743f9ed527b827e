"""Metrics of scores on circuits that are known: perfect, worthless and undefined answers."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch

from mechassay.circuits import Circuit, EdgeScores, NeuronScores, NodeScores, Random
from mechassay.circuits.ablation import ablate
from mechassay.circuits.metrics import (
    METRICS,
    Scored,
    auprc_by_chance,
    by_chance,
    by_edge,
)
from mechassay.circuits.node_scores import Scores
from mechassay.circuits.recovery import recovery_of
from mechassay.graph import Graph
from mechassay.objectives import load_objective
from mechassay.progress import SILENT
from mechassay.records import Measure
from mechassay.truth.models import Truth, load_truth

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


def measured(truth: Truth, metric: str, scores: Scores) -> dict[tuple[str, str], Measure]:
    """The measures of a metric, by name and what they are of."""
    model = truth.model
    batch = ablate(model, model.batch(truth.task.pairs("test", model, limit=12)), "zero")
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
    (result, control) = measured(truth, "minimality", exact(truth)).values()
    assert result.value == 0 and result.n == len(truth.circuits["zero"])
    assert control.of == "control:random-paths" and control.value > 0.5


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
