"""Scores of nodes and of neurons, and the circuits cut from them.

A node is a writer of the graph; a neuron is one dimension of what a writer puts into the residual
stream, non-linearity or not (Mueller et al. 2025, footnote 8). To include a node is to include all
its outgoing edges, so what is cut by node is the `Circuit` of these edges; to include n of a
writer's d_model neurons is to include the same edges with a weight of n / d_model (section 3.1).
MIB's code keeps what has no score in every circuit; here it is in none.

Ties are broken by index (writer-major), so that a ranking is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.circuits.scores import By, Circuit, EdgeScores, read_scores
from mechassay.errors import BadUsage, GraphMismatch, NonFinite, UnknownName
from mechassay.files import kind_of, write_tensors
from mechassay.graph import Graph


def edges_out(graph: Graph) -> Int[Tensor, "writers"]:
    """How many edges leave each writer."""
    return graph.legal.sum(dim=1)


@dataclass(frozen=True, eq=False)
class _WriterScores:
    """What scores of nodes and of neurons share: their ranking, sizes and files."""

    graph: Graph
    values: Float[Tensor, "writers *dims"]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    n_axes: ClassVar[int]
    unit: ClassVar[str]

    def __post_init__(self) -> None:
        if self.values.ndim != self.n_axes or len(self.values) != self.graph.n_writers:
            wanted = (
                f"({self.graph.n_writers}, d_model)"
                if self.n_axes == 2
                else f"({self.graph.n_writers},)"
            )
            raise GraphMismatch(
                f"Scores of {self.unit}s on this graph need shape {wanted}; got"
                f" {tuple(self.values.shape)}."
            )
        if bool(self.values.isinf().any()):
            raise NonFinite(
                f"{int(self.values.isinf().sum())} of {self.values.numel()} scores of {self.unit}s"
                " are infinite."
            )

    @classmethod
    def of(cls, graph: Graph, values: Tensor, provenance: Mapping[str, Any] | None = None) -> Self:
        """Scores from a tensor of any float type and device.

        Raises:
            NonFinite: a score is infinite or NaN.
        """
        finite = torch.isfinite(values).reshape(len(values), -1).all(dim=1)
        if len(values) == graph.n_writers and not bool(finite.all()):
            name = graph.writer_name(int((~finite).nonzero()[0]))
            raise NonFinite(
                f"{int((~finite).sum())} of {graph.n_writers} nodes have scores that are not"
                f" finite, the first is {name}: the activations overflow or hold NaN."
            )
        return cls(graph, values.detach().float().cpu(), dict(provenance or {}))

    def scored(self) -> Bool[Tensor, "writers *dims"]:
        """True where there is a score."""
        return ~self.values.isnan()

    def place_name(self, flat: int) -> str:
        """The name of the node, or of the node and the number of its neuron,
        at a flat index, as `ranking` gives them.
        """
        if self.values.ndim == 1:
            return self.graph.writer_name(flat)
        writer, neuron = divmod(flat, self.values.shape[1])
        return f"{self.graph.writer_name(writer)}[{neuron}]"

    def ranking(self, by: By = "value") -> np.ndarray:
        """Flat indices of what is scored, best first; ties by index."""
        if by not in ("value", "magnitude"):
            raise UnknownName("ranking", by, ("value", "magnitude"))
        flat = self.values.flatten().numpy()
        index = np.flatnonzero(~np.isnan(flat))
        keys = np.abs(flat[index]) if by == "magnitude" else flat[index]
        return index[np.argsort(-keys, kind="stable")]

    def size(self, n: int | float) -> int:
        """How many `n` means: a number, or a fraction (a float in [0, 1]) of all, rounded down.

        Raises:
            BadUsage: a negative number, more than there are, or a fraction outside [0, 1].
        """
        total = self.values.numel()
        if isinstance(n, float):
            # As for edges: the tiny lift keeps e.g. .29 * 100 from rounding down to 28.
            return int(_fraction(n) * total + 1e-9)
        if not 0 <= n <= total:
            raise BadUsage(f"A circuit's size must be between 0 and {total} {self.unit}s; got {n}.")
        return n

    def _chosen(self, places: np.ndarray) -> Bool[Tensor, "writers *dims"]:
        mask = torch.zeros(self.values.numel(), dtype=torch.bool)
        mask[torch.from_numpy(places.copy())] = True
        return mask.view_as(self.values)

    def _best(self, n: int | float, by: By) -> Bool[Tensor, "writers *dims"]:
        return self._chosen(self.ranking(by)[: self.size(n)])

    def _best_within(self, fraction: float, by: By) -> Bool[Tensor, "writers *dims"]:
        ranked = self.ranking(by)
        width = self.values.numel() // len(self.values)
        weights = edges_out(self.graph).numpy()[ranked // width]
        allowed = _fraction(fraction) * self.graph.n_edges * width + 1e-9
        return self._chosen(
            ranked[: int(np.searchsorted(np.cumsum(weights), allowed, side="right"))]
        )

    def save(self, path: str | Path) -> None:
        """Write the scores as safetensors with a JSON header; atomic."""
        graph = self.graph
        header = {
            "kind": f"{self.unit}_scores",
            "fingerprint": graph.fingerprint,
            "graph": {
                "n_layers": graph.n_layers,
                "n_heads": graph.n_heads,
                "parallel": graph.parallel,
                "mlp": graph.mlp,
            },
            "provenance": dict(self.provenance),
        }
        write_tensors(Path(path), {"values": self.values}, header)

    @classmethod
    def load(cls, path: str | Path, graph: Graph | None = None) -> Self:
        """Read scores written by `save`; nothing in the file is executed.

        Raises:
            BadFile: missing, truncated or foreign.
            GraphMismatch: `graph` is given and the scores were made on another.
        """
        return read_scores(cls, Path(path), cls.unit, cls.n_axes, graph)


@dataclass(frozen=True, eq=False)
class NeuronScores(_WriterScores):
    """One score per neuron.

    Attributes:
        graph: what was scored.
        values: fp32 [writers, d_model]; NaN = not scored.
        provenance: how the scores came about (method, model, task, objective, n, ...).
    """

    values: Float[Tensor, "writers d_model"]
    n_axes: ClassVar[int] = 2
    unit: ClassVar[str] = "neuron"

    def top(self, n: int | float, *, by: By = "value") -> Circuit:
        """The n best neurons, on all edges out of their writers (not pruned).

        Args:
            n: a number of neurons, or a fraction of all neurons as a float (as in MIB's code).
            by: "value" (signed; MIB uses it for CPR) or "magnitude" (for CMD).
        """
        return Circuit.of_neurons(self.graph, self._best(n, by))

    def within(self, fraction: float, *, by: By = "value") -> Circuit:
        """The longest beginning of the ranking whose weighted edge count is
        at most `fraction` of the graph's edges.

        This is the paper's size of a circuit (section 3.1), comparable with that of a circuit of
        edges; neurons of early layers cost more of it than those of late layers.
        """
        return Circuit.of_neurons(self.graph, self._best_within(fraction, by))

    def nodes(self) -> NodeScores:
        """The sum over each node's scored neurons; NaN for a node that has none."""
        scored = self.scored().any(dim=1)
        return NodeScores(
            self.graph, torch.where(scored, self.values.nansum(dim=1), torch.nan), self.provenance
        )


@dataclass(frozen=True, eq=False)
class NodeScores(_WriterScores):
    """One score per node.

    Attributes:
        graph: what was scored.
        values: fp32 [writers]; NaN = not scored.
        provenance: how the scores came about (method, model, task, objective, n, ...).
    """

    values: Float[Tensor, "writers"]
    n_axes: ClassVar[int] = 1
    unit: ClassVar[str] = "node"

    def top(self, n: int | float, *, by: By = "value") -> Circuit:
        """All edges out of the n best nodes (not pruned:
        `.pruned()` removes those into nodes outside).

        Args:
            n: a number of nodes, or a fraction of all nodes as a float.
            by: "value" (signed; MIB uses it for CPR) or "magnitude" (for CMD).
        """
        return Circuit.of_nodes(self.graph, self._best(n, by))

    def within(self, fraction: float, *, by: By = "value") -> Circuit:
        """The longest beginning of the ranking whose outgoing edges are
        at most `fraction` of the graph's.
        """
        return Circuit.of_nodes(self.graph, self._best_within(fraction, by))


def _fraction(value: float) -> float:
    if not 0 <= value <= 1:
        raise BadUsage(f"A circuit's size as a fraction must be in [0, 1]; got {value}.")
    return value


Scores = EdgeScores | NodeScores | NeuronScores
"""Scores of edges, nodes or neurons; all have `graph`, `values`,
`provenance`, `ranking` and `save`.
"""


def load_scores(path: str | Path, graph: Graph | None = None) -> Scores:
    """Scores of whatever kind a file holds.

    Raises:
        BadFile: truncated, foreign, or no scores. GraphMismatch: of another graph than `graph`.
    """
    kinds: dict[str, type[EdgeScores] | type[NodeScores] | type[NeuronScores]] = {
        "node_scores": NodeScores,
        "neuron_scores": NeuronScores,
    }
    return kinds.get(kind_of(Path(path)), EdgeScores).load(path, graph)
