"""Subnetwork probing on edges: hard concrete masks and a price for every edge kept.

Cao et al. 2021, in the form that Conmy et al. 2023 compare with ACDC, with a mask on every edge:

    loss = mean KL + lambda mean_edges P(m > 0),

masks being hard concrete (Louizos et al. 2018) with beta 2/3, gamma -0.1, zeta 1.1. At first
sigmoid(log alpha), stretched to (gamma, zeta), is 0.9. One mask is drawn for all examples of a
step. Adam. The score is P(m > 0).

Lambda 100 and learning rate .01 are those of the edge-level runs in the circuit literature. The
mean is over all edges, so on a graph of n edges each costs lambda / n.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.circuits.methods.mask_training import (
    GAMMA,
    ZETA,
    Examples,
    HardConcrete,
    Training,
    prepared,
    train,
    trained_scores,
)
from mechassay.circuits.scores import EdgeScores
from mechassay.circuits.tail import MEAN, Tail
from mechassay.errors import BadUsage
from mechassay.graph import Graph
from mechassay.models.model import Model
from mechassay.objectives import Objective
from mechassay.pairs import Batch, Pair
from mechassay.progress import BAR, Progress
from mechassay.registry import check_settings

INITIAL_MASK = 0.9


@dataclass(frozen=True)
class SubnetworkProbing:
    """Hard concrete edge masks at a fixed price.

    Attributes:
        steps: updates.
        batch_size: examples a step.
        samples: masks a step, each for all examples of the step.
        lr: of Adam.
        sparsity: lambda, the price of keeping all edges.
        loss: "kl", or "objective" to descend minus the objective.
        seed: of examples and masks.
    """

    steps: int = 3000
    batch_size: int = 32
    samples: int = 1
    lr: float = 0.01
    sparsity: float = 100.0
    loss: str = "kl"
    seed: int = 0
    name: ClassVar[str] = "subnetwork-probing"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_settings(self, self.name)
        if not 0 < self.lr < math.inf or not 0 <= self.sparsity < math.inf:
            raise BadUsage(f"{self.name} needs a finite lr > 0 and sparsity >= 0; got {self}.")

    def score(
        self,
        model: Model,
        pairs: Sequence[Pair] | Batch,
        objective: str | Objective = "logit_diff",
        *,
        progress: Progress = BAR,
        checkpoint: Path | None = None,
        examples: Examples | None = None,
        tail: Tail = MEAN,
    ) -> EdgeScores:
        """See `Method.score`; scores are probabilities, and `checkpoint` is not used:
        a killed job starts again.

        The objective plays a part only if `loss` is "objective". `examples` and `tail` are those of
        `mask_training.train`.
        """
        training = self._training()
        batch, chosen = prepared(self, training, model, pairs, objective)
        share = (INITIAL_MASK - GAMMA) / (ZETA - GAMMA)
        start = torch.full(
            model.graph.legal.shape,
            math.log(share / (1 - share)),
            device=model.device,
            dtype=model.accumulator,
        )
        masks = _Priced(model.graph, start, self.sparsity)
        optimiser = torch.optim.Adam([masks.log_alpha], lr=self.lr)
        losses = train(
            model,
            batch,
            chosen,
            masks,
            optimiser,
            training,
            label=self.name,
            progress=progress,
            examples=examples,
            tail=tail,
        )
        return trained_scores(self, model, batch, chosen, masks.kept().detach(), losses)

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """See `Method.forwards`: the training."""
        return self._training().forwards(graph, n_pairs)

    def _training(self) -> Training:
        return Training(self.steps, self.batch_size, self.samples, self.seed, self.loss)


class _Priced(HardConcrete):
    def __init__(
        self, graph: Graph, log_alpha: Float[Tensor, "writers readers"], price: float
    ) -> None:
        super().__init__(graph, log_alpha)
        self.price = price

    def penalty(self, step: int) -> Float[Tensor, ""]:
        return self.price * self.mean_kept()
