"""How much two circuits have in common, and how much two random ones would.

Of a graph's N edges, circuit A holds |A| and circuit B |B|:

    jaccard     |A and B| / |A or B|; NaN for two empty circuits
    expected    |A| |B| / N: the mean of |A and B| if B were |B| edges drawn at random
    p_value     P(X >= |A and B|) for the hypergeometric X of that draw

The draw knows sizes alone. Circuits that were pruned, or grown from the logits, share nodes and so
overlap more than the draw says: a small p says that two circuits are not unrelated *sets of edges*,
not that they agree on a mechanism. Compare a pair of methods with the same pair on another task.

Edges count whole, whatever share of their writer's neurons they carry. The nodes of a circuit are
the heads and MLPs at either end of its edges, not `input` and `logits`; they have no p value:
edges, not nodes, were chosen.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from scipy.stats import hypergeom
from torch import Tensor

from mechassay.circuits.circuit import Circuit
from mechassay.display import OneLine
from mechassay.errors import GraphMismatch


@dataclass(frozen=True, repr=False)
class Overlap(OneLine):
    """Sizes of two circuits and of what they share.

    Attributes:
        n_edges, n_nodes: of the graph; nodes are heads and MLPs.
        edges_a, edges_b, edges_both: in A, in B, in both.
        nodes_a, nodes_b, nodes_both: the same of nodes.
    """

    n_edges: int
    edges_a: int
    edges_b: int
    edges_both: int
    n_nodes: int
    nodes_a: int
    nodes_b: int
    nodes_both: int

    @property
    def jaccard(self) -> float:
        """Share of the edges in either circuit that is in both; NaN where there are none."""
        return _jaccard(self.edges_a, self.edges_b, self.edges_both)

    @property
    def node_jaccard(self) -> float:
        """The same of nodes."""
        return _jaccard(self.nodes_a, self.nodes_b, self.nodes_both)

    @property
    def expected(self) -> float:
        """Edges in common of two random circuits of these sizes, on average."""
        return self.edges_a * self.edges_b / self.n_edges

    @property
    def p_value(self) -> float:
        """Probability that two random circuits of these sizes share at least as many edges."""
        tail = float(hypergeom.sf(self.edges_both - 1, self.n_edges, self.edges_a, self.edges_b))
        return min(tail, 1.0)  # The sum of the tail may exceed 1 by rounding.


def overlap_of(a: Circuit, b: Circuit) -> Overlap:
    """What two circuits of one graph have in common.

    Args:
        a, b: taken as they are; prune them first if edges on no path should not count.

    Raises:
        GraphMismatch: the circuits belong to different graphs.
    """
    if a.graph != b.graph:
        raise GraphMismatch(
            f"The first circuit belongs to {a.graph}; the second belongs to {b.graph}."
        )
    nodes_a, nodes_b = nodes_of(a), nodes_of(b)
    return Overlap(
        n_edges=a.graph.n_edges,
        edges_a=len(a),
        edges_b=len(b),
        edges_both=int((a.edges & b.edges).sum()),
        n_nodes=a.graph.n_writers - 1,
        nodes_a=int(nodes_a.sum()),
        nodes_b=int(nodes_b.sum()),
        nodes_both=int((nodes_a & nodes_b).sum()),
    )


def nodes_of(circuit: Circuit) -> Bool[Tensor, "writers"]:
    """True at the heads and MLPs at either end of an edge of the circuit; never at `input`."""
    graph = circuit.graph
    member = torch.cat([circuit.edges.any(dim=1), torch.zeros(1, dtype=torch.bool)])
    member[graph.reader_owner[circuit.edges.any(dim=0)]] = True
    member[0] = False
    return member[:-1]


def _jaccard(n_a: int, n_b: int, n_both: int) -> float:
    either = n_a + n_b - n_both
    return n_both / either if either else math.nan
