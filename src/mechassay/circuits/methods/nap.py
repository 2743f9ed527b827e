"""Node attribution patching, at the clean input and with integrated gradients.

    NAP      S[u, d] = - mean_examples sum_positions (a'_u - a_u)[d] * dm/da_u[d] at the clean run
    NAP-IG   the same with dm/da_u averaged over runs on a'_input + alpha_k (a_input - a'_input)

Mueller et al. 2025, eq. 3 with dm/da_u and appendix E.2, where NAP is always reported by neuron:
one dimension d of a node's output. `level="node"` sums over d. See `circuits.node_attribution` for
how, and for the bug in MIB's code.

MIB's code takes the points k/Z for k = 1..Z (`right`) here but k = 0..Z-1 (`left`) for edges; the
default here is `left`, so that node scores are sums of the edge scores of EAP-IG-inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

from torch import Tensor

from mechassay.circuits.attribution import at_clean_run, at_interpolations
from mechassay.circuits.methods.gradient import GradientMethod, IntegratedMethod, Points
from mechassay.circuits.node_attribution import WriterGradients, add_products
from mechassay.circuits.node_scores import NeuronScores, NodeScores
from mechassay.errors import one_of
from mechassay.graph import Graph
from mechassay.models.model import Model
from mechassay.objectives import Objective
from mechassay.pairs import Batch

Level = Literal["neuron", "node"]


class _NodeGradientMethod(GradientMethod[NeuronScores | NodeScores]):
    """A gradient method that scores neurons, or nodes by the sums over their neurons."""

    level: Level

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("level", self.level, get_args(Level))

    def add(self, model: Model, chunk: Batch, objective: Objective, into: Tensor) -> None:
        if self.path is None:
            runs = at_clean_run(model, chunk, objective, WriterGradients.of)
        else:
            runs = at_interpolations(model, chunk, objective, *self.path, WriterGradients.of)
        add_products(model, *runs, into)

    def shape(self, model: Model) -> tuple[int, int]:
        return model.graph.n_writers, model.decoder.d_model

    def scores(
        self, graph: Graph, mean: Tensor, provenance: dict[str, Any]
    ) -> NeuronScores | NodeScores:
        if self.level == "neuron":
            return NeuronScores.of(graph, mean, provenance)
        return NodeScores.of(graph, mean.sum(1), provenance)


@dataclass(frozen=True)
class NAP(_NodeGradientMethod):
    """Node attribution patching: `NeuronScores`, or `NodeScores` at `level` "node"."""

    level: Level = "neuron"
    backward: str = "plain"
    name: ClassVar[str] = "nap"
    instead: ClassVar[str] = "nap-ig"


@dataclass(frozen=True)
class NAPIG(IntegratedMethod[NeuronScores | NodeScores], _NodeGradientMethod):
    """Node attribution patching with gradients integrated along the inputs."""

    steps: int = 5
    points: Points = "left"
    level: Level = "neuron"
    backward: str = "plain"
    name: ClassVar[str] = "nap-ig"
