"""What every finder is, and what all share: sites, classes of examples, provenance.

A finder looks for features of a site's values that carry a variable: it is fitted on interchanges,
each a base and a source with what the model says after the interchange (`labels`) and without
(`base_labels`). Those that train read the labels; those that look at values alone group the values
of the bases by their base labels, as Arora et al. (2024, section 4.2) do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Protocol, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.errors import BadPairs, BadUsage, NonFinite
from mechassay.features.featurizer import Featurizer
from mechassay.features.fit import Fit
from mechassay.features.training_data import SiteTokens
from mechassay.interchange import InterchangeBatch, InterchangesLike
from mechassay.interventions.base_run import site_values
from mechassay.interventions.site import Site, SiteLike, load_site
from mechassay.models.memory import out_of_memory_is_an_error
from mechassay.models.model import Model
from mechassay.pairs import NO_TOKEN
from mechassay.progress import BAR, Progress

Sites = Sequence[SiteLike] | SiteLike
Init = Mapping[Any, Tensor | Featurizer] | Fit
"""By site, what a training begins with: a basis [d, d], or a featurizer; a fit has one for each."""


class Finder(Protocol):
    """Finds features of sites; a frozen dataclass whose fields are its settings."""

    name: ClassVar[str]
    version: ClassVar[int]

    def fit(
        self,
        model: Model,
        interchanges: InterchangesLike,
        sites: Sites,
        *,
        init: Init | None = None,
        together: bool = False,
        progress: Progress = BAR,
    ) -> Fit:
        """Features of every site, found on the interchanges.

        Args:
            sites: sites, or their spelling; one or several.
            init: by site, what a training begins with; only trained finders take it.
            together: the features of all sites are meant to be exchanged in one run, and are
                trained so (`features.joint_training`); else each site alone.

        Raises:
            BadUsage: a site that the model does not have, k larger than a site's values, what
                `init` cannot be.
            UnknownName, BadPairs: a column that the interchanges lack; classes that are not known.
        """
        ...


def load_sites(model: Model, sites: Sites) -> tuple[Site, ...]:
    """The sites as they are meant, if the model has them.

    Raises:
        BadUsage: none, one that cannot be read or that the model does not have, one twice.
    """
    given = [sites] if isinstance(sites, str | Site) else list(sites)
    loaded = tuple(load_site(site).check(model) for site in given)
    if not loaded:
        raise BadUsage("A fit needs at least one site, such as resid.1@last; got none.")
    twice = next((site for site in loaded if loaded.count(site) > 1), None)
    if twice is not None:
        raise BadUsage(f"A fit has every site once; {twice} is given twice.")
    return loaded


def init_of(init: Init | None, sites: Sequence[Site]) -> dict[Site, Tensor | Featurizer]:
    """What the training of each site begins with, for those that have something.

    Raises:
        BadUsage: something for a site that is not asked for.
    """
    if init is None:
        return {}
    given = init.featurizers if isinstance(init, Fit) else init
    found = {load_site(cast("SiteLike", site)): start for site, start in given.items()}
    strange = None if isinstance(init, Fit) else next((s for s in found if s not in sites), None)
    if strange is not None:
        raise BadUsage(f"init has {strange}, which is not among the {len(sites)} sites of the fit.")
    return {site: start for site, start in found.items() if site in sites}


def classes_of(who: str, batch: InterchangeBatch) -> Int[Tensor, "n"]:
    """The class of each base, which is its label; numbered as they come.

    Raises:
        BadPairs: a base label that is not known; fewer than two different ones.
    """
    labels = batch.base_labels
    unknown = None if labels is None else (labels == NO_TOKEN).all(dim=1)
    if labels is None or unknown is None or bool(unknown.any()):
        row = 0 if unknown is None else int(unknown.int().argmax())
        raise BadPairs(
            f"{who} needs the label of every base (base_labels); pair {batch.ids[row]} has none."
        )
    kinds, number = torch.unique(labels, dim=0, return_inverse=True)
    if len(kinds) < 2:
        raise BadPairs(f"{who} needs bases of at least two labels; all {len(batch)} have one.")
    rows = torch.arange(len(batch), device=labels.device)
    first = rows.new_full((len(kinds),), len(batch)).scatter_reduce(0, number, rows, "amin")
    return first.argsort().argsort()[number]


def provenance_of(
    finder: Finder, model: Model, batch: InterchangeBatch, sites: Sequence[Site]
) -> dict[str, Any]:
    """How a fit came about."""
    return {
        "finder": finder.name,
        "finder_version": finder.version,
        "settings": asdict(cast(Any, finder)),
        "model": model.name,
        "n_examples": len(batch),
        "n_sites": len(sites),
        "data_hash": batch.content_hash,
        "dtype": str(model.dtype).removeprefix("torch."),
    }


@dataclass(frozen=True, eq=False)
class Found:
    """What a finder that looks at values sees of one site.

    Attributes:
        base: values of the bases, in fp64 on the CPU; several a row where the site has several
            tokens.
        source: values of the sources, where the finder reads them.
        classes: of each value; all 0 where the finder does not read them.
    """

    site: Site
    base: Float[Tensor, "m d"]
    source: Float[Tensor, "m d"] | None
    classes: Int[Tensor, "m"]


class ValueFinder(ABC):
    """A finder whose features follow from the values at a site, without any training."""

    name: ClassVar[str]
    version: ClassVar[int] = 1
    needs_classes: ClassVar[bool] = False
    needs_source: ClassVar[bool] = False

    @abstractmethod
    def find(self, values: Found) -> Featurizer:
        """The features of one site."""

    def fit(
        self,
        model: Model,
        interchanges: InterchangesLike,
        sites: Sites,
        *,
        init: Init | None = None,
        together: bool = False,
        progress: Progress = BAR,
    ) -> Fit:
        """See `Finder.fit`; nothing is trained, so `init` is refused, and the features of a site
        are the same whether sites are meant together or not.
        """
        chosen, batch = load_sites(model, sites), model.interchanges(interchanges)
        if init is not None:
            raise BadUsage(f"{self.name} trains nothing, so it takes no init.")
        tokens = [SiteTokens.of(batch, site) for site in chosen]
        classes = torch.zeros(len(batch), dtype=torch.long, device=batch.base.device)
        if self.needs_classes:
            classes = classes_of(self.name, batch)
        featurizers: dict[Site, Featurizer] = {}
        with (
            progress.track(self.name, len(chosen)) as advance,
            out_of_memory_is_an_error(self.name),
            torch.no_grad(),
        ):
            base = values_at(model, batch, chosen, tokens)
            source = self._sources(model, batch, chosen, tokens)
            for site, at, ours, theirs in zip(chosen, tokens, base, source, strict=True):
                if not bool(torch.isfinite(ours).all()):
                    raise NonFinite(f"{self.name}: values at {site} are NaN or infinite.")
                wide = None if theirs is None else theirs.double().cpu()
                found = Found(site, ours.double().cpu(), wide, classes[at.row].cpu())
                featurizers[site] = self.find(found)
                advance(1)
        return Fit(
            MappingProxyType(featurizers),
            provenance=MappingProxyType(provenance_of(self, model, batch, chosen)),
            model=model,
            together=together,
        )

    def _sources(
        self,
        model: Model,
        batch: InterchangeBatch,
        sites: Sequence[Site],
        tokens: Sequence[SiteTokens],
    ) -> Sequence[Tensor | None]:
        if not self.needs_source:
            return [None] * len(sites)
        return values_at(model, batch, sites, tokens, source=True)


def values_at(
    model: Model,
    batch: InterchangeBatch,
    sites: Sequence[Site],
    tokens: Sequence[SiteTokens],
    *,
    source: bool = False,
) -> list[Float[Tensor, "_ _"]]:
    """What sites have at their tokens of the bases, or of the sources."""
    if source:
        wanted = [(s, at.row, at.source) for s, at in zip(sites, tokens, strict=True)]
        return site_values(model, batch.source, batch.source_mask, wanted)
    wanted = [(s, at.row, at.base) for s, at in zip(sites, tokens, strict=True)]
    return site_values(model, batch.base, batch.base_mask, wanted)
