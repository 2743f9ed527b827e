"""Circuits are sets of edges, scores are looked up by name, and both are stored."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.node_scores import NeuronScores, NodeScores
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadFile, BadUsage, GraphMismatch, UnknownName
from mechassay.graph import Graph

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
