"""k-means: directions between the centroids of clusters of the bases' values; labels play no part.

    v = c_2 - c_1          with two clusters (Arora et al. 2024, eq. 18)

by scikit-learn, the best of ten starts drawn from `seed`. k directions come from k + 1 clusters:
those along which the centroids vary most about their mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from sklearn.cluster import KMeans as ScikitKMeans

from mechassay.errors import BadUsage
from mechassay.features.diff_in_means import leading
from mechassay.features.directions import check_k
from mechassay.features.featurizer import Featurizer
from mechassay.features.finder import Found, ValueFinder
from mechassay.registry import check_settings


@dataclass(frozen=True)
class KMeans(ValueFinder):
    """The direction between two centroids; k of them between k + 1."""

    name: ClassVar[str] = "k-means"

    k: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self, self.name)

    def find(self, values: Found) -> Featurizer:
        who = f"{self.name} at {values.site}"
        check_k(who, self.k, values.base.shape[1])
        distinct = len(values.base.unique(dim=0))
        if distinct <= self.k:
            raise BadUsage(f"{who}: {self.k + 1} clusters need as many values; got {distinct}.")
        kind = cast(Any, ScikitKMeans)
        clusters = kind(self.k + 1, random_state=self.seed, n_init=10).fit(values.base.numpy())
        return leading(who, torch.from_numpy(clusters.cluster_centers_), self.k)
