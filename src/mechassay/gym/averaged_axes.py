"""The mean of the first principal axes, as table 2b of Arora et al. (2024) has it.

    v = (v_1 + ... + v_c) / c          v_i the axes along which the bases' values vary most

An axis has no sign of its own: each points where its largest number is positive, as in
scikit-learn. One component is PCA.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from mechassay.errors import BadUsage
from mechassay.features.featurizer import Directions, Featurizer
from mechassay.features.finder import Found, ValueFinder
from mechassay.features.pca import PCA
from mechassay.registry import check_settings


@dataclass(frozen=True)
class AveragedAxes(ValueFinder):
    """One direction, the mean of some principal axes."""

    name: ClassVar[str] = "pca-mean"

    components: int = 2

    def __post_init__(self) -> None:
        check_settings(self, self.name)
        if self.components < 1:
            raise BadUsage(f"{self.name} needs components of at least 1; got {self.components}.")

    def find(self, values: Found) -> Featurizer:
        found: Any = PCA(k=self.components).find(values)
        axes = found.axes
        largest = axes.gather(0, axes.abs().argmax(dim=0)[None])
        return Directions.of((axes * torch.sign(largest)).mean(dim=1))
