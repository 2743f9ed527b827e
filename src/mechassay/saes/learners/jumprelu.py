"""JumpReLU: a feature is active above a threshold of its own (Rajamanoharan et al. 2024,
2407.14435).

    f = pre H(pre - theta)                loss = |x - x~|^2 / d + l0 sum H(pre - theta)

H is the step. Its derivative by theta is 0 almost everywhere, so that of the expected loss is
estimated: with the rectangle K (1 from -1/2 to 1/2, else 0) of bandwidth e,

    dH / d theta = -K((pre - theta) / e) / e          df / d theta = theta dH / d theta

What is learned is log theta. l0 rises with the learning rate over the warmup, and does not fall.

Where we deviate: theta begins at .5, with a bandwidth of .5. The paper has .001 for both, in values
of norm 1, so .06 here for the width of its largest model, and trains on billions of values.
Trainings of a million values leave such thresholds where they are, and most features active.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.saes.learners.learner import Coded, Learner


class JumpReLULearner(Learner):
    """A JumpReLU SAE in training."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.log_initial = math.log(self.settings.threshold)
        self.log_threshold = torch.full_like(self.b_enc, self.log_initial).detach().requires_grad_()

    def parameters(self) -> list[Tensor]:
        """See `Learner.parameters`."""
        return [*super().parameters(), self.log_threshold]

    def per_feature(self) -> list[tuple[Tensor, float]]:
        """See `Learner.per_feature`."""
        return [*super().per_feature(), (self.log_threshold, self.log_initial)]

    def code(self, x: Tensor, step: int) -> Coded:
        """See `Learner.code`."""
        f, active = jump(self.read(x), self.log_threshold.exp(), self.settings.bandwidth)
        rise = self.settings.warmup * self.settings.steps
        weight = self.settings.l0 * (min(1.0, (step + 1) / rise) if rise > 0 else 1.0)
        penalty = weight * active.sum(dim=1).mean()
        return Coded(f @ self.decoder + self.b_dec, (f.detach() > 0).any(dim=0), penalty)

    def inference(self, scale: float) -> dict[str, Any]:
        """See `Learner.inference`."""
        return {"activation": "jumprelu", "threshold": self.log_threshold.detach().exp() / scale}


def jump(
    pre: Float[Tensor, "b n"], threshold: Float[Tensor, "n"], bandwidth: float
) -> tuple[Float[Tensor, "b n"], Float[Tensor, "b n"]]:
    """pre H(pre - theta), and H(pre - theta), with the estimated gradients of theta."""
    return _Jump.apply(pre, threshold, bandwidth)  # pyright: ignore[reportReturnType]


class _Jump(torch.autograd.Function):
    """f and H, whose gradients by theta share one window."""

    @staticmethod
    def forward(
        ctx: Any, pre: Tensor, threshold: Tensor, bandwidth: float
    ) -> tuple[Tensor, Tensor]:
        active = pre > threshold
        ctx.save_for_backward(pre, threshold, active)
        ctx.bandwidth = bandwidth
        return pre * active, active.to(pre.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        pre, threshold, active = ctx.saved_tensors
        by_f, by_active = grads
        window = (pre - threshold).abs_() <= ctx.bandwidth / 2
        by_step = (by_f * threshold).add_(by_active).mul_(window).sum(dim=0)
        return by_f * active, by_step / -ctx.bandwidth, None
