"""Edge attribution patching with the gradient of the counterfactual run.

    S[u, v] = - mean_examples <a'_u - a_u, dm/dx_v at the counterfactual run>

The other end of the path that EAP-IG-inputs follows: EAP takes the gradient at the clean run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from mechassay.circuits.attribution import interpolated_scores
from mechassay.circuits.methods.gradient import EdgeGradientMethod
from mechassay.models.model import Model
from mechassay.objectives import Objective
from mechassay.pairs import Batch


@dataclass(frozen=True)
class EAPCorrupted(EdgeGradientMethod):
    """EAP at the counterfactual run."""

    backward: str = "plain"
    name: ClassVar[str] = "eap-corrupted"

    def add(self, model: Model, chunk: Batch, objective: Objective, into: Tensor) -> None:
        interpolated_scores(model, chunk, objective, (1.0,), (1.0,), into)
