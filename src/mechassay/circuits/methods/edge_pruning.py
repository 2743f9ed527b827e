"""Edge pruning: hard concrete masks trained to a target sparsity by Lagrange multipliers.

Bhaskar et al. 2024. With s the sparsity 1 - mean_edges P(m > 0) and s* its target,

    loss = mean KL + lambda_1 (s* - s) + lambda_2 (s* - s)^2,

masks descend and the two multipliers, 0 at first, ascend. The target rises linearly from 0 over the
warm-up, the first 2,500 of 3,000 steps. Log alphas begin at N(10, .01): the full model. One mask is
drawn for all examples of a step. AdamW, learning rate .8 for masks and multipliers, no decay. The
score is P(m > 0).

Log alphas are kept within [-10, 10]: beyond it neither part of the loss has a gradient, and masks
would stay as they are while the multipliers grow without end.

Other deviations: masks are on MIB's edges, one writer for tokens and positions, and none for nodes;
the sparsity is its expectation, not that of the drawn mask; both learning rates are constant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.circuits.methods.mask_training import HardConcrete, Loss, MaskMethod, Masks
from mechassay.circuits.methods.method import seeded
from mechassay.errors import BadUsage
from mechassay.graph import Graph
from mechassay.models.model import Model
from mechassay.registry import check_settings

INITIAL_LOG_ALPHA, INITIAL_SPREAD = 10.0, 0.01


@dataclass(frozen=True)
class EdgePruning(MaskMethod):
    """Hard concrete edge masks at a target sparsity; other fields as in `MaskMethod`.

    Attributes:
        lr, multiplier_lr: of the masks and of the Lagrange multipliers.
        target: the share of edges that are to go.
        warmup: the share of the steps in which the target rises from 0.
    """

    steps: int = 3000
    batch_size: int = 32
    samples: int = 1
    lr: float = 0.8
    multiplier_lr: float = 0.8
    target: float = 0.95
    warmup: float = 5 / 6
    loss: Loss = "kl"
    seed: int = 0
    name: ClassVar[str] = "edge-pruning"

    def __post_init__(self) -> None:
        check_settings(self, self.name)
        if not 0 < self.lr < math.inf or not 0 < self.multiplier_lr < math.inf:
            raise BadUsage(f"{self.name} needs a finite lr > 0 and multiplier_lr > 0; got {self}.")
        if not 0 < self.target < 1 or not 0 <= self.warmup <= 1:
            raise BadUsage(
                f"{self.name} needs a target in (0, 1) and a warmup in [0, 1]; got {self}."
            )

    def start(self, model: Model) -> tuple[Masks, torch.optim.Optimizer]:
        # Another stream than that of the training, which has the seed itself.
        generator = seeded(self.seed + 2**32)
        noise = torch.randn(model.graph.legal.shape, generator=generator) * INITIAL_SPREAD
        log_alpha = (INITIAL_LOG_ALPHA + noise).to(model.device, model.accumulator)
        masks = _Targeted(model.graph, log_alpha, self)
        groups = [
            {"params": [masks.log_alpha], "lr": self.lr},
            {"params": [masks.multipliers], "lr": self.multiplier_lr, "maximize": True},
        ]
        return masks, torch.optim.AdamW(groups, weight_decay=0.0)


class _Targeted(HardConcrete):
    def __init__(
        self, graph: Graph, log_alpha: Float[Tensor, "writers readers"], settings: EdgePruning
    ) -> None:
        super().__init__(graph, log_alpha)
        self.settings = settings
        self.multipliers = log_alpha.new_zeros(2).requires_grad_()

    def draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "masks writers readers"]:
        with torch.no_grad():
            self.log_alpha.clamp_(-INITIAL_LOG_ALPHA, INITIAL_LOG_ALPHA)
        return super().draw(n, generator)

    def penalty(self, step: int) -> Float[Tensor, ""]:
        gap = self.target(step) - (1 - self.mean_kept())
        return self.multipliers[0] * gap + self.multipliers[1] * gap.square()

    def reached(self) -> dict[str, Any]:
        return {"sparsity": 1 - float(self.mean_kept().detach())}

    def target(self, step: int) -> float:
        """The sparsity asked for at a step: a line from 0, reached at the end of the warm-up."""
        rising = self.settings.warmup * self.settings.steps
        return self.settings.target * (min(1.0, (step + 1) / rising) if rising else 1.0)
