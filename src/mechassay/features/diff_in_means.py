"""Difference of means: the direction between the mean values of two classes.

    v = mean of the second class - mean of the first          (Arora et al. 2024, eq. 14)

Classes are the bases' labels, numbered as they come. With more than two classes, the directions
along which the class means vary most about their own mean: its leading left singular vectors, which
for two classes are v itself. Every class counts once, however many bases it has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.features.directions import check_k
from mechassay.features.featurizer import Directions, Featurizer
from mechassay.features.finder import Found, ValueFinder
from mechassay.registry import check_settings


@dataclass(frozen=True)
class DiffInMeans(ValueFinder):
    """The direction between class means; k of them, with more than k classes."""

    name: ClassVar[str] = "diff-in-means"
    needs_classes: ClassVar[bool] = True

    k: int = 1

    def __post_init__(self) -> None:
        check_settings(self, self.name)

    def find(self, values: Found) -> Featurizer:
        means = class_means(values.base, values.classes)
        return leading(f"{self.name} at {values.site}", means, self.k)


def class_means(
    values: Float[Tensor, "m d"], classes: Int[Tensor, "m"]
) -> Float[Tensor, "classes d"]:
    """The mean value of each class."""
    n = int(classes.max()) + 1
    sums = values.new_zeros(n, values.shape[1]).index_add(0, classes, values)
    return sums / torch.bincount(classes, minlength=n)[:, None]


def leading(who: str, rows: Float[Tensor, "classes d"], k: int) -> Directions:
    """The k directions along which rows vary most about their mean; each points from the first row
    to the last one.

    Raises:
        BadUsage: k is no number of directions that the rows can have, or they do not vary in as
            many.
    """
    check_k(who, k, rows.shape[1])
    if k >= len(rows):
        raise BadUsage(f"{who}: {len(rows)} classes have {len(rows) - 1} directions; got k={k}.")
    centred = rows - rows.mean(dim=0)
    _, sizes, axes = torch.linalg.svd(centred, full_matrices=False)
    least = torch.finfo(rows.dtype).eps * max(rows.shape) * float(rows.norm())
    if float(sizes[k - 1]) <= least:
        raise BadUsage(f"{who}: the classes differ along fewer than k={k} directions.")
    found = axes[:k].mT
    sense = torch.sign((rows[-1] - rows[0]) @ found)
    return Directions((found * torch.where(sense == 0, 1.0, sense)).contiguous())
