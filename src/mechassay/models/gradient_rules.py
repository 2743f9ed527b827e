"""Other rules for the backward pass; the forward pass stays what it is.

GIM (Gradient Interaction Modifications; Edin et al. 2025) changes what gradients say about parts
that compensate for one another: of two redundant attention scores both have small gradients.

    norms        the scale of every norm is a constant (a LayerNorm's mean is not)
    softmax      its Jacobian is taken at scores / T; no factor 1/T
    q, k, v      gradients are multiplied by 1/4, 1/4, 1/2: factors of a product share their credit
    gate, up     gradients are multiplied by 1/2 each, in gated MLPs

`with_rules` gives a decoder with the same weights, and whatever differentiates it follows the
rules. Their published code freezes only LayerNorms and RMSNorms of PyTorch's own in its Hugging
Face mode, not Llama's and Gemma's; here all norms are frozen, as in its TransformerLens mode.
"""

# What torch's autograd functions take and give is each function's own.
# pyright: reportIncompatibleMethodOverride=false

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mechassay.errors import one_of
from mechassay.models.decoder import Attention, Decoder, Mlp, Norm
from mechassay.models.model import Model

BACKWARD = ("plain", "gim")


@dataclass(frozen=True)
class BackwardRules:
    """How gradients are changed; the defaults are GIM's."""

    freeze_norm: bool = True
    temperature: float = 2.0
    q: float = 0.25
    k: float = 0.25
    v: float = 0.5
    gate: float = 0.5
    up: float = 0.5


class _Scaled(torch.autograd.Function):
    """The identity, whose gradient is multiplied by a number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.scale, None


class _SoftmaxAt(torch.autograd.Function):
    """The softmax over the last axis, with the Jacobian at x / temperature, times temperature."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, temperature: float) -> Tensor:
        ctx.save_for_backward(torch.softmax(x / temperature, dim=-1))
        return torch.softmax(x, dim=-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (at,) = ctx.saved_tensors
        return at * (gradient - (gradient * at).sum(-1, keepdim=True)), None


def with_rules(decoder: Decoder, rules: BackwardRules) -> Decoder:
    """A decoder with the same weights whose gradients follow the rules."""

    def norm(each: Norm) -> Norm:
        return replace(each, frozen=rules.freeze_norm)

    def maybe(each: Norm | None) -> Norm | None:
        return None if each is None else norm(each)

    softmax: Any = _SoftmaxAt.apply

    def attention(each: Attention) -> Attention:
        return replace(
            each,
            norm=norm(each.norm),
            q_norm=maybe(each.q_norm),
            k_norm=maybe(each.k_norm),
            post_norm=maybe(each.post_norm),
            softmax=lambda x: softmax(x, rules.temperature),
            credit=lambda q, k, v: tuple(
                _Scaled.apply(x, by) for x, by in ((q, rules.q), (k, rules.k), (v, rules.v))
            ),  # pyright: ignore[reportArgumentType]
        )

    def mlp(each: Mlp) -> Mlp:
        def credit(gate: Tensor, up: Tensor) -> Any:
            return _Scaled.apply(gate, rules.gate), _Scaled.apply(up, rules.up)

        gated = None if each.gate is None else credit
        return replace(each, norm=norm(each.norm), post_norm=maybe(each.post_norm), credit=gated)

    layers = tuple(
        replace(layer, attention=attention(layer.attention), mlp=layer.mlp and mlp(layer.mlp))
        for layer in decoder.layers
    )
    return replace(decoder, layers=layers, final_norm=norm(decoder.final_norm))


def backward_model(model: Model, backward: str) -> Model:
    """The model itself ("plain"), or one whose gradients follow other rules ("gim").

    Raises:
        UnknownName: no such rules.
    """
    if one_of("backward rules", backward, BACKWARD) == "plain":
        return model
    return replace(model, decoder=with_rules(model.decoder, BackwardRules()))
