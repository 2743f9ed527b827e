"""KL(M(x) || C) at the last token, and how far two computations of it may differ.

With p the model's distribution, H its entropy, c its largest logit, and z = W h + b the circuit's
logits,

    KL(p || softmax(z)) = -H(p) - p . (z - c) + logsumexp(z - c)

is summed over blocks of the vocabulary with a running maximum: there is no [batch, vocabulary]
table of the circuit's log-probabilities. Both sums use the same rounded z, so its error cancels; in
a model with large activations it is 1e-4 nats in fp32. (W^T p) . h in place of p . z, one vector
for each clean prompt, would be a few percent cheaper and keep that error. Subtracting c keeps the
sums small. Sums are in fp32 or better and combined in fp64. In fp32 a divergence below 1e-5 is
rounding, and may be negative; it is stored as computed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.models.decoder import Decoder, Readout, at_least_fp32

BLOCK = 8192
"""Tokens of the vocabulary at once: [64, 8192] in fp32 is 2 MB."""


@dataclass(frozen=True)
class Tolerance:
    """How far two computations a, b of a divergence may differ by rounding, in nats:

    |a - b| <= absolute + relative * max(|a|, |b|)

    The two run the same sums in another order: three terms of about ten nats in fp32, from
    activations in the model's own type.
    """

    absolute: float
    relative: float

    @staticmethod
    def of(dtype: torch.dtype) -> Tolerance:
        """For a model of that type; half precision has eight or eleven bits."""
        half = dtype in (torch.bfloat16, torch.float16)
        return Tolerance(0.05, 0.05) if half else Tolerance(1e-4, 1e-3)

    def holds(
        self, a: Float[np.ndarray, "*shape"], b: Float[np.ndarray, "*shape"]
    ) -> Bool[np.ndarray, "*shape"]:
        """Where two computations agree; never where one is undefined."""
        allowed = self.absolute + self.relative * np.maximum(np.abs(a), np.abs(b))
        return np.asarray(np.abs(a - b) <= allowed)


@dataclass(frozen=True, eq=False)
class Target:
    """The model's own distributions after some clean prompts.

    Attributes:
        p: probabilities.
        entropy: of each, in nats.
        highest: the largest logit of each.
    """

    p: Float[Tensor, "batch vocab"]
    entropy: Float[Tensor, "batch"]
    highest: Float[Tensor, "batch"]

    @staticmethod
    @torch.no_grad()
    def of(readout: Readout) -> Target:
        """From the clean run's readout."""
        logits = readout.all()
        logp = logits.log_softmax(dim=-1)
        p = logp.exp()
        return Target(p, -(p * logp).sum(dim=-1), logits.amax(dim=-1))


@torch.no_grad()
def divergence(target: Target, readout: Readout) -> Float[Tensor, "batch"]:
    """KL of each of the target's distributions from the readout's, in nats, in fp64."""
    cross, total = _sums(target, readout)
    return total.double() - cross.double() - target.entropy.double()


def divergences_from(
    target: Target, logq: Float[Tensor, "others vocab"]
) -> Float[Tensor, "batch others"]:
    """KL of each of the target's distributions from each other one, in nats, in fp64."""
    return -(target.p.to(logq.dtype) @ logq.t()).double() - target.entropy.double()[:, None]


def _sums(
    target: Target, readout: Readout
) -> tuple[Float[Tensor, "batch"], Float[Tensor, "batch"]]:
    """p . (z - c) and logsumexp(z - c)."""
    decoder = readout.decoder
    cross, total = torch.zeros_like(target.entropy), torch.zeros_like(target.entropy)
    highest = torch.full_like(target.entropy, float("-inf"))
    for begin in range(0, decoder.unembedding.shape[0], BLOCK):
        z = _logits(decoder, readout.hidden, slice(begin, begin + BLOCK)) - target.highest[:, None]
        cross += torch.einsum("bv,bv->b", target.p[:, begin : begin + BLOCK], z)
        new = torch.maximum(highest, z.amax(dim=-1))
        total = total * (highest - new).exp() + (z - new[:, None]).exp().sum(dim=-1)
        highest = new
    return cross, highest + total.log()


def _logits(
    decoder: Decoder, hidden: Float[Tensor, "batch d_model"], rows: slice
) -> Float[Tensor, "batch some"]:
    bias = None if decoder.unembed_bias is None else decoder.unembed_bias[rows]
    z = at_least_fp32(F.linear(hidden, decoder.unembedding[rows], bias))
    cap = decoder.logit_softcap
    return z if cap is None else cap * torch.tanh(z / cap)
