"""GPT-NeoX (Pythia): LayerNorm, partial rotary, q/k/v interleaved by head, parallel blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.models.decoder import Attention, Decoder, Layer, Mlp
from mechassay.models.families.weights import activation, find, layer_norm, optional, projection

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


def decode(hf: PreTrainedModel) -> Decoder:
    """The decoder of a `GPTNeoXForCausalLM`."""
    config = hf.config
    head = find(hf, "embed_out") if hasattr(hf, "embed_out") else find(hf, "lm_head")
    return Decoder(
        embedding=find(hf, "gpt_neox.embed_in.weight").data,
        embed_scale=None,
        positions=None,
        layers=tuple(_layer(block, config.hidden_act) for block in find(hf, "gpt_neox.layers")),
        final_norm=layer_norm(find(hf, "gpt_neox.final_layer_norm")),
        unembedding=find(head, "weight").data,
        unembed_bias=optional(head, "bias"),
        rotaries={"default": find(hf, "gpt_neox.rotary_emb")},
        parallel=bool(config.use_parallel_residual),
    )


def _layer(block: nn.Module, act: str) -> Layer:
    attention = find(block, "attention")
    d_head: int = attention.head_size
    fused = find(attention, "query_key_value")
    # [heads, 3, d_head, d_model]: a view per slot cannot be flattened to one matrix, so the parts
    # are copied once here.
    weights = fused.weight.data.unflatten(0, (-1, 3, d_head))
    biases = None if fused.bias is None else fused.bias.data.unflatten(0, (-1, 3, d_head))
    q, k, v = (
        projection(
            weights[:, slot].flatten(0, 1).contiguous(),
            None if biases is None else biases[:, slot].flatten().contiguous(),
            d_head,
        )
        for slot in range(3)
    )
    return Layer(
        Attention(
            norm=layer_norm(find(block, "input_layernorm")),
            q=q,
            k=k,
            v=v,
            out=find(attention, "dense.weight").data.t().unflatten(0, (-1, d_head)),
            out_bias=optional(find(attention, "dense"), "bias"),
            scale=float(attention.scaling),
            rotary="default",
        ),
        Mlp(
            norm=layer_norm(find(block, "post_attention_layernorm")),
            up=find(block, "mlp.dense_h_to_4h.weight").data,
            up_bias=optional(find(block, "mlp.dense_h_to_4h"), "bias"),
            down=find(block, "mlp.dense_4h_to_h.weight").data,
            down_bias=optional(find(block, "mlp.dense_4h_to_h"), "bias"),
            act=activation(act),
        ),
    )
