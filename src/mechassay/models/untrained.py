"""The same architecture with random weights: what is found there, no training put there.

In commands and in `load_model` the copy of a model NAME is `untrained:NAME`, with seed 0.
"""

from __future__ import annotations

from mechassay.models.drawn_weights import with_drawn_weights
from mechassay.models.model import Model, make_model
from mechassay.models.revisions import UNTRAINED


def untrained(model: Model, seed: int = 0) -> Model:
    """A copy of a model with weights as its class draws them before any training.

    Args:
        seed: of the weights; the global generator is left as it is.

    Raises:
        BadUsage: a model that transformers has no class for, which says how weights are drawn.
    """
    hf = with_drawn_weights(model.hf, model.name, seed)
    return make_model(hf, model.tokenizer, name=f"{UNTRAINED}{model.name}", prepend=model.prepend)
