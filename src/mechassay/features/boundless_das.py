"""Boundless DAS (Wu et al. 2023): a whole rotation, and how many of its first directions count.

With coordinates i = 0..d-1 of the rotation R [d, d], a boundary b of (0, 1], and temperature T,

    m_i = sigmoid(i / T) sigmoid((b d - i) / T)          new = base + ((s - base) R * m) R'

as in the authors' code (pyvene), whose first factor is 1/2 at i = 0. The loss has b added to it,
times `boundary_weight`; T falls from 50 to .1 in equal steps. Afterwards the directions i < b d
count wholly, so that what is evaluated is a plain interchange. These temperatures are for values of
thousands of numbers: with few, a lower `hot` lets the boundary be felt before the training ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.features.das import Rotation, bases
from mechassay.features.featurizer import Directions, Featurizer
from mechassay.features.stacked_training import Trainable
from mechassay.features.trained_finder import TrainedFinder, check_cooling
from mechassay.features.training_data import BundleValues
from mechassay.interventions.site import Site
from mechassay.models.decoder import at_least_fp32
from mechassay.models.model import Model

LEAST, BEGIN = 1e-3, 0.5


@dataclass(frozen=True)
class BoundlessDAS(TrainedFinder):
    """DAS that learns its number of directions; for other settings see `TrainedFinder`.

    Attributes:
        boundary_lr: learning rate of the boundary; `lr` is that of the rotation.
        boundary_weight: of the boundary in the loss.
        hot, cold: first and last temperature.
    """

    name: ClassVar[str] = "boundless-das"
    profiles: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"lr": 1e-3, "schedule": "linear", "warmup": 0.1, "epochs": 3, "batch_size": 64}
    }

    lr: float = 1e-3
    boundary_lr: float = 1e-2
    boundary_weight: float = 1.0
    hot: float = 50.0
    cold: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_cooling(self.name, self.hot, self.cold)

    def start(
        self,
        model: Model,
        sites: Sequence[Site],
        width: int,
        init: dict[Site, Tensor | Featurizer],
        generator: torch.Generator,
    ) -> Trainable:
        """See `TrainedFinder.start`."""
        basis = bases(self.name, model, sites, width, init, generator)
        return BoundedRotation(basis, len(sites), self)


class BoundedRotation(Rotation):
    """A whole rotation and a boundary of every site."""

    turns_are_free: ClassVar[bool] = False

    def __init__(
        self, basis: Float[Tensor, "some d d"], n_sites: int, finder: BoundlessDAS
    ) -> None:
        super().__init__(basis, n_sites, basis.shape[1])
        self.finder = finder
        self.boundary = basis.new_full((n_sites,), BEGIN).requires_grad_()
        self.places = torch.arange(basis.shape[1], device=basis.device, dtype=basis.dtype)

    def parameters(self) -> Sequence[tuple[Tensor, float]]:
        return [(self.raw, 1.0), (self.boundary, self.finder.boundary_lr / self.finder.lr)]

    def mask(self, progress: float) -> Float[Tensor, "sites d"]:
        """How much of each coordinate is exchanged."""
        finder = self.finder
        temperature = finder.hot + (finder.cold - finder.hot) * progress
        end = self.boundary.clamp(LEAST, 1.0)[:, None] * len(self.places)
        inside = torch.sigmoid(self.places / temperature)
        return inside * torch.sigmoid((end - self.places) / temperature)

    def new(self, values: BundleValues, progress: float) -> Float[Tensor, "sites m d"]:
        base, source = at_least_fp32(values.base), at_least_fp32(values.source)
        q = self.directions()
        moved = (source - base) @ q * self.mask(progress)[:, None]
        return torch.baddbmm(base, moved, q.mT)

    def penalty(self, progress: float) -> Float[Tensor, "sites"]:
        return self.finder.boundary_weight * self.boundary.clamp(LEAST, 1.0)

    def found(self, number: int) -> tuple[Featurizer, Bool[Tensor, "k"] | None]:
        whole, _ = super().found(number)
        assert isinstance(whole, Directions)
        end = float(self.boundary[number].detach().clamp(LEAST, 1.0)) * len(self.places)
        kept = int((self.places.cpu() < end).sum())
        return Directions(whole.vectors[:, :kept].clone()), None
