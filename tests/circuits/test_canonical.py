"""The circuits of the literature: edge for edge those of the public code, though built from rules.

`data/canonical_edges.json` holds, for each circuit and reader, the writers it reads, from a
reconstruction of ACDC's edge lists that knows nothing of the rules here.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mechassay.circuits.canonical import CANONICAL, IOI, Canonical, canonical
from mechassay.circuits.circuit import Circuit
from mechassay.errors import GraphMismatch, UnknownName
from mechassay.models.graph import Graph
from mechassay.tasks import TASKS

EDGES: dict[str, dict[str, str]] = json.loads(
    (Path(__file__).parent / "data/canonical_edges.json").read_text("utf-8")
)
GRAPHS = {"ioi": Graph(12, 12), "greater-than": Graph(12, 12), "docstring": Graph(4, 8, mlp=False)}
NAMES = sorted(GRAPHS)


def load(name: str) -> Canonical:
    return canonical(name, GRAPHS[name])


def between(circuit: Circuit, writers: str, readers: str) -> int:
    """Edges of a kind: by the first letter of the writer, and of the reader with its slot."""

    def kind(name: str) -> str:
        return {"input": "E", "logits": "O"}.get(
            name, name[0].upper() if name[0] == "m" else "h" + name.partition("<")[2].rstrip(">")
        )

    pairs = [edge.split("->") for edge in circuit.names()]
    return sum(kind(u)[0] == writers and kind(v) == readers for u, v in pairs)


def test_there_are_three() -> None:
    assert CANONICAL.names() == NAMES == sorted(EDGES)


@pytest.mark.parametrize("name", NAMES)
def test_edges_are_those_of_the_public_code(name: str) -> None:
    wanted = [
        f"{writer}->{reader}"
        for reader, writers in EDGES[name].items()
        for writer in writers.split()
    ]
    assert load(name).circuit == Circuit.from_names(GRAPHS[name], wanted)


@pytest.mark.parametrize(
    ("name", "edges", "acdc", "universe"),
    [("ioi", 963, 1041, 32491), ("greater-than", 235, 262, 32491), ("docstring", 24, 37, 1281)],
)
def test_counts(name: str, edges: int, acdc: int, universe: int) -> None:
    found = load(name)
    assert (found.n_edges, found.n_acdc, found.circuit.graph.n_edges) == (edges, acdc, universe)
    assert (found.n_live, found.n_unreachable) == (edges, 0)
    assert found.circuit.pruned() == found.circuit


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        (
            "ioi",
            {
                "Ehq": 9,
                "Ehk": 18,
                "Ehv": 18,
                "EM": 12,
                "EO": 1,
                "Mhq": 189,
                "Mhk": 189,
                "Mhv": 189,
                "MM": 66,
                "MO": 12,
            }
            | {"hhq": 52, "hhk": 36, "hhv": 36, "hM": 123, "hO": 13},
        ),
        (
            "greater-than",
            {
                "Ehq": 3,
                "Ehk": 3,
                "Ehv": 3,
                "EM": 4,
                "EO": 0,
                "Mhq": 41,
                "Mhk": 24,
                "Mhv": 24,
                "MM": 42,
                "MO": 4,
            }
            | {"hhq": 18, "hhk": 18, "hhv": 18, "hM": 27, "hO": 6},
        ),
        (
            "docstring",
            {"Ehq": 2, "Ehk": 2, "Ehv": 4, "EO": 0, "hhq": 4, "hhk": 6, "hhv": 4, "hO": 2},
        ),
    ],
)
def test_counts_by_kind(name: str, counts: dict[str, int]) -> None:
    found = load(name)
    assert {kind: between(found.circuit, kind[0], kind[1:]) for kind in counts} == counts
    assert sum(counts.values()) == found.n_edges


@pytest.mark.parametrize(("name", "heads"), [("ioi", 26), ("greater-than", 9), ("docstring", 6)])
def test_groups_are_the_nodes_of_the_circuit(name: str, heads: int) -> None:
    found = load(name)
    graph, groups = found.circuit.graph, found.groups
    nodes = [node for group in groups.values() for node in group]
    assert len(set(nodes)) == len(nodes)
    assert sum(node[0] == "a" for node in nodes) == heads
    live = {graph.writer_name(u) for u in found.circuit.live().nonzero().flatten().tolist()}
    assert live == {"input", *nodes}


@pytest.mark.parametrize("name", NAMES)
def test_every_rule_gives_edges_and_none_is_said_twice_over(name: str) -> None:
    known: Canonical = CANONICAL.load(name)
    for left_out in known.rules:
        fewer = replace(known, rules=tuple(rule for rule in known.rules if rule != left_out))
        assert len(fewer.circuit) < len(known.circuit), left_out


@pytest.mark.parametrize("name", NAMES)
def test_the_task_exists(name: str) -> None:
    assert load(name).task in TASKS.names()


@pytest.mark.parametrize(
    ("name", "graph", "says"),
    [
        (
            "ioi",
            Graph(30, 9),
            (
                r"GPT-2 small, 12 layers of 12 heads and MLPs; this graph has 30 layers of 9 heads"
                r" and MLPs; it lacks"
            ),
        ),
        ("ioi", Graph(24, 16), r"this graph has 24 layers of 16 heads and MLPs\.$"),
        (
            "greater-than",
            Graph(12, 12, parallel=True),
            r"heads and parallel MLPs; it lacks, for example, a0\.h1->m0",
        ),
        ("greater-than", Graph(12, 12, mlp=False), r"without MLPs; it lacks"),
        (
            "docstring",
            Graph(4, 8),
            (
                r"attn-only-4l, 4 layers of 8 heads without MLPs; this graph has 4 layers of 8"
                r" heads and MLPs\.$"
            ),
        ),
        ("docstring", Graph(2, 8, mlp=False), r"it lacks, for example, .*a2\.h0"),
    ],
)
def test_another_graph_is_refused(name: str, graph: Graph, says: str) -> None:
    with pytest.raises(GraphMismatch, match=says) as caught:
        canonical(name, graph)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'greater-than'"):
        canonical("greaterthan", Graph(12, 12))


def test_circuits_are_made_anew() -> None:
    first = load("ioi").circuit
    first.edges[0, 0] = ~first.edges[0, 0]
    assert not torch.equal(load("ioi").circuit.edges, first.edges)
    assert IOI.graph == GRAPHS["ioi"]
