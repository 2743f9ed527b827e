"""OPT: LayerNorm, learned positions that begin at row 2 of their table, ReLU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.errors import UnsupportedModel
from mechassay.models.decoder import Decoder, Layer
from mechassay.models.families.sublayers import attention, linear_mlp
from mechassay.models.families.weights import find, layer_norm, optional

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


def decode(hf: PreTrainedModel) -> Decoder:
    """The decoder of an `OPTForCausalLM`.

    Raises:
        UnsupportedModel: norms after the sublayers on the stream itself (OPT-350M), or none at the
            end, embeddings of another width than the stream, or norms without weights.
    """
    config = hf.config
    unlike = None
    if config.word_embed_proj_dim != config.hidden_size:
        unlike = "embeddings are projected to the width of the stream"
    if not config.do_layer_norm_before:
        unlike = "norms change the stream itself (as in OPT-350M)"
    if unlike is not None:
        raise UnsupportedModel(f"opt: {unlike}; not supported.")
    root = find(hf, "model.decoder")
    offset = root.embed_positions.offset
    return Decoder(
        embedding=find(root, "embed_tokens.weight").data,
        embed_scale=None,
        positions=find(root, "embed_positions.weight").data[offset:],
        layers=tuple(_layer(block, config.activation_function) for block in root.layers),
        final_norm=layer_norm(find(root, "final_layer_norm")),
        unembedding=find(hf, "lm_head.weight").data,
        unembed_bias=optional(find(hf, "lm_head"), "bias"),
        rotaries={},
    )


def _layer(block: nn.Module, act: str) -> Layer:
    first, second = find(block, "self_attn_layer_norm"), find(block, "final_layer_norm")
    return Layer(
        attention(find(block, "self_attn"), layer_norm(first), out="out_proj"),
        linear_mlp(find(block, "fc1"), find(block, "fc2"), layer_norm(second), act),
    )
