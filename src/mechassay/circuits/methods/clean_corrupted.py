"""Clean-corrupted: the mean of the gradients at the clean and at the counterfactual input.

    S[u, v] = - mean_examples <a'_u - a_u, (dm/dx_v at clean + dm/dx_v at counterfactual) / 2>

The trapezoidal rule with one interval along the path that EAP-IG-inputs follows (Hanna et al.
2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mechassay.circuits.methods.gradient import EdgeGradientMethod, Quadrature


@dataclass(frozen=True)
class CleanCorrupted(EdgeGradientMethod):
    """Attribution with gradients at both ends; `backward` as in `GradientMethod`."""

    backward: str = "plain"
    name: ClassVar[str] = "clean-corrupted"

    @property
    def path(self) -> Quadrature:
        return (0.0, 1.0), (0.5, 0.5)
