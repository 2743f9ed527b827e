"""Circuits are sets of edges, scores are looked up by name, and both are stored.

What two circuits share: worked by hand, against all sets there are, and against their names.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
import torch

from mechassay.circuits import Overlap, overlap_of
from mechassay.circuits.circuit import Circuit, nodes_of
from mechassay.circuits.scores import EdgeScores, NeuronScores, NodeScores
from mechassay.errors import BadFile, BadUsage, GraphMismatch, UnknownName
from mechassay.models.graph import Graph

GRAPH = Graph(2, 2)
A = Circuit.from_names(GRAPH, ["input->m0", "m0->logits", "input->logits"])
B = Circuit.from_names(GRAPH, ["input->m0", "a0.h1->logits"])


def test_names_are_members() -> None:
    assert "input->m0" in A and "a0.h1->logits" not in A
    assert list(A) == A.names() == ["input->m0", "input->logits", "m0->logits"]
    assert 3 not in A
    with pytest.raises(UnknownName, match="edge"):
        _ = "m0->m0" in A


def test_operators_are_those_of_sets() -> None:
    a, b = set(A), set(B)
    assert set(A | B) == a | b and set(A & B) == a & b and set(A - B) == a - b
    assert Circuit.empty(GRAPH) == A - A and A | A == A and A & Circuit.full(GRAPH) == A


def test_circuits_of_other_graphs_are_refused() -> None:
    for combine in (Circuit.__or__, Circuit.__and__, Circuit.__sub__):
        with pytest.raises(GraphMismatch, match="needs circuits of one graph"):
            combine(A, Circuit.full(Graph(3, 2)))


def test_parts_of_writers_are_refused_and_whole_ones_are_not() -> None:
    whole = torch.ones(GRAPH.n_writers, 4, dtype=torch.bool)
    assert Circuit(GRAPH, A.edges, whole) | B == A | B
    some = whole.clone()
    some[0, 1] = False
    with pytest.raises(BadUsage, match="is of whole edges"):
        _ = Circuit(GRAPH, A.edges, some) | B


@pytest.mark.parametrize("neurons", [False, True])
def test_a_circuit_is_stored(tmp_path: Path, neurons: bool) -> None:
    mask = torch.rand(GRAPH.n_writers, 4, generator=torch.Generator().manual_seed(0)) > 0.5
    circuit = Circuit(GRAPH, A.edges, mask if neurons else None)
    circuit.save(tmp_path / "c.safetensors")
    again = Circuit.load(tmp_path / "c.safetensors", GRAPH)
    assert again == circuit and (again.neurons is None) == (not neurons)
    with pytest.raises(GraphMismatch):
        Circuit.load(tmp_path / "c.safetensors", Graph(3, 2))
    with pytest.raises(BadFile, match="expected 'edge_scores'"):
        EdgeScores.load(tmp_path / "c.safetensors")


def test_scores_by_name() -> None:
    values = torch.arange(GRAPH.n_writers * GRAPH.n_readers).reshape(GRAPH.legal.shape).float()
    scores = EdgeScores.of(GRAPH, -values)
    assert scores["input->logits"] == -float(GRAPH.n_readers - 1)
    strongest = scores.strongest(2)
    assert list(strongest) == ["m1->logits", "a1.h1->logits"]
    assert strongest["m1->logits"] == scores["m1->logits"] == scores.values.nan_to_num().min()
    assert next(iter(scores.strongest(1, by="value"))) == "input->a0.h0<q>"
    nodes = NodeScores.of(GRAPH, torch.arange(GRAPH.n_writers).float())
    assert nodes["m1"] == GRAPH.n_writers - 1 and list(nodes.strongest(1)) == ["m1"]
    neurons = NeuronScores.of(GRAPH, torch.arange(4 * GRAPH.n_writers).reshape(-1, 4).float())
    assert neurons["a0.h1[3]"] == 11
    assert len(neurons.strongest(10_000)) == 4 * GRAPH.n_writers
    for held, name in ((scores, "m1->m0"), (nodes, "m7"), (neurons, "m1[4]"), (neurons, "m1")):
        with pytest.raises(UnknownName):
            _ = held[name]
    with pytest.raises(BadUsage):
        scores.strongest(-1)


def test_columns_are_ranked() -> None:
    scores = EdgeScores.of(GRAPH, torch.randn(GRAPH.legal.shape, generator=torch.Generator()))
    columns = scores.columns()
    assert columns["rank"] == list(range(1, GRAPH.n_edges + 1))
    assert [scores[name] for name in columns["edge"]] == columns["score"]
    assert A.columns()["writer"] == ["input", "input", "m0"]


SMALL = Graph(1, 1)
# All eight edges of a layer with one head.
NAMES = [f"input->a0.h0<{slot}>" for slot in "qkv"] + [
    "input->m0",
    "a0.h0->m0",
    "input->logits",
    "a0.h0->logits",
    "m0->logits",
]


def of(*places: int) -> Circuit:
    return Circuit.from_names(SMALL, [NAMES[place] for place in places])


def drawn(graph: Graph, n: int, seed: int) -> Circuit:
    """A random circuit of n edges."""
    places = graph.legal.flatten().nonzero().flatten()
    mask = torch.zeros(graph.legal.numel(), dtype=torch.bool)
    mask[places[torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))[:n]]] = (
        True
    )
    return Circuit(graph, mask.view_as(graph.legal))


def test_worked_by_hand() -> None:
    # The head is in A by its query alone, and in B only as a writer; the MLP is in both.
    a, b = of(0, 3, 5, 7), of(3, 5, 6, 7)
    overlap = overlap_of(a, b)
    assert overlap == Overlap(
        n_edges=8, edges_a=4, edges_b=4, edges_both=3, n_nodes=2, nodes_a=2, nodes_b=2, nodes_both=2
    )
    assert overlap.jaccard == 3 / 5 and overlap.node_jaccard == 1
    assert overlap.expected == 2
    # (C(4,3) C(4,1) + C(4,4) C(4,0)) of the C(8,4) = 70 ways to draw four edges.
    assert overlap.p_value == pytest.approx(17 / 70, rel=1e-12)


@pytest.mark.parametrize(("n_a", "n_b"), [(3, 5), (1, 1), (6, 4), (8, 2), (0, 3)])
def test_the_random_overlap_is_that_of_all_sets_there_are(n_a: int, n_b: int) -> None:
    a = set(range(n_a))
    shared = [len(a & set(b)) for b in combinations(range(8), n_b)]
    for both in range(max(0, n_a + n_b - 8), min(n_a, n_b) + 1):
        overlap = Overlap(
            n_edges=8,
            edges_a=n_a,
            edges_b=n_b,
            edges_both=both,
            n_nodes=2,
            nodes_a=0,
            nodes_b=0,
            nodes_both=0,
        )
        assert overlap.p_value == pytest.approx(
            sum(count >= both for count in shared) / len(shared), rel=1e-12
        )
        assert overlap.expected == pytest.approx(sum(shared) / len(shared))


@pytest.mark.parametrize(
    "graph",
    [Graph(3, 2), Graph(2, 3, parallel=True), Graph(3, 2, mlp=False)],
    ids=["plain", "parallel", "no-mlp"],
)
def test_counts_are_those_of_the_names(graph: Graph) -> None:
    a, b = drawn(graph, 12, seed=0), drawn(graph, 20, seed=1)
    names_a, names_b = set(a.names()), set(b.names())

    def nodes(names: set[str]) -> set[str]:
        return {end.split("<")[0] for name in names for end in name.split("->")} - {
            "input",
            "logits",
        }

    overlap = overlap_of(a, b)
    assert (overlap.edges_a, overlap.edges_b, overlap.edges_both) == (
        12,
        20,
        len(names_a & names_b),
    )
    assert overlap.jaccard == len(names_a & names_b) / len(names_a | names_b)
    found = nodes(names_a), nodes(names_b)
    assert (overlap.nodes_a, overlap.nodes_b, overlap.nodes_both) == (
        len(found[0]),
        len(found[1]),
        len(found[0] & found[1]),
    )
    assert overlap.node_jaccard == len(found[0] & found[1]) / len(found[0] | found[1])
    assert {graph.writer_name(u) for u in nodes_of(a).nonzero().flatten().tolist()} == found[0]
    assert (overlap.n_edges, overlap.n_nodes) == (
        graph.n_edges,
        graph.n_layers * (graph.n_heads + graph.mlp),
    )


def test_the_order_of_the_circuits_does_not_matter() -> None:
    graph = Graph(4, 3)
    a, b = drawn(graph, 30, seed=2), drawn(graph, 50, seed=3)
    there, back = overlap_of(a, b), overlap_of(b, a)
    swapped = replace(
        back, edges_a=back.edges_b, edges_b=back.edges_a, nodes_a=back.nodes_b, nodes_b=back.nodes_a
    )
    assert there == swapped
    assert there.p_value == pytest.approx(back.p_value, rel=1e-9) and there.jaccard == back.jaccard


def test_random_circuits_overlap_as_expected() -> None:
    graph = Graph(4, 3)
    first, found = drawn(graph, 60, seed=0), []
    for seed in range(1, 201):
        found.append(overlap_of(first, drawn(graph, 80, seed)))
    shared = torch.tensor([float(each.edges_both) for each in found])
    assert abs(float(shared.mean()) - found[0].expected) < 4 * float(shared.std()) / math.sqrt(
        len(found)
    )
    # A valid p value is at most t with a probability of at most t.
    assert sum(each.p_value <= 0.1 for each in found) / len(found) < 0.1 + 4 * math.sqrt(
        0.09 / len(found)
    )


def test_empty_and_full_circuits() -> None:
    none, full = Circuit.empty(SMALL), Circuit.full(SMALL)
    empty = overlap_of(none, none)
    assert math.isnan(empty.jaccard) and math.isnan(empty.node_jaccard)
    assert (empty.expected, empty.p_value) == (0, 1)
    assert overlap_of(none, full).jaccard == 0 and overlap_of(none, full).p_value == 1
    assert overlap_of(full, full).jaccard == 1 and overlap_of(full, full).p_value == 1
    # An edge from end to end touches no head and no MLP.
    assert overlap_of(of(5), of(5)).nodes_a == 0 and overlap_of(of(5), of(5)).jaccard == 1


def test_a_large_overlap_has_a_tiny_p_value_and_not_a_wrong_one() -> None:
    graph = Graph(12, 12)
    a = drawn(graph, 20, seed=0)
    # The chance of drawing exactly these twenty edges.
    assert overlap_of(a, a).p_value == pytest.approx(1 / math.comb(graph.n_edges, 20), rel=1e-6)
    large = drawn(graph, 1000, seed=0)
    assert 0 <= overlap_of(large, large).p_value < 1e-300


def test_circuits_of_different_graphs_are_refused() -> None:
    with pytest.raises(GraphMismatch, match="second belongs to"):
        overlap_of(Circuit.empty(SMALL), Circuit.empty(Graph(2, 2)))
