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

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
from torch import Tensor

from mechassay.circuits.attribution import interpolated_scores
from mechassay.circuits.methods.gradient import EdgeGradientMethod
from mechassay.errors import BadUsage, one_of
from mechassay.models.model import Model
from mechassay.objectives import Objective
from mechassay.pairs import Batch

Points = Literal["left", "right", "midpoint", "gauss-legendre"]


@dataclass(frozen=True)
class EAPIGInputs(EdgeGradientMethod):
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

    def __post_init__(self) -> None:
        super().__post_init__()
        quadrature(self.points, self.steps)

    @property
    def copies(self) -> int:
        return self.steps

    def add(self, model: Model, chunk: Batch, objective: Objective, into: Tensor) -> None:
        interpolated_scores(model, chunk, objective, *quadrature(self.points, self.steps), into)


def quadrature(points: str, steps: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Points in [0, 1] and weights that sum to 1.

    Raises:
        UnknownName: no such rule. BadUsage: fewer than one step.
    """
    one_of("integration rule", points, get_args(Points))
    if steps < 1:
        raise BadUsage(f"Integrated gradients need at least 1 step; got {steps}.")
    if points == "gauss-legendre":
        nodes, weights = np.polynomial.legendre.leggauss(steps)
        return tuple(((nodes + 1) / 2).tolist()), tuple((weights / 2).tolist())
    shift = {"left": 0.0, "right": 1.0, "midpoint": 0.5}[points]
    return tuple((k + shift) / steps for k in range(steps)), (1 / steps,) * steps
