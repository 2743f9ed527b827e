"""Fits of many finders that look at values, from one run of the bases.

A finder may find nothing at a site: LDA where values do not vary within their classes, a penalty
that leaves no weight. The fit then lacks the site, and the reason is kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.errors import BadUsage, NonFinite
from mechassay.features.featurizer import Featurizer
from mechassay.features.finder import (
    Found,
    ValueFinder,
    classes_of,
    provenance_of,
    values_at,
)
from mechassay.features.fit import Fit
from mechassay.features.training_data import SiteTokens
from mechassay.interchange import InterchangeBatch
from mechassay.interventions.site import Site
from mechassay.models.model import Model


@dataclass(frozen=True, eq=False)
class BaseValues:
    """The values of the bases at some sites, in fp64 on the CPU.

    Attributes:
        classes: of each base, by its label's type; numbered as they come.
    """

    model: Model
    batch: InterchangeBatch
    values: dict[Site, Float[Tensor, "n d"]]
    classes: Int[Tensor, "n"]

    @staticmethod
    def of(
        model: Model,
        batch: InterchangeBatch,
        sites: tuple[Site, ...],
        classes: Int[Tensor, "n"] | None = None,
    ) -> BaseValues:
        """Run the bases once.

        Args:
            classes: of each base; by its label if not given.

        Raises:
            NonFinite: a value is NaN or infinite.
        """
        tokens = [SiteTokens.of(batch, site) for site in sites]
        with torch.no_grad():
            found = values_at(model, batch, list(sites), tokens)
        values = {site: x.double().cpu() for site, x in zip(sites, found, strict=True)}
        for site, x in values.items():
            if not bool(torch.isfinite(x).all()):
                raise NonFinite(f"Values at {site} are NaN or infinite.")
        own = classes_of("A gym method", batch) if classes is None else classes
        return BaseValues(model, batch, values, own.cpu())

    def fit(
        self, finder: ValueFinder, *, shuffle: int | None = None
    ) -> tuple[Fit, dict[Site, str]]:
        """What a finder finds, and why it finds nothing at the sites that the fit lacks.

        Args:
            shuffle: a seed: classes are dealt out anew among the bases.

        Raises:
            BadUsage: it finds nothing at any site, for the reason of the first.
        """
        classes = self.classes
        if shuffle is not None:
            generator = torch.Generator().manual_seed(shuffle)
            classes = classes[torch.randperm(len(classes), generator=generator)]
        featurizers: dict[Site, Featurizer] = {}
        lacking: dict[Site, str] = {}
        for site, values in self.values.items():
            try:
                featurizers[site] = finder.find(Found(site, values, None, classes))
            except BadUsage as reason:
                lacking[site] = str(reason)
        about = provenance_of(finder, self.model, self.batch, list(self.values))
        if shuffle is not None:
            about["shuffled"] = shuffle
        fit = Fit(MappingProxyType(featurizers), provenance=MappingProxyType(about))
        return fit, lacking
