"""How far two computations of one divergence may differ and still be called the same.

    |a - b| <= absolute + relative * max(|a|, |b|)

The two run the same sums in another order, so what is allowed is rounding: of three terms of about
ten nats in fp32, and of activations in the model's own type.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float


@dataclass(frozen=True)
class Agreement:
    """What is allowed, in nats."""

    absolute: float
    relative: float

    @staticmethod
    def of(dtype: torch.dtype) -> Agreement:
        """For a model of that type; half precision has eight or eleven bits."""
        return (
            Agreement(0.05, 0.05)
            if dtype in (torch.bfloat16, torch.float16)
            else Agreement(1e-4, 1e-3)
        )

    def holds(
        self, a: Float[np.ndarray, "*shape"], b: Float[np.ndarray, "*shape"]
    ) -> Bool[np.ndarray, "*shape"]:
        """Where two computations agree; never where one is undefined."""
        return np.asarray(
            np.abs(a - b) <= self.absolute + self.relative * np.maximum(np.abs(a), np.abs(b))
        )
