"""The k directions along which sources differ most from their bases.

    source - base = U S V'          directions V[:, :k]

without a mean taken off; labels play no part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from mechassay.features.featurizer import Directions, Featurizer, check_k
from mechassay.features.finder import Found, ValueFinder


@dataclass(frozen=True)
class PairDifferences(ValueFinder):
    """The leading directions of the differences within pairs."""

    name: ClassVar[str] = "pair-differences"
    needs_source: ClassVar[bool] = True

    k: int = 1

    def find(self, values: Found) -> Featurizer:
        assert values.source is not None
        differences = values.source - values.base
        check_k(f"{self.name} at {values.site}", self.k, min(differences.shape))
        axes = torch.linalg.svd(differences, full_matrices=False).Vh
        return Directions(axes[: self.k].mT.contiguous())
