"""Edge scores and the circuits cut from them.

A score is the mean over examples of the drop in the objective when the edge is ablated:
positive means that the edge helps. A circuit is a set of edges, and where it says so, of the
neurons (dimensions of a writer's output) that these edges carry. Both are tensors over a
`Graph`, both are frozen: every operation returns a new object.

With n_u in {0, 1}^d_model the neurons of writer u that are in, an edge (u, v) of a circuit
carries a'_u + n_u * (a_u - a'_u), every other edge a'_u. The size of a circuit is its weighted
edge count (Mueller et al. 2025, section 3.1),

    |C| = sum over edges (u, v) of C of (neurons of u in C / d_model),

which is the number of its edges where all neurons of their writers are in. MIB's code marks
writer-reader places that are no edges where it cuts nodes or neurons, and its full GPT-2 small
has 69,865 "edges" where the graph has 32,491. Here only edges count.

Ties are broken by edge index (writer-major), so that a ranking is the same on every machine.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.errors import BadFile, BadUsage, GraphMismatch, NonFinite, one_of
from mechassay.files import read_tensors, write_tensors
from mechassay.graph import Graph

By = Literal["value", "magnitude"]


@dataclass(frozen=True, eq=False)
class Circuit:
    """A set of edges, and of the neurons that they carry.

    Attributes:
        graph: what the edges belong to.
        edges: True at edges of the circuit; never True where the graph has no edge.
        neurons: True at dimensions of a writer's output that its edges carry; None where they carry
            whole writers. An edge whose writer has no neuron in carries nothing.
    """

    graph: Graph
    edges: Bool[Tensor, "writers readers"]
    neurons: Bool[Tensor, "writers d_model"] | None = None

    def __post_init__(self) -> None:
        shape = (self.graph.n_writers, self.graph.n_readers)
        if tuple(self.edges.shape) != shape:
            raise GraphMismatch(
                f"A circuit on this graph needs a mask of shape {shape}; got"
                f" {tuple(self.edges.shape)}."
            )
        if self.edges.dtype != torch.bool:
            raise BadUsage(
                "The edges of a circuit must be a mask of bool; got"
                f" {str(self.edges.dtype).removeprefix('torch.')}."
            )
        if bool((self.edges & ~self.graph.legal).any()):
            writer, reader = (self.edges & ~self.graph.legal).nonzero()[0].tolist()
            raise GraphMismatch(
                "The circuit has an edge that the graph does not:"
                f" {self.graph.edge_name(writer, reader)}."
            )
        if self.neurons is None:
            return
        if self.neurons.ndim != 2 or len(self.neurons) != self.graph.n_writers:
            wanted, given = f"({self.graph.n_writers}, d_model)", tuple(self.neurons.shape)
            raise GraphMismatch(
                f"The neurons of a circuit on this graph need a mask of shape {wanted}; got"
                f" {given}."
            )
        if self.neurons.dtype != torch.bool:
            raise BadUsage(
                "The neurons of a circuit must be a mask of bool; got"
                f" {str(self.neurons.dtype).removeprefix('torch.')}."
            )

    @staticmethod
    def empty(graph: Graph) -> Circuit:
        """No edges."""
        return Circuit(graph, torch.zeros(graph.n_writers, graph.n_readers, dtype=torch.bool))

    @staticmethod
    def full(graph: Graph) -> Circuit:
        """All edges."""
        return Circuit(graph, graph.legal.clone())

    @staticmethod
    def from_names(graph: Graph, names: Iterator[str] | list[str]) -> Circuit:
        """The circuit of the named edges.

        Raises:
            UnknownName: a name is not an edge of the graph.
        """
        mask = torch.zeros(graph.n_writers, graph.n_readers, dtype=torch.bool)
        for name in names:
            mask[graph.index(name)] = True
        return Circuit(graph, mask)

    @staticmethod
    def of_nodes(graph: Graph, nodes: Bool[Tensor, "writers"]) -> Circuit:
        """The circuit of all edges out of some writers.

        Raises:
            GraphMismatch, BadUsage: the mask has another shape or type.
        """
        if tuple(nodes.shape) != (graph.n_writers,):
            raise GraphMismatch(
                f"The nodes of a circuit on this graph need a mask of shape ({graph.n_writers},);"
                f" got {tuple(nodes.shape)}."
            )
        if nodes.dtype != torch.bool:
            raise BadUsage(
                "The nodes of a circuit must be a mask of bool; got"
                f" {str(nodes.dtype).removeprefix('torch.')}."
            )
        return Circuit(graph, graph.legal & nodes[:, None])

    @staticmethod
    def of_neurons(graph: Graph, neurons: Bool[Tensor, "writers d_model"]) -> Circuit:
        """The circuit of some neurons, on all edges out of their writers.

        Raises:
            GraphMismatch, BadUsage: the mask has another shape or type.
        """
        fits = neurons.ndim == 2 and len(neurons) == graph.n_writers
        return Circuit(
            graph, graph.legal & neurons.any(dim=1)[:, None] if fits else graph.legal, neurons
        )

    def __len__(self) -> int:
        """Edges, whatever share of their writer they carry."""
        return int(self.edges.sum())

    def __eq__(self, other: object) -> bool:
        """Same edges that carry the same; masks of writers without an edge do not matter,
        nor masks that leave nothing out.
        """
        return isinstance(other, Circuit) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[Graph, bytes, bytes | None]:
        used = self.edges.any(dim=1)
        whole = self.neurons is None or bool(self.neurons[used].all())
        carried = (
            None
            if self.neurons is None or whole
            else np.packbits((self.neurons & used[:, None]).numpy()).tobytes()
        )
        return self.graph, np.packbits(self.edges.numpy()).tobytes(), carried

    def names(self) -> list[str]:
        """Names of the edges, in index order."""
        return [self.graph.edge_name(u, v) for u, v in self.edges.nonzero().tolist()]

    def pruned(self) -> Circuit:
        """Only the edges on some path from `input` to `logits` along edges that carry something,
        and the neurons of their writers.
        """
        edges = self.graph.carrying(self.edges, self.neurons)
        return Circuit(
            self.graph,
            edges,
            None if self.neurons is None else self.neurons & edges.any(dim=1)[:, None],
        )

    def live(self) -> Bool[Tensor, "writers"]:
        """Writers on some path from `input` to `logits` within the circuit."""
        return self.pruned().edges.any(dim=1)

    def weighted_edge_count(self) -> float:
        """Edges, each counted by the share of its writer's neurons that is in the circuit."""
        if self.neurons is None:
            return float(len(self))
        # Whole numbers until the end: all neurons on all edges count exactly the graph's edges.
        return int((self.edges.sum(dim=1) * self.neurons.sum(dim=1)).sum()) / self.neurons.shape[1]

    @property
    def size(self) -> float:
        """The weighted edge count as a share of the graph's edges."""
        return self.weighted_edge_count() / self.graph.n_edges


@dataclass(frozen=True, eq=False)
class UnitScores(ABC):
    """One score per unit, which is an edge, a node or a neuron: rankings, sizes and files.

    Attributes:
        graph: what was scored.
        values: fp32; NaN = not scored, and where there is no unit.
        provenance: how the scores came about (method, model, task, objective, n, ...).
        unit: "edge", "node" or "neuron".
    """

    graph: Graph
    values: Float[Tensor, "writers *dims"]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    unit: ClassVar[str]

    def __post_init__(self) -> None:
        shape = tuple(self.values.shape)
        if not self._fits(self.graph, shape):
            wanted = str(self._axes(self.graph)).replace("'", "")
            raise GraphMismatch(
                f"Scores of {self.unit}s on this graph need shape {wanted}; got {shape}."
            )
        places = self._places(self.graph, shape)
        infinite = (self.values.isinf() & places).nonzero()
        if len(infinite):
            first = self._name(self.graph, *infinite[0].tolist())
            raise NonFinite(
                f"{len(infinite)} of {int(places.sum())} scores of {self.unit}s are infinite, the"
                f" first is {first}."
            )

    @classmethod
    def of(cls, graph: Graph, values: Tensor, provenance: Mapping[str, Any] | None = None) -> Self:
        """Scores from a tensor of any float type and device,
        which may hold anything where there is no unit.

        Raises:
            NonFinite: a unit's score is infinite or NaN.
        """
        clean, shape = values.detach().float().cpu(), tuple(values.shape)
        if cls._fits(graph, shape):
            places = cls._places(graph, shape)
            bad = (~torch.isfinite(values.detach().cpu()) & places).nonzero()
            if len(bad):
                raise NonFinite(
                    f"{len(bad)} of {int(places.sum())} {cls.unit} scores are not finite, the first"
                    f" is {cls._name(graph, *bad[0].tolist())}: the activations overflow or hold"
                    " NaN."
                )
            clean = torch.where(places, clean, torch.nan)
        return cls(graph, clean, dict(provenance or {}))

    @staticmethod
    @abstractmethod
    def _axes(graph: Graph) -> tuple[int | str, ...]:
        """The shape of scores on a graph; a name where any length will do."""

    @staticmethod
    @abstractmethod
    def _name(graph: Graph, *place: int) -> str:
        """The name of a unit by its indices."""

    @abstractmethod
    def _circuit(self, chosen: Tensor) -> Circuit:
        """The circuit of some units, not pruned."""

    @classmethod
    def _fits(cls, graph: Graph, shape: tuple[int, ...]) -> bool:
        axes = cls._axes(graph)
        return len(shape) == len(axes) and all(
            isinstance(axis, str) or axis == n for axis, n in zip(axes, shape, strict=True)
        )

    @classmethod
    def _places(cls, graph: Graph, shape: tuple[int, ...]) -> Bool[Tensor, "writers *dims"]:
        """True where there is a unit."""
        return torch.ones(shape, dtype=torch.bool)

    def scored(self) -> Bool[Tensor, "writers *dims"]:
        """True where there is a score."""
        return self._places(self.graph, tuple(self.values.shape)) & ~self.values.isnan()

    def place_name(self, flat: int) -> str:
        """The name of the unit at a flat index, as `ranking` gives them;
        of a neuron its node's name and its number.
        """
        place = np.unravel_index(flat, tuple(self.values.shape))
        return self._name(self.graph, *(int(index) for index in place))

    def ranking(self, by: By = "value") -> np.ndarray:
        """Flat indices (writer-major) of what is scored, best first; ties by index."""
        one_of("ranking", by, get_args(By))
        # Circuits of many sizes are cut from one ranking, and a large graph takes a second to sort.
        if by not in self._rankings:
            flat = self.values.flatten().numpy()
            index = np.flatnonzero(self.scored().flatten().numpy())
            keys = np.abs(flat[index]) if by == "magnitude" else flat[index]
            self._rankings[by] = index[np.argsort(-keys, kind="stable")]
            self._rankings[by].flags.writeable = False
        return self._rankings[by]

    @cached_property
    def _rankings(self) -> dict[By, np.ndarray]:
        return {}

    def size(self, n: int | float) -> int:
        """How many units `n` means: a number, or a fraction (a float in [0, 1]) of all,
        rounded down.

        Raises:
            BadUsage: a negative number, more than there are, or a fraction outside [0, 1].
        """
        total = int(self._places(self.graph, tuple(self.values.shape)).sum())
        if isinstance(n, float):
            # MIB: int(p * n). The tiny lift keeps e.g. .29 * 100 from rounding down to 28.
            return int(checked_fraction(n) * total + 1e-9)
        if not 0 <= n <= total:
            raise BadUsage(f"A circuit's size must be between 0 and {total} {self.unit}s; got {n}.")
        return n

    def top(self, n: int | float, *, by: By = "value") -> Circuit:
        """The circuit of the n best edges; or all edges out of the n best nodes, or out of the
        writers of the n best neurons, with these alone (not pruned: `.pruned()` removes those on no
        path).

        Args:
            n: a number of units, or a fraction of all of them as a float.
            by: "value" (signed; MIB uses it for CPR) or "magnitude" (for CMD).
        """
        return self._circuit(self._chosen(self.ranking(by)[: self.size(n)]))

    def _chosen(self, flat: np.ndarray) -> Bool[Tensor, "writers *dims"]:
        mask = torch.zeros(self.values.numel(), dtype=torch.bool)
        mask[torch.from_numpy(flat.copy())] = True
        return mask.view_as(self.values)

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
            GraphMismatch: `graph` is given and the scores were made on another, or they do not fit
                their own.
            NonFinite: a score is infinite.
        """
        tensors, header = read_tensors(Path(path), f"{cls.unit}_scores")
        try:
            stored = Graph(**header["graph"])
            values = tensors["values"]
        except (KeyError, TypeError, BadUsage) as error:
            raise BadFile(
                f"{path}: the header of the scores lacks a valid graph, or the file its values"
                f" ({error})."
            ) from None
        if stored.fingerprint != header.get("fingerprint"):
            raise BadFile(f"{path}: the graph in the header does not match its fingerprint.")
        if graph is not None and stored != graph:
            raise GraphMismatch(
                f"{path}: the scores were made on {stored} ({stored.n_edges} edges); the model's"
                f" graph is {graph} ({graph.n_edges} edges)."
            )
        n_axes = len(cls._axes(stored))
        if not values.is_floating_point() or values.ndim != n_axes:
            raise BadFile(
                f"{path}: the scores are {values.dtype} with {values.ndim} axes; expected floats"
                f" with {n_axes}."
            )
        provenance = header.get("provenance", {})
        if not isinstance(provenance, dict):
            raise BadFile(f"{path}: the provenance of the scores is no JSON object.")
        try:
            return cls(stored, values.float(), provenance)
        except (GraphMismatch, NonFinite) as error:
            raise type(error)(f"{path}: {error}") from None


@dataclass(frozen=True, eq=False)
class EdgeScores(UnitScores):
    """One score per edge; see `UnitScores`.

    Attributes:
        values: fp32 [writers, readers]; NaN = not scored, and at places without an edge.
    """

    values: Float[Tensor, "writers readers"]
    unit: ClassVar[str] = "edge"

    @staticmethod
    def _axes(graph: Graph) -> tuple[int | str, ...]:
        return graph.n_writers, graph.n_readers

    @staticmethod
    def _name(graph: Graph, *place: int) -> str:
        writer, reader = place
        return graph.edge_name(writer, reader)

    @classmethod
    def _places(cls, graph: Graph, shape: tuple[int, ...]) -> Bool[Tensor, "writers readers"]:
        return graph.legal

    def _circuit(self, chosen: Tensor) -> Circuit:
        return Circuit(self.graph, chosen)

    @property
    def grows(self) -> bool:
        """Whether its method says that circuits are grown from the logits,
        not cut from one ranking (information flow routes).
        """
        return self.provenance.get("selection") == "greedy"

    def greedy(self, n: int | float, *, by: By = "value") -> Circuit:
        """Grow n edges from the logits: always the best edge into a node already in
        (MIB, appendix E.1).

        They are the first n of `greedy_order`; fewer, if no more can be reached.
        """
        one_of("ranking", by, get_args(By))
        grown = np.fromiter(islice(self._growth(by), self.size(n)), dtype=np.int64)
        return self._circuit(self._chosen(grown))

    def greedy_order(self, by: By = "value") -> np.ndarray:
        """Flat indices of edges in the order in which the greedy circuit grows,
        as `ranking` gives them.

        Edges that it never reaches are not among them: those without a score, and those into nodes
        that only such edges read.
        """
        one_of("ranking", by, get_args(By))
        return np.fromiter(self._growth(by), dtype=np.int64)

    def _growth(self, by: By) -> Iterator[int]:
        """One edge after another, as a flat index.

        One heap over rankings of whole columns: each reader's in-edges are sorted once, and the
        heap holds the best unused edge of each reader in the circuit.
        """
        graph = self.graph
        values = self.values.numpy()
        keys = np.abs(values) if by == "magnitude" else values
        keys = np.where(np.isnan(keys), -np.inf, keys)
        owner = graph.reader_owner.numpy()
        inside: set[int] = set()
        order: dict[int, np.ndarray] = {}
        heap: list[tuple[float, int, int]] = []

        def offer(reader: int, place: int) -> None:
            writers = order[reader]
            if place < len(writers) and keys[writers[place], reader] > -np.inf:
                heapq.heappush(heap, (-float(keys[writers[place], reader]), reader, place))

        def open_reader(reader: int) -> None:
            order[reader] = np.argsort(-keys[: int(graph.visible[reader]), reader], kind="stable")
            offer(reader, 0)

        open_reader(graph.logits)
        while heap:
            _, reader, place = heapq.heappop(heap)
            writer = int(order[reader][place])
            yield writer * graph.n_readers + reader
            offer(reader, place + 1)
            if writer not in inside:
                inside.add(writer)
                for opened in np.flatnonzero(owner == writer):
                    open_reader(int(opened))


def checked_fraction(value: float) -> float:
    """A share of the units.

    Raises:
        BadUsage: it is outside [0, 1].
    """
    if not 0 <= value <= 1:
        raise BadUsage(f"A circuit's size as a fraction must be in [0, 1]; got {value}.")
    return value
