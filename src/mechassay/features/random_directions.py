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
        d = values.base.shape[1]
        check_k(f"{self.name} at {values.site}", self.k, d)
        name = hashlib.sha256(f"{self.seed} {values.site}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(name[:7], "big"))
        return Directions(
            orthonormalised(torch.randn(d, self.k, generator=generator, dtype=torch.float64))
        )
