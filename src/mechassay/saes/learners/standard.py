"""relu with an L1 penalty: f = relu(pre), loss + l1 sum f / d (Bricken et al. 2023).

The weight rises linearly over the warmup of the learning rate, and stays: it does not fall with it.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mechassay.saes.learners.learner import Coded, Learner


class StandardLearner(Learner):
    """A relu SAE in training."""

    def code(self, x: Tensor, step: int) -> Coded:
        """See `Learner.code`."""
        f = self.read(x).relu()
        rise = self.settings.warmup * self.settings.steps
        weight = self.settings.l1 * (min(1.0, (step + 1) / rise) if rise > 0 else 1.0)
        penalty = weight * f.sum(dim=1).mean() / x.shape[1]
        return Coded(f @ self.decoder + self.b_dec, (f > 0).any(dim=0), penalty)

    def inference(self, scale: float) -> dict[str, Any]:
        """See `Learner.inference`."""
        return {"activation": "relu"}
