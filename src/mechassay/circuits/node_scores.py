"""Scores of nodes and of neurons, and the circuits cut from them.

A node is a writer of the graph; a neuron is one dimension of what a writer puts into the residual
stream, non-linearity or not (Mueller et al. 2025, footnote 8). To include a node is to include all
its outgoing edges; to include n of a writer's d_model neurons is to include the same edges with a
weight of n / d_model (section 3.1). MIB's code keeps what has no score in every circuit; here it is
in none.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.circuits.circuit import Circuit, Places, checked_fraction
from mechassay.circuits.formats import read_graph_file
from mechassay.circuits.graph_file import ENDINGS, GraphFile
from mechassay.circuits.scores import By, EdgeScores, UnitScores
from mechassay.errors import BadFile, UnknownName
from mechassay.files import kind_of
from mechassay.graph import Graph


def edges_out(graph: Graph) -> Int[Tensor, "writers"]:
    """How many edges leave each writer."""
    return graph.legal.sum(dim=1)


@dataclass(frozen=True, eq=False, repr=False)
class _WriterScores(UnitScores):
    """What scores of nodes and of neurons share."""

    def within(self, fraction: float, *, by: By = "value") -> Circuit:
        """The best units' circuit whose weighted edge count is at most `fraction` of all.

        This is the paper's size of a circuit (section 3.1); early nodes cost more of it.
        """
        ranked = self.ranking(by)
        width = self.values.numel() // len(self.values)
        weights = edges_out(self.graph).numpy()[ranked // width]
        allowed = checked_fraction(fraction) * self.graph.n_edges * width + 1e-9
        n = int(np.searchsorted(np.cumsum(weights), allowed, side="right"))
        return self._circuit(self._chosen(ranked[:n]))


@dataclass(frozen=True, eq=False, repr=False)
class NeuronScores(_WriterScores):
    """One score per neuron, fp32 [writers, d_model]; NaN = not scored."""

    values: Float[Tensor, "writers d_model"]
    unit: ClassVar[str] = "neuron"

    @staticmethod
    def _axes(graph: Graph) -> Places:
        return graph.n_writers, "d_model"

    @staticmethod
    def _name(graph: Graph, *place: int) -> str:
        writer, neuron = place
        return f"{graph.writer_name(writer)}[{neuron}]"

    def _index(self, name: str) -> tuple[int, ...]:
        node, _, inside = name.removesuffix("]").partition("[")
        width = self.values.shape[1]
        if not (name.endswith("]") and inside.isdecimal() and int(inside) < width):
            raise UnknownName("neuron", name, (f"{node}[0]", f"{node}[{width - 1}]"))
        return self.graph.writer(node), int(inside)

    def _circuit(self, chosen: Tensor) -> Circuit:
        return Circuit.of_neurons(self.graph, chosen)

    def nodes(self) -> NodeScores:
        """The sum over each node's scored neurons; NaN for a node that has none."""
        sums = torch.where(self.scored().any(dim=1), self.values.nansum(dim=1), torch.nan)
        return NodeScores(self.graph, sums, self.provenance)


@dataclass(frozen=True, eq=False, repr=False)
class NodeScores(_WriterScores):
    """One score per node, fp32 [writers]; NaN = not scored."""

    values: Float[Tensor, "writers"]
    unit: ClassVar[str] = "node"

    @staticmethod
    def _axes(graph: Graph) -> Places:
        return (graph.n_writers,)

    @staticmethod
    def _name(graph: Graph, *place: int) -> str:
        return graph.writer_name(place[0])

    def _index(self, name: str) -> tuple[int, ...]:
        return (self.graph.writer(name),)

    def _circuit(self, chosen: Tensor) -> Circuit:
        return Circuit.of_nodes(self.graph, chosen)


Scores = EdgeScores | NodeScores | NeuronScores


def scores_of(file: GraphFile) -> Scores | None:
    """The scores of a graph file, those of edges first; None if it has none."""
    scores: Scores | None = file.scores
    for kind, values in ((NodeScores, file.node_scores), (NeuronScores, file.neuron_scores)):
        if scores is None and values is not None and not values.isnan().all():
            scores = kind(file.graph, values)
    return scores


def load_scores(path: str | Path, graph: Graph | None = None) -> Scores:
    """Scores of whatever kind a file holds, ours (.safetensors) or EAP-IG's and MIB's (.json, .pt).

    Raises:
        BadFile: truncated, foreign, or no scores. GraphMismatch: of another graph than `graph`.
    """
    if Path(path).suffix in ENDINGS:
        found = scores_of(read_graph_file(Path(path), graph))
        if found is None:
            raise BadFile(f"{path}: holds no scores, from which circuits of all sizes are cut.")
        return found
    kinds: dict[str, type[EdgeScores] | type[NodeScores] | type[NeuronScores]] = {
        "node_scores": NodeScores,
        "neuron_scores": NeuronScores,
    }
    return kinds.get(kind_of(Path(path)), EdgeScores).load(path, graph)
