"""MIB's numbers of a variable in a model (Mueller et al. 2025, table 3), by its public code.

    1  at each site the mean over kinds of counterfactuals of the interchange accuracy
    2  of each layer the position where that is highest, on the test pairs themselves
    3  the mean over layers, and the highest layer

Its evaluator of submissions takes the layers that have any features, and exchanges the whole value
at those of the task's positions that have none. A layer's number may so be the whole vector's, and
say nothing of the features: `LayerBest.whole`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mechassay.interventions.site import Site
from mechassay.variables.interchange_accuracy import RESULT, InterchangeAccuracy


class LayerBest(NamedTuple):
    """The best position of a layer.

    Attributes:
        whole: whether the whole value is exchanged there, for want of features.
        accuracy: the mean over kinds of counterfactuals.
    """

    site: Site
    whole: bool
    accuracy: float


def best_of_layers(
    features: Sequence[InterchangeAccuracy], full: InterchangeAccuracy | None = None
) -> tuple[LayerBest, ...]:
    """The best position of each layer that has features, in the order of layers.

    Args:
        features: of the same pairs, each with a number of features.
        full: whole values, of which those at sites without features count.
    """
    own = {site for measured in features for site in measured.sites}
    layers = {site.layer for site in own}
    best: dict[int, LayerBest] = {}
    for whole, measured in [*((False, f) for f in features), *([(True, full)] if full else ())]:
        kinds = np.array(measured.kinds)
        right = measured.right[RESULT]
        by_kind = np.stack([right[kinds == kind].mean(axis=0) for kind in sorted(set(kinds))])
        for site, value in zip(measured.sites, by_kind.mean(axis=0), strict=True):
            if site.layer not in layers or (whole and site in own):
                continue
            if site.layer not in best or value > best[site.layer].accuracy:
                best[site.layer] = LayerBest(site, whole, float(value))
    return tuple(best[layer] for layer in sorted(best))
