"""Features of a site's values that carry a variable: featurizers, and what finds them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mechassay.utils.registry import lazy_exports as _lazy_exports

if TYPE_CHECKING:
    from mechassay.features.das import DAS as DAS
    from mechassay.features.das import BoundlessDAS as BoundlessDAS
    from mechassay.features.dbm import DBM as DBM
    from mechassay.features.featurizer import Affine as Affine
    from mechassay.features.featurizer import ChosenFeatures as ChosenFeatures
    from mechassay.features.featurizer import Directions as Directions
    from mechassay.features.featurizer import Featurizer as Featurizer
    from mechassay.features.featurizer import Identity as Identity
    from mechassay.features.featurizer import PrincipalAxes as PrincipalAxes
    from mechassay.features.featurizer import ScaleFeatures as ScaleFeatures
    from mechassay.features.featurizer import Splice as Splice
    from mechassay.features.featurizer import principal_angles as principal_angles
    from mechassay.features.feed_forward import FeedForward as FeedForward
    from mechassay.features.finder import Finder as Finder
    from mechassay.features.finder import Fit as Fit
    from mechassay.features.probes import LDA as LDA
    from mechassay.features.probes import PCA as PCA
    from mechassay.features.probes import DiffInMeans as DiffInMeans
    from mechassay.features.probes import FullVector as FullVector
    from mechassay.features.probes import KMeans as KMeans
    from mechassay.features.probes import Probe as Probe
    from mechassay.features.probes import RandomDirections as RandomDirections
    from mechassay.features.sae import SAE as SAE

Architecture = Literal["topk", "jumprelu"]
"""SAEs that can be trained."""

__all__, __getattr__, __dir__ = _lazy_exports(__name__, __file__, "Architecture")
