"""How each family's weights are found. One function a file: the original model in, a `Decoder` out.

A model type that no file names is tried with the Llama layout, the most common one; the check on
loading then shows whether that reading is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.errors import UnsupportedModel
from mechassay.utils.registry import Registry

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from mechassay.models.decoder import Decoder


FAMILIES = Registry(
    "model family",
    {
        "transformer-lens": "mechassay.models.families.transformer_lens:decode",
        "gpt2": "mechassay.models.families.gpt2:decode",
        "gpt_neox": "mechassay.models.families.neox:decode",
        "llama": "mechassay.models.families.llama:decode",
        "mistral": "mechassay.models.families.llama:decode",
        "qwen2": "mechassay.models.families.llama:decode",
        "qwen3": "mechassay.models.families.llama:decode",
        "gemma2": "mechassay.models.families.gemma:decode",
        "gemma3_text": "mechassay.models.families.gemma:decode",
    },
    plural="families",
)


def decode(hf: PreTrainedModel) -> Decoder:
    """The decoder of a Hugging Face model.

    Raises:
        UnsupportedModel: a module that the family needs was not found; the message names it.
    """
    kind = hf.config.model_type
    if kind in FAMILIES:
        return FAMILIES.load(kind)(hf)
    try:
        return FAMILIES.load("llama")(hf)
    except UnsupportedModel as error:
        names = ", ".join(FAMILIES.names())
        raise UnsupportedModel(
            f"Model type {kind!r} is not supported (known: {names}) and does not have the Llama"
            f" layout: {error} “Your own model family” in the documentation shows how to add one."
        ) from None
