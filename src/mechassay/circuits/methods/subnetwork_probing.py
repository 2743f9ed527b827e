"""Subnetwork probing on edges: hard concrete masks and a price for every edge kept.

Cao et al. 2021, in the form that Conmy et al. 2023 compare with ACDC, with a mask on every edge:

    loss = mean KL + lambda mean_edges P(m > 0),

masks being hard concrete (Louizos et al. 2018) with beta 2/3, gamma -0.1, zeta 1.1. At first
sigmoid(log alpha), stretched to (gamma, zeta), is 0.9. One mask is drawn for all examples of a
step. Adam. The score is P(m > 0). Lambda 100 and learning rate .01 are those of edge-level runs in
the literature; on a graph of n edges each costs lambda / n.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.circuits.methods.mask_training import (
    GAMMA,
    ZETA,
    HardConcrete,
    Loss,
    MaskMethod,
    Masks,
)
from mechassay.errors import BadUsage
from mechassay.graph import Graph
from mechassay.models.model import Model
from mechassay.registry import check_settings

INITIAL_MASK = 0.9


@dataclass(frozen=True)
class SubnetworkProbing(MaskMethod):
    """Hard concrete edge masks at a fixed price; other fields as in `MaskMethod`.

    `lr` is of Adam; `sparsity` is lambda, the price of keeping all edges.
    """

    steps: int = 3000
    batch_size: int = 32
    samples: int = 1
    lr: float = 0.01
    sparsity: float = 100.0
    loss: Loss = "kl"
    seed: int = 0
    name: ClassVar[str] = "subnetwork-probing"

    def __post_init__(self) -> None:
        check_settings(self, self.name)
        if not 0 < self.lr < math.inf or not 0 <= self.sparsity < math.inf:
            raise BadUsage(f"{self.name} needs a finite lr > 0 and sparsity >= 0; got {self}.")

    def start(self, model: Model) -> tuple[Masks, torch.optim.Optimizer]:
        share = (INITIAL_MASK - GAMMA) / (ZETA - GAMMA)
        initial, like = math.log(share / (1 - share)), model.decoder.embedding
        log_alpha = like.new_full(model.graph.legal.shape, initial, dtype=model.accumulator)
        masks = _Priced(model.graph, log_alpha, self.sparsity)
        return masks, torch.optim.Adam([masks.log_alpha], lr=self.lr)


class _Priced(HardConcrete):
    def __init__(
        self, graph: Graph, log_alpha: Float[Tensor, "writers readers"], price: float
    ) -> None:
        super().__init__(graph, log_alpha)
        self.price = price

    def penalty(self, step: int) -> Float[Tensor, ""]:
        return self.price * self.mean_kept()
