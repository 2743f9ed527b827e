"""The whole value of a site as one feature: what an interchange of it can do at most.

Also the first baseline of Mueller et al. (2025, section 4.1), and the "vanilla" interchange of
Arora et al. (2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mechassay.features.featurizer import Featurizer, Identity
from mechassay.features.finder import Found, ValueFinder


@dataclass(frozen=True)
class FullVector(ValueFinder):
    """All numbers of a site."""

    name: ClassVar[str] = "full-vector"

    def find(self, values: Found) -> Featurizer:
        return Identity(values.base.shape[1])
