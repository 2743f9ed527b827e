"""Linear discriminant analysis: the mean difference in units of the variance within classes.

    v = S^-1 (m_2 - m_1)          S the classes' common covariance (Arora et al. 2024, eq. 16)

by scikit-learn: its singular value solver, whose rule for rank-deficient S (more dimensions than
examples) is what the paper's numbers rest on, or with `shrinkage` of S towards a multiple of the
identity ("auto": Ledoit and Wolf 2004) its least squares solver. With more than two classes, the
directions along which the discriminants S^-1 m_c vary most.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from mechassay.errors import BadUsage
from mechassay.features.diff_in_means import class_means, leading
from mechassay.features.featurizer import Directions, Featurizer
from mechassay.features.finder import Found, ValueFinder
from mechassay.registry import check_settings


@dataclass(frozen=True)
class LDA(ValueFinder):
    """Discriminant directions.

    Attributes:
        shrinkage: None, "auto", or a share from 0 to 1.
    """

    name: ClassVar[str] = "lda"
    needs_classes: ClassVar[bool] = True

    k: int = 1
    shrinkage: float | str | None = None

    def __post_init__(self) -> None:
        check_settings(self, self.name)
        own = self.shrinkage
        if not (own is None or own == "auto" or (isinstance(own, float | int) and 0 <= own <= 1)):
            raise BadUsage(f"lda has a shrinkage of None, 'auto' or 0 to 1; got {own!r}.")

    def find(self, values: Found) -> Featurizer:
        within = values.base - class_means(values.base, values.classes)[values.classes]
        least = torch.finfo(within.dtype).eps * len(within) * float(values.base.abs().max())
        if float(within.abs().max()) <= least:
            raise BadUsage(
                f"{self.name} at {values.site} needs values that vary within their classes; got"
                f" {len(within)} that do not."
            )
        kind = cast(Any, LinearDiscriminantAnalysis)
        solver = "svd" if self.shrinkage is None else "lsqr"
        analysis = kind(solver=solver, shrinkage=self.shrinkage)
        with warnings.catch_warnings():
            # Rank-deficient covariances are what this is about.
            warnings.simplefilter("ignore")
            analysis.fit(values.base.numpy(), values.classes.numpy())
        rows = torch.from_numpy(analysis.coef_)
        if len(rows) > 1:
            return leading(f"{self.name} at {values.site}", rows, self.k)
        if self.k != 1:
            raise BadUsage(
                f"{self.name} at {values.site}: two classes have one direction; got k={self.k}."
            )
        return Directions.of(rows[0])
