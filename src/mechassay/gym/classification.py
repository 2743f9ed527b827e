"""How well what a method found tells the types of sentences apart, with no intervention.

    right = the nearest class mean of the train bases, along the directions of the method, is that
            of the sentence's own type

Arora et al. (2024, appendix B) report the accuracy of probes on the evaluation set beside the log
odds-ratio: a high accuracy says that a feature can be read, the odds that it is used. They take
the probe's own bias. Here the boundary lies halfway between the means of two classes, for every
method alike; train classes are of one size, as each pair is followed by its swap. Of each layer
the region counts that is best on validation items, then layers are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.features.featurizer import decoder_of
from mechassay.features.finder import Fit
from mechassay.interventions.site import Site

Values = Mapping[Site, Float[Tensor, "n d"]]


def nearest_class(
    train: Float[Tensor, "m k"], classes: Int[Tensor, "m"], values: Float[Tensor, "n k"]
) -> Int[Tensor, "n"]:
    """The class of the nearest mean of each value, the first of several."""
    kinds = classes.unique()
    means = torch.stack([train[classes == kind].mean(dim=0) for kind in kinds])
    return kinds[torch.cdist(values, means).argmin(dim=1)]


def _coordinates(fit: Fit, site: Site, values: Float[Tensor, "n d"]) -> Float[Tensor, "n k"]:
    """The features that are meant at a site, in fp64 on the CPU."""
    featurizer, chosen = fit.featurizers[site], fit.chosen.get(site)
    matrix = decoder_of(featurizer)
    device = values.device if matrix is None else matrix.device
    features = featurizer.encode(values.float().to(device)).double().cpu()
    return features if chosen is None else features[:, chosen.cpu()]


def told_apart(
    fits: Sequence[Fit],
    sites: Sequence[Site],
    train: Values,
    train_classes: Int[Tensor, "m"],
    values: Values,
    classes: Int[Tensor, "n"],
) -> Bool[np.ndarray, "fits n sites"]:
    """Whether each sentence gets its own type, by what each fit found at each site; never where it
    found nothing.
    """
    right = np.zeros((len(fits), len(classes), len(sites)), dtype=bool)
    for number, fit in enumerate(fits):
        for place, site in enumerate(sites):
            if site not in fit:
                continue
            known, asked = (_coordinates(fit, site, own[site]) for own in (train, values))
            predicted = nearest_class(known, train_classes, asked)
            right[number, :, place] = (predicted == classes).numpy()
    return right
