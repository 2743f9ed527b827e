"""How each family's weights are found. One function a file: the original model in, a `Decoder` out.

A model type that no file names is tried with the Llama layout, the most common one; the check on
loading then shows whether that reading is right.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.errors import UnsupportedModel, first_line
from mechassay.utils.registry import Registry

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from mechassay.models.decoder import Decoder


FAMILIES = Registry(
    "model family",
    {
        "transformer-lens": "mechassay.models.families.transformer_lens:decode",
        "gpt2": "mechassay.models.families.gpt2:decode",
        "gpt_neo": "mechassay.models.families.gpt_neo:decode",
        "gpt_neox": "mechassay.models.families.neox:decode",
        "gptj": "mechassay.models.families.gptj:decode",
        "opt": "mechassay.models.families.opt:decode",
        "llama": "mechassay.models.families.llama:decode",
        "mistral": "mechassay.models.families.llama:decode",
        "mixtral": "mechassay.models.families.llama:decode",
        "qwen2": "mechassay.models.families.llama:decode",
        "qwen3": "mechassay.models.families.llama:decode",
        "qwen3_moe": "mechassay.models.families.llama:decode",
        "smollm3": "mechassay.models.families.llama:decode",
        "olmoe": "mechassay.models.families.llama:decode",
        "olmo2": "mechassay.models.families.olmo:decode",
        "olmo3": "mechassay.models.families.olmo:decode",
        "phi3": "mechassay.models.families.phi3:decode",
        "granite": "mechassay.models.families.granite:decode",
        "stablelm": "mechassay.models.families.stablelm:decode",
        "cohere": "mechassay.models.families.cohere:decode",
        "cohere2": "mechassay.models.families.cohere:decode",
        "falcon": "mechassay.models.families.falcon:decode",
        "gemma": "mechassay.models.families.gemma:decode",
        "gemma2": "mechassay.models.families.gemma:decode",
        "gemma3_text": "mechassay.models.families.gemma:decode",
    },
    plural="families",
)

UNLIKE = {
    "gpt_oss": "attention sinks take a part of every softmax",
    "bloom": "ALiBi adds to attention scores",
    "mpt": "ALiBi adds to attention scores",
}
"""Types that are refused, and what a decoder cannot express of them."""


def decode(hf: PreTrainedModel) -> Decoder:
    """The decoder of a Hugging Face model.

    Raises:
        UnsupportedModel: what the model computes is unlike a decoder's, or a module that the family
            needs was not found; the message names it.
    """
    kind = hf.config.model_type
    if kind in FAMILIES:
        return FAMILIES.load(kind)(hf)
    if kind in UNLIKE:
        raise UnsupportedModel(f"{kind}: {UNLIKE[kind]}; not supported.")
    try:
        return FAMILIES.load("llama")(hf)
    except UnsupportedModel as error:
        raise unlike_llama(kind, str(error)) from None
    except MISREAD as error:
        raise unlike_llama(kind, f"{type(error).__name__}: {first_line(error)}") from error


MISREAD = (
    AttributeError,
    IndexError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Errors that occur when a model of another layout is read or run."""


def unlike_llama(kind: str, reason: str) -> UnsupportedModel:
    """Return the error for a model type without a family that does not have the Llama layout."""
    names = ", ".join(FAMILIES.names())
    return UnsupportedModel(
        f"Model type {kind!r} is not supported (known: {names}) and does not have the Llama"
        f" layout: {reason.rstrip('.')}. “Your own model family” in the documentation shows how to"
        " add one."
    )
