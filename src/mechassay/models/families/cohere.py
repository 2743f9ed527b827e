"""Command-R: parallel blocks that read one LayerNorm, interleaved rotary positions, scaled logits.

Command-R+ norms the queries and keys of each head by weights of its own. Command-R7B (Cohere2) has
windows, and rotary positions in the layers with a window alone. The scale of the logits stands in
the last norm's weight.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mechassay.models.decoder import Decoder, Layer
from mechassay.models.families.llama import window
from mechassay.models.families.sublayers import attention, gated_mlp
from mechassay.models.families.weights import activation, find, layer_norm, optional, times

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


def decode(hf: PreTrainedModel) -> Decoder:
    """The decoder of a `CohereForCausalLM` or `Cohere2ForCausalLM`."""
    layers = enumerate(find(hf, "model.layers"))
    return Decoder(
        embedding=find(hf, "model.embed_tokens.weight").data,
        embed_scale=None,
        positions=None,
        layers=tuple(_layer(block, hf.config, index) for index, block in layers),
        final_norm=times(layer_norm(find(hf, "model.norm")), float(hf.config.logit_scale)),
        unembedding=find(hf, "lm_head.weight").data,
        unembed_bias=optional(find(hf, "lm_head"), "bias"),
        rotaries={"default": find(hf, "model.rotary_emb")},
        parallel=True,
    )


def _layer(block: nn.Module, config: Any, index: int) -> Layer:
    own, norm = find(block, "self_attn"), layer_norm(find(block, "input_layernorm"))
    sees = window(config, index) if config.model_type == "cohere2" else None
    turns = sees is not None or config.model_type == "cohere"
    heads = attention(own, norm, rotary="default" if turns else None, interleaved=True, window=sees)
    if getattr(config, "use_qk_norm", False):
        q, k = layer_norm(own.q_norm), layer_norm(own.k_norm)
        q, k = replace(heads.q, norm=q), replace(heads.k, norm=k)
        heads = replace(heads, q=q, k=k, q_norm=None, k_norm=None)
    return Layer(heads, gated_mlp(find(block, "mlp"), norm, activation(config.hidden_act)))
