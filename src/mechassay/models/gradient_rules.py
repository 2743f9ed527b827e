"""Other rules for the backward pass; the forward pass stays what it is.

GIM (Gradient Interaction Modifications; Edin et al. 2025) changes what gradients say about parts
that compensate for one another: where one of two redundant attention scores is lowered the other
takes over, so that the gradient by either is small although both matter.

    norms        the scale of every norm is a constant (a LayerNorm's mean is not)
    softmax      its Jacobian is taken at scores / T; no factor 1/T
    q, k, v   gradients are multiplied by 1/4, 1/4, 1/2: products of two or three share their credit
    gate, up     gradients are multiplied by 1/2 each, in gated MLPs

The rules are part of a decoder: `with_rules` gives one with the same weights, and whatever
differentiates it, attribution of edges, nodes or neurons, follows them. Their published code
freezes only LayerNorms and RMSNorms of PyTorch's own in its Hugging Face mode, which leaves Llama's
and Gemma's free; here all norms are frozen, as in its TransformerLens mode.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mechassay.errors import UnknownName
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
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.scale = scale
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return gradient * ctx.scale, None


class _SoftmaxAt(torch.autograd.Function):
    """The softmax over the last axis, whose Jacobian is that of the softmax
    at x / temperature, times the temperature.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, temperature: float) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(torch.softmax(x / temperature, dim=-1))
        return torch.softmax(x, dim=-1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (at,) = ctx.saved_tensors
        return at * (gradient - (gradient * at).sum(-1, keepdim=True)), None


def with_rules(decoder: Decoder, rules: BackwardRules) -> Decoder:
    """A decoder with the same weights whose gradients follow the rules."""

    def norm(each: Norm) -> Norm:
        return replace(each, frozen=rules.freeze_norm)

    def maybe(each: Norm | None) -> Norm | None:
        return None if each is None else norm(each)

    def attention(each: Attention) -> Attention:
        return replace(
            each,
            norm=norm(each.norm),
            q_norm=maybe(each.q_norm),
            k_norm=maybe(each.k_norm),
            post_norm=maybe(each.post_norm),
            softmax=lambda x: _SoftmaxAt.apply(x, rules.temperature),  # pyright: ignore[reportArgumentType]
            credit=lambda q, k, v: tuple(
                _Scaled.apply(x, by) for x, by in ((q, rules.q), (k, rules.k), (v, rules.v))
            ),  # pyright: ignore[reportArgumentType]
        )

    def mlp(each: Mlp) -> Mlp:
        credit = (
            None
            if each.gate is None
            else lambda gate, up: (_Scaled.apply(gate, rules.gate), _Scaled.apply(up, rules.up))
        )
        return replace(each, norm=norm(each.norm), post_norm=maybe(each.post_norm), credit=credit)  # pyright: ignore[reportArgumentType]

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
    check_backward(backward)
    return (
        model
        if backward == "plain"
        else replace(model, decoder=with_rules(model.decoder, BackwardRules()))
    )


def check_backward(backward: str) -> None:
    """Refuse rules that nobody knows.

    Raises:
        UnknownName: no such rules.
    """
    if backward not in BACKWARD:
        raise UnknownName("backward rules", backward, BACKWARD)
