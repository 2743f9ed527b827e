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
run. Other decisions are runs of compiled circuits (`models.circuit_compiler`). Clean and
counterfactual runs are kept in memory; where those of all examples do not fit, each pass over the
examples evaluates the next few removals at once, as if all of them would stay. Decisions count up
to the first edge that is kept, so they are those of one evaluation after the other. The number
evaluated at once doubles after a pass without a kept edge, else halves.

With `thresholds`, every threshold starts again from the full graph; circuits need not be nested. A
kept edge may be on no path from `input`, when its writer's in-edges go later (`Circuit.pruned`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods.method import provenance_of
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadUsage, NonFinite
from mechassay.models.circuit_compiler import Plan, compile_circuit
from mechassay.models.circuit_forward import run_circuit
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
from mechassay.models.objectives import Objective, ObjectiveLike, load_objective, signed
from mechassay.prompts.batch import Batch, PairsLike
from mechassay.utils.checkpoint import checkpointed, key_of
from mechassay.utils.display import BAR, Progress
from mechassay.utils.settings import Within, check_settings

HELD_SHARE = 0.25
"""Share of the free memory that may hold clean and counterfactual runs."""

UNDECIDED, KEPT, REMOVED = 0, 1, 2


@dataclass(frozen=True)
class ACDC:
    """Remove edges in reverse topological order while the metric stays.

    Attributes:
        threshold: largest change of the objective, not included, at which an edge is removed.
        thresholds: score edges by several thresholds, all above 0, instead of by `threshold`.
        compare: "signed" also removes every edge that hurts; "absolute" keeps those that hurt by
            the threshold or more.
        ahead: most removals evaluated in one pass over the examples; no result depends on it.
    """

    threshold: Annotated[float, Within(0)] = 0.01
    thresholds: tuple[float, ...] = ()
    compare: Literal["signed", "absolute"] = "signed"
    ahead: Annotated[int, Within(1)] = 64
    name: ClassVar[str] = "acdc"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_settings(self, self.name)
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

    def score(
        self,
        model: Model,
        pairs: PairsLike,
        objective: ObjectiveLike = "kl",
        *,
        progress: Progress = BAR,
        checkpoint: Path | None = None,
    ) -> EdgeScores:
        """See `Method.score`; but a score is no drop: 1 for edges kept at `threshold`, else 0.

        With `thresholds` it is the largest of them at which the edge was kept, 0 if at none.

        Raises:
            NonFinite: an example's value is NaN or infinite in a circuit on the way.
        """
        chosen, batch = load_objective(objective), model.batch(pairs)
        thresholds = tuple(sorted(self.thresholds, reverse=True)) or (self.threshold,)
        search = self._search(model, batch, chosen, thresholds, progress, checkpoint)
        values = torch.zeros(model.graph.legal.shape, dtype=torch.float64)
        for threshold, circuit in zip(thresholds, search.circuits, strict=True):
            values = torch.maximum(values, circuit.edges * (threshold if self.thresholds else 1.0))
        about = {
            **provenance_of(self, model, batch, chosen),
            "thresholds": list(thresholds),
            "kept": [len(circuit) for circuit in search.circuits],
            "losses": search.losses,
            "n_decisions": len(thresholds) * model.graph.n_edges,
            "n_runs": search.n_runs,
        }
        return EdgeScores.of(model.graph, values, about)

    @torch.no_grad()
    def _search(
        self,
        model: Model,
        batch: Batch,
        objective: Objective,
        thresholds: tuple[float, ...],
        progress: Progress,
        checkpoint: Path | None,
    ) -> _ThresholdCircuits:
        graph = model.graph
        budget = token_budget(trace_bytes(model.decoder), batch.n_tokens, model.device)
        about = provenance_of(self, model, batch, objective)
        key = key_of(
            {**about, "thresholds": thresholds, "budget": budget, "graph": graph.fingerprint}
        )
        # The first undecided edge is where a job stands.
        decisions = torch.full((len(thresholds), graph.n_edges), UNDECIDED, dtype=torch.int8)
        n_runs = torch.zeros(1, dtype=torch.int64)
        circuits: list[Circuit] = []
        losses: list[float] = []
        with (
            progress.track(self.name, decisions.numel()) as advance,
            out_of_memory_is_an_error(self.name),
            checkpointed(checkpoint, key, {"decisions": decisions, "runs": n_runs}) as state,
        ):
            run = _Losses(model, batch, objective, budget, n_runs)
            for number, threshold in enumerate(thresholds):
                absolute = self.compare == "absolute"
                walk = _Walk(graph, threshold, absolute, decisions[number].numpy())
                walk.loss = next(run([walk.edges]))
                advance(walk.place)
                ahead = 1
                while walk.place < graph.n_edges:
                    before = walk.place
                    all_went = walk.go_on(run, ahead)
                    ahead = min(2 * ahead, self.ahead) if all_went else max(ahead // 2, 1)
                    state.done(number * graph.n_edges + walk.place)
                    advance(walk.place - before)
                circuits.append(Circuit(graph, torch.from_numpy(walk.edges)))
                losses.append(walk.loss)
        return _ThresholdCircuits(circuits, losses, int(n_runs))

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """See `Method.forwards`: a decision costs about what patching one edge does, or nothing."""
        return max(1, len(self.thresholds)) * 0.25 * graph.n_edges * n_pairs


class _ThresholdCircuits(NamedTuple):
    """One circuit a threshold, its loss, and how many circuits were run for all of them."""

    circuits: list[Circuit]
    losses: list[float]
    n_runs: int


def removal_order(graph: Graph) -> tuple[np.ndarray, np.ndarray]:
    """Writers and readers of all edges, in the order in which they are tried."""
    readers, writers = np.nonzero(graph.legal.numpy().T[::-1, ::-1])
    return graph.n_writers - 1 - writers, graph.n_readers - 1 - readers


class _Walk:
    """One threshold's way through the edges: the circuit so far, its loss, how many are decided.

    `leads` says whether a writer leads to the logits; it is final once its own readers are reached.
    """

    def __init__(
        self, graph: Graph, threshold: float, absolute: bool, decisions: np.ndarray
    ) -> None:
        self.threshold, self.absolute, self.decisions = threshold, absolute, decisions
        self.writers, self.readers = removal_order(graph)
        self.owners = graph.reader_owner.numpy()[self.readers]
        self.edges = graph.legal.numpy().copy()
        self.leads = np.zeros(graph.n_writers + 1, dtype=bool)
        self.leads[graph.n_writers] = True
        self.loss, self.place = math.nan, 0
        for decision in decisions[decisions != UNDECIDED]:
            self._decide(bool(decision == KEPT))

    def go_on(self, run: _Losses, ahead: int) -> bool:
        """Decide edges up to the first kept one, or the next `ahead`; whether all of these went."""
        live = self.place + np.flatnonzero(self.leads[self.owners[self.place :]])[:ahead]
        for place, loss in zip(live, run(self._without(live)), strict=True):
            self._decide_dead(int(place))
            kept = not self._below(loss - self.loss)
            self._decide(kept)
            if kept:
                return False
            self.loss = loss
        if not len(live):
            self._decide_dead(len(self.decisions))
        return True

    def _without(self, places: np.ndarray) -> Iterator[np.ndarray]:
        edges = self.edges.copy()
        for place in places:
            edges[self.writers[place], self.readers[place]] = False
            yield edges

    def _decide_dead(self, until: int) -> None:
        """Edges into writers that lead nowhere: the change is 0."""
        kept = not self._below(0.0)
        while self.place < until:
            self._decide(kept)

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
    contrast: Contrast
    clean: Readout | None


class _Losses:
    """Losses of circuits on all examples; their two runs are kept as far as memory goes."""

    def __init__(
        self, model: Model, batch: Batch, objective: Objective, budget: int, n_runs: Tensor
    ) -> None:
        self.model, self.objective, self.ids, self.n_runs = model, objective, batch.ids, n_runs
        self.chunks = list(batch.chunks(budget))
        self.held: dict[int, _Prepared] = {}
        self.room = HELD_SHARE * (available_bytes(model.device) or CPU_BUDGET)

    def __call__(self, circuits: Iterable[np.ndarray]) -> Iterator[float]:
        """One loss a circuit: computed when asked for if all examples are held, else together."""
        plans = map(self._compiled, circuits)
        if len(self.held) == len(self.chunks):
            for plan in plans:
                yield from self._together([plan])
        else:
            yield from self._together(list(plans))

    def _together(self, plans: list[Plan]) -> list[float]:
        if not plans:
            return []
        decoder = self.model.decoder
        values = np.full((len(plans), len(self.ids)), np.nan)
        for number in range(len(self.chunks)):
            rows, chunk, contrast, clean = self._prepared(number)
            for place, plan in enumerate(plans):
                readout = run_circuit(decoder, contrast, plan)
                loss = -signed(self.objective, readout, chunk, clean)
                values[place, rows] = loss.double().cpu().numpy()
        self.n_runs += len(plans)
        return [self._mean(row) for row in values]

    def _compiled(self, mask: np.ndarray) -> Plan:
        model = self.model
        edges, post_norm = torch.from_numpy(mask), model.decoder.has_post_norm
        plan = compile_circuit(model.graph, edges, post_norm=post_norm)
        return plan.to(model.device, model.dtype)

    def _prepared(self, number: int) -> _Prepared:
        if number in self.held:
            return self.held[number]
        decoder, (rows, chunk) = self.model.decoder, self.chunks[number]
        contrast = Contrast.run(decoder, chunk)
        clean = None
        if self.objective.needs_clean:
            clean = _KnownReadout(contrast.clean.readout(decoder).hidden, decoder)
        made = _Prepared(rows, chunk, contrast, clean)
        size = _bytes(contrast)
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
