"""Circuits as attribution graphs, for circuit-tracer's page and Neuronpedia's.

Their JSON has nodes at token positions, of features, and one link for a pair of nodes. Ours are
written in it so:

    input      E_0_1, of the type "embedding"
    a3.h7      3_7_1, of the type "attention head": its layer and its number
    m3         3_H_1 with H heads a layer, of the type "mlp"
    logits     (L+1)_0_1 with L layers, of the type "logit"
    edges      a link from the writer to the head, MLP or logits that reads it; those into a
               head's query, key and value are one link, and its weight is the sum of theirs

A weight is the sum of the edges' scores, which are effects on the objective, not on the node that
reads; without scores it counts edges. A circuit says nothing of positions, so all nodes stand at
the second of two tokens, "all" and "positions". Each link also names its edges (`edges`), a field
that readers of the format pass over: no edge is lost.

Fields are those of Neuronpedia's `graph-schema.json` (version 1.0.0) and of circuit-tracer's
`graph_models.py`. Its page drops what is at more than two thirds of the tokens, hence two, and
reads a probability from the label of a logit, hence none.
"""

from __future__ import annotations

import json
from typing import Any

import torch

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadUsage, GraphMismatch
from mechassay.models.graph import Graph
from mechassay.version import __version__

TOKENS = ("all", " positions")
AT = 1
"""Where every node stands."""


def attribution_graph(
    circuit: Circuit, scores: EdgeScores | None = None, *, slug: str, model: str = ""
) -> str:
    """A circuit as the JSON of an attribution graph.

    Args:
        scores: of its edges; without them, weights count edges.
        slug: what the graph is called.
        model: as Neuronpedia calls it, such as "gpt2-small"; that of the scores if "".

    Raises:
        GraphMismatch: the scores are of another graph.
        BadUsage: an edge without a score, or a circuit that carries some neurons alone.
    """
    graph = circuit.graph
    if scores is not None and scores.graph != graph:
        raise GraphMismatch(f"The circuit is of {graph}; the scores were made on {scores.graph}.")
    writers, readers = circuit.edges.nonzero(as_tuple=True)
    if circuit.neurons is not None and not bool(circuit.neurons[writers].all()):
        raise BadUsage("An attribution graph has whole edges; the circuit carries some neurons.")
    values = (
        torch.ones(len(writers), dtype=torch.float32)
        if scores is None
        else scores.values[writers, readers]
    )
    names = circuit.names()
    if not bool(values.isfinite().all()):
        unscored = names[int(values.isfinite().logical_not().nonzero()[0])]
        raise BadUsage(f"Every link has a weight; the edge {unscored} has no score.")
    links: dict[tuple[int, int], dict[str, Any]] = {}
    owners = graph.reader_owner[readers].tolist()
    rows = zip(writers.tolist(), owners, values.tolist(), names, strict=True)
    for writer, owner, value, name in rows:
        ends = {"source": _node_id(graph, writer), "target": _node_id(graph, owner)}
        link = links.setdefault((writer, owner), {**ends, "weight": 0.0, "edges": []})
        link["weight"] += value
        link["edges"].append(name)
    nodes = sorted({0, graph.n_writers, *(node for ends in links for node in ends)})
    provenance = {} if scores is None else scores.provenance
    of = "the sum of the scores of its edges" if scores is not None else "how many edges it has"
    plain = {
        "metadata": {
            "slug": slug,
            "scan": model or str(provenance.get("model", "")),
            "transcoder_list": [],
            "prompt_tokens": list(TOKENS),
            "prompt": "".join(TOKENS),
            "schema_version": 1,
            "info": {
                "description": "A circuit of attention heads and MLPs, the same at all positions."
                f" The weight of a link is {of}; those into a head's query, key and value are one"
                " link.",
                "generator": {"name": "mechassay", "version": __version__},
            },
        },
        "qParams": {
            **{"pinnedIds": [], "supernodes": [], "linkType": "both"},
            **{"clickedId": "", "sg_pos": ""},
        },
        "nodes": [_node(graph, node) for node in nodes],
        "links": list(links.values()),
    }
    return json.dumps(plain, indent=1)


def _place(graph: Graph, node: int) -> tuple[str, int, str]:
    """The layer of a writer, or of `logits` after the last, its number there, and its type."""
    if node == 0:
        return "E", 0, "embedding"
    if node == graph.n_writers:
        return str(graph.n_layers + 1), 0, "logit"
    layer, number = divmod(node - 1, graph.writers_per_layer)
    return str(layer), number, "mlp" if number == graph.n_heads else "attention head"


def _node_id(graph: Graph, node: int) -> str:
    layer, number, _ = _place(graph, node)
    return f"{layer}_{number}_{AT}"


def _node(graph: Graph, node: int) -> dict[str, Any]:
    layer, number, kind = _place(graph, node)
    is_inner = 0 < node < graph.n_writers
    return {
        "node_id": _node_id(graph, node),
        "feature": number,
        "layer": layer,
        "ctx_idx": AT,
        "feature_type": kind,
        "token_prob": 0.0,
        "is_target_logit": node == graph.n_writers,
        "run_idx": 0,
        "reverse_ctx_idx": 0,
        "jsNodeId": f"{layer}_{number}-0",
        "clerp": graph.writer_name(node) if is_inner else "",
    }
