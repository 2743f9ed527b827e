"""Llama, Mistral, Qwen2, Qwen3, SmolLM2 and 3: RMSNorm, rotary, grouped queries, gated MLP.

Mixtral, OLMoE and Qwen3-MoE have experts in its place; some layers of Qwen3-MoE may have none.
SmolLM3 has layers without rotary positions. OLMoE's norms of queries and keys are over all heads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mechassay.errors import UnsupportedModel
from mechassay.models.decoder import Decoder, Layer
from mechassay.models.families.sublayers import attention, experts, gated_mlp
from mechassay.models.families.weights import activation, find, optional, rms_norm

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


def decode(hf: PreTrainedModel) -> Decoder:
    """The decoder of a model with the Llama layout."""
    config = hf.config
    if getattr(config, "clip_qkv", None) is not None:
        raise UnsupportedModel(
            f"{config.model_type}: queries, keys and values are clipped at {config.clip_qkv}; not"
            " supported."
        )
    layers = enumerate(find(hf, "model.layers"))
    return around(hf, tuple(_layer(block, config, index) for index, block in layers))


def around(hf: PreTrainedModel, layers: tuple[Layer, ...]) -> Decoder:
    """The decoder of layers between the embedding and the last norm of the Llama layout."""
    return Decoder(
        embedding=find(hf, "model.embed_tokens.weight").data,
        embed_scale=None,
        positions=None,
        layers=layers,
        final_norm=rms_norm(find(hf, "model.norm")),
        unembedding=find(hf, "lm_head.weight").data,
        unembed_bias=optional(find(hf, "lm_head"), "bias"),
        rotaries={"default": find(hf, "model.rotary_emb")},
    )


def _layer(block: nn.Module, config: Any, index: int) -> Layer:
    own, mlp = find(block, "self_attn"), find(block, "mlp")
    inner = experts if hasattr(mlp, "experts") else gated_mlp
    return Layer(
        attention(
            own,
            rms_norm(find(block, "input_layernorm")),
            window=window(config, index),
            rotary="default" if getattr(own, "use_rope", True) else None,
        ),
        inner(
            mlp,
            rms_norm(find(block, "post_attention_layernorm")),
            activation(config.hidden_act),
        ),
    )


def window(config: Any, index: int) -> int | None:
    """How far back a layer sees, if not to the beginning."""
    types = getattr(config, "layer_types", None)
    slides = types[index] == "sliding_attention" if types else True
    return getattr(config, "sliding_window", None) if slides else None
