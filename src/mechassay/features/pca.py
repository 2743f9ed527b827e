"""Principal component analysis: the axes along which the bases' values vary most.

    values - mean = U S V'          axes V[:, :k], of standard deviations S / sqrt(m - 1)

Labels play no part. `k` None keeps all axes that the values have. One axis, centred, of the bases
alone is Arora et al. (2024, eq. 17); `of` "both" takes the sources' values too, as MIB's code does
(which stands the axes of standardised values beside values that are not: no option does that).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from mechassay.errors import BadUsage, one_of
from mechassay.features.directions import check_k
from mechassay.features.featurizer import Featurizer, PrincipalAxes
from mechassay.features.finder import Found, ValueFinder
from mechassay.registry import check_settings


@dataclass(frozen=True)
class PCA(ValueFinder):
    """Principal axes.

    Attributes:
        k: how many; None: all.
        centred: whether the mean is taken off.
        scaled: whether features are in standard deviations of their axis.
        of: "base" or "both".
    """

    name: ClassVar[str] = "pca"

    k: int | None = 1
    centred: bool = True
    scaled: bool = False
    of: str = "base"

    def __post_init__(self) -> None:
        one_of("values of PCA", self.of, ("base", "both"))
        if self.k is not None:
            check_settings(self, self.name)

    @property
    def needs_source(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether it looks at sources."""
        return self.of == "both"

    def find(self, values: Found) -> Featurizer:
        x = values.base
        if values.source is not None:
            x = torch.cat((x, values.source))
        mean = x.mean(dim=0) if self.centred else torch.zeros_like(x[0])
        _, sizes, axes = torch.linalg.svd(x - mean, full_matrices=False)
        least = torch.finfo(x.dtype).eps * max(x.shape) * float(sizes[0])
        rank = int((sizes > least).sum())
        who = f"{self.name} at {values.site}"
        if rank == 0:
            raise BadUsage(f"{who} needs values that vary; all {len(x)} are equal.")
        k = rank if self.k is None else self.k
        check_k(who, k, x.shape[1])
        if k > rank:
            raise BadUsage(f"{who}: {len(x)} values vary along {rank} axes; got k={k}.")
        scale = sizes[:k] / math.sqrt(max(1, len(x) - 1))
        return PrincipalAxes(
            axes[:k].mT.contiguous(), mean, scale if self.scaled else torch.ones_like(scale)
        )
