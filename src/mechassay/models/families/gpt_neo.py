"""GPT-Neo: LayerNorm, learned positions, attention scores without a scale, windows in some."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mechassay.models.decoder import Decoder, Layer
from mechassay.models.families.sublayers import attention, linear_mlp
from mechassay.models.families.weights import find, layer_norm, optional

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


def decode(hf: PreTrainedModel) -> Decoder:
    """The decoder of a `GPTNeoForCausalLM`."""
    blocks = zip(find(hf, "transformer.h"), hf.config.attention_layers, strict=True)
    return Decoder(
        embedding=find(hf, "transformer.wte.weight").data,
        embed_scale=None,
        positions=find(hf, "transformer.wpe.weight").data,
        layers=tuple(_layer(block, hf.config, kind) for block, kind in blocks),
        final_norm=layer_norm(find(hf, "transformer.ln_f")),
        unembedding=find(hf, "lm_head.weight").data,
        unembed_bias=optional(find(hf, "lm_head"), "bias"),
        rotaries={},
    )


def _layer(block: nn.Module, config: Any, kind: str) -> Layer:
    return Layer(
        attention(
            find(block, "attn.attention"),
            layer_norm(find(block, "ln_1")),
            scale=1.0,
            window=config.window_size if kind == "local" else None,
            out="out_proj",
        ),
        linear_mlp(
            find(block, "mlp.c_fc"),
            find(block, "mlp.c_proj"),
            layer_norm(find(block, "ln_2")),
            config.activation_function,
        ),
    )
