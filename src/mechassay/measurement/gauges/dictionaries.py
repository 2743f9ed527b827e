"""Dictionaries of one site, and what they make of held-out values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.features.sae import SAE
from mechassay.measurement.inputs import Inputs
from mechassay.saes.activations import ActivationStore
from mechassay.saes.quality import check_dictionary

Values = Float[Tensor, "values d"]
ROWS = 8192
"""Held-out values that metrics look at."""


@dataclass(frozen=True, eq=False)
class CodedValues:
    """A dictionary, and its codes of values."""

    sae: SAE
    codes: Float[Tensor, "values n"]

    @property
    def l0(self) -> float:
        """Mean number of active features."""
        return float((self.codes > 0).float().sum(1).mean())

    @property
    def encoder(self) -> Float[Tensor, "n d"]:
        """Columns of W_enc."""
        return self.sae.w_enc.mT.float().cpu()

    @property
    def decoder(self) -> Float[Tensor, "n d"]:
        return self.sae.w_dec.float().cpu()


def given_texts(inputs: Inputs) -> ActivationStore:
    """The texts' activations.

    Raises:
        BadUsage: something else, or activations of another site.
    """
    store = inputs.get("texts")
    if not isinstance(store, ActivationStore):
        raise BadUsage(
            "This metric needs stored activations of texts, see `store_activations`; got"
            f" {type(store).__name__}."
        )
    if inputs.has("site") and inputs.site.place != store.site.place:
        raise BadUsage(f"The activations are of {store.site}; got the site {inputs.site}.")
    return store


def held_out(inputs: Inputs, saes: Iterable[SAE] = (), rows: int = ROWS) -> Values:
    """Test values, spread evenly over all test documents where there are more.

    Args:
        saes: that are to read them.

    Raises:
        BadUsage: activations of another site or, where there is a model, of another model; an SAE
            of other values.
    """
    store = given_texts(inputs)
    if inputs.has("model"):
        for sae in saes:
            check_dictionary(inputs.model, sae, store)
    # Shards are too few to be spread: all values are read, and some of them are taken.
    values = store.values("test")
    if len(values) > rows:
        values = values[torch.linspace(0, len(values) - 1, rows).round().long()]
    return values.float()


@torch.no_grad()
def coded(sae: SAE, values: Float[Tensor, "values d"]) -> CodedValues:
    """What a dictionary makes of values.

    Raises:
        BadUsage: values of another width.
    """
    codes = torch.cat([sae.encode(part) for part in values.to(sae.w_enc.device).split(1024)])
    return CodedValues(sae, codes.float().cpu())
