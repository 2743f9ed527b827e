"""Is a claimed circuit the truth? The largest effect of every edge, by intervention.

    effect[u, v] = max over pairs |m(full circuit) - m(full circuit without (u, v))|

Each edge of the graph is ablated alone, in every pair, and the largest effect counts, not the mean: an edge that
matters in one prompt of a thousand is part of the mechanism, and effects of two signs do not cancel. What an edge that
is left out carries is the ablation's: the counterfactual prompt's value, zero, or the mean. Truth differs between them.
An edge that carries the same in every prompt is invisible to counterfactuals, and an edge that carries nothing but
learned positions is invisible to all, as positions belong to no node.

Two statements, which must agree:

    margin   smallest effect of a claimed edge / largest effect of another; NaN for a claim of no or of all edges
    found    the edges above the widest gap: the largest ratio of neighbours among the sorted effects, where effects
             below `FLOOR` of the largest one count as the floor

and a third: `together`, the largest effect of ablating all edges outside the claim at once, must be smaller than the smallest effect
of a claimed edge by the same factor.

The claim holds if it is what is found, and both margins are at least `MARGIN`. InterpBench (Gupta et al. 2024) derives its
ground truth from how its models were trained and does not intervene on edges.

One edge at a time does not see redundancy: two edges that do the same work, each enough, both have no effect. All
at once shows it where both are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.circuits.ablation import ablate
from mechassay.circuits.faithfulness import evaluate
from mechassay.circuits.objectives import Objective
from mechassay.circuits.scores import Circuit
from mechassay.errors import BadUsage, GraphMismatch
from mechassay.graph import Graph
from mechassay.models.model import Model
from mechassay.pairs import Batch, Pair
from mechassay.progress import BAR, Progress

ABLATIONS = ("counterfactual", "mean", "zero")
MARGIN = 10.0
FLOOR = 1e-4
CIRCUITS_AT_A_TIME = 64


@dataclass(frozen=True, eq=False)
class Verification:
    """What interventions say about a claimed circuit.

    Attributes:
        ablation: what ablated edges carried.
        claimed: the circuit as claimed.
        effects: the largest absolute effect of each edge; NaN where the graph has no edge.
        n_pairs: over how many pairs.
        together: the largest absolute effect of ablating everything outside the claim at once.
    """

    ablation: str
    claimed: Circuit
    effects: Float[Tensor, "writers readers"]
    n_pairs: int
    together: float = 0.0

    @property
    def smallest_inside(self) -> float:
        """The smallest effect of a claimed edge; NaN if none is claimed."""
        inside = self.effects[self.claimed.edges]
        return float(inside.min()) if len(inside) else float("nan")

    @property
    def largest_outside(self) -> float:
        """The largest effect of an edge that is not claimed; NaN if all are."""
        outside = self.effects[self.claimed.graph.legal & ~self.claimed.edges]
        return float(outside.max()) if len(outside) else float("nan")

    @property
    def margin(self) -> float:
        """`smallest_inside` / `largest_outside`."""
        inside, outside = self.smallest_inside, self.largest_outside
        if outside == 0:
            return float("inf") if inside > 0 else float("nan")
        return inside / outside

    @property
    def found(self) -> Circuit:
        """The edges above the widest gap between effects; none if no edge has an effect."""
        return above_the_gap(self.claimed.graph, self.effects)

    @property
    def holds(self) -> bool:
        """Whether the claim is what is found, with a margin of at least `MARGIN`, and is enough by itself."""
        return self.found == self.claimed and self.margin >= MARGIN and self.smallest_inside >= MARGIN * self.together


def verify(
    model: Model,
    pairs: Sequence[Pair] | Batch,
    claimed: Circuit,
    ablation: str = "counterfactual",
    objective: str | Objective = "logit_diff",
    *,
    optional: Circuit | None = None,
    progress: Progress = BAR,
) -> Verification:
    """Ablate every edge of the graph alone in every pair, and compare the effects with a claimed circuit.

    One run an edge and pair: for tiny models.

    Args:
        ablation: any that `mechassay.circuits.ablate` knows by name; means are those of `pairs`.
        optional: edges that belong to the claim if they are found, and only then.

    Raises:
        GraphMismatch: the circuit belongs to another graph than the model's.
        UnknownName, BadPairs: see `ablate`.
    """
    for kind, each in (("claimed", claimed), ("optional", optional)):
        if each is not None and each.graph != model.graph:
            raise GraphMismatch(f"The {kind} circuit belongs to {each.graph}; the model's graph is {model.graph}.")
    batch = ablate(model, pairs, ablation, progress=progress)
    effects = largest_effects(model, batch, objective, progress=progress)
    if optional is not None:
        found = above_the_gap(model.graph, effects)
        claimed = Circuit(model.graph, claimed.edges | (found.edges & optional.edges))
    whole, alone = evaluate(model, [Circuit.full(model.graph), claimed], batch, objective, progress=progress)
    return Verification(ablation, claimed, effects, len(batch), together=float(np.abs(whole - alone).max()))


def largest_effects(
    model: Model, batch: Batch, objective: str | Objective = "logit_diff", *, progress: Progress = BAR
) -> Float[Tensor, "writers readers"]:
    """The largest absolute effect over a batch of ablating each edge alone, in fp64; NaN where the graph has no edge."""
    full = Circuit.full(model.graph)
    baseline = evaluate(model, full, batch, objective, progress=progress)
    edges = model.graph.legal.nonzero().tolist()
    effects = torch.full((model.graph.n_writers, model.graph.n_readers), float("nan"), dtype=torch.float64)
    for begin in range(0, len(edges), CIRCUITS_AT_A_TIME):
        some = edges[begin : begin + CIRCUITS_AT_A_TIME]
        values = evaluate(model, [_without(full, writer, reader) for writer, reader in some], batch, objective, progress=progress)
        for (writer, reader), drop in zip(some, np.abs(baseline - values).max(axis=1), strict=True):
            effects[writer, reader] = drop
    return effects


def above_the_gap(graph: Graph, effects: Float[Tensor, "writers readers"]) -> Circuit:
    """The edges above the largest ratio between neighbouring effects; none if no edge has an effect.

    Raises:
        BadUsage: an effect is negative, infinite or NaN.
    """
    values = effects[graph.legal].double()
    if not bool((torch.isfinite(values) & (values >= 0)).all()):
        raise BadUsage("The largest absolute effects must be finite and not negative, one for every edge.")
    largest = float(values.max())
    if largest == 0:
        return Circuit.empty(graph)
    ordered = values.clamp(min=FLOOR * largest).sort(descending=True).values
    # A last value at the floor: if all edges are far above it, all of them are found.
    ordered = torch.cat((ordered, ordered.new_tensor([FLOOR * largest])))
    last = int((ordered[:-1] / ordered[1:]).argmax())
    return Circuit(graph, graph.legal & (effects >= ordered[last]))


def _without(circuit: Circuit, writer: int, reader: int) -> Circuit:
    edges = circuit.edges.clone()
    edges[writer, reader] = False
    return Circuit(circuit.graph, edges)
