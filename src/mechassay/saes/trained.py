"""An SAE of ours with how it came about: the losses of its steps, and its provenance.

In a folder: the SAE in SAELens's layout, whose metadata hold the provenance, and
`training.safetensors`, which holds the losses and the numbers of dead features. What the training
began with is drawn again from the settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.display import OneLine
from mechassay.errors import BadFile, BadUsage
from mechassay.features.sae import SAE
from mechassay.files import read_tensors, write_tensors
from mechassay.saes.architectures import SAESettings
from mechassay.saes.formats import load_sae, provenance_of, save_sae

KIND, LOSSES = "training", "training.safetensors"


@dataclass(frozen=True, eq=False, repr=False)
class TrainedSAE(OneLine):
    """An SAE of ours, and how it came about.

    Attributes:
        initial: the decoder rows that training began with.
        losses: of every step, before it: the mean squared error of scaled values, per number.
        dead: how many features were dead at each step.
    """

    sae: SAE
    initial: Float[Tensor, "n d"]
    losses: Float[Tensor, "steps"]
    dead: Float[Tensor, "steps"]
    provenance: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))

    def shown(self) -> dict[str, Any]:
        told = {"sae": repr(self.sae), "steps": len(self.losses)}
        return told | {"last_loss": float(self.losses[-1]), "dead": int(self.dead[-1])}

    def save(self, folder: str | Path) -> Path:
        """Write the SAE in SAELens's layout, with its provenance, and its losses beside it."""
        kept = {"losses": self.losses, "dead": self.dead}
        write_tensors(Path(folder) / LOSSES, kept, {"kind": KIND})
        return save_sae(self.sae, folder, provenance=self.provenance)

    @staticmethod
    def load(folder: str | Path) -> TrainedSAE:
        """What `save` wrote.

        Raises:
            BadFile: it is no SAE, or none of ours.
        """
        sae, told = load_sae(folder), provenance_of(folder)
        kept, _ = read_tensors(Path(folder) / LOSSES, KIND)
        try:
            settings = SAESettings(**told["settings"])
            losses, dead = kept["losses"], kept["dead"]
        except (KeyError, TypeError, ValueError, BadUsage) as error:
            raise BadFile(f"{folder}: does not say how it was trained ({error}).") from None
        return TrainedSAE(
            sae, initial_rows(sae.d_in, settings), losses, dead, MappingProxyType(told)
        )


def initial_rows(d: int, settings: SAESettings) -> Float[Tensor, "n d"]:
    """The decoder rows that a training begins with: directions drawn uniformly."""
    drawn = torch.Generator().manual_seed(settings.seed)
    rows = torch.randn(settings.n_features, d, generator=drawn)
    return rows / rows.norm(dim=1, keepdim=True)
