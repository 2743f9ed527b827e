"""The same architecture with random weights: what is found there, no training put there."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import PreTrainedModel

from mechassay.errors import BadUsage
from mechassay.models.model import Model, make_model


def untrained(model: Model, seed: int = 0) -> Model:
    """A copy of a model with weights as its class draws them before any training.

    Args:
        seed: of the weights; the global generator is left as it is.

    Raises:
        BadUsage: a model that transformers has no class for, which says how weights are drawn.
    """
    if not isinstance(model.hf, PreTrainedModel):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise BadUsage(
            f"untrained needs a model of transformers, whose class draws weights; {model.name} is a"
            f" {type(model.hf).__name__}."
        )
    kind: Any = type(model.hf)
    # transformers draws weights from the global generator, which is put back: that of the CPU
    # alone, as torch.manual_seed would also change those of GPUs.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        hf: PreTrainedModel = kind(copy.deepcopy(model.hf.config))
    kind.to(hf, device=model.device, dtype=model.dtype)
    for parameter in hf.parameters():
        parameter.requires_grad_(False)
    name = f"{model.name} (untrained)"
    return make_model(hf, model.tokenizer, name=name, prepend=model.prepend)
