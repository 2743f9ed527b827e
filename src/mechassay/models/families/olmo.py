"""OLMo-2 and OLMo-3: the Llama layout with norms after its sublayers, and none before them.

Norms of queries and keys are over all heads together. OLMo-3 has sliding windows, and a rotary
table for each kind of layer.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from mechassay.models.decoder import Decoder, Layer
from mechassay.models.families.llama import around, window
from mechassay.models.families.sublayers import attention, gated_mlp
from mechassay.models.families.weights import activation, find, multiplied_by, rms_norm

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


def decode(hf: PreTrainedModel) -> Decoder:
    """The decoder of an `Olmo2ForCausalLM` or `Olmo3ForCausalLM`."""
    config = hf.config
    layers = enumerate(find(hf, "model.layers"))
    decoder = around(hf, tuple(_layer(block, config, index) for index, block in layers))
    if config.model_type == "olmo2":
        return decoder
    table: Any = find(hf, "model.rotary_emb")
    kinds = set(config.layer_types)
    return replace(decoder, rotaries={kind: partial(table, layer_type=kind) for kind in kinds})


def _layer(block: nn.Module, config: Any, index: int) -> Layer:
    after = rms_norm(find(block, "post_attention_layernorm"))
    as_it_is = multiplied_by(1.0, after.weight)
    is_olmo2 = config.model_type == "olmo2"
    return Layer(
        attention(
            find(block, "self_attn"),
            as_it_is,
            window=None if is_olmo2 else window(config, index),
            rotary="default" if is_olmo2 else config.layer_types[index],
            post_norm=after,
        ),
        gated_mlp(
            find(block, "mlp"),
            as_it_is,
            activation(config.hidden_act),
            post_norm=rms_norm(find(block, "post_feedforward_layernorm")),
        ),
    )
