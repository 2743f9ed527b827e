"""Dictionaries of one site, and what they make of held-out values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.features.sae import SAE
from mechassay.measurement.inputs import Inputs
from mechassay.saes.activations import ActivationStore

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


def dictionary_of(found: Any, inputs: Inputs) -> SAE:
    """A dictionary whose weights are read.

    Raises:
        BadUsage: it is no SAE, or one of another site.
    """
    if not isinstance(found, SAE):
        raise BadUsage(
            f"This metric reads the weights of sparse autoencoders; got {type(found).__name__}."
        )
    return found.check_site(inputs.site) if inputs.has("site") else found


def other_dictionaries(inputs: Inputs) -> tuple[SAE, ...]:
    """The further dictionaries; one or more.

    Raises:
        BadUsage: none, or not of the site.
    """
    found = tuple(dictionary_of(each, inputs) for each in inputs.get("other sae"))
    if not found:
        raise BadUsage("This metric needs a second sparse autoencoder (--other-sae).")
    return found


def held_out(store: ActivationStore, rows: int = ROWS) -> Float[Tensor, "values d"]:
    """Test values, spread evenly over the documents where there are more."""
    values = store.values("test", rows)
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
