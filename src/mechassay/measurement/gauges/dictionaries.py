"""Dictionaries of one site, and what they make of held-out values."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.features.sae import SAE
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
