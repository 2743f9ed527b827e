"""Phi-1, Phi-1.5 and Phi-2: parallel blocks whose attention and MLP read one LayerNorm, biases
everywhere, and rotary positions on a part of each head.
"""

from __future__ import annotations

from typing import Any

from mechassay.models.decoder import Attention, Decoder, Layer, Mlp
from mechassay.models.families.weights import activation, find, layer_norm, projection


def decode(hf: Any) -> Decoder:
    """The decoder of a `PhiForCausalLM`."""
    return Decoder(
        embedding=find(hf, "model.embed_tokens.weight").data,
        embed_scale=None,
        positions=None,
        layers=tuple(layer(block, hf.config.hidden_act) for block in find(hf, "model.layers")),
        final_norm=layer_norm(find(hf, "model.final_layernorm")),
        unembedding=find(hf, "lm_head.weight").data,
        unembed_bias=find(hf, "lm_head.bias").data,
        rotaries={"default": find(hf, "model.rotary_emb")},
        parallel=True,
    )


def layer(block: Any, act: str) -> Layer:
    """Attention and MLP of one block."""
    attention = find(block, "self_attn")
    norm = layer_norm(find(block, "input_layernorm"))
    q, k, v = (
        projection(part.weight.data, part.bias.data, attention.head_dim)
        for part in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    return Layer(
        Attention(
            norm=norm,
            q=q,
            k=k,
            v=v,
            out=attention.dense.weight.data.t().unflatten(0, (-1, attention.head_dim)),
            out_bias=attention.dense.bias.data,
            scale=float(attention.scaling),
            rotary="default",
            q_norm=layer_norm(attention.q_layernorm) if attention.qk_layernorm else None,
            k_norm=layer_norm(attention.k_layernorm) if attention.qk_layernorm else None,
        ),
        Mlp(
            norm=norm,
            up=find(block, "mlp.fc1.weight").data,
            up_bias=find(block, "mlp.fc1.bias").data,
            down=find(block, "mlp.fc2.weight").data,
            down_bias=find(block, "mlp.fc2.bias").data,
            act=activation(act),
        ),
    )
