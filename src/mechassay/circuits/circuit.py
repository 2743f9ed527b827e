"""Circuits: sets of edges of a graph, the neurons that these edges carry, and overlaps of circuits.

With n_u in {0, 1}^d_model the neurons of writer u that are in, an edge (u, v) of a circuit
carries a'_u + n_u * (a_u - a'_u), every other edge a'_u. The size of a circuit is its weighted
edge count (Mueller et al. 2025, section 3.1),

    |C| = sum over edges (u, v) of C of (neurons of u in C / d_model),

the number of its edges where all neurons of their writers are in. MIB's code also counts
writer-reader places that are no edges: 69,865 in GPT-2 small, whose graph has 32,491.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool
from scipy.stats import hypergeom
from torch import Tensor

from mechassay.circuits.drawing import LEAST_SHARE, Drawing, DrawnScores, draw_circuit
from mechassay.errors import BadFile, BadUsage, GraphMismatch
from mechassay.models.graph import Graph
from mechassay.models.origin import origin_in
from mechassay.utils.arguments import checked
from mechassay.utils.display import OneLine, Tabular, html_facts
from mechassay.utils.files import check_ending, read_tensors, write_tensors

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Places = tuple[int | str, ...]
"""A shape; a name where any length will do."""
SHOWN_EDGES = 100
"""Most edges of a circuit that is drawn in a notebook."""


def graph_header(graph: Graph) -> dict[str, Any]:
    """A graph in the header of a file."""
    return {"fingerprint": graph.fingerprint, "graph": asdict(graph)}


def graph_of(path: Path, header: Mapping[str, Any], what: str, graph: Graph | None) -> Graph:
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


def provenance_in(path: Path, header: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return the provenance in the header of a file.

    Raises:
        BadFile: it is no JSON object.
    """
    provenance = header.get("provenance", {})
    if not isinstance(provenance, dict):
        raise BadFile(f"{path}: the provenance of the {what} is no JSON object.")
    return provenance


def edge_ends(graph: Graph, places: Tensor) -> dict[str, list[str]]:
    """Names of the writers and readers of edges."""
    rows: list[list[int]] = places.tolist()
    writers = [graph.writer_name(writer) for writer, _ in rows]
    return {"writer": writers, "reader": [graph.reader_name(reader) for _, reader in rows]}


def fits(shape: tuple[int, ...], axes: Places) -> bool:
    """Whether a tensor has a shape."""
    return len(shape) == len(axes) and all(
        isinstance(axis, str) or axis == n for axis, n in zip(axes, shape, strict=True)
    )


def _check_mask(what: str, mask: Tensor, axes: Places) -> None:
    if not fits(tuple(mask.shape), axes):
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
        provenance: the model in which the circuit was found, see `models.origin`; empty if that is
            not known.
    """

    obtained_by: ClassVar[str] = (
        "load_circuit(name) loads one, and scores.top(0.05) cuts one from scores."
    )

    graph: Graph
    edges: Bool[Tensor, "writers readers"]
    neurons: Bool[Tensor, "writers d_model"] | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)

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
    @checked
    def from_names(graph: Graph, names: Iterable[str]) -> Circuit:
        """The circuit of the named edges.

        Raises:
            UnknownName: a name is not an edge of the graph.
        """
        mask = torch.zeros_like(graph.legal)
        for name in names:
            mask[graph.index(name)] = True
        return Circuit(graph, mask)

    @staticmethod
    @checked
    def of_nodes(graph: Graph, nodes: Bool[Tensor, "writers"]) -> Circuit:
        """The circuit of all edges out of some writers.

        Raises:
            GraphMismatch, BadUsage: the mask has another shape or type.
        """
        _check_mask("nodes", nodes, (graph.n_writers,))
        return Circuit(graph, graph.legal & nodes[:, None])

    @staticmethod
    @checked
    def of_neurons(graph: Graph, neurons: Bool[Tensor, "writers d_model"]) -> Circuit:
        """The circuit of some neurons, on all edges out of their writers.

        Raises:
            GraphMismatch, BadUsage: the mask has another shape or type.
        """
        _check_mask("neurons", neurons, (graph.n_writers, "d_model"))
        return Circuit(graph, graph.legal & neurons.any(dim=1)[:, None], neurons)

    def repr_fields(self) -> dict[str, Any]:
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

    @checked
    def draw(
        self,
        scores: DrawnScores | None = None,
        *,
        title: str = "",
        least: float = LEAST_SHARE,
        stable: Bool[Tensor, "writers readers"] | None = None,
    ) -> Drawing:
        """The circuit as a layered graph, an SVG that shows itself in a notebook.

        Args:
            scores: of its edges: their sign is the colour of a line, their size its width.
            least: edges whose |score| is a smaller share of the largest are left out; 0 draws all.
            stable: which edges do not depend on the pairs (`PartScores.stable`); others are dashed.

        Raises:
            GraphMismatch: scores of another graph.
            BadUsage: more edges than anybody could see apart (1,000).
        """
        return draw_circuit(scores, self, title=title, least=least, stable=stable)

    @checked
    def plot(
        self, scores: DrawnScores | None = None, *, title: str = "", least: float = LEAST_SHARE
    ) -> Figure:
        """The drawing as a matplotlib figure; see `draw` for arguments and errors."""
        from mechassay.circuits.picture import picture

        return picture(self.draw(scores, title=title, least=least).svg)

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
        for circuit in (self, other):
            if circuit.neurons is not None and not bool(
                circuit.neurons[circuit.edges.any(dim=1)].all()
            ):
                raise BadUsage(
                    f"{sign} is of whole edges; {circuit!r} carries some neurons of its writers"
                    " alone."
                )
        about = self.provenance if self.provenance == other.provenance else {}
        return Circuit(self.graph, join(self.edges, other.edges), provenance=about)

    @checked
    def save(self, path: str | Path) -> None:
        """Write the circuit as safetensors with a JSON header; atomic.

        Raises:
            BadUsage: a path of another ending; `GraphFile.write` writes those of EAP-IG and MIB.
        """
        neurons = {} if self.neurons is None else {"neurons": self.neurons}
        about = {"provenance": dict(self.provenance)} if self.provenance else {}
        header = {"kind": "circuit", **graph_header(self.graph), **about}
        write_tensors(check_ending(path, ".safetensors"), {"edges": self.edges, **neurons}, header)

    @staticmethod
    @checked
    def load(path: str | Path, graph: Graph | None = None) -> Circuit:
        """Read a circuit written by `save`; nothing in the file is executed.

        Raises:
            BadFile: missing, truncated or foreign.
            GraphMismatch: `graph` is given and the circuit is of another, or does not fit its own.
        """
        tensors, header = read_tensors(Path(path), "circuit")
        stored = graph_of(Path(path), header, "circuit", graph)
        if "edges" not in tensors:
            raise BadFile(f"{path}: the file of the circuit has no edges.")
        try:
            about = provenance_in(Path(path), header, "circuit")
            return Circuit(stored, tensors["edges"], tensors.get("neurons"), origin_in(about))
        except (GraphMismatch, BadUsage) as error:
            raise type(error)(f"{path}: {error}") from None

    def columns(self) -> dict[str, list[Any]]:
        """The edges as columns: their names, and those of their ends."""
        return {"edge": self.names(), **edge_ends(self.graph, self.edges.nonzero())}

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
        return Circuit(self.graph, edges, neurons, self.provenance)

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


def checked_fraction(value: float) -> float:
    """The share, if it is in [0, 1]; else BadUsage."""
    if not 0 <= value <= 1:
        raise BadUsage(f"A circuit's size as a fraction must be in [0, 1]; got {value}.")
    return value


@dataclass(frozen=True, repr=False)
class Overlap(OneLine):
    """Sizes of two circuits and of what they share, and how much two random ones would share.

    Of a graph's N edges, circuit A holds |A| and circuit B |B|:

        jaccard     |A and B| / |A or B|; NaN for two empty circuits
        expected    |A| |B| / N: the mean of |A and B| if B were |B| edges drawn at random
        p_value     P(X >= |A and B|) for the hypergeometric X of that draw

    The draw knows sizes alone. Circuits that were pruned, or grown from the logits, share nodes
    and so overlap more than the draw says. A small p says that two circuits are not unrelated
    *sets of edges*, not that they agree on a mechanism. Compare a pair of methods with the same
    pair on another task.

    Edges count whole, whatever share of their writer's neurons they carry. The nodes of a
    circuit are the heads and MLPs at either end of its edges, not `input` and `logits`; they
    have no p value: edges, not nodes, were chosen.

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


@checked
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
