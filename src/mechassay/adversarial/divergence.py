"""KL(M(x) || C) at the last token, without a [batch, vocabulary] table of log-probabilities of the circuit.

With p the model's distribution, H its entropy, h the circuit's final vector and z = W h + b its logits,

    KL(p || softmax(z)) = -H(p) - p . z + logsumexp(z),       p . z = (W^T p) . h + b . p

W^T p is one vector for each clean prompt, whatever is compared with it; logsumexp runs over blocks of the vocabulary with a
running maximum. Models that cap their logits (Gemma 2) have z = cap tanh(W h / cap): there p . z is summed over the blocks too, and
so it is in bf16 and fp16, where z are rounded logits: W^T p would be that of others, and a model would diverge from itself.
Sums are in fp32 at least and put together in fp64; the three terms are of the order of ten nats, so that in fp32 a divergence
below 1e-5 is rounding, and may be negative by as much. It is stored as it came out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mechassay.models.decoder import Decoder, Readout, at_least_fp32

BLOCK = 8192
"""Tokens of the vocabulary at once: [64, 8192] in fp32 is 2 MB."""


@dataclass(frozen=True, eq=False)
class Target:
    """The model's own distributions after some clean prompts, ready to be compared with.

    Attributes:
        p: probabilities.
        entropy: of each, in nats.
        direction: W^T p; None where logits are capped or rounded below fp32.
        offset: b . p; 0 without a bias, or without a direction.
    """

    p: Float[Tensor, "batch vocab"]
    entropy: Float[Tensor, "batch"]
    direction: Float[Tensor, "batch d_model"] | None
    offset: Float[Tensor, "batch"]

    @staticmethod
    @torch.no_grad()
    def of(readout: Readout) -> Target:
        """From the clean run's readout."""
        decoder, logp = readout.decoder, readout.all().log_softmax(dim=-1)
        p = logp.exp()
        bias, linear = decoder.unembed_bias, decoder.logit_softcap is None and decoder.unembedding.dtype == p.dtype
        return Target(
            p=p,
            entropy=-(p * logp).sum(dim=-1),
            direction=p @ decoder.unembedding if linear else None,
            offset=p.new_zeros(len(p)) if bias is None or not linear else p @ bias,
        )


@torch.no_grad()
def divergence(target: Target, readout: Readout) -> Float[Tensor, "batch"]:
    """KL of each of the target's distributions from the readout's, in nats, in fp64."""
    cross, total = _sums(target, readout)
    return total.double() - cross.double() - target.entropy.double()


def divergences_from(target: Target, logq: Float[Tensor, "others vocab"]) -> Float[Tensor, "batch others"]:
    """KL of each of the target's distributions from each of some others, in nats, in fp64: one product."""
    return -(target.p.to(logq.dtype) @ logq.t()).double() - target.entropy.double()[:, None]


def _sums(target: Target, readout: Readout) -> tuple[Float[Tensor, "batch"], Float[Tensor, "batch"]]:
    """p . z and logsumexp(z)."""
    decoder, hidden = readout.decoder, readout.hidden
    cap, n_vocab = decoder.logit_softcap, decoder.unembedding.shape[0]
    cross = target.offset if target.direction is None else target.offset + (target.direction * hidden).sum(dim=-1)
    highest = torch.full_like(target.entropy, float("-inf"))
    total = torch.zeros_like(target.entropy)
    for begin in range(0, n_vocab, BLOCK):
        z = _logits(decoder, hidden, slice(begin, begin + BLOCK))
        if cap is not None:
            z = cap * torch.tanh(z / cap)
        if target.direction is None:
            cross = cross + (target.p[:, begin : begin + BLOCK] * z).sum(dim=-1)
        new = torch.maximum(highest, z.amax(dim=-1))
        total = total * (highest - new).exp() + (z - new[:, None]).exp().sum(dim=-1)
        highest = new
    return cross, highest + total.log()


def _logits(decoder: Decoder, hidden: Float[Tensor, "batch d_model"], rows: slice) -> Float[Tensor, "batch some"]:
    bias = None if decoder.unembed_bias is None else decoder.unembed_bias[rows]
    return at_least_fp32(F.linear(hidden, decoder.unembedding[rows], bias))
