"""Is a circuit all of the mechanism, and is all of the circuit needed?

    completeness   f of the complement: what the model still does when the circuit's edges (and
                   neurons) alone are ablated; 0 where nothing outside the circuit does the same
                   (Wang et al. 2023, section 4)
    minimality     for each edge (or node) of the circuit, the drop of f when it is left out

f(C) = (m(C) - m(0)) / (m(N) - m(0)) as in `faithfulness`, from means over examples. Intervals are
percentile bootstraps over whole groups of examples, numerator and denominator resampled together;
where the interval of m(N) - m(0) contains 0, or rounding alone may have made the difference
(`stats.rounding`), everything is undefined (NaN).

Wang et al. compare C and N after ablating the same random subsets K of both; here K is the whole
circuit, the largest such subset. An edge whose loss leaves others without a path takes them along.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.faithfulness import evaluate
from mechassay.display import OneLine
from mechassay.errors import BadUsage, one_of
from mechassay.models.model import Model
from mechassay.objectives import Objective, ObjectiveLike, least_size, load_objective
from mechassay.pairs import Batch, PairsLike
from mechassay.progress import BAR, Progress
from mechassay.stats.intervals import Interval, percentile_interval, resampled_means
from mechassay.stats.rounding import resolved_difference

Unit = Literal["edge", "node"]


@dataclass(frozen=True, eq=False, repr=False)
class Completeness(OneLine):
    """What is left of the behaviour without the circuit.

    Attributes:
        circuit, complement: f of the circuit and of all other edges, with intervals.
        per_example: the objective in the full model, the empty circuit, the circuit, and the
            complement.
    """

    circuit: float
    circuit_interval: Interval
    complement: float
    complement_interval: Interval
    per_example: Float[np.ndarray, "4 n"]


@dataclass(frozen=True, eq=False, repr=False)
class Minimality(OneLine):
    """What each part of a circuit is worth.

    Attributes:
        parts: names of edges, or of nodes.
        drops: f of the circuit less f without the part; `intervals` beside them.
    """

    parts: tuple[str, ...]
    drops: Float[np.ndarray, "parts"]
    intervals: tuple[Interval, ...]

    def shown(self) -> dict[str, Any]:
        return {"parts": len(self.parts), "unneeded": self.n_unneeded, "largest": self.drops.max()}

    @property
    def n_unneeded(self) -> int:
        """Parts whose interval contains 0 or lies below it."""
        return sum(not interval.low > 0 for interval in self.intervals)


def complement(circuit: Circuit) -> Circuit:
    """All edges of the graph that the circuit does not have,
    and the neurons that its edges leave out.

    Raises:
        BadUsage: a writer has some of its neurons on some of its edges alone: the rest of it is no
            circuit.
    """
    graph, neurons = circuit.graph, circuit.neurons
    if neurons is None:
        return Circuit(graph, graph.legal & ~circuit.edges)
    parted = neurons.any(dim=1) & ~neurons.all(dim=1) & circuit.edges.any(dim=1)
    torn = parted & (graph.legal & ~circuit.edges).any(dim=1)
    if bool(torn.any()):
        name = graph.writer_name(int(torn.nonzero()[0]))
        raise BadUsage(
            f"{name} has some neurons on some of its edges: what is left of it is no circuit; take"
            " all edges out of it."
        )
    # What carries whole writers, or nothing, is left out or taken by edge; the rest by neuron.
    edges = graph.legal & ~(circuit.edges & neurons.all(dim=1)[:, None])
    return Circuit(graph, edges, ~(neurons & parted[:, None]))


def completeness(
    model: Model,
    circuit: Circuit,
    pairs: PairsLike,
    objective: ObjectiveLike = "logit_diff",
    *,
    seed: int = 0,
    progress: Progress = BAR,
) -> Completeness:
    """Run a circuit and its complement.

    Raises:
        GraphMismatch, NonFinite, OutOfMemory: as `evaluate`.
    """
    batch, graph, chosen = model.batch(pairs), model.graph, load_objective(objective)
    circuits = [Circuit.full(graph), Circuit.empty(graph), circuit, complement(circuit)]
    values = evaluate(model, circuits, batch, chosen, progress=progress)
    f, intervals = _shares(values, batch, chosen, seed)
    return Completeness(float(f[0]), intervals[0], float(f[1]), intervals[1], values)


def minimality(
    model: Model,
    circuit: Circuit,
    pairs: PairsLike,
    objective: ObjectiveLike = "logit_diff",
    *,
    unit: Unit = "edge",
    most: int | None = None,
    seed: int = 0,
    progress: Progress = BAR,
) -> Minimality:
    """Run a circuit without each of its edges, or without all edges into
    and out of each of its nodes, in turn.

    Args:
        most: parts that are left out, drawn at random where the circuit has more.

    Raises:
        BadUsage: an empty circuit, or no part to leave out. UnknownName: no such unit. Also as
            `evaluate`.
    """
    one_of("part of a circuit", unit, get_args(Unit))
    if not len(circuit):
        raise BadUsage("The circuit is empty: there is nothing to leave out.")
    batch, graph, chosen = model.batch(pairs), model.graph, load_objective(objective)
    if most is not None and most < 1:
        raise BadUsage(f"Minimality leaves out one part or more; got most={most}.")
    parts = _edges(circuit) if unit == "edge" else _nodes(circuit)
    if most is not None and len(parts) > most:
        drawn = np.random.default_rng(seed).choice(len(parts), size=most, replace=False)
        names = list(parts)
        parts = {names[place]: parts[names[place]] for place in sorted(drawn.tolist())}
    circuits = [Circuit.full(graph), Circuit.empty(graph), circuit, *parts.values()]
    values = evaluate(model, circuits, batch, chosen, progress=progress)
    # The drop of f is the share of m(C) - m(C without the part): the empty circuit cancels.
    drops = np.vstack((values[:2], values[1] + values[2] - values[3:]))
    f, intervals = _shares(drops, batch, chosen, seed)
    return Minimality(tuple(parts), f, intervals)


def _edges(circuit: Circuit) -> dict[str, Circuit]:
    without: dict[str, Circuit] = {}
    for writer, reader in circuit.edges.nonzero().tolist():
        edges = circuit.edges.clone()
        edges[writer, reader] = False
        without[circuit.graph.edge_name(writer, reader)] = Circuit(
            circuit.graph, edges, circuit.neurons
        )
    return without


def _nodes(circuit: Circuit) -> dict[str, Circuit]:
    graph, without = circuit.graph, dict[str, Circuit]()
    for writer in torch.nonzero(circuit.edges.any(dim=1)).flatten().tolist():
        edges = circuit.edges.clone()
        edges[writer] = False
        edges[:, graph.reader_owner == writer] = False
        without[graph.writer_name(writer)] = Circuit(graph, edges, circuit.neurons)
    return without


def _shares(
    values: Float[np.ndarray, "k n"], batch: Batch, objective: Objective, seed: int
) -> tuple[Float[np.ndarray, "rest"], tuple[Interval, ...]]:
    """(mean of each row - m(0)) / (m(N) - m(0)) of the rows after the first two,
    which are N and 0.
    """
    draws = resampled_means(values, batch.groups, np.random.default_rng(seed))
    rows = np.vstack((values.mean(axis=1), draws))
    least = least_size(objective.name)
    gaps = resolved_difference(rows[:, 0], rows[:, 1], values[:2], least=least)
    gap = percentile_interval(gaps[1:])
    if gaps[0] == 0 or gap.contains(0.0):
        nothing = float("nan")
        return np.full(len(values) - 2, nothing), (Interval(nothing, nothing, gap.level),) * (
            len(values) - 2
        )
    f = (rows[:, 2:] - rows[:, 1:2]) / np.where(gaps == 0, np.nan, gaps)[:, None]
    return f[0], tuple(percentile_interval(column) for column in f[1:].T)
