"""Exact node patching: the drop in the objective when one node alone carries the counterfactual.

    S[u] = mean_examples m(clean) - m(clean with a'_u in place of a_u on all edges out of u)

The change goes along every path: everything after the node is computed anew on the changed stream.
This is what node attribution (NAP) estimates to first order, and what `evaluate` gives for the full
circuit without the edges out of u. It is one forward a node, resumed where the node writes, many
nodes stacked in one batch: at most half a forward a node on average.

`paths="direct"` changes only what the unembedding sees of the node: the score of the edge
u->logits. Where the model is linear, the direct effects of all nodes sum to the total effect of
`input`.

Deviation from `evaluate`: when `input` carries a constant (`zero`, `mean`), the model is still run
on it, while in a circuit without edges out of `input` all nodes keep their constants.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from jaxtyping import Float
from torch import Tensor

from mechassay.circuits.methods.patching import PatchBatch, Patching, PatchingMethod, chunks
from mechassay.circuits.node_scores import NodeScores
from mechassay.errors import one_of
from mechassay.graph import Graph
from mechassay.models.model import Model
from mechassay.pairs import Batch
from mechassay.registry import check_settings

Paths = Literal["all", "direct"]


@dataclass(frozen=True)
class ExactNodePatching(PatchingMethod[NodeScores]):
    """Exact effect of ablating each node alone, along all paths or its edge to the logits."""

    paths: Paths = "all"
    name: ClassVar[str] = "exact-nodes"

    def __post_init__(self) -> None:
        check_settings(self, self.name)
        one_of("paths", self.paths, get_args(Paths))

    def blocks(self, model: Model, batch: Batch, stack_tokens: int) -> Iterator[PatchBatch]:
        """Runs of nodes whose changes enter the stream at the same place."""
        graph = model.graph
        places = [("entering", 0, range(1))]
        for layer in range(graph.n_layers):
            heads = graph.heads(layer)
            places.append(("heads", layer, range(heads.start, heads.stop)))
            if graph.mlp:
                places.append(("entering", layer + 1, range(heads.stop, heads.stop + 1)))
        if self.paths == "direct":
            places = [("logits", -1, range(graph.n_writers))]
        for rows, columns in chunks(batch, stack_tokens):
            step = max(1, stack_tokens // columns)
            for kind, layer, nodes in places:
                for begin in range(0, len(nodes), step):
                    writers = nodes[begin : begin + step]
                    yield PatchBatch(rows, layer, kind, writers, len(writers) * len(rows))

    def add(self, run: Patching, block: PatchBatch, into: Float[Tensor, "writers"]) -> None:
        changes = run.changes(block.writers)
        if block.kind == "logits":
            effects = run.at_logits(changes)
        elif block.kind == "heads":
            effects = run.after_heads(block.layer, changes)
        else:
            effects = run.entering(block.layer, changes)
        into[block.writers.start : block.writers.stop] += effects

    def shape(self, graph: Graph) -> tuple[int, ...]:
        return (graph.n_writers,)

    def scores(self, graph: Graph, mean: Tensor, provenance: dict[str, Any]) -> NodeScores:
        return NodeScores.of(graph, mean, provenance)

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """See `Method.forwards`: two runs, and 0.3 to 0.5 a node for effects on all paths."""
        return (2.0 + 0.4 * graph.n_writers * (self.paths == "all")) * n_pairs
