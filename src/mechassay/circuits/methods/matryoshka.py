"""Matryoshka attribution: one set of scores whose top k is a circuit for every size k.

Arora et al. 2026. Edges (or nodes) have scores s. Every step draws a size k, masks all of them by

    m_i = sigmoid((s_i - tau) / T),   tau such that sum_i m_i = k,

evaluates the masked model on some examples and descends a loss by s. tau comes by bisection and
moves with the scores, so that with p = m (1 - m)

    dL/ds_j = p_j / T (dL/dm_j - sum_i p_i dL/dm_i / sum_i p_i).

With v the objective of an example under the mask, and full and empty those of model and ablation:

    overshoot    -v, as published: a circuit may outdo the model
    match        |v - full|; `squared` its square
    agreement    min(|v - full|, |full - empty|), what 1 - A of `circuits.series` sums up
    kl           KL(P_full || P_mask) at the last token
    both         |v - full|, and |v - empty| with the rest of the edges in place of the circuit

The reported score is an edge's mean mask over sizes, even in log k. It rises with s and is in
(0, 1), so that both rankings are one. Deviations: `warm` starts from another method's ranks; the
second half of a step's masks have mirrored sizes, or in `both` are the rest of the first half.
"""

# pyright: reportIncompatibleMethodOverride=false
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.circuits.methods import inner_method
from mechassay.circuits.methods.mask_learning import MaskMethod, Masks
from mechassay.circuits.methods.method import AnyMethod, ScoreInputs
from mechassay.circuits.scores import EdgeScores, NodeScores
from mechassay.errors import BadUsage
from mechassay.models.graph import Graph
from mechassay.models.objectives import Values
from mechassay.utils.display import SILENT
from mechassay.utils.settings import Within, checked_settings

Loss = Literal["overshoot", "match", "squared", "agreement", "kl", "both"]
BISECTIONS = 60
REPORTED_SIZES = 64
WARM_RANGE = 6.0
"""Scores of a warm start: the ranks, spread evenly over so much."""


@dataclass(frozen=True)
@checked_settings
class Matryoshka(MaskMethod[Loss]):
    """Matryoshka attribution of edges, or of nodes at `level` "node"; see the module.

    The published edge runs have 5,000 steps of the loss `overshoot`; node runs have 500. A node's
    mask is that of all edges out of it. Other fields as in `MaskMethod`.

    Attributes:
        samples: masks a step for all of its examples; of `both` an even number. The mirror of a
            size k of n is n - k, or n / k where sizes are even in log.
        sizes: k is drawn uniformly from 1 to n, or its logarithm is.
        temperature: T.
        lr: of Adam.
        warm: the method whose scores the training starts from, by value for `overshoot`, else by
            magnitude; none: all scores are 0.
    """

    steps: int = 500
    batch_size: int = 5
    samples: int = 1
    loss: Loss = "match"
    sizes: Literal["uniform", "log"] = "log"
    temperature: Annotated[float, Within(above=0)] = 0.5
    lr: Annotated[float, Within(above=0)] = 0.05
    level: Literal["edge", "node"] = "edge"
    warm: str = ""
    seed: int = 0
    name: ClassVar[str] = "matryoshka"

    def __post_init__(self) -> None:
        if self.loss == "both" and self.samples % 2:
            raise BadUsage(
                f"matryoshka: loss=both needs an even number of samples, half of the circuit and"
                f" half of the rest; got {self.samples}."
            )
        self.inner()

    def inner(self) -> list[AnyMethod]:
        """The method that the training starts from, if any."""
        return [inner_method(self.name, self.warm)] if self.warm else []

    def losses(
        self, value: Values, ends: Callable[[], tuple[Values, Values]], sample: int
    ) -> Values:
        if self.loss in ("overshoot", "kl"):
            return -value
        full, empty = ends()
        if self.loss == "both" and 2 * sample >= self.samples:
            return (value - empty).abs()
        error = (value - full).abs()
        if self.loss == "squared":
            return error.square()
        return torch.minimum(error, (full - empty).abs()) if self.loss == "agreement" else error

    def start(self, inputs: ScoreInputs) -> tuple[Masks, torch.optim.Optimizer]:
        model = inputs.model
        masks = _Nested(model.graph, self, model.device, model.accumulator)
        for method in self.inner():
            own = method.score(model, inputs.batch, inputs.objective, progress=SILENT)
            wanted = EdgeScores if self.level == "edge" else NodeScores
            if not isinstance(own, wanted):
                raise BadUsage(
                    f"matryoshka: warm={self.warm} gives scores of {own.unit}s; level={self.level}"
                    " needs those of its own kind."
                )
            order = own.ranking("value" if self.loss == "overshoot" else "magnitude")
            masks.start_from(torch.from_numpy(order.copy()))
        return masks, torch.optim.Adam([masks.scores], lr=self.lr)

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """Return the forward passes of the training, and of the method that it starts from."""
        first = sum(method.forwards(graph, n_pairs) for method in self.inner())
        return first + super().forwards(graph, n_pairs)


class _Nested(Masks):
    """Masks of the top k by trained scores, one a unit (edge or node) of the graph."""

    def __init__(
        self, graph: Graph, settings: Matryoshka, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.settings, self.legal = settings, graph.legal.to(device)
        units = self.legal if settings.level == "edge" else self.legal.any(dim=1)
        self.shape, self.places = units.shape, units.flatten().nonzero()[:, 0]
        self.scores = torch.zeros(len(self.places), device=device, dtype=dtype).requires_grad_()

    @torch.no_grad()
    def start_from(self, order: Tensor) -> None:
        """Scores that fall evenly along an order of flat places; others are the lowest."""
        values = self.scores.new_full((self.shape.numel(),), -WARM_RANGE / 2)
        spread = torch.linspace(WARM_RANGE / 2, -WARM_RANGE / 2, len(order), dtype=torch.float32)
        values[order.to(values.device)] = spread.to(values)
        self.scores.copy_(values[self.places])

    def draw(self, n: int, generator: torch.Generator) -> Float[Tensor, "masks writers readers"]:
        drawn = torch.rand(-(-n // 2), generator=generator, dtype=torch.float32)
        if self.settings.loss != "both":
            drawn = torch.cat((drawn, 1 - drawn))[:n]
        n_units = len(self.scores)
        shares = drawn if self.settings.sizes == "uniform" else n_units ** (drawn - 1)
        masks = [
            top_mask(self.scores, k, self.settings.temperature)
            for k in (n_units * shares).clamp(1, n_units).to(self.scores)
        ]
        if self.settings.loss == "both":
            masks += [1 - mask for mask in masks]
        flat = self.scores.new_zeros(n, self.shape.numel())
        of_units = flat.index_copy(1, self.places, torch.stack(masks)).view(n, *self.shape)
        return of_units if self.settings.level == "edge" else of_units[:, :, None] * self.legal

    def penalty(self, step: int) -> Float[Tensor, ""]:
        return self.scores.new_zeros(())

    @torch.no_grad()
    def probabilities(self) -> Float[Tensor, "writers *readers"]:
        """The mean mask over sizes from 1 to n, evenly spaced in log."""
        scores, n_units = self.scores.double(), len(self.scores)
        total = torch.zeros_like(scores)
        spread = torch.arange(REPORTED_SIZES, dtype=torch.float32, device=scores.device) + 0.5
        for share in spread / REPORTED_SIZES:
            total += top_mask(scores, n_units**share, self.settings.temperature)
        flat = scores.new_zeros(self.shape.numel())
        flat[self.places] = total / REPORTED_SIZES
        return flat.view(self.shape)


class _TopMask(torch.autograd.Function):
    """The mask of a size, and its implicit gradient; see the module."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, k: Tensor, temperature: float) -> Tensor:
        low, high = scores.min() - 40 * temperature, scores.max() + 40 * temperature
        for _ in range(BISECTIONS):
            # Without a branch, which would wait for the device.
            middle = (low + high) / 2
            above = torch.sigmoid((scores - middle) / temperature).sum() > k
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        mask = torch.sigmoid((scores - (low + high) / 2) / temperature)
        ctx.save_for_backward(mask)
        ctx.temperature = temperature
        return mask

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (mask,) = ctx.saved_tensors
        p = mask * (1 - mask)
        mean = (gradient * p).sum() / p.sum().clamp(min=torch.finfo(p.dtype).tiny)
        return p / ctx.temperature * (gradient - mean), None, None


def top_mask(
    scores: Float[Tensor, "units"], k: Float[Tensor, ""], temperature: float
) -> Float[Tensor, "units"]:
    """sigmoid((scores - tau) / temperature), whose sum is k; differentiable by the scores."""
    return _TopMask.apply(scores, k, temperature)
