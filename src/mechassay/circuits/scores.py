"""Edge scores and the circuits cut from them.

A score is the mean over examples of the drop in the objective when the edge is ablated: positive
means that the edge helps. A circuit is a set of edges and, where it says so, of the neurons
(dimensions of a writer's output) that these edges carry. Both are frozen tensors over a `Graph`.

With n_u in {0, 1}^d_model the neurons of writer u that are in, an edge (u, v) of a circuit
carries a'_u + n_u * (a_u - a'_u), every other edge a'_u. The size of a circuit is its weighted
edge count (Mueller et al. 2025, section 3.1),

    |C| = sum over edges (u, v) of C of (neurons of u in C / d_model),

the number of its edges where all neurons of their writers are in. MIB's code also counts
writer-reader places that are no edges: 69,865 in GPT-2 small, whose graph has 32,491.

Ties are broken by index (writer-major), so that a ranking is the same on every machine.
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.display import OneLine, Tabular, html_facts, html_table, signed
from mechassay.drawing.canvas import Drawing
from mechassay.drawing.circuit import LEAST_SHARE, draw_circuit
from mechassay.errors import BadFile, BadUsage, GraphMismatch, NonFinite, one_of
from mechassay.files import check_ending, read_tensors, write_tensors
from mechassay.graph import Graph

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

By = Literal["value", "magnitude"]
Places = tuple[int | str, ...]
"""A shape; a name where any length will do."""


SHOWN = ("method", "model", "task", "objective", "n_examples")
"""What of their provenance scores show."""
SCORES_SHA256 = "scores_sha256"
"""The setting of a ranking that was read from a file: the hash of the file."""
ROWS, SHOWN_EDGES = 10, 100
"""Scores, and most edges of a circuit that is drawn, in a notebook."""


def _graph_header(graph: Graph) -> dict[str, Any]:
    return {"fingerprint": graph.fingerprint, "graph": asdict(graph)}


def _graph_of(path: Path, header: Mapping[str, Any], what: str, graph: Graph | None) -> Graph:
    """The graph of a file's header, which is `graph` if one is given."""
    try:
        stored = Graph(**header["graph"])
    except (KeyError, TypeError, BadUsage) as error:
        raise BadFile(f"{path}: the header of the {what} lacks a valid graph ({error}).") from None
    if stored.fingerprint != header.get("fingerprint"):
        raise BadFile(f"{path}: the graph in the header does not match its fingerprint.")
    if graph is not None and stored != graph:
        belong = "the scores were made on" if what == "scores" else "the circuit belongs to"
        raise GraphMismatch(
            f"{path}: {belong} {stored} ({stored.n_edges} edges); the model's graph is {graph}"
            f" ({graph.n_edges} edges)."
        )
    return stored


def _ends(graph: Graph, places: Tensor) -> dict[str, list[str]]:
    """Names of the writers and readers of edges."""
    rows: list[list[int]] = places.tolist()
    writers = [graph.writer_name(writer) for writer, _ in rows]
    return {"writer": writers, "reader": [graph.reader_name(reader) for _, reader in rows]}


def _fits(shape: tuple[int, ...], axes: Places) -> bool:
    return len(shape) == len(axes) and all(
        isinstance(axis, str) or axis == n for axis, n in zip(axes, shape, strict=True)
    )


def _check_mask(what: str, mask: Tensor, axes: Places) -> None:
    if not _fits(tuple(mask.shape), axes):
        wanted, given = str(axes).replace("'", ""), tuple(mask.shape)
        raise GraphMismatch(
            f"The {what} of a circuit on this graph need a mask of shape {wanted}; got {given}."
        )
    if mask.dtype != torch.bool:
        given = str(mask.dtype).removeprefix("torch.")
        raise BadUsage(f"The {what} of a circuit must be a mask of bool; got {given}.")


@dataclass(frozen=True, eq=False, repr=False)
class Circuit(OneLine, Tabular):
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
        _check_mask("edges", self.edges, (self.graph.n_writers, self.graph.n_readers))
        illegal = (self.edges & ~self.graph.legal).nonzero()
        if len(illegal):
            name = self.graph.edge_name(*illegal[0].tolist())
            raise GraphMismatch(f"The circuit has an edge that the graph does not: {name}.")
        if self.neurons is not None:
            _check_mask("neurons", self.neurons, (self.graph.n_writers, "d_model"))

    @staticmethod
    def empty(graph: Graph) -> Circuit:
        """No edges."""
        return Circuit(graph, torch.zeros_like(graph.legal))

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
        mask = torch.zeros_like(graph.legal)
        for name in names:
            mask[graph.index(name)] = True
        return Circuit(graph, mask)

    @staticmethod
    def of_nodes(graph: Graph, nodes: Bool[Tensor, "writers"]) -> Circuit:
        """The circuit of all edges out of some writers.

        Raises:
            GraphMismatch, BadUsage: the mask has another shape or type.
        """
        _check_mask("nodes", nodes, (graph.n_writers,))
        return Circuit(graph, graph.legal & nodes[:, None])

    @staticmethod
    def of_neurons(graph: Graph, neurons: Bool[Tensor, "writers d_model"]) -> Circuit:
        """The circuit of some neurons, on all edges out of their writers.

        Raises:
            GraphMismatch, BadUsage: the mask has another shape or type.
        """
        _check_mask("neurons", neurons, (graph.n_writers, "d_model"))
        return Circuit(graph, graph.legal & neurons.any(dim=1)[:, None], neurons)

    def shown(self) -> dict[str, Any]:
        graph, carried = self.graph, {} if self.neurons is None else {"neurons": self._n_neurons()}
        sizes = {"edges": len(self), "of": graph.n_edges, "nodes": int(self.live().sum())}
        return {**sizes, **carried, "layers": graph.n_layers, "heads": graph.n_heads}

    def _n_neurons(self) -> int:
        return 0 if self.neurons is None else int(self.neurons[self.edges.any(dim=1)].sum())

    def _repr_html_(self) -> str:
        kept = len(self.pruned())
        facts = {"edges": f"{len(self):,} of {self.graph.n_edges:,} ({self.size:.2%})"}
        facts["on a path from input to logits"] = f"{kept:,}"
        if self.neurons is not None:
            facts["neurons"] = f"{self._n_neurons():,}"
        drawn = self.draw().svg if 0 < len(self) <= SHOWN_EDGES else ""
        return html_facts("Circuit", facts, drawn)

    def draw(
        self, scores: EdgeScores | None = None, *, title: str = "", least: float = LEAST_SHARE
    ) -> Drawing:
        """The circuit as a layered graph, an SVG that shows itself in a notebook.

        Args:
            scores: of its edges: their sign is the colour of a line, their size its width.
            least: edges whose |score| is a smaller share of the largest are left out; 0 draws all.

        Raises:
            GraphMismatch: scores of another graph.
            BadUsage: more edges than anybody could see apart (1,000).
        """
        return draw_circuit(scores, self, title=title, least=least)

    def __len__(self) -> int:
        """Edges, whatever share of their writer they carry."""
        return int(self.edges.sum())

    def __iter__(self) -> Iterator[str]:
        """Names of the edges, in index order."""
        return iter(self.names())

    def __contains__(self, edge: object) -> bool:
        """Whether an edge of the graph, by name, is in the circuit.

        Raises:
            UnknownName: the graph has no edge of that name.
        """
        return isinstance(edge, str) and bool(self.edges[self.graph.index(edge)])

    def __or__(self, other: Circuit) -> Circuit:
        """The edges in either circuit."""
        return self._combined(other, "|", torch.logical_or)

    def __and__(self, other: Circuit) -> Circuit:
        """The edges in both circuits."""
        return self._combined(other, "&", torch.logical_and)

    def __sub__(self, other: Circuit) -> Circuit:
        """The edges of this circuit that the other does not have."""
        return self._combined(other, "-", torch.gt)

    def _combined(
        self, other: Circuit, sign: str, join: Callable[[Tensor, Tensor], Tensor]
    ) -> Circuit:
        if self.graph != other.graph:
            raise GraphMismatch(f"{sign} needs circuits of one graph; got {self!r} and {other!r}.")
        for each in (self, other):
            if each.neurons is not None and not bool(each.neurons[each.edges.any(dim=1)].all()):
                raise BadUsage(
                    f"{sign} is of whole edges; {each!r} carries some neurons of its writers alone."
                )
        return Circuit(self.graph, join(self.edges, other.edges))

    def save(self, path: str | Path) -> None:
        """Write the circuit as safetensors with a JSON header; atomic.

        Raises:
            BadUsage: a path of another ending; `GraphFile.write` writes those of EAP-IG and MIB.
        """
        neurons = {} if self.neurons is None else {"neurons": self.neurons}
        header = {"kind": "circuit", **_graph_header(self.graph)}
        write_tensors(check_ending(path, ".safetensors"), {"edges": self.edges, **neurons}, header)

    @staticmethod
    def load(path: str | Path, graph: Graph | None = None) -> Circuit:
        """Read a circuit written by `save`; nothing in the file is executed.

        Raises:
            BadFile: missing, truncated or foreign.
            GraphMismatch: `graph` is given and the circuit is of another, or does not fit its own.
        """
        tensors, header = read_tensors(Path(path), "circuit")
        stored = _graph_of(Path(path), header, "circuit", graph)
        if "edges" not in tensors:
            raise BadFile(f"{path}: the file of the circuit has no edges.")
        try:
            return Circuit(stored, tensors["edges"], tensors.get("neurons"))
        except (GraphMismatch, BadUsage) as error:
            raise type(error)(f"{path}: {error}") from None

    def columns(self) -> dict[str, list[Any]]:
        """The edges as columns: their names, and those of their ends."""
        return {"edge": self.names(), **_ends(self.graph, self.edges.nonzero())}

    def __eq__(self, other: object) -> bool:
        """Equal edges that carry equal neurons.

        Neuron masks of writers without edges, and all-true masks, are ignored.
        """
        return isinstance(other, Circuit) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[Graph, bytes, bytes | None]:
        used, carried = self.edges.any(dim=1), None
        if self.neurons is not None and not bool(self.neurons[used].all()):
            carried = np.packbits((self.neurons & used[:, None]).numpy()).tobytes()
        return self.graph, np.packbits(self.edges.numpy()).tobytes(), carried

    def names(self) -> list[str]:
        """Names of the edges, in index order."""
        return [self.graph.edge_name(u, v) for u, v in self.edges.nonzero().tolist()]

    def pruned(self) -> Circuit:
        """Only the edges on some path from `input` to `logits` along edges that carry something."""
        edges, neurons = self.graph.carrying(self.edges, self.neurons), self.neurons
        if neurons is not None:
            neurons = neurons & edges.any(dim=1)[:, None]
        return Circuit(self.graph, edges, neurons)

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


@dataclass(frozen=True, eq=False, repr=False)
class UnitScores(OneLine, ABC, Tabular):
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
        shape, axes = tuple(self.values.shape), self._axes(self.graph)
        if not _fits(shape, axes):
            wanted = str(axes).replace("'", "")
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
        """Scores from a tensor of any float type and device; anything where there is no unit.

        Raises:
            NonFinite: a unit's score is infinite or NaN.
        """
        clean, shape = values.detach().float().cpu(), tuple(values.shape)
        if _fits(shape, cls._axes(graph)):
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
    def _axes(graph: Graph) -> Places:
        """The shape of scores on a graph."""

    @staticmethod
    @abstractmethod
    def _name(graph: Graph, *place: int) -> str:
        """The name of a unit by its indices."""

    @abstractmethod
    def _circuit(self, chosen: Tensor) -> Circuit:
        """The circuit of some units, not pruned."""

    @classmethod
    def _places(cls, graph: Graph, shape: tuple[int, ...]) -> Bool[Tensor, "writers *dims"]:
        """True where there is a unit."""
        return torch.ones(shape, dtype=torch.bool)

    def shown(self) -> dict[str, Any]:
        about = {key: self.provenance[key] for key in SHOWN if key in self.provenance}
        n, total = int(self.scored().sum()), int(self._places(self.graph, self._shape).sum())
        return {**about, f"{self.unit}s": total, **({"scored": n} if n < total else {})}

    def _repr_html_(self) -> str:
        facts = {key: self.provenance[key] for key in SHOWN if key in self.provenance}
        n, total = int(self.scored().sum()), int(self._places(self.graph, self._shape).sum())
        facts |= {"scored": f"{n:,} of {total:,} {self.unit}s"}
        rows = [(name, signed(score)) for name, score in self.strongest(ROWS).items()]
        table = html_table((f"strongest {self.unit}s", "score"), rows)
        return html_facts(f"Scores of {self.unit}s", facts, table)

    @property
    def _shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    @abstractmethod
    def _index(self, name: str) -> tuple[int, ...]:
        """Where a unit of that name stands; UnknownName if there is none."""

    def __getitem__(self, name: str) -> float:
        """The score of a unit by its name, `scores["a0.h1->m2"]`; NaN if it has none.

        Raises:
            UnknownName: there is no such unit.
        """
        return float(self.values[self._index(name)])

    def strongest(self, n: int = 20, *, by: By = "magnitude") -> dict[str, float]:
        """The n best units by name, with their scores, best first."""
        if n < 0:
            raise BadUsage(f"The number of strongest {self.unit}s must be 0 or more; got {n}.")
        flat, chosen = self.values.flatten(), self.ranking(by)[:n].tolist()
        return {self.place_name(place): float(flat[place]) for place in chosen}

    def columns(self) -> dict[str, list[Any]]:
        """Everything that is scored as columns: name, score and rank by value, best first."""
        ranked = self.ranking().tolist()
        scores = self.values.flatten()[ranked].tolist()
        names = [self.place_name(place) for place in ranked]
        return {self.unit: names, "score": scores, "rank": list(range(1, len(names) + 1))}

    def plot(self, ax: Axes | None = None) -> Figure:
        """A histogram of all scores, counts on a log axis; the matplotlib figure.

        Args:
            ax: where to draw; a figure of its own if not given.
        """
        from mechassay.figures import draw_scores

        values = self.values[self.scored()].double().numpy()
        return draw_scores(values, f"score of a {self.unit}", f"{self.unit}s", ax)

    def scored(self) -> Bool[Tensor, "writers *dims"]:
        """True where there is a score."""
        return self._places(self.graph, tuple(self.values.shape)) & ~self.values.isnan()

    def place_name(self, flat: int) -> str:
        """The name of the unit at a flat index, as `ranking` gives them."""
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
        """How many units `n` means: a number, or as a float a fraction of all, rounded down.

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
        """The circuit of the n best edges; or of all edges out of the n best nodes or neurons.

        It is not pruned: `.pruned()` removes edges on no path.

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
        """Write the scores as safetensors with a JSON header; atomic.

        Raises:
            BadUsage: a path of another ending; `GraphFile.write` writes those of EAP-IG and MIB.
        """
        header = {
            "kind": f"{self.unit}_scores",
            **_graph_header(self.graph),
            "provenance": dict(self.provenance),
        }
        write_tensors(check_ending(path, ".safetensors"), {"values": self.values}, header)

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
        stored = _graph_of(Path(path), header, "scores", graph)
        if "values" not in tensors:
            raise BadFile(f"{path}: the file of the scores has no values.")
        values = tensors["values"]
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


@dataclass(frozen=True, eq=False, repr=False)
class EdgeScores(UnitScores):
    """One score per edge, fp32 [writers, readers]; NaN = not scored, or no edge."""

    values: Float[Tensor, "writers readers"]
    unit: ClassVar[str] = "edge"

    @staticmethod
    def _axes(graph: Graph) -> Places:
        return graph.n_writers, graph.n_readers

    @staticmethod
    def _name(graph: Graph, *place: int) -> str:
        writer, reader = place
        return graph.edge_name(writer, reader)

    @classmethod
    def _places(cls, graph: Graph, shape: tuple[int, ...]) -> Bool[Tensor, "writers readers"]:
        return graph.legal

    def _index(self, name: str) -> tuple[int, ...]:
        return self.graph.index(name)

    def _circuit(self, chosen: Tensor) -> Circuit:
        return Circuit(self.graph, chosen)

    @property
    def grows(self) -> bool:
        """Whether circuits of these scores are grown from the logits (information flow routes)."""
        return self.provenance.get("selection") == "greedy"

    def greedy(self, n: int | float, *, by: By = "value") -> Circuit:
        """Grow n edges from the logits: the best edge into a node that is in (MIB, E.1)."""
        one_of("ranking", by, get_args(By))
        grown = np.fromiter(islice(self._growth(by), self.size(n)), dtype=np.int64)
        return self._circuit(self._chosen(grown))

    def greedy_order(self, by: By = "value") -> np.ndarray:
        """Flat indices of the edges that the greedy circuit reaches, in order."""
        one_of("ranking", by, get_args(By))
        return np.fromiter(self._growth(by), dtype=np.int64)

    def _growth(self, by: By) -> Iterator[int]:
        """One edge after another, by a heap of each reader's best unused edge."""
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
    """The share, if it is in [0, 1]; else BadUsage."""
    if not 0 <= value <= 1:
        raise BadUsage(f"A circuit's size as a fraction must be in [0, 1]; got {value}.")
    return value
