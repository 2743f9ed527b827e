"""A store of values that a planted dictionary made: sparse sums of random unit rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mechassay.features.sae import SAE
from mechassay.interventions.site import Site
from mechassay.saes import ActivationStore, StoreSettings

D, N, ACTIVE = 16, 24, 2


class Planted(ActivationStore):
    """A store of values that are held in memory."""

    def __init__(self, held: Tensor) -> None:
        site = Site(1, "all")
        super().__init__(Path("planted"), "planted", "", site, "none", "", StoreSettings(), ())
        object.__setattr__(self, "held", held)

    def values(self, split: str, limit: int | None = None) -> Tensor:
        return vars(self)["held"]


def planted(rows: int = 4000) -> tuple[Any, Tensor]:
    # Not the seed of any training: it would begin at the answer.
    drawn = torch.Generator().manual_seed(99)
    directions = F.normalize(torch.randn(N, D, generator=drawn), dim=1)
    which = torch.rand(rows, N, generator=drawn).topk(ACTIVE, dim=1).indices
    sizes = 1 + torch.rand(rows, ACTIVE, generator=drawn)
    values = (directions[which] * sizes[:, :, None]).sum(1) * 5.0 + 3.0
    return Planted(values), directions


def explained(sae: SAE, values: Tensor) -> float:
    """The share of variance that an SAE explains."""
    left = (values - sae.reconstruct(values)).square().sum()
    return 1 - float(left / (values - values.mean(0)).square().sum())
