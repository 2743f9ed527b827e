"""Directions that follow from the values at a site, without any training, and two baselines.

    DiffInMeans        the direction between the mean values of two classes
    LDA                the same in units of the variance within classes
    Probe              logistic regression of the labels on the values
    KMeans             directions between centroids of clusters; labels play no part
    PCA                the axes along which values vary most; labels play no part
    RandomDirections   a control that finds nothing
    FullVector         the whole value: what an interchange of the site can do at most

Values are those of the bases, and the class of a base is its label (Arora et al. 2024, section
4.2). Where there are more than two classes, k directions are those along which the vectors of
the classes (means, weights, discriminants) vary most about their own mean (`leading`).
"""

from __future__ import annotations

import hashlib
import math
import warnings
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, cast

import torch
from jaxtyping import Float, Int
from sklearn.cluster import KMeans as ScikitKMeans
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from mechassay.errors import BadUsage, one_of
from mechassay.features.featurizer import (
    Directions,
    Featurizer,
    Identity,
    PrincipalAxes,
    check_k,
    orthonormalised,
)
from mechassay.features.finder import Found, ValueFinder
from mechassay.interventions.site import Site
from mechassay.utils.settings import Within, check_settings, checked_settings


@dataclass(frozen=True)
@checked_settings
class DiffInMeans(ValueFinder):
    """The direction between class means; k of them, with more than k classes.

        v = mean of the second class - mean of the first          (Arora et al. 2024, eq. 14)

    Classes are the bases' labels, numbered as they come. With more than two classes, the
    directions are those along which the class means vary most about their own mean: the leading
    left singular vectors, which for two classes are v itself. Every class counts once, however
    many bases it has.
    """

    name: ClassVar[str] = "diff-in-means"
    needs_classes: ClassVar[bool] = True

    k: int = 1

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
    directions = axes[:k].mT
    sense = torch.sign((rows[-1] - rows[0]) @ directions)
    return Directions((directions * torch.where(sense == 0, 1.0, sense)).contiguous())


@dataclass(frozen=True)
class FullVector(ValueFinder):
    """All numbers of a site as one feature: what an interchange of it can do at most.

    Also the first baseline of Mueller et al. (2025, section 4.1), and the "vanilla" interchange
    of Arora et al. (2024).
    """

    name: ClassVar[str] = "full-vector"

    def find(self, values: Found) -> Featurizer:
        return Identity(values.base.shape[1])


@dataclass(frozen=True)
@checked_settings
class KMeans(ValueFinder):
    """The direction between two centroids; k of them between k + 1.

        v = c_2 - c_1          with two clusters (Arora et al. 2024, eq. 18)

    The clusters of the bases' values are scikit-learn's, the best of ten starts drawn from
    `seed`. k directions come from k + 1 clusters: those along which the centroids vary most
    about their mean. Labels play no part.
    """

    name: ClassVar[str] = "k-means"

    k: int = 1
    seed: int = 0

    def find(self, values: Found) -> Featurizer:
        who = f"{self.name} at {values.site}"
        check_k(who, self.k, values.base.shape[1])
        distinct = len(values.base.unique(dim=0))
        if distinct <= self.k:
            raise BadUsage(f"{who}: {self.k + 1} clusters need as many values; got {distinct}.")
        kind = cast(Any, ScikitKMeans)
        clusters = kind(self.k + 1, random_state=self.seed, n_init=10).fit(values.base.numpy())
        return leading(who, torch.from_numpy(clusters.cluster_centers_), self.k)


@dataclass(frozen=True)
@checked_settings
class LDA(ValueFinder):
    """Discriminant directions: the mean difference in units of the variance within classes.

        v = S^-1 (m_2 - m_1)      S the classes' common covariance (Arora et al. 2024, eq. 16)

    by scikit-learn. Without `shrinkage` its singular value solver is used; the paper's numbers
    rest on this solver's rule for a rank-deficient S (more dimensions than examples). With
    `shrinkage` of S towards a multiple of the identity ("auto": Ledoit and Wolf 2004) its least
    squares solver is used. With more than two classes, the directions are those along which the
    discriminants S^-1 m_c vary most.

    Attributes:
        shrinkage: None, "auto", or a share from 0 to 1.
    """

    name: ClassVar[str] = "lda"
    needs_classes: ClassVar[bool] = True

    k: int = 1
    shrinkage: float | str | None = None

    def __post_init__(self) -> None:
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


@dataclass(frozen=True)
class PCA(ValueFinder):
    """Principal axes, along which the bases' values vary most.

        values - mean = U S V'          axes V[:, :k], of standard deviations S / sqrt(m - 1)

    Labels play no part. One axis, centred, of the bases alone is Arora et al. (2024, eq. 17).
    `of` "both" takes the sources' values too, as MIB's code does. (That code stands the axes of
    standardised values beside values that are not standardised; no option does that.)

    Attributes:
        k: how many; None: all that the values have.
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


@dataclass(frozen=True)
@checked_settings
class Probe(ValueFinder):
    """Directions of a linear probe: logistic regression of the bases' labels on values at a site.

        minimise   sum over bases of -log softmax(W h + b)[label]  +  l2 / 2 |W|^2

    to its optimum, which is unique. W is a sum of centred values, so the problem is solved in
    their span, which has at most as many dimensions as there are bases. scikit-learn's L-BFGS
    solves it in fp64 until the gradient vanishes. With two classes there is one direction w
    (the logit is w h + b, the penalty l2 / 2 |w|^2); with more, those along which the classes'
    weights vary most.

    Arora et al. (2024, appendix C) have l2 from 10 to 1e7, by model, and stop the SAGA solver
    after 1,000 iterations: cosines of .93 to 1 with this optimum.

    Attributes:
        l2: the weight of the penalty; scikit-learn's C is 1 / l2.
    """

    name: ClassVar[str] = "probe"
    needs_classes: ClassVar[bool] = True

    k: int = 1
    l2: Annotated[float, Within(above=0)] = 1.0

    def find(self, values: Found) -> Featurizer:
        if len(values.base.unique(dim=0)) < 2:
            raise BadUsage(f"{self.name} at {values.site} needs values that vary; all are equal.")
        weights, _ = logistic_weights(values.base, values.classes, self.l2)
        if len(weights) > 1:
            return leading(f"{self.name} at {values.site}", weights, self.k)
        if self.k != 1:
            raise BadUsage(
                f"{self.name} at {values.site}: two classes have one direction; got k={self.k}."
            )
        return Directions.of(weights[0])


def logistic_weights(
    values: Float[Tensor, "m d"], classes: Int[Tensor, "m"], l2: float
) -> tuple[Float[Tensor, "rows d"], Float[Tensor, "rows"]]:
    """Weights and biases of the optimum: one row for two classes, else one a class."""
    mean = values.mean(dim=0)
    _, sizes, axes = torch.linalg.svd(values - mean, full_matrices=False)
    kept = sizes > torch.finfo(values.dtype).eps * max(values.shape) * float(sizes[0])
    axes = axes[kept]
    if not len(axes):
        raise BadUsage("A probe needs values that vary; all are equal.")
    # In units of the largest spread the solver's tolerance means the same for all values.
    unit = float(sizes[0]) / max(1.0, len(values)) ** 0.5
    kind = cast(Any, LogisticRegression)
    probe = kind(C=unit**2 / l2, tol=1e-10, max_iter=100_000)
    probe.fit(((values - mean) @ axes.mT / unit).numpy(), classes.numpy())
    weights = torch.from_numpy(probe.coef_) / unit @ axes
    return weights, torch.from_numpy(probe.intercept_) - weights @ mean


@dataclass(frozen=True)
@checked_settings
class RandomDirections(ValueFinder):
    """k random orthonormal directions, uniform over all: a control that finds nothing.

    The share of s - b that they carry is k/d on average. Sites of one width get different
    directions of one seed, by their names, whatever other sites are asked for.
    """

    name: ClassVar[str] = "random"

    k: int = 1
    seed: int = 0

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
