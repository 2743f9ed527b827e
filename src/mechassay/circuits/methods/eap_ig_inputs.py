"""EAP with integrated gradients at the inputs.

    S[u, v] = - mean_examples <a'_u - a_u, sum_k w_k dm/dx_v at the input x_k>
    x_k = a'_input + alpha_k (a_input - a'_input)

Hanna et al. 2024; Mueller et al. 2025, eq. 4 and appendix E.2. Only the token embeddings are
interpolated, from counterfactual (alpha 0) to clean (alpha 1). The rule for the points alpha_k is a
field: MIB's code uses `left` (k/Z for k = 0..Z-1); `gauss-legendre` is the most accurate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mechassay.circuits.methods.gradient import EdgeGradientMethod, IntegratedMethod, Points
from mechassay.circuits.scores import EdgeScores


@dataclass(frozen=True)
class EAPIGInputs(IntegratedMethod[EdgeScores], EdgeGradientMethod):
    """Edge attribution patching with gradients integrated along the inputs."""

    steps: int = 5
    points: Points = "left"
    backward: str = "plain"
    name: ClassVar[str] = "eap-ig-inputs"
