"""StableLM: LayerNorm, rotary positions on a part of each head, gated MLP; blocks may be parallel.

StableLM-2-12B norms the queries and keys of each head by weights of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from mechassay.errors import UnsupportedModel
from mechassay.models.decoder import Decoder, Layer, Norm
from mechassay.models.families.sublayers import attention, gated_mlp
from mechassay.models.families.weights import activation, find, layer_norm, optional

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


def decode(hf: PreTrainedModel) -> Decoder:
    """The decoder of a `StableLmForCausalLM`.

    Raises:
        UnsupportedModel: heads that rotate an odd number of their dimensions.
    """
    config = hf.config
    own: Any = find(hf, "model.layers")[0].self_attn
    if own.rotary_ndims % 2:
        raise UnsupportedModel(
            f"stablelm: positions rotate {own.rotary_ndims} of the {own.head_dim} dimensions of a"
            " head, an odd number; not supported."
        )
    return Decoder(
        embedding=find(hf, "model.embed_tokens.weight").data,
        embed_scale=None,
        positions=None,
        layers=tuple(_layer(block, config) for block in find(hf, "model.layers")),
        final_norm=layer_norm(find(hf, "model.norm")),
        unembedding=find(hf, "lm_head.weight").data,
        unembed_bias=optional(find(hf, "lm_head"), "bias"),
        rotaries={"default": find(hf, "model.rotary_emb")},
        parallel=bool(config.use_parallel_residual),
    )


def _layer(block: nn.Module, config: Any) -> Layer:
    own, norm = find(block, "self_attn"), layer_norm(find(block, "input_layernorm"))
    second = norm
    if not config.use_parallel_residual:
        second = layer_norm(find(block, "post_attention_layernorm"))
    heads = attention(own, norm, rotary="default")
    if config.qk_layernorm:
        q, k = _of_each_head(own.q_layernorm), _of_each_head(own.k_layernorm)
        heads = replace(heads, q=replace(heads.q, norm=q), k=replace(heads.k, norm=k))
    return Layer(heads, gated_mlp(find(block, "mlp"), second, activation(config.hidden_act)))


def _of_each_head(module: Any) -> Norm:
    norms = [layer_norm(norm) for norm in module.norms]
    return replace(norms[0], weight=torch.stack([norm.weight for norm in norms]))
