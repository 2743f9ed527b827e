"""GPT-J: parallel blocks that read one LayerNorm; interleaved rotary positions on a part of a head.

The table of sines and cosines, the same in every layer, is as long as the model's most positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from mechassay.models.decoder import Decoder, Layer
from mechassay.models.families.sublayers import attention, linear_mlp
from mechassay.models.families.weights import find, layer_norm, optional

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel


def decode(hf: PreTrainedModel) -> Decoder:
    """The decoder of a `GPTJForCausalLM`."""
    # From transformers 5.24 on all layers have one table.
    shared = getattr(find(hf, "transformer"), "rotary_emb", None)
    place = "transformer.h.0.attn" if shared is None else "transformer.rotary_emb"
    act, table = hf.config.activation_function, find(hf, f"{place}.embed_positions")

    def rotary(like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        sin, cos = table.to(positions.device)[positions].to(like.dtype).chunk(2, dim=-1)
        return cos.repeat_interleave(2, dim=-1), sin.repeat_interleave(2, dim=-1)

    return Decoder(
        embedding=find(hf, "transformer.wte.weight").data,
        embed_scale=None,
        positions=None,
        layers=tuple(_layer(block, act) for block in find(hf, "transformer.h")),
        final_norm=layer_norm(find(hf, "transformer.ln_f")),
        unembedding=find(hf, "lm_head.weight").data,
        unembed_bias=optional(find(hf, "lm_head"), "bias"),
        rotaries={"default": rotary},
        n_rotations=len(table),
        parallel=True,
    )


def _layer(block: nn.Module, act: str) -> Layer:
    own, norm = find(block, "attn"), layer_norm(find(block, "ln_1"))
    scale = own.head_dim**-0.5
    return Layer(
        attention(own, norm, rotary="default", interleaved=True, scale=scale, out="out_proj"),
        linear_mlp(find(block, "mlp.fc_in"), find(block, "mlp.fc_out"), norm, act),
    )
