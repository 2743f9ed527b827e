"""relu with an L1 penalty: f = relu(pre), loss + l1 sum f / d (Bricken et al. 2023).

The weight rises with the learning rate.
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
        weight = self.settings.rate(step) * self.settings.l1
        penalty = weight * f.sum(dim=1).mean() / x.shape[1]
        return Coded(f @ self.decoder + self.b_dec, (f > 0).any(dim=0), penalty)

    def inference(self, scale: float) -> dict[str, Any]:
        """See `Learner.inference`."""
        return {"activation": "relu"}
