"""Files of edge scores, and masks that do not fit: what is refused, in one line that says why.

Scores of nodes and neurons, and what is selected by them:
sizes by hand, ties, files, refusals.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from safetensors.torch import save_file

from mechassay.circuits import Circuit, EdgeScores, Random
from mechassay.circuits.graph_files import load_scores
from mechassay.circuits.scores import KEPT, NeuronScores, NodeScores, edges_out
from mechassay.errors import (
    BadFile,
    BadUsage,
    GraphMismatch,
    MechassayError,
    NonFinite,
    UnknownName,
)
from mechassay.models.graph import Graph
from mechassay.utils.files import write_tensors

GRAPH = Graph(1, 2)
HEADER = {"n_layers": 1, "n_heads": 2, "parallel": False, "mlp": True}
GOOD = Random().draw(GRAPH).values


def write(path: Path, values: torch.Tensor = GOOD, **changes: Any) -> Path:
    header = {
        "kind": "edge_scores",
        "fingerprint": GRAPH.fingerprint,
        "graph": HEADER,
        "provenance": {},
        **changes,
    }
    write_tensors(path, {"values": values}, header)
    return path


def test_any_float_type_is_read_as_fp32(tmp_path: Path) -> None:
    found = EdgeScores.load(write(tmp_path / "a.safetensors", GOOD.half()), GRAPH)
    torch.testing.assert_close(found.values, GOOD.half().float(), equal_nan=True, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("values", "changes", "message"),
    [
        (GOOD.long(), {}, "torch.int64 with 2 axes; expected floats with 2"),
        (GOOD[0], {}, "with 1 axes; expected floats with 2"),
        (GOOD[:, :3], {}, r"need shape \(4, 8\); got \(4, 3\)"),
        (
            torch.full_like(GOOD, float("-inf")),
            {},
            "13 of 13 scores of edges are infinite, the first is input->a0.h0<q>",
        ),
        (GOOD, {"graph": HEADER | {"n_layers": 0}}, "lacks a valid graph.* at least one layer"),
        (GOOD, {"graph": HEADER | {"n_layers": 2}}, "does not match its fingerprint"),
        (GOOD, {"graph": []}, "lacks a valid graph"),
        (GOOD, {"provenance": ["a"]}, "the provenance of the scores is no JSON object"),
        (GOOD, {"kind": "node_scores"}, "holds 'node_scores'; expected 'edge_scores'"),
    ],
)
def test_a_file_that_is_not_what_it_says_is_refused(
    values: torch.Tensor, changes: Any, message: str, tmp_path: Path
) -> None:
    file = write(tmp_path / "a.safetensors", values, **changes)
    with pytest.raises((BadFile, GraphMismatch, NonFinite), match=message) as caught:
        EdgeScores.load(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("header", ["[]", "3", "null", '"text"'])
def test_a_header_that_is_no_object_is_refused(header: str, tmp_path: Path) -> None:
    save_file({"values": GOOD}, tmp_path / "a.safetensors", metadata={"mechassay": header})
    with pytest.raises(BadFile, match="header is no JSON object"):
        load_scores(tmp_path / "a.safetensors")


def refused(kind: type[MechassayError], message: str, make: Any) -> None:
    """Shapes are the package's own to check here, not those of the annotations."""
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(kind, match=message):
            make()
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def test_infinite_scores_and_wrong_shapes_are_refused() -> None:
    refused(
        NonFinite,
        "13 of 13 scores of edges are infinite",
        lambda: EdgeScores(GRAPH, torch.full_like(GOOD, float("inf"))),
    )
    refused(GraphMismatch, "need shape", lambda: EdgeScores.of(GRAPH, torch.zeros(3, 3)))


def test_masks_of_another_shape_or_type_are_refused() -> None:
    refused(
        GraphMismatch,
        "nodes of a circuit .* shape",
        lambda: Circuit.of_nodes(GRAPH, torch.ones(9, dtype=torch.bool)),
    )
    refused(
        BadUsage,
        r"of_nodes takes a Tensor bool\[writers\] as nodes; got a Tensor float32\[4\]",
        lambda: Circuit.of_nodes(GRAPH, torch.ones(4)),
    )
    refused(
        BadUsage,
        "edges of a circuit must be a mask of bool; got float32",
        lambda: Circuit(GRAPH, GRAPH.legal.float()),
    )


def test_an_unknown_ranking_is_refused_greedily_too() -> None:
    by: Any = "valu"
    with pytest.raises(UnknownName, match="Did you mean 'value'"):
        Random().draw(GRAPH).greedy(3, by=by)


@pytest.mark.parametrize("by", ["value", "magnitude"])
def test_greedy_circuits_are_the_beginnings_of_one_order(by: Any) -> None:
    graph = Graph(2, 3)
    scores = Random(seed=3).draw(graph)
    values = scores.values - scores.values[graph.legal].median()  # of both signs
    values[graph.index("m1->logits")] = float("nan")
    scores = EdgeScores(graph, values)
    order = scores.greedy_order(by)
    # All edges but the unscored one, and those into the MLP that only this one reads.
    into_m1 = int(graph.legal[:, graph.index("input->m1")[1]].sum())
    assert len(order) == len(set(order.tolist())) == graph.n_edges - 1 - into_m1
    for n in range(graph.n_edges + 1):
        mask = torch.zeros(graph.legal.numel(), dtype=torch.bool)
        mask[torch.from_numpy(order[:n])] = True
        assert torch.equal(scores.greedy(n, by=by).edges, mask.view_as(graph.legal)), n
        assert n == 0 or n > len(order) or scores.greedy(n, by=by).edges.sum() == n
    with pytest.raises(UnknownName, match="Did you mean 'value'"):
        scores.greedy_order("valu")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UnknownName, match="Did you mean 'value'"):
        scores.greedy(0, by="valu")  # pyright: ignore[reportArgumentType]


"""Writers input, a0.h0, a0.h1, m0; readers 2 x (q, k, v), m0, logits: 8, 2, 2 and 1 edges."""


def neurons(*rows: list[float]) -> NeuronScores:
    return NeuronScores(GRAPH, torch.tensor(rows))


SCORES = neurons([0.1, -9.0], [5.0, 5.0], [float("nan"), 3.0], [-4.0, 5.0])


def count(circuit: Circuit) -> int:
    """Neurons that are in."""
    assert circuit.neurons is not None
    return int(circuit.neurons.sum())


def test_sizes_by_hand() -> None:
    assert edges_out(GRAPH).tolist() == [8, 2, 2, 1]
    mask = torch.tensor([[True, False], [True, True], [False, False], [False, True]])
    circuit = Circuit.of_neurons(GRAPH, mask)
    assert count(circuit) == 4 and len(circuit) == 8 + 2 + 1
    assert circuit.edges.any(dim=1).tolist() == [True, True, False, True]
    assert circuit.weighted_edge_count() == 0.5 * 8 + 2 + 0.5 * 1
    assert circuit.size == 6.5 / 13
    assert torch.equal(
        circuit.edges, GRAPH.legal & torch.tensor([True, True, False, True])[:, None]
    )
    # Mixed: three edges, of which the first two carry half of their writer.
    some = Circuit.from_names(GRAPH, ["input->m0", "m0->logits", "a0.h0->logits"])
    assert Circuit(GRAPH, some.edges, mask).weighted_edge_count() == 0.5 + 0.5 + 1
    assert some.weighted_edge_count() == 3 and some.size == 3 / 13


@pytest.mark.parametrize(
    "graph", [Graph(12, 12), Graph(3, 4, parallel=True), Graph(2, 3, mlp=False)]
)
def test_ends(graph: Graph) -> None:
    shape = (graph.n_writers, 7)
    full, empty = (Circuit.of_neurons(graph, torch.full(shape, value)) for value in (True, False))
    assert (
        full.weighted_edge_count() == graph.n_edges
        and full.size == 1
        and full == Circuit.full(graph)
    )
    assert empty.weighted_edge_count() == 0 and len(empty) == 0 and empty == Circuit.empty(graph)
    # Edges that carry nothing are edges, but they lead nowhere.
    nothing = Circuit(graph, graph.legal, torch.zeros(shape, dtype=torch.bool))
    assert (
        nothing.weighted_edge_count() == 0
        and len(nothing) == graph.n_edges
        and nothing != Circuit.full(graph)
    )
    assert nothing.pruned() == Circuit.empty(graph) and not bool(nothing.live().any())


def test_gpt2_small_counts_real_edges_only() -> None:
    """MIB's code counts 157 writers x 445 readers = 69,865 here."""
    graph = Graph(12, 12)
    assert (
        Circuit.of_neurons(
            graph, torch.ones(graph.n_writers, 768, dtype=torch.bool)
        ).weighted_edge_count()
        == 32_491
    )


def test_whole_nodes_count_as_their_edges() -> None:
    graph = Graph(3, 4)
    nodes = torch.rand(graph.n_writers, generator=torch.Generator().manual_seed(0)) < 0.5
    circuit = Circuit.of_neurons(graph, nodes[:, None].expand(-1, 5))
    assert circuit.weighted_edge_count() == len(circuit)
    assert circuit == Circuit.of_nodes(graph, nodes) and hash(circuit) == hash(
        Circuit.of_nodes(graph, nodes)
    )
    assert torch.equal(circuit.edges.any(dim=1), nodes)


def test_pruning_drops_edges_that_carry_nothing_and_what_only_they_lead_to() -> None:
    edges = Circuit.from_names(
        GRAPH, ["input->a0.h0<v>", "input->a0.h1<v>", "a0.h0->m0", "a0.h1->logits", "m0->logits"]
    ).edges
    neurons = torch.tensor([[True, False], [False, False], [True, True], [False, True]])
    pruned = Circuit(GRAPH, edges, neurons).pruned()
    # a0.h0 carries nothing, so nothing leads to m0, and the input need not lead to a0.h0.
    assert pruned.names() == ["input->a0.h1<v>", "a0.h1->logits"]
    assert pruned.neurons is not None and pruned.neurons.tolist() == [
        [True, False],
        [False, False],
        [True, True],
        [False, False],
    ]
    assert pruned.weighted_edge_count() == 0.5 + 1 and pruned == pruned.pruned()
    assert pruned.live().tolist() == [True, False, True, False]


def test_rankings_break_ties_by_index_and_leave_out_what_is_not_scored() -> None:
    assert SCORES.ranking().tolist() == [2, 3, 7, 5, 0, 6, 1]
    assert SCORES.ranking("magnitude").tolist() == [1, 2, 3, 7, 6, 5, 0]
    assert SCORES.scored().sum() == 7
    with pytest.raises(UnknownName, match="magnitude"):
        SCORES.ranking("magnitud")  # pyright: ignore[reportArgumentType]


def test_top_neurons() -> None:
    def chosen(circuit: Circuit) -> list[int]:
        assert circuit.neurons is not None
        return circuit.neurons.flatten().nonzero().flatten().tolist()

    assert chosen(SCORES.top(3)) == [2, 3, 7]
    assert SCORES.top(3).edges.sum(dim=1).tolist() == [0, 2, 0, 1]
    assert chosen(SCORES.top(2, by="magnitude")) == [1, 2]
    assert count(SCORES.top(0.49)) == 3 and count(SCORES.top(0.5)) == 4
    assert count(SCORES.top(1.0)) == 7
    assert count(SCORES.top(0)) == 0


def test_neurons_within_a_size() -> None:
    # Neurons 2, 3 weigh one edge each, 7 half an edge, 5 one, 0 four.
    for fraction, kept in [
        (0.9 / 13, 0),
        (1 / 13, 1),
        (2.4 / 13, 2),
        (2.5 / 13, 3),
        (7.4 / 13, 4),
        (7.5 / 13, 5),
        (1.0, 7),
    ]:
        circuit = SCORES.within(fraction)
        assert count(circuit) == kept
        assert circuit.size <= fraction + 1e-12
    with pytest.raises(BadUsage, match=r"\[0, 1\]"):
        SCORES.within(1.5)


def test_nodes() -> None:
    nodes = SCORES.nodes()
    torch.testing.assert_close(nodes.values, torch.tensor([-8.9, 10.0, 3.0, 1.0]))
    assert nodes.top(2).names() == ["a0.h0->m0", "a0.h0->logits", "a0.h1->m0", "a0.h1->logits"]
    assert len(nodes.top(1, by="magnitude")) == 2
    assert len(nodes.top(0.75)) == 5
    assert len(nodes.within(4.5 / 13)) == 4
    nothing = neurons([float("nan")] * 2, [1.0, 1.0], [1.0, 1.0], [1.0, 1.0])
    assert nothing.nodes().values.isnan().tolist() == [True, False, False, False]


def test_circuits_of_neurons_are_values() -> None:
    a, b = SCORES.top(3), SCORES.top(3)
    assert a == b and hash(a) == hash(b) and a != SCORES.top(4) and a is not b
    assert len({a, b, SCORES.top(4)}) == 2
    assert a != Circuit(GRAPH, a.edges)
    # The neurons of a writer without edges carry nothing, so they make no other circuit.
    assert a.neurons is not None and not bool(a.edges[2].any())
    idle = a.neurons.clone()
    idle[2] = True
    assert Circuit(GRAPH, a.edges, idle) == a and hash(Circuit(GRAPH, a.edges, idle)) == hash(a)


@pytest.mark.parametrize("scores", [SCORES, SCORES.nodes()])
def test_files(scores: NeuronScores | NodeScores, tmp_path: Path) -> None:
    path = tmp_path / "scores.safetensors"
    made = type(scores)(scores.graph, scores.values, {"method": "by hand", "n_examples": 3})  # pyright: ignore[reportArgumentType]
    made.save(path)
    again = type(scores).load(path, GRAPH)
    torch.testing.assert_close(again.values, scores.values, equal_nan=True, rtol=0, atol=0)
    assert again.graph == GRAPH and again.provenance == {"method": "by hand", "n_examples": 3}
    with pytest.raises(GraphMismatch, match="made on"):
        type(scores).load(path, Graph(2, 2))
    wrong = NodeScores if isinstance(scores, NeuronScores) else NeuronScores
    with pytest.raises(BadFile, match="holds"):
        wrong.load(path)
    with pytest.raises(BadFile, match="holds"):
        EdgeScores.load(path)
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(BadFile, match="not a readable"):
        type(scores).load(path)
    with pytest.raises(BadFile, match="no such file"):
        type(scores).load(tmp_path / "none")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"graph": {"n_layers": 0, "n_heads": 2}}, BadFile, "at least one layer"),
        ({"graph": {"layers": 1}}, BadFile, "header"),
        ({"graph": None}, BadFile, "header"),
        ({"fingerprint": "0"}, BadFile, "fingerprint"),
        ({"values": torch.ones(4, 2, dtype=torch.int32)}, BadFile, "int32"),
        ({"values": torch.ones(4)}, BadFile, "with 1 axes"),
        ({"values": torch.ones(5, 2)}, GraphMismatch, "d_model"),
        ({"values": torch.full((4, 2), float("inf"))}, NonFinite, "8 of 8"),
        ({"provenance": 3}, BadFile, "provenance"),
    ],
)
def test_bad_files(
    change: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "scores.safetensors"
    parts = {
        "graph": {"n_layers": 1, "n_heads": 2, "parallel": False, "mlp": True},
        "fingerprint": GRAPH.fingerprint,
        "values": torch.ones(4, 2),
        "provenance": {},
    }
    values = {**parts, **change}.pop("values")
    header = {key: value for key, value in {**parts, **change}.items() if key != "values"}
    write_tensors(path, {"values": values}, {"kind": "neuron_scores", **header})
    with pytest.raises(error, match=message):
        NeuronScores.load(path)


def test_masks_of_other_shapes_and_types_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # As users run it: in tests alone, shapes are checked before.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for wrong in (torch.zeros(3, 2, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)):
        with pytest.raises(GraphMismatch, match=r"\(4, d_model\); got"):
            Circuit(GRAPH, GRAPH.legal, wrong)
    with pytest.raises(GraphMismatch, match=r"\(4, d_model\); got"):
        Circuit.of_neurons(GRAPH, torch.zeros(3, 2, dtype=torch.bool))
    with pytest.raises(
        BadUsage, match=r"bool\[writers, d_model\] as neurons; got a Tensor bool\[4\]"
    ):
        Circuit.of_neurons(GRAPH, torch.zeros(4, dtype=torch.bool))
    with pytest.raises(BadUsage, match="mask of bool; got float32"):
        Circuit(GRAPH, GRAPH.legal, torch.zeros(4, 2))


def test_what_is_refused() -> None:
    with pytest.raises(GraphMismatch, match=r"\(4,\)"):
        NodeScores(GRAPH, torch.zeros(5))
    with pytest.raises(NonFinite, match="first is a0.h1"):
        NeuronScores.of(
            GRAPH, torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, float("nan")], [1.0, 1.0]])
        )
    with pytest.raises(BadUsage, match="between 0 and 8 neurons"):
        SCORES.top(9)
    with pytest.raises(BadUsage, match="between 0 and 4 nodes"):
        SCORES.nodes().top(-1)


def test_scores_of_lower_precision_are_widened() -> None:
    values = Random(seed=1).draw(GRAPH).values[:, :2].nan_to_num(0.0).bfloat16()
    assert NeuronScores.of(GRAPH, values).values.dtype == torch.float32


def test_units_of_mibs_files_without_a_score_are_in_every_circuit() -> None:
    # By hand: the input has no score; a0.h1 > m0 > a0.h0 by value, m0 first by magnitude.
    nan = float("nan")
    kept = NodeScores(GRAPH, torch.tensor([nan, 0.1, 0.5, -2.0]), {KEPT: True})
    names = [GRAPH.writer_name(u) for u in range(GRAPH.n_writers)]

    def nodes(circuit: Circuit) -> list[str]:
        return [name for u, name in enumerate(names) if circuit.edges[u].any()]

    assert nodes(kept.top(0)) == ["input"]
    assert nodes(kept.top(1)) == ["input", "a0.h1"]
    assert nodes(kept.top(1, by="magnitude")) == ["input", "m0"]
    # Shares are of the three that are scored: int(.5 * 3) = 1, and all at 1.
    assert nodes(kept.top(0.5)) == ["input", "a0.h1"]
    assert kept.top(1.0) == Circuit.full(GRAPH)
    # 8 of 13 edges leave the input: .6 has no room for it, .8 for two edges more.
    assert kept.within(0.6) == Circuit.empty(GRAPH)
    assert nodes(kept.within(0.8)) == ["input", "a0.h1"]
    assert nodes(NodeScores(GRAPH, kept.values).top(1)) == ["a0.h1"]
    alone = NeuronScores(GRAPH, SCORES.values, {KEPT: True})
    assert count(alone.top(0)) == 1 and count(SCORES.top(0)) == 0
