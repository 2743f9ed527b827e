"""Random circuits of live edges."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechassay.circuits import Random, RandomPaths
from mechassay.errors import BadUsage
from mechassay.models.graph import Graph

GRAPHS = st.builds(
    Graph,
    n_layers=st.integers(1, 4),
    n_heads=st.integers(1, 4),
    parallel=st.booleans(),
    mlp=st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(graph=GRAPHS, seed=st.integers(0, 10**6), data=st.data())
def test_all_edges_asked_for_are_live(graph: Graph, seed: int, data: st.DataObject) -> None:
    n = data.draw(st.integers(0, graph.n_edges))
    circuit = RandomPaths(seed).circuit(graph, n)
    assert len(circuit) == n
    assert circuit.pruned() == circuit


@pytest.mark.few(3)
@pytest.mark.parametrize("n", range(19))
def test_every_size_is_reached_on_a_small_graph(n: int) -> None:
    graph = Graph(1, 2)
    for seed in range(200):
        circuit = RandomPaths(seed).circuit(graph, min(n, graph.n_edges))
        assert len(circuit.pruned()) == min(n, graph.n_edges)


def test_uniform_edges_of_a_sparse_circuit_are_not_live() -> None:
    graph = Graph(30, 9)
    assert len(Random(seed=0).draw(graph).top(1000).pruned()) == 0
    assert len(RandomPaths(seed=0).circuit(graph, 1000).pruned()) == 1000


def test_the_ranking_has_every_edge_and_its_beginnings_are_nearly_live() -> None:
    graph = Graph(12, 12)
    scores = RandomPaths(seed=3).draw(graph)
    assert int(scores.scored().sum()) == graph.n_edges
    for n in (100, 300, 3249, 16245):
        live = len(scores.top(n).pruned())
        assert n - 12 <= live <= n
    assert len(scores.top(1.0).pruned()) == graph.n_edges


def test_every_edge_can_be_drawn() -> None:
    graph = Graph(2, 2)
    drawn = sum(RandomPaths(seed).circuit(graph, 6).edges.double() for seed in range(400))
    assert bool((drawn[graph.legal] > 0).all())
    assert bool((drawn[~graph.legal] == 0).all())


def test_the_smallest_circuit_is_the_direct_edge() -> None:
    assert RandomPaths(seed=5).circuit(Graph(3, 4), 1).names() == ["input->logits"]


def test_seeds() -> None:
    graph = Graph(3, 4)
    a, b = RandomPaths(1).draw(graph), RandomPaths(2).draw(graph)
    np.testing.assert_array_equal(RandomPaths(1).draw(graph).values, a.values)
    assert not np.array_equal(a.values, b.values, equal_nan=True)
    with pytest.raises(BadUsage, match="seed of at least 0"):
        RandomPaths(-1)
