"""Which circuit of some scores a drawing has room for."""

from __future__ import annotations

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.node_scores import NodeScores
from mechassay.circuits.scores import By, EdgeScores

DRAWN_EDGES = 60
"""Edges that a drawing has room for, if nobody asks for another number."""


def largest_drawable(
    scores: EdgeScores | NodeScores, n_edges: int = DRAWN_EDGES, by: By = "magnitude"
) -> Circuit:
    """The largest circuit of top edges, or top nodes, with at most `n_edges` after pruning.

    Where the first connected one is already larger, and where scores say that their circuits grow
    from the logits, edges are grown; of nodes there is then none.
    """
    if isinstance(scores, EdgeScores) and scores.grows:
        return scores.greedy(min(n_edges, scores.graph.n_edges), by=by).pruned()
    low, high = 0, min(len(scores.ranking(by)), scores.graph.n_edges)
    while low < high:
        middle = (low + high + 1) // 2
        if len(scores.top(middle, by=by).pruned()) <= n_edges:
            low = middle
        else:
            high = middle - 1
    found = scores.top(low, by=by).pruned()
    if len(found) or not isinstance(scores, EdgeScores):
        return found
    return scores.greedy(min(n_edges, scores.graph.n_edges), by=by).pruned()
