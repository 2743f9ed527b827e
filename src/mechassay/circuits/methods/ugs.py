"""Uniform gradient sampling: a probability for every edge, learned from masks between 0 and 1.

Li and Janson 2024; run by MIB (Mueller et al. 2025, appendix E.2). Every edge has a parameter
theta and a probability p = sigmoid(theta), at first sigmoid(1). A mask is drawn for each example:

    w = p (1 - p) (held constant),    alpha = 1 - clamp((u - p) / w + 1/2, 0, 1),    u ~ U(0, 1)

so alpha is uniform in (0, 1) with probability w, 1 with probability p - w/2 and else 0. For a loss L
then dE[L]/dp = L(1) - L(0) = E[dL/dalpha | alpha inside], and that is the estimate: the mean of
dL/dalpha over those samples of the step in which the edge is inside. It is put together by a
straight-through alpha, whose slope by p is 1 inside and 0 outside, times samples / samples inside.

    loss = mean KL + lambda sum_edges p + min(lambda / 2, node_penalty) sum_nodes (L H / 2) tanh(2 n / (L H)),

n being the sum of p over a node's in- and out-edges. AdamW with betas .9, .995 and no decay, gradients
clipped at norm 5. The score is p.

Settings are those of the public code for lambda = 1e-3 and counterfactual ablation: learning rate .05,
a fifth of it with counterfactual ablation, 12 masks an example, 5 examples a step. It makes one pass
over 9,500 IOI pairs, which is 1,900 steps; here steps are counted, and pairs repeat.

Deviations: dangling edges are zeroed only under constants, since otherwise they have no effect
(`mask_training`), and count as samples; columns in which a pair's prompts agree are the same in both
runs, so there is no special case for the first token.
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

from mechassay.circuits.methods.mask_training import Training, prepared, train, trained_scores
from mechassay.circuits.objectives import Objective
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadUsage
from mechassay.graph import Graph
from mechassay.models.model import Model
from mechassay.pairs import Batch, Pair
from mechassay.progress import BAR, Progress
from mechassay.registry import check_settings

INITIAL_THETA = 1.0
BETAS = (0.9, 0.995)
CLIP = 5.0


@dataclass(frozen=True)
class UniformGradientSampling:
    """Learned edge probabilities.

    Attributes:
        steps: updates.
        batch_size: examples a step.
        samples: masks an example and step.
        lr: of AdamW.
        sparsity: lambda, what an edge costs.
        node_penalty: what a node costs at most, see above; 0 leaves the term out.
        loss: "kl", or "objective" to descend minus the objective.
        seed: of examples and masks.
    """

    steps: int = 2000
    batch_size: int = 5
    samples: int = 12
    lr: float = 0.01
    sparsity: float = 1e-3
    node_penalty: float = 2e-4
    loss: str = "kl"
    seed: int = 0
    name: ClassVar[str] = "ugs"
    version: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_settings(self, self.name)
        if not 0 < self.lr < math.inf or not 0 <= self.sparsity < math.inf or not 0 <= self.node_penalty < math.inf:
            raise BadUsage(f"{self.name} needs a finite lr > 0, sparsity >= 0 and node_penalty >= 0; got {self}.")

    def score(
        self,
        model: Model,
        pairs: Sequence[Pair] | Batch,
        objective: str | Objective = "logit_diff",
        *,
        progress: Progress = BAR,
        checkpoint: Path | None = None,
    ) -> EdgeScores:
        """See `Method.score`; scores are probabilities, and `checkpoint` is not used: a killed job starts again.

        The objective plays a part only if `loss` is "objective".
        """
        training = self._training()
        batch, chosen = prepared(self, training, model, pairs, objective)
        masks = _Uniform(model.graph, self, model.device, model.accumulator)
        optimiser = torch.optim.AdamW([masks.theta], lr=self.lr, betas=BETAS, weight_decay=0.0)
        losses = train(model, batch, chosen, masks, optimiser, training, label=self.name, progress=progress)
        return trained_scores(self, model, batch, chosen, masks.theta.detach().sigmoid(), losses)

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """See `Method.forwards`: the training."""
        return self._training().forwards(graph, n_pairs)

    def _training(self) -> Training:
        return Training(self.steps, self.batch_size, self.samples, self.seed, self.loss, per_example=True, clip=CLIP)


class _Uniform:
    """Masks of a probability for each edge."""

    def __init__(self, graph: Graph, settings: UniformGradientSampling, device: torch.device, dtype: torch.dtype) -> None:
        self.graph, self.settings = graph, settings
        self.legal = graph.legal.to(device)
        self.owner = graph.reader_owner.to(device)
        self.theta = torch.full(graph.legal.shape, INITIAL_THETA, device=device, dtype=dtype).requires_grad_()

    def draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "masks writers readers"]:
        p = self.theta.sigmoid()
        u = torch.rand((n, *p.shape), generator=generator).to(p)
        return straight_through(p, u) * self.legal

    def penalty(self, step: int) -> Float[Tensor, ""]:
        p, graph, settings = self.theta.sigmoid() * self.legal, self.graph, self.settings
        cost = settings.sparsity * p.sum()
        weight = min(settings.sparsity / 2, settings.node_penalty)
        if weight:
            size = graph.n_layers * graph.n_heads
            at_node = p.new_zeros(graph.n_writers + 1).index_add(0, self.owner, p.sum(dim=0))[:-1] + p.sum(dim=1)
            cost = cost + weight * size / 2 * torch.tanh(2 * at_node[1:] / size).sum()
        return cost


def straight_through(
    p: Float[Tensor, "writers readers"], u: Float[Tensor, "masks writers readers"]
) -> Float[Tensor, "masks writers readers"]:
    """Masks alpha of uniform draws u; their slope by p is masks / masks inside where alpha is in (0, 1), else 0."""
    fixed = p.detach()
    width = fixed * (1 - fixed)
    alpha = 1 - ((u - fixed) / width.clamp(min=torch.finfo(p.dtype).tiny) + 0.5).clamp(0, 1)
    inside = ((alpha > 0) & (alpha < 1)).to(p.dtype)
    return alpha + inside * (len(u) / inside.sum(dim=0).clamp(min=1)) * (p - fixed)
