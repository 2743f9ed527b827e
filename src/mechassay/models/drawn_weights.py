"""A model of transformers again, with weights as its class draws them before any training."""

from __future__ import annotations

import copy
from typing import Any

import torch
from transformers import PreTrainedModel

from mechassay.errors import BadUsage


def with_drawn_weights(hf: Any, name: str, seed: int = 0) -> PreTrainedModel:
    """A copy of a Hugging Face model with random weights, frozen and in evaluation mode.

    Args:
        name: of the model, for the message.
        seed: of the weights; the global generator is left as it is.

    Raises:
        BadUsage: a model that transformers has no class for, which says how weights are drawn.
    """
    if not isinstance(hf, PreTrainedModel):
        raise BadUsage(
            f"untrained needs a model of transformers, whose class draws weights; {name} is a"
            f" {type(hf).__name__}."
        )
    kind: Any = type(hf)
    # transformers draws weights from the global generator, which is put back: that of the CPU
    # alone, as torch.manual_seed would also change those of GPUs.
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        drawn: PreTrainedModel = kind(copy.deepcopy(hf.config))
    kind.to(drawn, device=hf.device, dtype=hf.dtype)
    for parameter in drawn.parameters():
        parameter.requires_grad_(False)
    return drawn.eval()
