"""Features of a site's values that carry a variable: featurizers, and what finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mechassay.utils.registry import lazy_names

if TYPE_CHECKING:
    from mechassay.features.das import DAS, BoundlessDAS
    from mechassay.features.dbm import DBM
    from mechassay.features.featurizer import (
        Affine,
        ChosenFeatures,
        Directions,
        Featurizer,
        Identity,
        PrincipalAxes,
        ScaleFeatures,
        Splice,
        principal_angles,
    )
    from mechassay.features.feed_forward import FeedForward
    from mechassay.features.finder import Finder, Fit
    from mechassay.features.probes import (
        LDA,
        PCA,
        DiffInMeans,
        FullVector,
        KMeans,
        Probe,
        RandomDirections,
    )
    from mechassay.features.sae import SAE

__all__ = [
    "DAS",
    "DBM",
    "LDA",
    "PCA",
    "SAE",
    "Affine",
    "Architecture",
    "BoundlessDAS",
    "ChosenFeatures",
    "DiffInMeans",
    "Directions",
    "Featurizer",
    "FeedForward",
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

Architecture = Literal["topk", "jumprelu"]
"""SAEs that can be trained."""

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "das": "BoundlessDAS DAS",
        "dbm": "DBM",
        "featurizer": "Affine ChosenFeatures Directions Featurizer Identity PrincipalAxes"
        " ScaleFeatures Splice principal_angles",
        "feed_forward": "FeedForward",
        "finder": "Finder Fit",
        "probes": "DiffInMeans FullVector KMeans LDA PCA Probe RandomDirections",
        "sae": "SAE",
    },
)
