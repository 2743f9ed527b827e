"""Gemma: RMSNorm with weight 1 + w, scaled embeddings; from Gemma-2 on post-norms and windows.

Gemma-3 has q/k norms, and one rotary table for its sliding and one for its full layers.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from mechassay.models.decoder import Decoder, Layer
from mechassay.models.families.sublayers import attention, gated_mlp
from mechassay.models.families.weights import activation, find, optional, rms_norm

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


def decode(hf: PreTrainedModel) -> Decoder:
    """The decoder of a `GemmaForCausalLM`, a `Gemma2ForCausalLM` or a `Gemma3ForCausalLM`."""
    config = hf.config
    table: Any = find(hf, "model.rotary_emb")
    kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
    rotaries = {kind: table for kind in set(kinds)}
    if config.model_type == "gemma3_text":
        rotaries = {kind: partial(table, layer_type=kind) for kind in rotaries}
    return Decoder(
        embedding=find(hf, "model.embed_tokens.weight").data,
        # The buffer, not sqrt(d_model): in fp64 the two differ by the buffer's fp32 rounding.
        embed_scale=float(find(hf, "model.embed_tokens.embed_scale")),
        positions=None,
        layers=tuple(
            _layer(block, config, kind)
            for block, kind in zip(find(hf, "model.layers"), kinds, strict=True)
        ),
        final_norm=_norm(find(hf, "model.norm")),
        unembedding=find(hf, "lm_head.weight").data,
        unembed_bias=optional(find(hf, "lm_head"), "bias"),
        logit_softcap=getattr(config, "final_logit_softcapping", None),
        rotaries=rotaries,
    )


_norm = partial(rms_norm, offset=1.0)


def _layer(block: nn.Module, config: Any, kind: str) -> Layer:
    first, own, mlp = find(block, "input_layernorm"), find(block, "self_attn"), find(block, "mlp")
    second, act = (
        find(block, "post_attention_layernorm"),
        activation(config.hidden_act if config.model_type == "gemma" else config.hidden_activation),
    )
    if config.model_type == "gemma":
        return Layer(attention(own, _norm(first), rotary=kind), gated_mlp(mlp, _norm(second), act))
    return Layer(
        attention(
            own,
            _norm(first),
            window=config.sliding_window if kind == "sliding_attention" else None,
            rotary=kind,
            # Gemma-3's code never applies the soft-cap its config names; Gemma-2's does.
            softcap=config.attn_logit_softcapping if config.model_type == "gemma2" else None,
            norm_offset=1.0,
            post_norm=_norm(second),
        ),
        gated_mlp(
            mlp,
            _norm(find(block, "pre_feedforward_layernorm")),
            act,
            post_norm=_norm(find(block, "post_feedforward_layernorm")),
        ),
    )
