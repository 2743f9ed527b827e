"""The two architectures that are trained here: TopK and JumpReLU; others are read (`features.sae`).

Values are scaled (see `saes.training`). With unit rows of W_dec and

    pre = (x - b_dec) W_enc + b_enc  =  x W_enc + (b_enc - b_dec W_enc)

where the second form has no gradient of x, which would cost as much again:

- TopK: f = the k largest of relu(pre) (Gao et al. 2024, 2406.04093). There is no penalty. Decoding
  and gradients are sparse: a code is a list of places (row of the batch, feature) with a value
  each. With m places and d numbers a value they take O(m d), where dense ones of b values and n
  features take O(b n d). Only pre itself is dense: its largest numbers are not known before.
- JumpReLU: f = pre H(pre - theta), H the step (Rajamanoharan et al. 2024, 2407.14435). The penalty
  is l0 sum H(pre - theta); l0 rises with the learning rate over the warmup, and does not fall. H's
  derivative by theta is 0 almost everywhere, so that of the expected loss is estimated. With the
  rectangle K (1 from -1/2 to 1/2, else 0) of bandwidth e,

      dH / d theta = -K((pre - theta) / e) / e          df / d theta = theta dH / d theta

  What is learned is log theta. Where we deviate: theta begins at .5, with a bandwidth of .5. The
  paper has .001 for both, in values of norm 1, so .06 here for the width of its largest model, and
  trains on billions of values. Trainings of a million values leave such thresholds where they are,
  and most features active.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.features import Architecture
from mechassay.utils.settings import Within, checked_settings

ARCHITECTURES: tuple[Architecture, ...] = get_args(Architecture)


@dataclass(frozen=True)
@checked_settings("SAE training")
class SAESettings:
    """How an SAE is trained.

    Attributes:
        n_features: rows of the dictionary.
        k: active features of a value, of "topk".
        l0: weight of the mean number of active features, of "jumprelu", beside the squared error
            of values with a norm of 1.
        threshold, bandwidth: of "jumprelu" at the beginning, and the width of the kernel that
            estimates its gradient, in scaled values, where features that are drawn at random have
            a standard deviation of about 1.
        lr: largest learning rate.
        steps: of `batch_size` values each.
        warmup, decay: shares of the steps.
        dead_after: values after which a feature that none of them activated is dead.
        revived: the encoder's norm of features that are drawn again; 0 leaves dead features dead.
    """

    architecture: Architecture = "topk"
    n_features: Annotated[int, Within(1)] = 4096
    k: int = 32
    l0: Annotated[float, Within(0)] = 1e-3
    threshold: Annotated[float, Within(above=0)] = 0.5
    bandwidth: Annotated[float, Within(above=0)] = 0.5
    lr: Annotated[float, Within(above=0)] = 3e-3
    steps: Annotated[int, Within(1)] = 1000
    batch_size: Annotated[int, Within(1)] = 1024
    warmup: Annotated[float, Within(0, 1)] = 0.05
    decay: Annotated[float, Within(0, 1)] = 0.2
    dead_after: Annotated[int, Within(1)] = 200_000
    revived: Annotated[float, Within(0)] = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.architecture == "topk" and not 1 <= self.k <= self.n_features:
            raise BadUsage(f"An SAE of {self.n_features} features keeps 1 to them; got k={self.k}.")

    def rate(self, step: int) -> float:
        """The learning rate of a step, as a share of `lr`."""
        rise = self.warmup * self.steps
        fall = self.decay * self.steps
        up = (step + 1) / rise if rise > 0 else 1.0
        down = (self.steps - step) / fall if fall > 0 else 1.0
        return min(1.0, up, down)


@dataclass(frozen=True)
class Coded:
    """A batch as an SAE in training writes it.

    Attributes:
        decoded: x~.
        fired: which features some value activated.
        penalty: what is added to the squared error per number.
    """

    decoded: Float[Tensor, "b d"]
    fired: Bool[Tensor, "n"]
    penalty: Tensor | float = 0.0


class Learner(ABC):
    """Parameters of an SAE in training; the encoder is held by rows, a feature each.

    Attributes:
        n_kept: features that were begun with, the first ones: they are not drawn again when dead.

    Args:
        initial: unit rows that the decoder begins with, and the encoder as its transpose.
    """

    def __init__(self, settings: SAESettings, initial: Float[Tensor, "n d"]) -> None:
        n, d = initial.shape
        self.settings = settings
        self.n_kept = 0
        self.encoder = initial.clone().requires_grad_()
        self.decoder = initial.clone().requires_grad_()
        self.b_enc = initial.new_zeros(n).requires_grad_()
        self.b_dec = initial.new_zeros(d).requires_grad_()

    @abstractmethod
    def code(self, x: Float[Tensor, "b d"], step: int) -> Coded:
        """What the SAE makes of a batch, with gradients."""

    @abstractmethod
    def inference(self, scale: float) -> dict[str, Any]:
        """The activation of the trained SAE, and what it needs, in units of values.

        Args:
            scale: what values were multiplied by.
        """

    def parameters(self) -> list[Tensor]:
        """All that steps change; the first four are those of every architecture."""
        return [self.encoder, self.decoder, self.b_enc, self.b_dec]

    def per_feature(self) -> list[tuple[Tensor, float]]:
        """Parameters with one number a feature, and what a feature that is drawn again has."""
        return [(self.b_enc, 0.0)]

    def read(self, x: Float[Tensor, "b d"]) -> Float[Tensor, "b n"]:
        """pre of a batch."""
        return torch.addmm(self.b_enc - self.encoder @ self.b_dec, x, self.encoder.mT)

    @torch.no_grad()
    def begin_with(
        self,
        columns: Float[Tensor, "d m"],
        decoder: Float[Tensor, "m d"] | None = None,
        b_enc: Float[Tensor, "m"] | None = None,
        *,
        scale: float = 1.0,
    ) -> None:
        """The first features get columns of another SAE's W_enc, and, where these are given, their
        rows of W_dec and their biases.

        Args:
            scale: what values were multiplied by; biases are in units of values.

        Raises:
            BadUsage: they are too many, of another width, or not as many of each.
        """
        n, d = self.encoder.shape
        if columns.ndim != 2 or len(columns) != d or columns.shape[1] > n:
            raise BadUsage(
                f"Up to {n} columns of {d} numbers can be begun with; got shape"
                f" {tuple(columns.shape)}."
            )
        m = columns.shape[1]
        if (decoder is not None and tuple(decoder.shape) != (m, d)) or (
            b_enc is not None and tuple(b_enc.shape) != (m,)
        ):
            shapes = [None if x is None else tuple(x.shape) for x in (decoder, b_enc)]
            raise BadUsage(
                f"{m} features that are begun with have {m} rows of {d} numbers, and {m} biases;"
                f" got shapes {shapes[0]} and {shapes[1]}."
            )
        self.encoder[:m] = columns.mT.to(self.encoder)
        if decoder is not None:
            self.decoder[:m] = decoder.to(self.decoder)
        if b_enc is not None:
            self.b_enc[:m] = scale * b_enc.to(self.b_enc)
        self.n_kept = m

    @torch.no_grad()
    def normalise(self) -> None:
        """Rows of the decoder become unit vectors."""
        self.decoder /= self.decoder.norm(dim=1, keepdim=True).clamp(min=1e-12)


# --- TopK -----------------------------------------------------------------------------------------


class TopKLearner(Learner):
    """A TopK SAE in training."""

    def code(self, x: Tensor, step: int) -> Coded:
        k = self.settings.k
        with torch.no_grad():
            top = self.read(x).topk(k, dim=1, sorted=False)
        rows = torch.arange(len(x), device=x.device).repeat_interleave(k)
        places = Places(rows, top.indices.flatten(), len(x), len(self.encoder))
        largest = top.values.flatten()
        pre = read_at(x, self.encoder, self.b_enc, self.b_dec, largest, places)
        fired = torch.zeros_like(self.b_enc, dtype=torch.bool)
        fired[places.features[largest > 0]] = True
        return Coded(write(pre.relu(), self.decoder, places) + self.b_dec, fired)

    def inference(self, scale: float) -> dict[str, Any]:
        return {"activation": "topk", "k": self.settings.k}


@dataclass(frozen=True, eq=False)
class Places:
    """Active features of a batch.

    Attributes:
        rows, features: of each place, ordered by row.
        n_rows, n_features: of the batch and the dictionary.
    """

    rows: Int[Tensor, "m"]
    features: Int[Tensor, "m"]
    n_rows: int
    n_features: int

    @cached_property
    def row_offsets(self) -> Int[Tensor, "b"]:
        """Where each row's places begin."""
        return _offsets(self.rows, self.n_rows)

    @cached_property
    def by_feature(self) -> tuple[Int[Tensor, "m"], Int[Tensor, "n"]]:
        """The order of places by feature, and where each feature's begin."""
        order = self.features.argsort(stable=True)
        return order, _offsets(self.features, self.n_features)


def _offsets(numbers: Tensor, n: int) -> Tensor:
    counts = torch.bincount(numbers, minlength=n)
    return counts.cumsum(0) - counts


def read_at(
    x: Float[Tensor, "b d"],
    encoder: Float[Tensor, "n d"],
    b_enc: Float[Tensor, "n"],
    b_dec: Float[Tensor, "d"],
    pre: Float[Tensor, "m"],
    places: Places,
) -> Float[Tensor, "m"]:
    """pre at some places, where it is known already, with its gradients."""
    apply: Any = _ReadAt.apply
    return apply(x, encoder, b_enc, b_dec, pre, places)


def write(
    values: Float[Tensor, "m"], decoder: Float[Tensor, "n d"], places: Places
) -> Float[Tensor, "b d"]:
    """Sums of decoder rows, weighted by the values at their places."""
    return F.embedding_bag(
        places.features,
        decoder,
        places.row_offsets,
        mode="sum",
        per_sample_weights=values,
    )


class _ReadAt(torch.autograd.Function):
    """pre at places: forward is known, backward is sparse.

    The gradient of a feature's encoder row is a sum of the few x that activate it: an
    `embedding_bag` over places ordered by feature.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        encoder: Tensor,
        b_enc: Tensor,
        b_dec: Tensor,
        pre: Tensor,
        places: Places,
    ) -> Tensor:
        ctx.save_for_backward(x, encoder, b_dec)
        ctx.places = places
        return pre.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, encoder, b_dec = ctx.saved_tensors
        places, grad = ctx.places, grads[0]
        order, offsets = places.by_feature
        d_bias = torch.zeros_like(encoder[:, 0]).index_add(0, places.features, grad)
        d_encoder = F.embedding_bag(
            places.rows[order], x, offsets, mode="sum", per_sample_weights=grad[order]
        )
        d_encoder -= d_bias[:, None] * b_dec
        return None, d_encoder, d_bias, -(d_bias @ encoder), None, None


# --- JumpReLU -------------------------------------------------------------------------------------


class JumpReLULearner(Learner):
    """A JumpReLU SAE in training."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.log_initial = math.log(self.settings.threshold)
        self.log_threshold = torch.full_like(self.b_enc, self.log_initial).detach().requires_grad_()

    def parameters(self) -> list[Tensor]:
        return [*super().parameters(), self.log_threshold]

    def per_feature(self) -> list[tuple[Tensor, float]]:
        return [*super().per_feature(), (self.log_threshold, self.log_initial)]

    def code(self, x: Tensor, step: int) -> Coded:
        f, active = jump(self.read(x), self.log_threshold.exp(), self.settings.bandwidth)
        rise = self.settings.warmup * self.settings.steps
        weight = self.settings.l0 * (min(1.0, (step + 1) / rise) if rise > 0 else 1.0)
        penalty = weight * active.sum(dim=1).mean()
        return Coded(f @ self.decoder + self.b_dec, (f.detach() > 0).any(dim=0), penalty)

    def inference(self, scale: float) -> dict[str, Any]:
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
