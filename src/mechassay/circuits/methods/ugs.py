"""Uniform gradient sampling: a probability for every edge, learned from masks between 0 and 1.

Li and Janson 2024; run by MIB (Mueller et al. 2025, appendix E.2). Every edge has a parameter
theta and a probability p = sigmoid(theta), at first sigmoid(1). A mask is drawn for each example:

    w = p (1 - p) (held constant),    alpha = 1 - clamp((u - p) / w + 1/2, 0, 1),    u ~ U(0, 1)

so alpha is uniform in (0, 1) with probability w, 1 with probability p - w/2 and else 0. For a loss
L then dE[L]/dp = L(1) - L(0) = E[dL/dalpha | alpha inside], estimated by the sum of dL/dalpha over
the step's samples with alpha in (0, 1), divided by how many lie inside, `EDGE` from 0 and from 1; 0
if none does. A straight-through alpha has that gradient, times samples / samples inside.

    loss = mean KL + lambda sum_edges p
           + min(lambda / 2, node_penalty) sum_heads (L H / 2) tanh(2 n / (L H)),

n being the sum of p over a head's in- and out-edges. AdamW with betas .9, .995 and no decay.
Gradients are clipped at norm 5 in each of four groups: edges from a head or not, into a head or
not. The score is p.

Settings are those of the public code for lambda = 1e-3 and counterfactual ablation, which makes one
pass over 9,500 IOI pairs, 1,900 steps; here steps are counted, and pairs repeat. Deviations:
dangling edges are zeroed only under constants (`mask_training`), and count as samples; there is no
special case for the first token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.circuits.methods.mask_training import Loss, MaskMethod, Masks
from mechassay.errors import BadUsage
from mechassay.graph import Graph
from mechassay.models.model import Model
from mechassay.registry import check_settings

INITIAL_THETA = 1.0
BETAS = (0.9, 0.995)
CLIP = 5.0
EDGE = 1e-3
"""Samples nearer to 0 or 1 than this have a gradient, but are not counted as inside."""


@dataclass(frozen=True)
class UniformGradientSampling(MaskMethod):
    """Learned edge probabilities; other fields as in `MaskMethod`.

    Attributes:
        lr: of AdamW.
        sparsity: lambda, what an edge costs.
        node_penalty: what a head costs at most; 0 leaves the term out.
    """

    steps: int = 2000
    batch_size: int = 5
    samples: int = 12
    lr: float = 0.01
    sparsity: float = 1e-3
    node_penalty: float = 2e-4
    loss: Loss = "kl"
    seed: int = 0
    name: ClassVar[str] = "ugs"
    version: ClassVar[int] = 2
    per_example: ClassVar[bool] = True
    clip: ClassVar[float | None] = CLIP

    def __post_init__(self) -> None:
        check_settings(self, self.name)
        if (
            not 0 < self.lr < math.inf
            or not 0 <= self.sparsity < math.inf
            or not 0 <= self.node_penalty < math.inf
        ):
            raise BadUsage(
                f"{self.name} needs a finite lr > 0, sparsity >= 0 and node_penalty >= 0; got"
                f" {self}."
            )

    def start(self, model: Model) -> tuple[Masks, torch.optim.Optimizer]:
        masks = _Uniform(model.graph, self, model.device, model.accumulator)
        groups = [{"params": [theta]} for theta in masks.thetas]
        return masks, torch.optim.AdamW(groups, lr=self.lr, betas=BETAS, weight_decay=0.0)


class _Uniform(Masks):
    """Masks of a probability for each edge; `thetas` are the parameters of each group of edges."""

    def __init__(
        self,
        graph: Graph,
        settings: UniformGradientSampling,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.settings = settings
        self.legal = graph.legal.to(device)
        self.owner = graph.reader_owner.to(device)
        self.n_heads = graph.n_layers * graph.n_heads
        self.is_head = torch.zeros(graph.n_writers, dtype=torch.bool, device=device)
        for layer in range(graph.n_layers):
            self.is_head[graph.heads(layer)] = True
        self.places = [edges.flatten().nonzero()[:, 0] for edges in self._groups() if edges.any()]
        self.thetas = [
            torch.full((len(places),), INITIAL_THETA, device=device, dtype=dtype).requires_grad_()
            for places in self.places
        ]

    def _groups(self) -> list[Bool[Tensor, "writers readers"]]:
        """Edges from a head or another writer, into a head or another reader."""
        into_head = torch.cat((self.is_head, self.is_head.new_zeros(1)))[self.owner]
        return [
            self.legal & out[:, None] & into
            for out in (self.is_head, ~self.is_head)
            for into in (into_head, ~into_head)
        ]

    def probabilities(self) -> Float[Tensor, "writers readers"]:
        """p of every edge, and 0 where there is none."""
        flat, p = self.thetas[0].new_zeros(self.legal.numel()), torch.cat(self.thetas).sigmoid()
        return flat.index_copy(0, torch.cat(self.places), p).view_as(self.legal)

    def draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "masks writers readers"]:
        p = self.probabilities()
        u = torch.rand((n, *p.shape), generator=generator).to(p)
        return straight_through(p, u) * self.legal

    def penalty(self, step: int) -> Float[Tensor, ""]:
        p, settings, size = self.probabilities(), self.settings, self.n_heads
        cost = settings.sparsity * p.sum()
        weight = min(settings.sparsity / 2, settings.node_penalty)
        if weight:
            into = p.new_zeros(len(p) + 1).index_add(0, self.owner, p.sum(dim=0))[:-1]
            at_head = (into + p.sum(dim=1))[self.is_head]
            cost = cost + weight * size / 2 * torch.tanh(2 * at_head / size).sum()
        return cost


def straight_through(
    p: Float[Tensor, "writers readers"], u: Float[Tensor, "masks writers readers"]
) -> Float[Tensor, "masks writers readers"]:
    """Masks alpha of uniform draws u, with gradient masks / masks inside by p in (0, 1), else 0."""
    fixed = p.detach()
    width = fixed * (1 - fixed)
    alpha = 1 - ((u - fixed) / width.clamp(min=torch.finfo(p.dtype).tiny) + 0.5).clamp(0, 1)
    sloped = ((alpha > 0) & (alpha < 1)).to(p.dtype)
    inside = ((alpha > EDGE) & (alpha < 1 - EDGE)).sum(dim=0)
    weight = torch.where(inside > 0, len(u) / inside.clamp(min=1), 0.0).to(p.dtype)
    return alpha + sloped * weight * (p - fixed)
