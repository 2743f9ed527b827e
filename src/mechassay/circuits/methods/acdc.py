"""ACDC: remove edges whose removal changes the metric by less than a threshold.

Conmy et al. (2023), algorithm 1. The circuit starts as the full graph. For one reader after the
other, from the logits backwards, and for each of its writers, the edge is removed if

    loss(circuit without the edge) - loss(circuit) < threshold          compare = "signed"
    |loss(circuit without the edge) - loss(circuit)| < threshold        compare = "absolute"

where the loss is the objective's mean over examples with lower better (the paper's: KL divergence
from the clean run at the last token). Edges are tried in the graph's order, backwards: readers from
the logits, layer by layer its MLP, then its heads' values, keys and queries, the last head first;
writers of a reader from the last one to `input`. The paper says "reverse topological" only; its
code goes head by head.

A writer that has lost all ways to the logits changes nothing: edges into it are decided without a
run. Another decision computes again what follows its reader, which is pruned by then
(`models.circuit_changes`). The next edges into a reader are evaluated at once, as if all of them
went the way of the last decision. Decisions count up to the first that goes the other way, so they
are those of one evaluation after the other, but for rounding. The number evaluated at once doubles
where all went as taken, else it halves. Runs are kept in memory; where those of all examples do
not fit, each pass over the examples begins with a run of the circuit so far.

With `thresholds`, every threshold starts again; circuits need not be nested. A kept edge may be on
no path from `input`, when its writer's in-edges go later (`Circuit.pruned`). `acdc-top` starts from
the edges that an estimate ranks highest, and not from the full graph.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods.eap import EdgeGradientMethod, edge_estimate
from mechassay.circuits.methods.method import Method, ScoreInputs, provenance_of
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadUsage, NonFinite
from mechassay.models.circuit_changes import CircuitChanges
from mechassay.models.decoder import Readout
from mechassay.models.forward import Contrast
from mechassay.models.graph import Graph
from mechassay.models.memory import (
    CPU_BUDGET,
    available_bytes,
    out_of_memory_is_an_error,
    token_budget,
    trace_bytes,
)
from mechassay.models.model import Model
from mechassay.models.objectives import Objective, signed
from mechassay.prompts.batch import Batch
from mechassay.utils.checkpoint import checkpointed, key_of
from mechassay.utils.settings import Within, checked_settings

HELD_SHARE = 0.25
"""Share of the free memory that may hold runs of the circuit so far."""

UNDECIDED, KEPT, REMOVED = 0, 1, 2
DECISION = 0.1
"""What a decision costs of a forward pass, about: from 1,000 edges of SmolLM2 on IOI. One into what
leads nowhere costs nothing, one that most of the model follows more."""


@dataclass(frozen=True)
@checked_settings
class ACDC(Method[EdgeScores]):
    """Remove edges in reverse topological order while the metric stays.

    Attributes:
        threshold: largest change of the objective, not included, at which an edge is removed.
        thresholds: score edges by several thresholds, all above 0, instead of by `threshold`.
        compare: "signed" also removes every edge that hurts; "absolute" keeps those that hurt by
            the threshold or more.
        ahead: most edges evaluated in one pass over the examples; no result depends on it but for
            rounding.
    """

    threshold: Annotated[float, Within(0)] = 0.01
    thresholds: tuple[float, ...] = ()
    compare: Literal["signed", "absolute"] = "signed"
    ahead: Annotated[int, Within(1)] = 4
    name: ClassVar[str] = "acdc"
    default_objective: ClassVar[str] = "kl"

    def __post_init__(self) -> None:
        for threshold in self.thresholds:
            # What is typed on the command line may be anything.
            is_number = isinstance(threshold, int | float)  # pyright: ignore[reportUnnecessaryIsInstance]
            if not (is_number and math.isfinite(threshold) and threshold > 0):
                raise BadUsage(
                    f"The thresholds of a sweep of {self.name} must be finite numbers above 0; got"
                    f" {threshold!r}."
                )
        if len(set(self.thresholds)) < len(self.thresholds):
            raise BadUsage(
                f"The thresholds of a sweep of {self.name} must differ; got {self.thresholds}."
            )

    def find_scores(self, inputs: ScoreInputs) -> EdgeScores:
        """Score edges that are kept at `threshold` by 1, others by 0; a score is no drop.

        With `thresholds` a score is the largest of them at which the edge was kept, 0 if at none.

        Raises:
            NonFinite: an example's value is NaN or infinite in a circuit on the way.
        """
        graph = inputs.model.graph
        values, about = self._levels(inputs, Circuit.full(graph))
        return EdgeScores.of(graph, values, about)

    def _levels(
        self, inputs: ScoreInputs, start: Circuit
    ) -> tuple[Float[Tensor, "writers readers"], dict[str, Any]]:
        """What edges score for being kept, where `start` is pruned; and the provenance."""
        thresholds = tuple(sorted(self.thresholds, reverse=True)) or (self.threshold,)
        search = self._search(inputs, start, thresholds)
        values = torch.zeros(start.graph.legal.shape, dtype=torch.float64)
        for threshold, circuit in zip(thresholds, search.circuits, strict=True):
            values = torch.maximum(values, circuit.edges * (threshold if self.thresholds else 1.0))
        about = {
            **provenance_of(self, inputs),
            "thresholds": list(thresholds),
            "kept": [len(circuit) for circuit in search.circuits],
            "losses": search.losses,
            "n_decisions": len(thresholds) * len(start),
            "n_runs": search.n_runs,
        }
        return values, about

    @torch.no_grad()
    def _search(
        self, inputs: ScoreInputs, start: Circuit, thresholds: tuple[float, ...]
    ) -> _ThresholdCircuits:
        model, batch = inputs.model, inputs.batch
        graph, n_edges = model.graph, len(start)
        budget = token_budget(trace_bytes(model.decoder), batch.n_tokens, model.device)
        # What is kept of a circuit are the columns that differ; the clean run is kept whole.
        differ = batch.n_tokens - batch.first_difference()
        budget = budget * batch.n_tokens // max(differ, batch.n_tokens // 4, 1)
        about = provenance_of(self, inputs)
        key = key_of(
            {
                **about,
                "thresholds": thresholds,
                "budget": budget,
                "graph": graph.fingerprint,
                "start": hashlib.sha256(start.edges.numpy().tobytes()).hexdigest(),
            }
        )
        # The first undecided edge is where an experiment stands.
        decisions = torch.full((len(thresholds), n_edges), UNDECIDED, dtype=torch.int8)
        n_runs = torch.zeros(1, dtype=torch.int64)
        circuits: list[Circuit] = []
        losses: list[float] = []
        with (
            inputs.progress.track(self.name, decisions.numel()) as advance,
            out_of_memory_is_an_error(self.name),
            checkpointed(inputs.checkpoint, key, {"decisions": decisions, "runs": n_runs}) as state,
        ):
            for number, threshold in enumerate(thresholds):
                absolute = self.compare == "absolute"
                walk = _Walk(start, threshold, absolute, decisions[number].numpy())
                run = _Losses(model, batch, inputs.objective, budget, n_runs)
                logits = graph.logits
                (walk.loss,) = run(walk.edges, logits, walk.edges[:, [logits]])
                advance(walk.place)
                ahead = 1
                while walk.place < n_edges:
                    before = walk.place
                    as_taken = walk.go_on(run, ahead)
                    ahead = min(2 * ahead, self.ahead) if as_taken else max(ahead // 2, 1)
                    state.done(number * n_edges + walk.place)
                    advance(walk.place - before)
                circuits.append(Circuit(graph, torch.from_numpy(walk.edges)))
                losses.append(walk.loss)
        return _ThresholdCircuits(circuits, losses, int(n_runs))

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        return max(1, len(self.thresholds)) * DECISION * graph.n_edges * n_pairs


@dataclass(frozen=True)
class ACDCTop(ACDC):
    """ACDC on the edges that an estimate ranks highest; all others are out from the start.

    The circuit starts as these edges, those on no path from `input` to `logits` left out, and not
    as the full graph. What ACDC removes from there is what it would remove if it had removed all
    others first, whatever their change. With as many edges as the graph has it is ACDC.

    Attributes:
        edges: how many are visited at most; all if there are fewer.
        estimate: a gradient method, by name and settings.
    """

    edges: Annotated[int, Within(1)] = 1000
    estimate: str = "eap-ig-inputs"
    name: ClassVar[str] = "acdc-top"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.inner()

    def find_scores(self, inputs: ScoreInputs) -> EdgeScores:
        """Score edges as ACDC does; edges of equal score are ranked by the estimate.

        To the score of ACDC, less than half the distance to the next higher one is added: in
        proportion to |estimate|. So kept edges come first, then those that were visited, then all
        others, and each kind in the order of the estimate.
        """
        model, graph = inputs.model, inputs.model.graph
        (estimate,) = self.inner()
        first = estimate.score(model, inputs.batch, inputs.objective, progress=inputs.progress)
        start = first.top(min(self.edges, graph.n_edges), by="magnitude").pruned()
        values, about = self._levels(inputs, start)
        share = first.values.abs().double()
        gap = np.diff(sorted({0.0, *about["thresholds"]} if self.thresholds else {0.0, 1.0})).min()
        values += 0.5 * gap * share / share.nan_to_num().max().clamp(min=1e-300)
        return EdgeScores.of(graph, values, {**about, "visited": len(start)})

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """Return the forward passes of the estimate, two runs, and the decisions."""
        n_decisions = max(1, len(self.thresholds)) * min(self.edges, graph.n_edges)
        decided = 2.0 + DECISION * n_decisions
        return self.inner()[0].forwards(graph, n_pairs) + decided * n_pairs

    def inner(self) -> list[EdgeGradientMethod]:
        """The estimate."""
        return [edge_estimate(self.name, self.estimate)]


class _ThresholdCircuits(NamedTuple):
    """One circuit a threshold, its loss, and how many circuits were run for all of them."""

    circuits: list[Circuit]
    losses: list[float]
    n_runs: int


def removal_order(edges: Bool[Tensor, "writers readers"]) -> tuple[np.ndarray, np.ndarray]:
    """Writers and readers of edges, in the order in which they are tried."""
    readers, writers = np.nonzero(edges.numpy().T[::-1, ::-1])
    n_writers, n_readers = edges.shape
    return n_writers - 1 - writers, n_readers - 1 - readers


class _Walk:
    """One threshold's way through the edges: the circuit so far, its loss, how many are decided.

    `leads` says whether a writer leads to the logits; it is final once its own readers are reached.
    `removes` is what the next decisions are taken to be: the last one.
    """

    def __init__(
        self, start: Circuit, threshold: float, absolute: bool, decisions: np.ndarray
    ) -> None:
        graph = start.graph
        self.threshold, self.absolute, self.decisions = threshold, absolute, decisions
        self.writers, self.readers = removal_order(start.edges)
        self.owners = graph.reader_owner.numpy()[self.readers]
        self.edges = start.edges.numpy().copy()
        self.leads = np.zeros(graph.n_writers + 1, dtype=bool)
        self.leads[graph.n_writers] = True
        self.loss, self.place, self.removes = math.nan, 0, True
        for decision in decisions[decisions != UNDECIDED]:
            self._decide(bool(decision == KEPT))

    def go_on(self, run: _Losses, ahead: int) -> bool:
        """Decide up to `ahead` edges into the next reader; whether all went as they were taken."""
        reader = int(self.readers[self.place])
        stop = self.place + int((self.readers[self.place :] == reader).sum())
        if not self.leads[self.owners[self.place]]:
            # Edges into a writer that leads nowhere: the change is 0.
            while self.place < stop:
                self._decide(not self._below(0.0))
            return True
        places = range(self.place, min(stop, self.place + ahead))
        sets = self.edges[:, [reader] * len(places)]
        for number, place in enumerate(places):
            sets[self.writers[place], number : len(places) if self.removes else number + 1] = False
        as_taken = True
        for loss in run(self.edges, reader, sets):
            removed = self._below(loss - self.loss)
            if removed:
                self.loss = loss
            self._decide(not removed)
            as_taken = removed == self.removes
            if not as_taken:
                self.removes = removed
                break
        if self.place == stop:
            run.keep(reader, self.edges[:, reader])
        return as_taken

    def _below(self, change: float) -> bool:
        return (abs(change) if self.absolute else change) < self.threshold

    def _decide(self, kept: bool) -> None:
        place = self.place
        if kept:
            self.leads[self.writers[place]] |= self.leads[self.owners[place]]
        else:
            self.edges[self.writers[place], self.readers[place]] = False
        self.decisions[place] = KEPT if kept else REMOVED
        self.place = place + 1


class _Prepared(NamedTuple):
    """Some examples with all that their circuits share."""

    rows: list[int]
    batch: Batch
    circuit: CircuitChanges
    clean: Readout | None


class _Losses:
    """Losses of circuits on all examples; runs are kept as far as memory goes."""

    def __init__(
        self, model: Model, batch: Batch, objective: Objective, budget: int, n_runs: Tensor
    ) -> None:
        self.model, self.objective, self.ids, self.n_runs = model, objective, batch.ids, n_runs
        self.chunks = list(batch.chunks(budget))
        self.held: dict[int, _Prepared] = {}
        self.free = available_bytes(model.device) or CPU_BUDGET
        self.room = HELD_SHARE * self.free

    def __call__(
        self, edges: Bool[np.ndarray, "writers readers"], reader: int, sets: np.ndarray
    ) -> list[float]:
        """Of a circuit with these sets of in-edges of one reader [writers, sets]."""
        values = np.full((sets.shape[1], len(self.ids)), np.nan)
        n_bytes = CPU_BUDGET if self.model.device.type == "cpu" else int(self.free * HELD_SHARE)
        for number in range(len(self.chunks)):
            rows, chunk, circuit, clean = self._prepared(number, edges)
            for place, readout in enumerate(circuit.readouts(reader, sets, n_bytes)):
                loss = -signed(self.objective, readout, chunk, clean)
                values[place, rows] = loss.double().cpu().numpy()
        self.n_runs += len(values)
        return [self._mean(row) for row in values]

    def keep(self, reader: int, writers: Bool[np.ndarray, "writers"]) -> None:
        """These in-edges of a reader are decided."""
        for prepared in self.held.values():
            prepared.circuit.keep(reader, writers)

    def _prepared(self, number: int, edges: np.ndarray) -> _Prepared:
        if number in self.held:
            return self.held[number]
        decoder, (rows, chunk) = self.model.decoder, self.chunks[number]
        contrast = Contrast.run(decoder, chunk)
        clean = None
        if self.objective.needs_clean:
            clean = _KnownReadout(contrast.clean.readout(decoder).hidden, decoder)
        made = _Prepared(rows, chunk, CircuitChanges(decoder, contrast, edges), clean)
        # What writers changed, what readers see of that, and queries, keys and values once more.
        own, graph = contrast.other.embed, self.model.graph
        vectors = graph.n_writers + graph.n_readers
        size = vectors * own.numel() * own.element_size() + 2 * _bytes(contrast)
        if size <= self.room:
            self.room -= size
            self.held[number] = made
        return made

    def _mean(self, values: Float[np.ndarray, "n"]) -> float:
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            raise NonFinite(
                f"{self.objective.name} of example {self.ids[row]} is not finite in a circuit: the"
                " activations overflow or hold NaN."
            )
        return float(values.mean())


@dataclass(frozen=True, eq=False)
class _KnownReadout(Readout):
    """A readout whose logits are computed once: every circuit is compared with the clean run."""

    def all(self) -> Float[Tensor, "batch vocab"]:
        return self._logits

    @cached_property
    def _logits(self) -> Tensor:
        return super().all()


def _bytes(contrast: Contrast) -> int:
    traces = (contrast.clean, contrast.other)
    tensors = [tensor for trace in traces for tensor in (trace.embed, trace.final)]
    layers = [layer for trace in traces for layer in trace.layers]
    tensors += [value for layer in layers for value in vars(layer).values() if value is not None]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
