"""Phi-3 and Phi-4: the Llama layout with q, k and v in one matrix, gate and up in another.

Positions rotate all or a part of each head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mechassay.models.decoder import Attention, Decoder, Layer, Mlp
from mechassay.models.families.llama import around, window
from mechassay.models.families.weights import activation, find, projection, rms_norm

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


def decode(hf: PreTrainedModel) -> Decoder:
    """The decoder of a `Phi3ForCausalLM`."""
    layers = enumerate(find(hf, "model.layers"))
    return around(hf, tuple(_layer(block, hf.config, index) for index, block in layers))


def _layer(block: nn.Module, config: Any, index: int) -> Layer:
    attention = find(block, "self_attn")
    d_head: int = attention.head_dim
    heads, shared = config.num_attention_heads, config.num_key_value_heads
    fused = find(attention, "qkv_proj.weight").data
    parts = fused.split([heads * d_head, shared * d_head, shared * d_head])
    q, k, v = (projection(part, None, d_head) for part in parts)
    gate, up = find(block, "mlp.gate_up_proj.weight").data.chunk(2)
    return Layer(
        Attention(
            norm=rms_norm(find(block, "input_layernorm")),
            q=q,
            k=k,
            v=v,
            out=find(attention, "o_proj.weight").data.t().unflatten(0, (-1, d_head)),
            out_bias=None,
            scale=float(attention.scaling),
            window=window(config, index),
            rotary="default",
        ),
        Mlp(
            norm=rms_norm(find(block, "post_attention_layernorm")),
            gate=gate,
            up=up,
            down=find(block, "mlp.down_proj.weight").data,
            act=activation(config.hidden_act),
        ),
    )
