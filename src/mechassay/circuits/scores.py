"""Scores of edges, nodes and neurons: rankings, and the circuits cut from them.

A score is the mean over examples of the drop in the objective when the unit is ablated: positive
means that it helps. Scores are frozen tensors over a `Graph`. Ties are broken by index
(writer-major), so that a ranking is the same on every machine.

A node is a writer of the graph; a neuron is one dimension of what a writer puts into the
residual stream, non-linearity or not (Mueller et al. 2025, footnote 8). To include a node is to
include all its outgoing edges; to include n of a writer's d_model neurons is to include the same
edges with a weight of n / d_model (section 3.1). Nodes and neurons without a score are in no
circuit; those of MIB's files are in every one, as MIB's code reads them, and sizes count what is
scored (`KEPT`).
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.circuits.circuit import (
    Circuit,
    Places,
    checked_fraction,
    fits,
    graph_header,
    graph_of,
    provenance_in,
)
from mechassay.errors import BadFile, BadUsage, GraphMismatch, NonFinite, UnknownName, one_of
from mechassay.models.graph import Graph
from mechassay.models.origin import origin_in
from mechassay.utils.arguments import checked
from mechassay.utils.display import NOTEBOOK_ROWS, OneLine, Tabular, html_facts, html_table, signed
from mechassay.utils.files import check_ending, read_tensors, write_tensors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


By = Literal["value", "magnitude"]


SHOWN = ("method", "model", "task", "objective", "n_examples")
"""What of their provenance scores show."""
SCORES_SHA256 = "scores_sha256"
"""The setting of a ranking that was read from a file: the hash of the file."""
KEPT = "unscored are kept"
"""What the provenance of scores says where nodes or neurons without a score are in all circuits."""


@dataclass(frozen=True, eq=False, repr=False)
class UnitScores(OneLine, ABC, Tabular):
    """One score per unit, which is an edge, a node or a neuron: rankings, sizes and files.

    Attributes:
        graph: what was scored.
        values: fp32; NaN = not scored, and where there is no unit.
        provenance: how the scores came about (method, model, task, objective, n, ...).
        unit: "edge", "node" or "neuron".
    """

    obtained_by: ClassVar[str] = (
        "load_scores(path) loads them, and a method's score(model, pairs) finds them."
    )

    graph: Graph
    values: Float[Tensor, "writers *dims"]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    unit: ClassVar[str]

    def __post_init__(self) -> None:
        shape, axes = tuple(self.values.shape), self._axes(self.graph)
        if not fits(shape, axes):
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
        if fits(shape, cls._axes(graph)):
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

    def repr_fields(self) -> dict[str, Any]:
        about = {key: self.provenance[key] for key in SHOWN if key in self.provenance}
        n, total = int(self.scored().sum()), int(self._places(self.graph, self._shape).sum())
        return {**about, f"{self.unit}s": total, **({"scored": n} if n < total else {})}

    def _repr_html_(self) -> str:
        facts = {key: self.provenance[key] for key in SHOWN if key in self.provenance}
        n, total = int(self.scored().sum()), int(self._places(self.graph, self._shape).sum())
        facts |= {"scored": f"{n:,} of {total:,} {self.unit}s"}
        rows = [(name, signed(score)) for name, score in self.strongest(NOTEBOOK_ROWS).items()]
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

    @checked
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

    @checked
    def plot(self, ax: Axes | None = None) -> Figure:
        """A histogram of all scores, counts on a log axis; the matplotlib figure.

        Args:
            ax: where to draw; a figure of its own if not given.
        """
        from mechassay.results.plots import draw_scores

        values = self.values[self.scored()].double().numpy()
        return draw_scores(values, f"score of a {self.unit}", f"{self.unit}s", ax)

    def scored(self) -> Bool[Tensor, "writers *dims"]:
        """True where there is a score."""
        return self._places(self.graph, tuple(self.values.shape)) & ~self.values.isnan()

    def place_name(self, flat: int) -> str:
        """The name of the unit at a flat index, as `ranking` gives them."""
        place = np.unravel_index(flat, tuple(self.values.shape))
        return self._name(self.graph, *(int(index) for index in place))

    @checked
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

    @checked
    def size(self, n: int | float) -> int:
        """How many units `n` means: a number, or as a float a fraction of all, rounded down.

        Raises:
            BadUsage: a negative number, more than there are, or a fraction outside [0, 1].
        """
        total = self._n_sized()
        if isinstance(n, float):
            # MIB: int(p * n). The tiny lift keeps e.g. .29 * 100 from rounding down to 28.
            return int(checked_fraction(n) * total + 1e-9)
        if not 0 <= n <= total:
            raise BadUsage(f"A circuit's size must be between 0 and {total} {self.unit}s; got {n}.")
        return n

    def _n_sized(self) -> int:
        """How many units sizes are shares of."""
        return int(self._places(self.graph, self._shape).sum())

    @checked
    def top(self, n: int | float, *, by: By = "value") -> Circuit:
        """The circuit of the n best edges; or of all edges out of the n best nodes or neurons.

        It is not pruned: `.pruned()` removes edges on no path.

        Args:
            n: a number of units, or a fraction of all of them as a float.
            by: "value" (signed; MIB uses it for CPR) or "magnitude" (for CMD).
        """
        return self._with_origin(self._chosen(self.ranking(by)[: self.size(n)]))

    def _with_origin(self, chosen: Tensor) -> Circuit:
        """The circuit of some units, with the model in which it was found."""
        return replace(self._circuit(chosen), provenance=origin_in(self.provenance))

    def _chosen(self, flat: np.ndarray) -> Bool[Tensor, "writers *dims"]:
        mask = torch.zeros(self.values.numel(), dtype=torch.bool)
        mask[torch.from_numpy(flat.copy())] = True
        return mask.view_as(self.values)

    @checked
    def save(self, path: str | Path) -> None:
        """Write the scores as safetensors with a JSON header; atomic.

        Raises:
            BadUsage: a path of another ending; `GraphFile.write` writes those of EAP-IG and MIB.
        """
        header = {
            "kind": f"{self.unit}_scores",
            **graph_header(self.graph),
            "provenance": dict(self.provenance),
        }
        write_tensors(check_ending(path, ".safetensors"), {"values": self.values}, header)

    @classmethod
    @checked
    def load(cls, path: str | Path, graph: Graph | None = None) -> Self:
        """Read scores written by `save`; nothing in the file is executed.

        Raises:
            BadFile: missing, truncated or foreign.
            GraphMismatch: `graph` is given and the scores were made on another, or they do not fit
                their own.
            NonFinite: a score is infinite.
        """
        tensors, header = read_tensors(Path(path), f"{cls.unit}_scores")
        stored = graph_of(Path(path), header, "scores", graph)
        if "values" not in tensors:
            raise BadFile(f"{path}: the file of the scores has no values.")
        values = tensors["values"]
        n_axes = len(cls._axes(stored))
        if not values.is_floating_point() or values.ndim != n_axes:
            raise BadFile(
                f"{path}: the scores are {values.dtype} with {values.ndim} axes; expected floats"
                f" with {n_axes}."
            )
        provenance = provenance_in(Path(path), header, "scores")
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

    @checked
    def mixture(self, n: int | float, positive: float) -> Circuit:
        """The circuit of n edges of which a share is the best positive ones, and the rest the
        largest in magnitude (after the ratio of Nikankin et al. 2025).

        With a share of 0 it is `top` by magnitude; positive edges that are not there leave their
        places to the rest. It is not pruned.

        Raises:
            BadUsage: no share between 0 and 1; others as `size`.
        """
        n_edges, flat = self.size(n), self.values.flatten().numpy()
        by_value, by_magnitude = self.ranking("value"), self.ranking("magnitude")
        n_positive = int((flat[by_value] > 0).sum())
        first = by_value[: min(round(checked_fraction(positive) * n_edges), n_positive)]
        taken = np.zeros(len(flat), dtype=bool)
        taken[first] = True
        rest = by_magnitude[~taken[by_magnitude]][: n_edges - len(first)]
        return self._with_origin(self._chosen(np.concatenate((first, rest))))

    @checked
    def greedy(self, n: int | float, *, by: By = "value") -> Circuit:
        """Grow n edges from the logits: the best edge into a node that is in (MIB, E.1)."""
        one_of("ranking", by, get_args(By))
        grown = np.fromiter(islice(self._growth(by), self.size(n)), dtype=np.int64)
        return self._with_origin(self._chosen(grown))

    @checked
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


def edges_out(graph: Graph) -> Int[Tensor, "writers"]:
    """How many edges leave each writer."""
    return graph.legal.sum(dim=1)


@dataclass(frozen=True, eq=False, repr=False)
class _WriterScores(UnitScores):
    """What scores of nodes and of neurons share."""

    @property
    def kept(self) -> Bool[Tensor, "writers *dims"]:
        """True for units that are in all circuits: those without a score, where `KEPT` says so."""
        return ~self.scored() & bool(self.provenance.get(KEPT))

    def _n_sized(self) -> int:
        return self.values.numel() - int(self.kept.sum())

    def _chosen(self, flat: np.ndarray) -> Bool[Tensor, "writers *dims"]:
        return super()._chosen(flat) | self.kept

    def within(self, fraction: float, *, by: By = "value") -> Circuit:
        """The best units' circuit whose weighted edge count is at most `fraction` of all; the empty
        one if what is kept in every circuit (`KEPT`) is more already.

        This is the paper's size of a circuit (section 3.1); early nodes cost more of it.
        """
        ranked = self.ranking(by)
        width = self.values.numel() // len(self.values)
        costs = edges_out(self.graph).numpy()
        allowed = checked_fraction(fraction) * self.graph.n_edges * width + 1e-9
        allowed -= float(costs[np.flatnonzero(self.kept.flatten().numpy()) // width].sum())
        if allowed < 0:
            return Circuit.empty(self.graph)
        n = int(np.searchsorted(np.cumsum(costs[ranked // width]), allowed, side="right"))
        return self._with_origin(self._chosen(ranked[:n]))


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
    pruned = scores.top(low, by=by).pruned()
    if len(pruned) or not isinstance(scores, EdgeScores):
        return pruned
    return scores.greedy(min(n_edges, scores.graph.n_edges), by=by).pruned()
