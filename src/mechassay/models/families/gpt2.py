"""GPT-2: LayerNorm, learned positions, Conv1D weights [in, out], fused q/k/v, tied unembedding."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mechassay.models.decoder import Attention, Decoder, Layer, Mlp
from mechassay.models.families.weights import activation, find, layer_norm, optional, projection

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


def decode(hf: PreTrainedModel) -> Decoder:
    """The decoder of a `GPT2LMHeadModel`."""
    config = hf.config
    return Decoder(
        embedding=find(hf, "transformer.wte.weight").data,
        embed_scale=None,
        positions=find(hf, "transformer.wpe.weight").data,
        layers=tuple(_layer(block, config) for block in find(hf, "transformer.h")),
        final_norm=layer_norm(find(hf, "transformer.ln_f")),
        unembedding=find(hf, "lm_head.weight").data,
        unembed_bias=optional(find(hf, "lm_head"), "bias"),
        rotaries={},
    )


def _layer(block: nn.Module, config: Any) -> Layer:
    attention = find(block, "attn")
    d_head: int = attention.head_dim
    fused = find(attention, "c_attn.weight").data.t()
    q, k, v = fused.split(fused.shape[1], dim=0)
    q_bias, k_bias, v_bias = find(attention, "c_attn.bias").data.split(fused.shape[1])
    # Not all versions of transformers keep what scores of attention are multiplied by.
    scale = d_head**-0.5 if config.scale_attn_weights else 1.0
    if config.scale_attn_by_inverse_layer_idx:
        scale = scale / (attention.layer_idx + 1)
    return Layer(
        Attention(
            norm=layer_norm(find(block, "ln_1")),
            q=projection(q, q_bias, d_head),
            k=projection(k, k_bias, d_head),
            v=projection(v, v_bias, d_head),
            out=find(attention, "c_proj.weight").data.unflatten(0, (attention.num_heads, d_head)),
            out_bias=find(attention, "c_proj.bias").data,
            scale=scale,
        ),
        Mlp(
            norm=layer_norm(find(block, "ln_2")),
            up=find(block, "mlp.c_fc.weight").data.t(),
            up_bias=find(block, "mlp.c_fc.bias").data,
            down=find(block, "mlp.c_proj.weight").data.t(),
            down_bias=find(block, "mlp.c_proj.bias").data,
            act=activation(config.activation_function),
        ),
    )
