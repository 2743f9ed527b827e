"""Attention and MLPs by the names of modules that several families share."""

from __future__ import annotations

from typing import Any

from torch import nn

from mechassay.models.decoder import Attention, Experts, Mlp, Norm
from mechassay.models.families.weights import activation, find, optional, projection, rms_norm


def attention(
    module: Any,
    norm: Norm,
    *,
    rotary: str | None = None,
    interleaved: bool = False,
    window: int | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    norm_offset: float = 0.0,
    post_norm: Norm | None = None,
    out: str = "o_proj",
) -> Attention:
    """Attention with separate q, k, v and output projections; the module's scale if none is given.

    `norm_offset` is added to the stored weights of its norms of queries and keys.
    """
    d_head: int = module.head_dim
    norms = {
        slot: rms_norm(getattr(module, f"{slot}_norm"), offset=norm_offset)
        for slot in "qk"
        if hasattr(module, f"{slot}_norm")
    }
    # OLMo's are wider than a head: of all heads together.
    over_all = {slot: norm for slot, norm in norms.items() if len(norm.weight) != d_head}
    q, k, v = (
        projection(
            find(module, f"{slot}_proj.weight").data,
            optional(find(module, f"{slot}_proj"), "bias"),
            d_head,
            over_all.get(slot),
        )
        for slot in "qkv"
    )
    return Attention(
        norm=norm,
        q=q,
        k=k,
        v=v,
        out=find(module, f"{out}.weight").data.t().unflatten(0, (-1, d_head)),
        out_bias=optional(find(module, out), "bias"),
        scale=float(module.scaling) if scale is None else scale,
        softcap=softcap,
        window=window,
        rotary=rotary,
        interleaved=interleaved,
        q_norm=None if "q" in over_all else norms.get("q"),
        k_norm=None if "k" in over_all else norms.get("k"),
        post_norm=post_norm,
    )


def gated_mlp(module: Any, norm: Norm, act: Any, *, post_norm: Norm | None = None) -> Mlp:
    """An MLP with gate, up and down projections."""
    return Mlp(
        norm=norm,
        gate=find(module, "gate_proj.weight").data,
        gate_bias=optional(find(module, "gate_proj"), "bias"),
        up=find(module, "up_proj.weight").data,
        up_bias=optional(find(module, "up_proj"), "bias"),
        down=find(module, "down_proj.weight").data,
        down_bias=optional(find(module, "down_proj"), "bias"),
        act=act,
        post_norm=post_norm,
    )


def experts(module: Any, norm: Norm, act: Any) -> Experts:
    """A mixture of experts, with the gate's and the up projection's weights in one tensor."""
    gate, up = find(module, "experts.gate_up_proj").data.chunk(2, dim=1)
    return Experts(
        norm=norm,
        gate=gate,
        up=up,
        down=find(module, "experts.down_proj").data,
        act=act,
        router=find(module, "gate.weight").data,
        top_k=int(module.gate.top_k),
        # Mixtral's always are.
        normalised=bool(getattr(module.gate, "norm_topk_prob", True)),
    )


def linear_mlp(up: nn.Module, down: nn.Module, norm: Norm, act: str) -> Mlp:
    """An MLP without a gate, of two linear maps."""
    return Mlp(
        norm=norm,
        up=find(up, "weight").data,
        up_bias=optional(up, "bias"),
        down=find(down, "weight").data,
        down_bias=optional(down, "bias"),
        act=activation(act),
    )
