"""k random orthonormal directions, uniform over all: a control that finds nothing.

The share of s - b that they carry is k/d on average. Sites of one width get different directions of
one seed, by their names, whatever other sites are asked for.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import ClassVar

import torch

from mechassay.features.directions import check_k, orthonormalised
from mechassay.features.featurizer import Directions, Featurizer
from mechassay.features.finder import Found, ValueFinder
from mechassay.interventions.site import Site
from mechassay.registry import check_settings


@dataclass(frozen=True)
class RandomDirections(ValueFinder):
    """k random directions."""

    name: ClassVar[str] = "random"

    k: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self, self.name)

    def find(self, values: Found) -> Featurizer:
        return random_directions(values.site, values.base.shape[1], self.k, self.seed)


def random_directions(site: Site, width: int, k: int, seed: int) -> Directions:
    """k random directions among a site's `width` numbers.

    Raises:
        BadUsage: k that is not from 1 to the width.
    """
    check_k(f"{RandomDirections.name} at {site}", k, width)
    name = hashlib.sha256(f"{seed} {site}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(name[:7], "big"))
    return Directions(
        orthonormalised(torch.randn(width, k, generator=generator, dtype=torch.float64))
    )
