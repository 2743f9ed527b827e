"""Circuits as attribution graphs: a known one by hand, and no edge lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from mechassay.circuits.attribution_graph import attribution_graph
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadUsage, GraphMismatch
from mechassay.models.graph import Graph

GRAPH = Graph(n_layers=2, n_heads=2)
NAMES = [
    *("input->a0.h1<q>", "input->a0.h1<k>", "input->a0.h1<v>", "a0.h1->m1", "m1->logits"),
    *("input->m1", "a0.h1->logits"),
]
CIRCUIT = Circuit.from_names(GRAPH, NAMES)
REQUIRED = {
    "metadata": {"slug": str, "scan": str, "prompt_tokens": list, "prompt": str},
    "nodes": {
        **{"node_id": str, "feature": int, "layer": str, "ctx_idx": int},
        **{"feature_type": str, "jsNodeId": str, "clerp": str},
    },
    "links": {"source": str, "target": str, "weight": float},
}
"""Fields that Neuronpedia's schema requires, and their types; those of circuit-tracer are more."""
OF_NODES = {"token_prob", "is_target_logit", "run_idx", "reverse_ctx_idx"}
OF_METADATA = {"transcoder_list"}
OF_QUERY = {"pinnedIds", "supernodes", "linkType", "clickedId", "sg_pos"}


def scores() -> EdgeScores:
    """Edge scores: 1 for the first edge of the circuit, 2 for the second, and so on."""
    values = torch.zeros(GRAPH.n_writers, GRAPH.n_readers)
    for number, name in enumerate(NAMES, 1):
        values[GRAPH.index(name)] = number
    return EdgeScores(GRAPH, values, {"model": "gpt2-small"})


def plain(**how: Any) -> dict[str, Any]:
    return json.loads(attribution_graph(CIRCUIT, slug="mine", **how))


def test_it_has_what_the_schema_requires() -> None:
    graph = plain(scores=scores())
    assert graph.keys() == {"metadata", "qParams", "nodes", "links"}
    assert graph["qParams"].keys() == OF_QUERY
    for part, fields in REQUIRED.items():
        for row in graph[part] if isinstance(graph[part], list) else [graph[part]]:
            assert {name: type(row.get(name)) for name in fields} == fields
    assert all(node.keys() >= OF_NODES for node in graph["nodes"])
    assert graph["metadata"].keys() >= OF_METADATA and graph["metadata"]["scan"] == "gpt2-small"
    ids = [node["node_id"] for node in graph["nodes"]]
    assert len(set(ids)) == len(ids)
    ends = {link[end] for link in graph["links"] for end in ("source", "target")}
    assert ends <= set(ids)


def test_nodes_and_weights_by_hand() -> None:
    graph = plain(scores=scores())
    nodes = {node["node_id"]: (node["feature_type"], node["clerp"]) for node in graph["nodes"]}
    assert nodes == {
        "E_0_1": ("embedding", ""),
        "0_1_1": ("attention head", "a0.h1"),
        "1_2_1": ("mlp", "m1"),
        "3_0_1": ("logit", ""),
    }
    # The three edges into the head are one link: 1 + 2 + 3.
    weights = {(link["source"], link["target"]): link["weight"] for link in graph["links"]}
    assert weights == {
        ("E_0_1", "0_1_1"): 6.0,
        ("E_0_1", "1_2_1"): 6.0,
        ("0_1_1", "1_2_1"): 4.0,
        ("0_1_1", "3_0_1"): 7.0,
        ("1_2_1", "3_0_1"): 5.0,
    }


def test_without_scores_weights_count_edges() -> None:
    graph = plain()
    assert sorted(link["weight"] for link in graph["links"]) == [1, 1, 1, 1, 3]
    assert "how many edges it has" in graph["metadata"]["info"]["description"]


def test_no_edge_is_lost() -> None:
    for seed in range(3):
        edges = torch.rand(GRAPH.n_writers, GRAPH.n_readers, generator=torch.Generator())
        circuit = Circuit(GRAPH, (edges < 0.2 * (seed + 1)) & GRAPH.legal)
        links = json.loads(attribution_graph(circuit, slug="x"))["links"]
        names = [name for link in links for name in link["edges"]]
        assert len(names) == len(circuit) and Circuit.from_names(GRAPH, names) == circuit


def test_the_page_of_circuit_tracer_shows_all_nodes() -> None:
    # It drops what is at more than two thirds of the tokens, and reads "(p=" in a logit's label.
    graph = plain()
    n_tokens = len(graph["metadata"]["prompt_tokens"])
    assert n_tokens * 2 / 3 >= 1 and all(node["ctx_idx"] < n_tokens for node in graph["nodes"])
    assert all(node["clerp"] == "" for node in graph["nodes"] if node["feature_type"] == "logit")


def test_attention_only_and_parallel_models() -> None:
    for graph in (Graph(2, 2, mlp=False), Graph(2, 2, parallel=True)):
        circuit = Circuit(graph, graph.legal)
        nodes = json.loads(attribution_graph(circuit, slug="x"))["nodes"]
        assert len(nodes) == graph.n_writers + 1
        kinds = [node["feature_type"] for node in nodes]
        assert kinds.count("attention head") == 4 and kinds.count("mlp") == 2 * graph.mlp


def test_what_cannot_be_said_is_refused() -> None:
    values = scores().values.clone()
    values[GRAPH.index("a0.h1->m1")] = torch.nan
    with pytest.raises(BadUsage, match=r"the edge a0.h1->m1 has no score"):
        plain(scores=EdgeScores(GRAPH, values))
    other = Graph(1, 2)
    with pytest.raises(GraphMismatch):
        plain(scores=EdgeScores(other, torch.zeros(other.n_writers, other.n_readers)))
    neurons = torch.ones(GRAPH.n_writers, 4, dtype=torch.bool)
    neurons[0, 0] = False
    with pytest.raises(BadUsage, match="carries some neurons"):
        attribution_graph(Circuit(GRAPH, CIRCUIT.edges, neurons), slug="x")
    neurons[0, 0] = True
    assert attribution_graph(Circuit(GRAPH, CIRCUIT.edges, neurons), slug="mine") == (
        attribution_graph(CIRCUIT, slug="mine")
    )
