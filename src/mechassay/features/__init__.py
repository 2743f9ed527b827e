"""Features of a site's values that carry a variable: featurizers, and what finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechassay.lazy import lazy_names

if TYPE_CHECKING:
    from mechassay.features.boundless_das import BoundlessDAS
    from mechassay.features.das import DAS
    from mechassay.features.dbm import DBM
    from mechassay.features.diff_in_means import DiffInMeans
    from mechassay.features.directions import principal_angles
    from mechassay.features.feature_interventions import ScaleFeatures, Splice
    from mechassay.features.featurizer import (
        Affine,
        ChosenFeatures,
        Directions,
        Featurizer,
        Identity,
        PrincipalAxes,
    )
    from mechassay.features.finder import Finder
    from mechassay.features.fit import Fit
    from mechassay.features.full_vector import FullVector
    from mechassay.features.kmeans import KMeans
    from mechassay.features.lda import LDA
    from mechassay.features.pca import PCA
    from mechassay.features.probe import Probe
    from mechassay.features.random_directions import RandomDirections
    from mechassay.features.sae import SAE

__all__ = [
    "DAS",
    "DBM",
    "LDA",
    "PCA",
    "SAE",
    "Affine",
    "BoundlessDAS",
    "ChosenFeatures",
    "DiffInMeans",
    "Directions",
    "Featurizer",
    "Finder",
    "Fit",
    "FullVector",
    "Identity",
    "KMeans",
    "PrincipalAxes",
    "Probe",
    "RandomDirections",
    "ScaleFeatures",
    "Splice",
    "principal_angles",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "boundless_das": "BoundlessDAS",
        "das": "DAS",
        "dbm": "DBM",
        "diff_in_means": "DiffInMeans",
        "directions": "principal_angles",
        "feature_interventions": "ScaleFeatures Splice",
        "featurizer": "Affine ChosenFeatures Directions Featurizer Identity PrincipalAxes",
        "finder": "Finder",
        "fit": "Fit",
        "full_vector": "FullVector",
        "kmeans": "KMeans",
        "lda": "LDA",
        "pca": "PCA",
        "probe": "Probe",
        "random_directions": "RandomDirections",
        "sae": "SAE",
    },
)
