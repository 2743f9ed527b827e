"""Distributed alignment search: k directions, trained so that exchanging them gives the label.

    new = b + (s - b) Q Q'            Q [d, k] orthonormal, see `features.directions`

minimises the loss of the labels over interchanges (Geiger et al. 2024; one direction: Arora et al.
2024, eq. 12). Q begins as k columns of an orthonormal basis, which is random and the same at all
sites of one width unless `init` has one [d, d] for a site. A training walks the same path as one
with pyvene's LowRankRotatedSpaceIntervention from that basis.

Profiles:

    causalgym-2024   k 1, Adam 5e-3, 100 steps of 4, up over 10 % of them, then down to 0
    mib-2025         k 16, AdamW 1e-2, one epoch of batches of 256: MIB's code on addition
    mib-2025-ioi     k 32, AdamW 1, two epochs of batches of 256, squared error
    paper, paper-ioi Mueller et al. (2025), G.4: the same, but one epoch on IOI
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.features.directions import check_basis, check_k, orthonormal, random_basis
from mechassay.features.featurizer import Directions, Featurizer
from mechassay.features.stacked_training import Trainable
from mechassay.features.trained_finder import TrainedFinder, parameter_dtype
from mechassay.features.training_data import BundleValues
from mechassay.interventions.site import Site
from mechassay.models.decoder import at_least_fp32
from mechassay.models.model import Model

_ADDITION = {"k": 16, "lr": 1e-2, "epochs": 1, "batch_size": 256, "optimizer": "adamw"}
_IOI = {**_ADDITION, "k": 32, "lr": 1.0, "loss": "squared-error"}


@dataclass(frozen=True)
class DAS(TrainedFinder):
    """Distributed alignment search with k directions; for other settings see `TrainedFinder`."""

    name: ClassVar[str] = "das"
    profiles: ClassVar[dict[str, dict[str, Any]]] = {
        "causalgym-2024": {
            "k": 1,
            "lr": 5e-3,
            "steps": 100,
            "batch_size": 4,
            "schedule": "linear",
            "warmup": 0.1,
        },
        "mib-2025": _ADDITION,
        "mib-2025-ioi": {**_IOI, "epochs": 2},
        "paper": _ADDITION,
        "paper-ioi": _IOI,
    }

    k: int = 1

    def start(
        self,
        model: Model,
        sites: Sequence[Site],
        width: int,
        init: dict[Site, Tensor | Featurizer],
        generator: torch.Generator,
    ) -> Trainable:
        """See `TrainedFinder.start`."""
        for site in sites:
            check_k(f"{self.name} at {site}", self.k, width)
        basis = bases(self.name, model, sites, width, init, generator)
        return Rotation(basis, len(sites), self.k)


def bases(
    who: str,
    model: Model,
    sites: Sequence[Site],
    width: int,
    init: dict[Site, Tensor | Featurizer],
    generator: torch.Generator,
) -> Float[Tensor, "some d d"]:
    """The basis of each site, or one that all share where none is given.

    Raises:
        BadUsage: one of another shape, or not orthonormal.
    """
    dtype, device = parameter_dtype(model), model.device
    shared = random_basis(width, generator, dtype).to(device)
    if not any(site in init for site in sites):
        return shared[None]
    found: list[Tensor] = []
    for site in sites:
        start = init.get(site, shared)
        if isinstance(start, Directions):
            start = start.vectors
        if not isinstance(start, Tensor):
            raise BadUsage(
                f"{who} begins with a basis [{width}, {width}]; init at {site} is a"
                f" {type(start).__name__}."
            )
        found.append(check_basis(f"{who} at {site}", start, width).to(device, dtype))
    return torch.stack(found)


class Rotation(Trainable):
    """k directions of every site.

    Attributes:
        turns_are_free: whether losses depend on the space of the directions alone.
    """

    turns_are_free: ClassVar[bool] = True

    def __init__(self, basis: Float[Tensor, "some d d"], n_sites: int, k: int) -> None:
        self.basis = basis
        self.raw = basis.new_zeros(n_sites, basis.shape[1], k).requires_grad_()
        self.begun = False
        self.raw.register_hook(self._without_rounding)

    def _without_rounding(self, gradient: Tensor) -> Tensor:
        """Where all parameters are 0, what turns the directions within their own space changes no
        loss; of its gradient, which is 0, only rounding would be left, and Adam, which divides by
        its size, would make steps of that.
        """
        # A step may come in several parts, so it is the parameters that say whether it was made.
        self.begun = self.begun or not self.turns_are_free or bool(self.raw.any())
        if self.begun:
            return gradient
        gradient = gradient.clone()
        gradient[:, : gradient.shape[2]] = 0
        return gradient

    def parameters(self) -> Sequence[tuple[Tensor, float]]:
        return [(self.raw, 1.0)]

    def directions(self) -> Float[Tensor, "sites d k"]:
        """The directions of all sites."""
        return orthonormal(self.raw, self.basis)

    def new(self, values: BundleValues, progress: float) -> Float[Tensor, "sites m d"]:
        base, source = at_least_fp32(values.base), at_least_fp32(values.source)
        q = self.directions()
        return torch.baddbmm(base, (source - base) @ q, q.mT)

    def found(self, number: int) -> tuple[Featurizer, Bool[Tensor, "k"] | None]:
        # One site's own computation: the result is the same whatever else is in the stack.
        some = slice(number, number + 1)
        basis = self.basis if len(self.basis) == 1 else self.basis[some]
        return Directions(orthonormal(self.raw[some].detach(), basis)[0].cpu()), None
