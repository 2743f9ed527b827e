"""Random scores of edges, and random circuits in which every edge is live: controls of methods.

    random          uniform in [-1, 1], the control of Mueller et al. 2025, section 3.2
    random-paths    the order in which a circuit of random paths grows

Of few edges drawn uniformly hardly any lie on a path from `input` to `logits`, so small circuits
of such edges do hardly anything. Random paths are the control for circuits of few edges: a
circuit of n edges has n live edges.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from jaxtyping import Int

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods.method import Method, ScoreInputs, provenance_of, seeded
from mechassay.circuits.scores import EdgeScores
from mechassay.models.graph import Graph
from mechassay.utils.settings import Within, checked_settings


class DrawnMethod(Method[EdgeScores]):
    """A control whose scores are drawn for a graph, whatever the model does."""

    seed: int

    @abstractmethod
    def draw(self, graph: Graph) -> EdgeScores:
        """Random scores of a graph, with no model."""

    def find_scores(self, inputs: ScoreInputs) -> EdgeScores:
        """Draw the scores; the pairs only enter the provenance."""
        return replace(self.draw(inputs.model.graph), provenance=provenance_of(self, inputs))

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """Return 0, because no model is run."""
        return 0.0


@dataclass(frozen=True)
class Random(DrawnMethod):
    """Uniform random edge scores in [-1, 1].

    The control of Mueller et al. 2025, section 3.2.
    """

    seed: Annotated[int, Within(0)] = 0
    name: ClassVar[str] = "random"

    def draw(self, graph: Graph) -> EdgeScores:
        values = (
            torch.rand(graph.legal.shape, generator=seeded(self.seed), dtype=torch.float32) * 2 - 1
        )
        return EdgeScores.of(graph, values, {"method": self.name, "settings": {"seed": self.seed}})


@dataclass(frozen=True)
@checked_settings
class RandomPaths(DrawnMethod):
    """Edges in the order in which a circuit of random paths grows.

    A circuit grows by whole paths:

        1. take the edges in random order;
        2. an edge whose writer is not yet in is led back to `input`, over edges into the writer
           drawn uniformly, until it meets a node that is in;
        3. in the same way its reader is led on to `logits`;
        4. a path that would make the circuit larger than asked for is left out, and later edges
           are tried;
        5. where one edge is missing at the end and none fits alone, a path of two edges through
           a node that is not yet in takes the place of `input->logits`.

    So a circuit of n edges has n live edges. Once all nodes are in, the rest follows in random
    order. As a ranking, edges come in the order in which a circuit of all of them grows.
    """

    seed: Annotated[int, Within(0)] = 0
    name: ClassVar[str] = "random-paths"

    def draw(self, graph: Graph) -> EdgeScores:
        """Scores of a graph: 1 for the first edge, falling to 1 / edges for the last."""
        order = _grown(graph, graph.n_edges, np.random.default_rng(self.seed))
        values = torch.full((graph.n_writers * graph.n_readers,), float("nan"), dtype=torch.float32)
        values[torch.from_numpy(order)] = torch.linspace(
            1.0, 1.0 / len(order), len(order), dtype=torch.float32
        )
        about = {"method": self.name, "settings": {"seed": self.seed}}
        return EdgeScores(graph, values.view(graph.n_writers, graph.n_readers), about)

    def circuit(self, graph: Graph, n: int | float) -> Circuit:
        """A circuit of n edges, all on paths from `input` to `logits`.

        Args:
            n: a number of edges, or a share of all edges as a float, rounded down.

        Raises:
            BadUsage: a negative number, more edges than there are, or a share outside [0, 1].
        """
        count = EdgeScores(graph, torch.where(graph.legal, 0.0, torch.nan)).size(n)
        mask = torch.zeros(graph.n_writers * graph.n_readers, dtype=torch.bool)
        mask[torch.from_numpy(_grown(graph, count, np.random.default_rng(self.seed)))] = True
        return Circuit(graph, mask.view(graph.n_writers, graph.n_readers))


def _grown(graph: Graph, count: int, rng: np.random.Generator) -> Int[np.ndarray, "edges"]:
    """Flat indices of `count` edges in the order in which they join."""
    growth = _Growth(graph, rng)
    waiting = rng.permutation(np.flatnonzero(graph.legal.numpy()))
    while growth.n_edges < count:
        if growth.live.all():
            rest = waiting[~growth.mask.ravel()[waiting]]
            return np.concatenate((growth.order(), rest[: count - growth.n_edges]))
        before, skipped = growth.n_edges, []
        for place, flat in enumerate(waiting.tolist()):
            if growth.n_edges == count or growth.live.all():
                skipped += waiting[place:].tolist()
                break
            if not growth.add(flat, count - growth.n_edges):
                skipped.append(flat)
        waiting = np.array(skipped, dtype=int)
        if growth.n_edges == before and count - before == 1:
            growth.exchange_direct_edge()
    return growth.order()


class _Growth:
    """A circuit that grows by paths: every edge in it is live."""

    def __init__(self, graph: Graph, rng: np.random.Generator) -> None:
        self.graph, self.rng = graph, rng
        self.visible, self.owner = graph.visible.numpy(), graph.reader_owner.numpy()
        self.readers = [np.flatnonzero(self.owner == writer) for writer in range(graph.n_writers)]
        self.mask = np.zeros((graph.n_writers, graph.n_readers), dtype=bool)
        # `input` and `logits`, which stands behind the last writer, are in from the start.
        self.live = np.zeros(graph.n_writers + 1, dtype=bool)
        self.live[[0, graph.n_writers]] = True
        self.joined: list[int] = []

    @property
    def n_edges(self) -> int:
        return len(self.joined)

    def order(self) -> Int[np.ndarray, "edges"]:
        return np.array(self.joined, dtype=int)

    def add(self, flat: int, room: int) -> bool:
        """Add a path through an edge if at most `room` of its edges are new; whether it is in."""
        writer, reader = divmod(flat, self.graph.n_readers)
        if self.mask[writer, reader]:
            return True
        path, nodes = [(writer, reader)], []
        while not self.live[writer] and len(path) <= room:
            nodes.append(writer)
            into = int(self.rng.choice(self.readers[writer]))
            writer = int(self.rng.integers(self.visible[into]))
            path.append((writer, into))
        node = int(self.owner[reader])
        while not self.live[node] and len(path) <= room:
            nodes.append(node)
            # What a reader sees is a prefix: all readers from the first one on see a writer.
            first = int(np.searchsorted(self.visible, node, side="right"))
            onto = int(self.rng.integers(first, self.graph.n_readers))
            path.append((node, onto))
            node = int(self.owner[onto])
        if len(path) > room:
            return False
        self._join(path, nodes)
        return True

    def exchange_direct_edge(self) -> None:
        """Put `input` -> node -> `logits` through a node not yet in for `input->logits`."""
        logits = self.graph.logits
        self.mask[0, logits] = False
        self.joined.remove(logits)
        node = int(self.rng.choice(np.flatnonzero(~self.live)))
        self._join([(0, int(self.rng.choice(self.readers[node]))), (node, logits)], [node])

    def _join(self, path: list[tuple[int, int]], nodes: list[int]) -> None:
        for edge in path:
            self.mask[edge] = True
            self.joined.append(edge[0] * self.graph.n_readers + edge[1])
        self.live[nodes] = True
