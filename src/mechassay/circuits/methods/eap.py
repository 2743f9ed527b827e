"""Edge attribution patching: one linear estimate at the clean input.

    S[u, v] = - mean_examples <a'_u - a_u, dm/dx_v at the clean run>

Syed et al. 2024; Mueller et al. 2025, eq. 3. Two forwards and one backward for all edges; see
`circuits.attribution` for how. In post-norm models (Gemma) a head's change is taken through the
post-norm's Jacobian, which MIB's code leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mechassay.circuits.methods.gradient import EdgeGradientMethod


@dataclass(frozen=True)
class EAP(EdgeGradientMethod):
    """Edge attribution patching; `backward` as in `GradientMethod`."""

    backward: str = "plain"
    name: ClassVar[str] = "eap"
    instead: ClassVar[str] = "eap-ig-inputs"
