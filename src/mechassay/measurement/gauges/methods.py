"""F03, F04 and F06: rankings of edges by several methods, as scores of heads and as choices.

A head's score is the sum of those of the edges out of it; NaN where none has one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float

from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadUsage
from mechassay.measurement.formulas import agreement as formula
from mechassay.measurement.gauges.arms import head_writers
from mechassay.measurement.inputs import Inputs
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, NullTable
from mechassay.measurement.variant import Flag

GRADIENT = ("eap", "nap", "ifr", "clean-corrupted")
"""How names of methods begin that are gradients, or linear in activations: one family."""


def head_scores(rankings: Mapping[str, EdgeScores]) -> Float[np.ndarray, "methods heads"]:
    """Scores of heads, in the order of the graph."""
    return np.stack([_of_heads(scores) for scores in rankings.values()])


def _of_heads(scores: EdgeScores) -> Float[np.ndarray, "heads"]:
    values = scores.values[head_writers(scores.graph)].double()
    known = ~values.isnan()
    sums = torch.where(known, values, torch.zeros_like(values)).sum(dim=1)
    return torch.where(known.any(dim=1), sums, torch.nan).numpy()


def edge_scores(rankings: Mapping[str, EdgeScores]) -> Float[np.ndarray, "methods edges"]:
    """Sizes of the scores of all edges; NaN where a method has none."""
    rows = [
        scores.values[scores.graph.legal].abs().double().numpy() for scores in rankings.values()
    ]
    return np.stack(rows)


def same_family(methods: Mapping[str, EdgeScores]) -> list[Flag]:
    """A flag if all methods are of one family."""
    if not all(name.startswith(GRADIENT) for name in methods):
        return []
    return [
        Flag(
            "one_family",
            f"{', '.join(methods)} are one family of methods: that they agree is no"
            " convergence of different evidence.",
        )
    ]


@dataclass(frozen=True)
class Convergence:
    """Do methods agree on which heads matter?"""

    share: float = 0.1

    id: ClassVar[str] = formula.CONVERGENT
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("rankings",)

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`."""
        rankings = inputs.rankings
        return formula.convergence(
            head_scores(rankings),
            list(rankings),
            share=self.share,
            seed=inputs.seed,
            flags=same_family(rankings),
        )

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is heads."""
        return formula.null_convergence(144 if n is None else n, 2, n_simulations, seed)


@dataclass(frozen=True)
class Discrimination:
    """Do methods tell one behaviour's heads from another's?"""

    id: ClassVar[str] = formula.DISCRIMINANT
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("rankings", "other task")

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`."""
        own, other = inputs.rankings, inputs.other_rankings
        if set(own) != set(other):
            raise BadUsage(
                f"F04 compares rankings by the same methods; got {', '.join(own)} and"
                f" {', '.join(other)}."
            )
        matched = {name: other[name] for name in own}
        return formula.discrimination(head_scores(own), head_scores(matched), seed=inputs.seed)

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is heads."""
        return formula.null_discrimination(144 if n is None else n, 2, n_simulations, seed)


@dataclass(frozen=True)
class RaterAgreement:
    """Do methods choose the same edges at one size?

    Attributes:
        size: share of the edges.
    """

    size: float = 0.02

    id: ClassVar[str] = formula.RATERS
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("rankings",)

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`."""
        rankings = inputs.rankings
        return formula.rater_agreement(edge_scores(rankings), list(rankings), size=self.size)

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is edges."""
        return formula.null_raters(5000 if n is None else n, self.size, n_simulations, seed)
