"""Edge attribution patching with the gradient of the counterfactual run.

    S[u, v] = - mean_examples <a'_u - a_u, dm/dx_v at the counterfactual input>

The other end of the path that EAP-IG-inputs follows: EAP takes the gradient at the clean input.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mechassay.circuits.methods.eap import EdgeGradientMethod, Quadrature


@dataclass(frozen=True)
class EAPCorrupted(EdgeGradientMethod):
    """EAP at the counterfactual input; `backward` as in `GradientMethod`."""

    backward: str = "plain"
    name: ClassVar[str] = "eap-corrupted"

    @property
    def path(self) -> Quadrature:
        # Points from the counterfactual (0) to the clean input (1), and their weights.
        return (0.0,), (1.0,)
