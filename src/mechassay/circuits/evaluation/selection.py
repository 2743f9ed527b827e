"""Circuits whose edges are chosen at each size by the faithfulness that they reach.

By value, circuits lack what works against the answer, and overshoot; by magnitude they may fall
short. Between the two lie mixtures (after the ratio of positive and negative edges of Nikankin et
al. 2025): of k edges a share r are the best by value, as far as they are positive, and the rest the
largest in magnitude. At each size k this takes the share whose circuit has the least

    |1 - f|     f = (m(C) - m(0)) / (m(N) - m(0)), of means over pairs, as CMD has it

on the pairs that it is given, which should be neither those of training nor of the test; of equals
the smaller share. Each size has a share of its own, so that a larger circuit need not hold the
edges of a smaller one (`nested` says where it does). The least of several is too good on the pairs
that decided: measure the circuits on others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.faithfulness import evaluate_distinct
from mechassay.circuits.profiles import Profile
from mechassay.circuits.scores import EdgeScores
from mechassay.circuits.series import (
    FRACTIONS,
    CircuitSeries,
    FaithfulnessMetric,
    check_fractions,
)
from mechassay.errors import BadUsage, GraphMismatch
from mechassay.models.model import Model
from mechassay.models.objectives import ObjectiveLike, load_objective
from mechassay.prompts.batch import PairsLike
from mechassay.results.records import Table
from mechassay.utils.arguments import checked
from mechassay.utils.display import BAR, OneLine, Progress, Tabular

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
SELECTION = "chosen mixtures"
"""The table of a record."""
Values = list[list[float]]
Kept = Callable[[str, Callable[[], Values]], Values]
"""Objectives [circuits, pairs] by a name for files: those that are kept, or those made now."""


@dataclass(frozen=True, eq=False, repr=False)
class FaithfulSelection(OneLine, Tabular):
    """The circuit that was chosen at each size, and the faithfulness of all that it was one of.

    Attributes:
        series: the chosen circuits, not pruned; its provenance has the rows.
        rows: of each size below 1: edges, the chosen share of positive edges and its f, f of every
            share, whether all edges of the size before are in, and what it cost.
    """

    series: CircuitSeries
    rows: tuple[Mapping[str, Any], ...]

    def repr_fields(self) -> dict[str, Any]:
        return {"circuits": len(self.rows), "shares": tuple(row["positive"] for row in self.rows)}

    def columns(self) -> dict[str, list[Any]]:
        """A row for each size."""
        return {name: [row[name] for row in self.rows] for name in self.rows[0]}

    def table(self) -> Table:
        """The rows as the table of a record."""
        return Table.of(SELECTION, ("fraction",), self.rows)


@checked
def faithful_circuits(
    model: Model,
    scores: EdgeScores,
    pairs: PairsLike,
    objective: ObjectiveLike = "logit_diff",
    *,
    shares: Sequence[float] = SHARES,
    fractions: Sequence[float] = FRACTIONS,
    profile: Profile = "strict",
    split: str = "",
    progress: Progress = BAR,
    kept: Kept = lambda name, make: make(),
) -> FaithfulSelection:
    """Choose the edges of each size's circuit by |1 - f| on pairs; see the module.

    It costs a run of each pair for every different circuit: at most as many as shares and sizes,
    and two.

    Args:
        shares: of positive edges, from 0 (all by magnitude) to 1.
        split: what the pairs are called in the rows.
        kept: where the objectives of each share are kept, for runs that are taken up.

    Raises:
        BadUsage: no shares, one outside [0, 1] or twice; fractions as `faithfulness_curve`.
        GraphMismatch: scores of another graph. Others as `evaluate`.
    """
    sizes, measured = check_fractions(fractions)[:-1], load_objective(objective)
    if not shares or len(set(shares)) < len(shares):
        raise BadUsage(f"Mixtures have one share or more, each once; got {tuple(shares)}.")
    if scores.graph != model.graph:
        raise GraphMismatch(
            f"The scores were made on {scores.graph}; the model's graph is {model.graph}."
        )
    batch, graph = model.batch(pairs), model.graph
    mixed = [[scores.mixture(size, share) for size in sizes] for share in sorted(shares)]
    ends = [Circuit.empty(graph), Circuit.full(graph)]

    def values_of(circuits: Sequence[Circuit]) -> Values:
        return evaluate_distinct(model, circuits, batch, measured, progress).tolist()

    empty, full = np.array(kept("ends", lambda: values_of(ends)))
    rule = FaithfulnessMetric(
        profile, fractions, graph.n_edges, empty, full, batch.groups, objective=measured.name
    )
    pruned = [[circuit.pruned() for circuit in of_share] for of_share in mixed]
    f = np.array(
        [
            [
                rule.faithfulness_of(values)[0]
                for values in np.array(kept(f"{share:g}", lambda c=circuits: values_of(c)))
            ]
            for share, circuits in zip(sorted(shares), pruned, strict=True)
        ]
    )
    # An undefined f is never the nearest to 1; where all are, edges go by magnitude.
    best = np.nan_to_num(np.abs(1 - f), nan=np.inf).argmin(axis=0).tolist()
    chosen = [mixed[share][place] for place, share in enumerate(best)]
    names = [f"{share:g}" for share in sorted(shares)]
    smaller = [Circuit.empty(graph), *chosen]
    cost = {"n_circuits": len({*ends, *(own for row in pruned for own in row)})}
    rows = tuple(
        {
            "fraction": size,
            "edges": len(pruned[best[place]][place]),
            "positive": float(names[best[place]]),
            "f": float(f[best[place], place]),
            **{f"f at {name}": float(own) for name, own in zip(names, f[:, place], strict=True)},
            "nested": bool(chosen[place].edges[smaller[place].edges].all()),
            "split": split,
            "n_pairs": len(batch),
            **cost,
        }
        for place, size in enumerate(sizes)
    )
    about = {**scores.provenance, "selection": "faithful", SELECTION: rows}
    return FaithfulSelection(CircuitSeries(graph, tuple(chosen), about), rows)
