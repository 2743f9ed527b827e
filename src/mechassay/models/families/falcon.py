"""Falcon: parallel blocks, rotary positions, LayerNorm, q, k and v in one matrix, three layouts.

Falcon-7B          all queries, then the one key and value head that they share; one norm
Falcon-40B, 180B   by key/value head: its queries, its key, its value; two norms (11B: one)
neither            by head: its query, key and value
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from mechassay.errors import UnsupportedModel
from mechassay.models.decoder import Attention, Decoder, Layer
from mechassay.models.families.sublayers import linear_mlp
from mechassay.models.families.weights import find, layer_norm, optional, projection

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


def decode(hf: PreTrainedModel) -> Decoder:
    """The decoder of a `FalconForCausalLM`.

    Raises:
        UnsupportedModel: ALiBi (Falcon-RW).
    """
    config = hf.config
    if config.alibi:
        raise UnsupportedModel(
            "falcon: ALiBi adds to attention scores (as in Falcon-RW); not supported."
        )
    return Decoder(
        embedding=find(hf, "transformer.word_embeddings.weight").data,
        embed_scale=None,
        positions=None,
        layers=tuple(_layer(block, config) for block in find(hf, "transformer.h")),
        final_norm=layer_norm(find(hf, "transformer.ln_f")),
        unembedding=find(hf, "lm_head.weight").data,
        unembed_bias=optional(find(hf, "lm_head"), "bias"),
        rotaries={"default": find(hf, "transformer.rotary_emb")},
        parallel=bool(config.new_decoder_architecture or config.parallel_attn),
    )


def _layer(block: nn.Module, config: Any) -> Layer:
    own = find(block, "self_attention")
    d_head: int = own.head_dim
    fused = find(own, "query_key_value")
    weights = _parts(fused.weight.data, own, config)
    biases = (None,) * 3 if fused.bias is None else _parts(fused.bias.data, own, config)
    q, k, v = (projection(w, b, d_head) for w, b in zip(weights, biases, strict=True))
    two = hasattr(block, "ln_attn")
    first = layer_norm(find(block, "ln_attn" if two else "input_layernorm"))
    second = layer_norm(find(block, "ln_mlp")) if two else first
    if not (config.new_decoder_architecture or config.parallel_attn):
        second = layer_norm(find(block, "post_attention_layernorm"))
    return Layer(
        Attention(
            norm=first,
            q=q,
            k=k,
            v=v,
            out=find(own, "dense.weight").data.t().unflatten(0, (-1, d_head)),
            out_bias=optional(find(own, "dense"), "bias"),
            scale=float(own.inv_norm_factor),
            rotary="default",
        ),
        linear_mlp(
            find(block, "mlp.dense_h_to_4h"),
            find(block, "mlp.dense_4h_to_h"),
            second,
            config.activation,
        ),
    )


def _parts(fused: Tensor, own: Any, config: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Weights or biases of queries, keys and values, by heads; copied where they lie apart."""
    shared = own.num_kv_heads
    if config.multi_query and not config.new_decoder_architecture:
        shared = 1
    groups = fused.unflatten(0, (shared, own.num_heads // shared + 2, own.head_dim))
    return (
        groups[:, :-2].flatten(0, 2).contiguous(),
        groups[:, -2].flatten(0, 1).contiguous(),
        groups[:, -1].flatten(0, 1).contiguous(),
    )
