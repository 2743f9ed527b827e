"""Llama, Mistral, Qwen2, Qwen3, SmolLM2: RMSNorm, rotary, grouped queries, gated MLP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mechassay.models.decoder import Attention, Decoder, Layer, Mlp, Norm
from mechassay.models.families.weights import activation, find, optional, projection, rms_norm

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


def decode(hf: PreTrainedModel) -> Decoder:
    """The decoder of a model with the Llama layout."""
    config = hf.config
    return Decoder(
        embedding=find(hf, "model.embed_tokens.weight").data,
        embed_scale=None,
        positions=None,
        layers=tuple(
            _layer(block, config, index) for index, block in enumerate(find(hf, "model.layers"))
        ),
        final_norm=rms_norm(find(hf, "model.norm")),
        unembedding=find(hf, "lm_head.weight").data,
        unembed_bias=optional(find(hf, "lm_head"), "bias"),
        rotaries={"default": find(hf, "model.rotary_emb")},
    )


def _layer(block: nn.Module, config: Any, index: int) -> Layer:
    types = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None)
    slides = types[index] == "sliding_attention" if types else True
    return Layer(
        attention(
            find(block, "self_attn"),
            rms_norm(find(block, "input_layernorm")),
            window=window if slides else None,
            rotary="default",
        ),
        gated_mlp(
            find(block, "mlp"),
            rms_norm(find(block, "post_attention_layernorm")),
            activation(config.hidden_act),
        ),
    )


def attention(
    module: Any,
    norm: Norm,
    *,
    window: int | None,
    rotary: str,
    softcap: float | None = None,
    norm_offset: float = 0.0,
    post_norm: Norm | None = None,
) -> Attention:
    """Attention with separate q, k, v and o projections."""
    d_head: int = module.head_dim
    parts = {
        slot: projection(
            find(module, f"{slot}_proj.weight").data,
            optional(find(module, f"{slot}_proj"), "bias"),
            d_head,
        )
        for slot in "qkv"
    }
    return Attention(
        norm=norm,
        q=parts["q"],
        k=parts["k"],
        v=parts["v"],
        out=find(module, "o_proj.weight").data.t().unflatten(0, (-1, d_head)),
        out_bias=optional(find(module, "o_proj"), "bias"),
        scale=float(module.scaling),
        softcap=softcap,
        window=window,
        rotary=rotary,
        q_norm=rms_norm(module.q_norm, offset=norm_offset) if hasattr(module, "q_norm") else None,
        k_norm=rms_norm(module.k_norm, offset=norm_offset) if hasattr(module, "k_norm") else None,
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
