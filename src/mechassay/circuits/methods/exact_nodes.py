"""Exact node patching: the drop in the objective when one node alone carries the counterfactual.

    S[u] = mean_examples m(clean) - m(clean with a'_u in place of a_u on all edges out of u)

The change goes along every path: everything after the node is computed anew on the changed stream.
This is what node attribution (NAP) estimates to first order, and what `evaluate` gives for the full
circuit without the edges out of u. All readers see the same change, so that it is one forward a
node, resumed where the node writes, many nodes stacked in one batch: at most half a forward a node
on average.

`paths="direct"` changes only what the unembedding sees of the node: the score of the edge
u->logits. Where the model is linear, the direct effects of all nodes sum to the total effect of
`input`.

One deviation from `evaluate`: when `input` carries a constant (`zero`, `mean`), the model is still
run on it, while in a circuit without edges out of `input` no node is reached, and all keep their
constants.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.circuits.methods.patching import (
    STACK_TOKENS,
    Block,
    Patching,
    chunks,
    stack_budget,
    sum_of_blocks,
)
from mechassay.circuits.node_scores import NodeScores
from mechassay.errors import UnknownName
from mechassay.graph import Graph
from mechassay.models.model import Model
from mechassay.objectives import Objective, load_objective
from mechassay.pairs import Batch, Pair
from mechassay.progress import BAR, Progress
from mechassay.registry import check_settings

Paths = Literal["all", "direct"]
PATHS = ("all", "direct")


@dataclass(frozen=True)
class ExactNodePatching:
    """Exact effect of ablating each node alone.

    Attributes:
        paths: "all" for its whole effect, "direct" for that along its edge to the logits.
    """

    paths: Paths = "all"
    name: ClassVar[str] = "exact-nodes"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_settings(self, self.name)
        if self.paths not in PATHS:
            raise UnknownName("paths", self.paths, PATHS)

    @torch.no_grad()
    def score(
        self,
        model: Model,
        pairs: Sequence[Pair] | Batch,
        objective: str | Objective = "logit_diff",
        *,
        progress: Progress = BAR,
        checkpoint: Path | None = None,
    ) -> NodeScores:
        """See `Method.score`; scores of nodes instead of edges.
        Objectives need not be differentiable.
        """
        chosen, batch, shape = (
            load_objective(objective),
            model.batch(pairs),
            (model.graph.n_writers,),
        )
        blocks = list(_blocks(model, self.paths, stack_budget(model, batch, STACK_TOKENS), batch))
        total, about = sum_of_blocks(
            self,
            model,
            batch,
            chosen,
            blocks,
            shape,
            add_nodes,
            progress=progress,
            checkpoint=checkpoint,
        )
        return NodeScores.of(model.graph, total / len(batch), about)

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """See `Method.forwards`: two runs, and 0.3 (GPT-2 small's shape) to 0.5 a node,
        which direct effects do without.
        """
        return (2.0 + 0.4 * graph.n_writers * (self.paths == "all")) * n_pairs


def _blocks(model: Model, paths: Paths, stack_tokens: int, batch: Batch) -> Iterator[Block]:
    """Runs of nodes whose changes enter the stream at the same place."""
    graph = model.graph
    places: list[tuple[str, int, range]] = (
        [("logits", -1, range(graph.n_writers))]
        if paths == "direct"
        else [("entering", 0, range(1))]
    )
    for layer in range(graph.n_layers) if paths == "all" else ():
        places.append(("heads", layer, range(graph.heads(layer).start, graph.heads(layer).stop)))
        if graph.mlp:
            places.append(
                ("entering", layer + 1, range(graph.mlp_writer(layer), graph.mlp_writer(layer) + 1))
            )
    for rows, columns in chunks(batch, stack_tokens):
        step = max(1, stack_tokens // columns)
        for kind, layer, nodes in places:
            for begin in range(0, len(nodes), step):
                writers = nodes[begin : begin + step]
                yield Block(rows, layer, kind, writers, len(writers) * len(rows))


def add_nodes(run: Patching, block: Block, into: Float[Tensor, "writers"]) -> None:
    """Add the summed effects of a block's nodes to `into`."""
    changes = run.changes(block.writers)
    if block.kind == "logits":
        effects = run.at_logits(changes)
    elif block.kind == "heads":
        effects = run.after_heads(block.layer, changes)
    else:
        effects = run.entering(block.layer, changes)
    into[block.writers.start : block.writers.stop] += effects
