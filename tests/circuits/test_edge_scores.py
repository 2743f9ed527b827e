"""Files of edge scores, and masks that do not fit: what is refused, in one line that says why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jaxtyping
import pytest
import torch
from safetensors.torch import save_file

from mechassay.circuits import Circuit, EdgeScores, Random
from mechassay.circuits.node_scores import load_scores
from mechassay.errors import (
    BadFile,
    BadUsage,
    GraphMismatch,
    MechassayError,
    NonFinite,
    UnknownName,
)
from mechassay.files import write_tensors
from mechassay.graph import Graph

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
        "nodes of a circuit must be a mask of bool; got float32",
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
