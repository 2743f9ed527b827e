"""EAP with integrated gradients at the inputs.

    S[u, v] = - mean_examples <a'_u - a_u, sum_k w_k dm/dx_v at a'_input + alpha_k (a_input -
    a'_input)>

Hanna et al. 2024; Mueller et al. 2025, eq. 4 and appendix E.2. Only the token embeddings are
interpolated, from counterfactual (alpha 0) to clean (alpha 1); the network computes the rest. The
rule for the points alpha_k is a field: MIB's code uses `left` (k/Z for k = 0..Z-1: the
counterfactual end is in, the clean end is not); `gauss-legendre` is the most accurate at equal
cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from mechassay.circuits.attribution import interpolated_scores
from mechassay.circuits.methods.method import mean_over_examples
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadUsage, UnknownName
from mechassay.graph import Graph
from mechassay.models.gradient_rules import backward_model, check_backward
from mechassay.models.model import Model
from mechassay.objectives import Objective
from mechassay.pairs import Batch, Pair
from mechassay.progress import BAR, Progress
from mechassay.registry import check_settings

Points = Literal["left", "right", "midpoint", "gauss-legendre"]
POINTS = ("left", "right", "midpoint", "gauss-legendre")


@dataclass(frozen=True)
class EAPIGInputs:
    """Edge attribution patching with gradients integrated along the inputs.

    Attributes:
        steps: gradient evaluations along the path.
        points: where they are taken.
        backward: "plain", or "gim" (`mechassay.models.gradient_rules`).
    """

    steps: int = 5
    points: Points = "left"
    backward: str = "plain"
    name: ClassVar[str] = "eap-ig-inputs"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_settings(self, self.name)
        check_backward(self.backward)
        quadrature(self.points, self.steps)

    def score(
        self,
        model: Model,
        pairs: Sequence[Pair] | Batch,
        objective: str | Objective = "logit_diff",
        *,
        progress: Progress = BAR,
        checkpoint: Path | None = None,
    ) -> EdgeScores:
        """See `Method.score`."""
        model = backward_model(model, self.backward)
        alphas, weights = quadrature(self.points, self.steps)
        return mean_over_examples(
            self,
            model,
            pairs,
            objective,
            lambda chunk, m, into: interpolated_scores(model, chunk, m, alphas, weights, into),
            copies=self.steps,
            progress=progress,
            checkpoint=checkpoint,
        )

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """See `Method.forwards`: two runs, and a forward and a backward pass a step."""
        return (2.0 + 2.0 * self.steps) * n_pairs


def quadrature(points: str, steps: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Points in [0, 1] and weights that sum to 1.

    Raises:
        UnknownName: no such rule. BadUsage: fewer than one step.
    """
    if points not in POINTS:
        raise UnknownName("integration rule", points, POINTS)
    if steps < 1:
        raise BadUsage(f"Integrated gradients need at least 1 step; got {steps}.")
    if points == "gauss-legendre":
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        return tuple(((nodes + 1) / 2).tolist()), tuple((weights / 2).tolist())
    shift = {"left": 0.0, "right": 1.0, "midpoint": 0.5}[points]
    return tuple((k + shift) / steps for k in range(steps)), (1 / steps,) * steps
