"""Granite: the Llama layout with four numbers that multiply.

Embeddings are multiplied, attention scores in place of 1 / sqrt(d_head), what each sublayer writes
(a norm after it that only multiplies) and logits, which are divided (in the last norm's weight).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mechassay.models.decoder import Decoder, Layer
from mechassay.models.families.llama import around
from mechassay.models.families.sublayers import attention, gated_mlp
from mechassay.models.families.weights import (
    activation,
    find,
    multiplied_by,
    rms_norm,
    times,
)

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


def decode(hf: PreTrainedModel) -> Decoder:
    """The decoder of a `GraniteForCausalLM`."""
    config = hf.config
    decoder = around(hf, tuple(_layer(block, config) for block in find(hf, "model.layers")))
    return replace(
        decoder,
        embed_scale=float(config.embedding_multiplier),
        final_norm=times(decoder.final_norm, 1 / config.logits_scaling),
    )


def _layer(block: nn.Module, config: Any) -> Layer:
    norm = rms_norm(find(block, "input_layernorm"))
    multiplied = multiplied_by(float(config.residual_multiplier), norm.weight)
    return Layer(
        attention(
            find(block, "self_attn"), norm, window=None, rotary="default", post_norm=multiplied
        ),
        gated_mlp(
            find(block, "mlp"),
            rms_norm(find(block, "post_attention_layernorm")),
            activation(config.hidden_act),
            post_norm=multiplied,
        ),
    )
