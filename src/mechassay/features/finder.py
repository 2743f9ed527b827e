"""Finders: how features of a site's values that carry a variable are found, and what was found.

A finder is fitted on interchanges (`Finder.fit`). Each is a base and a source, with what the
model says after the interchange (`labels`) and without it (`base_labels`).

    trained finders    read the labels
    `ValueFinder`      looks at values alone, grouped by their base labels where it needs classes
                       (as Arora et al. 2024, section 4.2)

A `Fit` has a featurizer for every site, and which of its features are meant. It is stored as one
safetensors file with a JSON header: the arrays of featurizers by their fields, and the names of
the featurizers among those of this package. It is read as data; nothing of a file is run.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.errors import BadFile, BadPairs, BadUsage, NonFinite, first_line, one_of
from mechassay.features.featurizer import (
    Affine,
    ChosenFeatures,
    Directions,
    Featurizer,
    Identity,
    PrincipalAxes,
    n_features_of,
)
from mechassay.features.feed_forward import FeedForward
from mechassay.features.sae import SAE
from mechassay.features.training import SiteTokens
from mechassay.interventions.intervene import site_values
from mechassay.interventions.intervention import Interchange
from mechassay.interventions.site import Site, SiteLike, load_site
from mechassay.models.memory import out_of_memory_is_an_error
from mechassay.models.model import Model
from mechassay.models.origin import origin_of
from mechassay.prompts.batch import NO_TOKEN
from mechassay.prompts.interchange_batch import InterchangeBatch, InterchangesLike
from mechassay.utils.arguments import checked
from mechassay.utils.display import BAR, OneLine, Progress, Tabular, html_facts, html_table
from mechassay.utils.files import read_tensors, write_tensors, write_text
from mechassay.utils.frozen import frozen

KIND = "features"
STORED: dict[str, type] = {
    kind.__name__: kind for kind in (Identity, Directions, PrincipalAxes, Affine, SAE, FeedForward)
}
"""Featurizers that files may name."""
SHOWN = ("finder", "model", "n_examples", "dtype")
ROWS = 12


@dataclass(frozen=True, eq=False, repr=False)
class Fit(OneLine, Tabular):
    """Features of sites.

    Attributes:
        featurizers: by site, in the order they were asked for.
        chosen: masks of the features that are meant, of sites where these are not all.
        losses: of every site, before each step of a training; no steps where nothing was trained.
        provenance: how the fit came about (finder, settings, model, data, ...).
        model: what it was found on; None where it was read from a file.
        together: whether the features of all sites are meant to be exchanged in one run.
    """

    featurizers: Mapping[Site, Featurizer]
    chosen: Mapping[Site, Bool[Tensor, "k"]] = field(default_factory=lambda: frozen({}))
    losses: Float[Tensor, "steps sites"] = field(
        default_factory=lambda: torch.zeros(0, 0, dtype=torch.float32)
    )
    provenance: Mapping[str, Any] = field(default_factory=lambda: frozen({}))
    model: Model | None = None
    together: bool = False

    @cached_property
    def sites(self) -> tuple[Site, ...]:
        """The sites, in the order they were asked for."""
        return tuple(self.featurizers)

    def __len__(self) -> int:
        return len(self.featurizers)

    def __contains__(self, site: object) -> bool:
        return isinstance(site, Site | str) and load_site(site) in self.featurizers

    def _site(self, site: SiteLike) -> Site:
        names = {str(own_site): own_site for own_site in self.featurizers}
        return names[one_of("site of the fit", str(load_site(site)), names)]

    @checked
    def featurizer(self, site: SiteLike) -> Featurizer:
        """The featurizer of a site.

        Raises:
            UnknownName: the fit has no such site.
        """
        return self.featurizers[self._site(site)]

    @checked
    def features(self, site: SiteLike) -> ChosenFeatures:
        """What `Interchange(features=...)` takes: the features of a site that are meant.

        Raises:
            UnknownName: the fit has no such site.
        """
        at = self._site(site)
        return ChosenFeatures(self.featurizers[at], self.chosen.get(at))

    def interchanges(self) -> dict[Site, Interchange]:
        """What `intervene` and `sweep` take: an interchange of each site's features."""
        return {site: Interchange(features=self.features(site)) for site in self.sites}

    @checked
    def directions(self, site: SiteLike) -> Float[Tensor, "d k"]:
        """The orthonormal directions whose coordinates are exchanged.

        Raises:
            UnknownName: the fit has no such site.
            BadUsage: features that are no coordinates along orthonormal directions.
        """
        at = self._site(site)
        featurizer, chosen = self.featurizers[at], self.chosen.get(at)
        if isinstance(featurizer, Identity) and (
            chosen is not None or featurizer.width is not None
        ):
            every = torch.eye(
                featurizer.width or len(chosen if chosen is not None else ()), dtype=torch.float32
            )
        elif isinstance(featurizer, Directions):
            every = featurizer.vectors
        elif isinstance(featurizer, PrincipalAxes):
            every = featurizer.axes
        else:
            raise BadUsage(
                f"Features of a {type(featurizer).__name__} at {at} are no coordinates along"
                " orthonormal directions."
            )
        return every if chosen is None else every[:, chosen]

    @checked
    def n_features(self, site: SiteLike) -> int | None:
        """How many features are exchanged; None where the featurizer does not say."""
        at = self._site(site)
        featurizer, chosen = self.featurizers[at], self.chosen.get(at)
        if chosen is not None:
            return int(chosen.sum())
        return n_features_of(featurizer)

    # --- how it shows itself ----------------------------------------------------------------------

    def repr_fields(self) -> dict[str, Any]:
        about = {name: self.provenance[name] for name in SHOWN if name in self.provenance}
        facts: dict[str, Any] = {"sites": len(self), **about}
        if self.together:
            facts["together"] = True
        if len(self.losses):
            facts |= {"steps": len(self.losses), "last_loss": float(self.losses[-1].mean())}
        return facts

    def columns(self) -> dict[str, list[Any]]:
        """The sites as columns: where they are, their features, first and last losses."""
        rows = [
            (
                str(site),
                site.part,
                site.layer,
                site.position,
                type(self.featurizers[site]).__name__,
                self.n_features(site),
                *self._ends(number),
            )
            for number, site in enumerate(self.sites)
        ]
        names = [
            "site",
            "part",
            "layer",
            "position",
            "featurizer",
            "features",
            "first_loss",
            "last_loss",
        ]
        return {name: [row[i] for row in rows] for i, name in enumerate(names)}

    def _ends(self, number: int) -> tuple[float, float]:
        if not len(self.losses):
            return float("nan"), float("nan")
        return float(self.losses[0, number]), float(self.losses[-1, number])

    def _repr_html_(self) -> str:
        columns = self.columns()
        table = [
            (site, featurizer, "" if n is None else f"{n:,}", *_loss_texts(first, last))
            for site, featurizer, n, first, last in zip(
                *(columns[name] for name in ("site", "featurizer", "features")),
                columns["first_loss"],
                columns["last_loss"],
                strict=True,
            )
        ]
        more = f"{len(self) - ROWS:,} more sites" if len(self) > ROWS else ""
        facts = {name: self.provenance[name] for name in SHOWN if name in self.provenance}
        headings = ("site", "featurizer", "features", "first loss", "last loss")
        return html_facts(
            f"Features of {len(self):,} sites", facts, html_table(headings, table[:ROWS], more)
        )

    # --- files ------------------------------------------------------------------------------------

    @checked
    def save(self, path: str | Path) -> Path:
        """Write the fit: a file that ends in .safetensors, or into a folder, with a JSON file
        beside it that says what it holds.

        Raises:
            BadUsage: a featurizer of another package; `STORED` are those that files may name.
        """
        tensors: dict[str, Tensor] = {"losses": self.losses}
        stored: list[dict[str, Any]] = []
        for number, (site, featurizer) in enumerate(self.featurizers.items()):
            if type(featurizer) not in STORED.values():
                raise BadUsage(
                    f"A file of features holds {', '.join(STORED)}; {site} has a"
                    f" {type(featurizer).__name__}."
                )
            settings: dict[str, Any] = {}
            for option in fields(featurizer):  # pyright: ignore[reportArgumentType]
                value = getattr(featurizer, option.name)
                if isinstance(value, Tensor):
                    # A copy: two sites may share a tensor, which a file does not.
                    tensors[f"{number}.{option.name}"] = value.detach().cpu().clone()
                else:
                    settings[option.name] = value
            if site in self.chosen:
                tensors[f"{number}.chosen"] = self.chosen[site].cpu()
            stored.append({"site": str(site), "featurizer": type(featurizer).__name__, **settings})
        header: dict[str, Any] = {
            "kind": KIND,
            "sites": stored,
            "together": self.together,
            "provenance": dict(self.provenance),
        }
        file = _file(Path(path))
        write_tensors(file, tensors, header)
        if file != Path(path):
            text = json.dumps(header, indent=1, sort_keys=True, ensure_ascii=False)
            write_text(file.with_suffix(".json"), text + "\n")
        return file

    @staticmethod
    @checked
    def load(path: str | Path) -> Fit:
        """Read a fit written by `save`, from its file or folder; nothing in it is executed.

        Raises:
            BadFile: missing, truncated, foreign, or arrays that make no featurizer.
        """
        file = _file(Path(path))
        tensors, header = read_tensors(file, KIND)
        featurizers: dict[Site, Featurizer] = {}
        chosen: dict[Site, Tensor] = {}
        try:
            for number, stored in enumerate(header["sites"]):
                settings = dict(stored)
                site = load_site(settings.pop("site"))
                kind = STORED[one_of("featurizer", settings.pop("featurizer"), STORED)]
                arrays = {
                    name.partition(".")[2]: tensor
                    for name, tensor in tensors.items()
                    if name.startswith(f"{number}.")
                }
                mask = arrays.pop("chosen", None)
                featurizers[site] = featurizer = kind(**settings, **arrays)
                if mask is not None:
                    _check_mask(featurizer, mask)
                    chosen[site] = mask
            losses, provenance = tensors["losses"], header["provenance"]
            together = header.get("together", False)
            if not isinstance(together, bool):
                raise BadUsage(f"together is {together!r}")
            if losses.ndim != 2 or losses.shape[1] not in (0, len(featurizers)):
                raise BadUsage(f"losses of shape {tuple(losses.shape)}")
        except (BadUsage, KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise BadFile(f"{file}: no file of features ({first_line(error)}).") from None
        return Fit(
            frozen(featurizers),
            frozen(chosen),
            losses,
            frozen(provenance),
            together=together,
        )


def _file(path: Path) -> Path:
    return path if path.suffix == ".safetensors" else path / "fit.safetensors"


def _check_mask(featurizer: Featurizer, mask: Tensor) -> None:
    known = n_features_of(featurizer)
    if mask.dtype != torch.bool or mask.ndim != 1 or (known is not None and known != len(mask)):
        raise BadUsage(f"a mask of {tuple(mask.shape)} for {known} features")


def _loss_texts(first: float, last: float) -> tuple[str, str]:
    return ("", "") if first != first else (f"{first:.4g}", f"{last:.4g}")


Sites = Sequence[SiteLike] | SiteLike
Init = Mapping[Any, Any] | Fit
"""By site, what a training begins with: a basis [d, d], or a featurizer; a fit has one for each."""


class Finder(Protocol):
    """Finds features of sites; a frozen dataclass whose fields are its settings."""

    name: ClassVar[str]
    version: ClassVar[int]

    def fit(
        self,
        model: Model,
        pairs: InterchangesLike,
        sites: Sites,
        *,
        init: Init | None = None,
        together: bool = False,
        progress: Progress = BAR,
    ) -> Fit:
        """Find the features of each site on pairs.

        Args:
            pairs: see `intervene`.
            sites: sites, or their spelling; one or several.
            init: by site, what a training begins with; only trained finders take it.
            together: the features of all sites are meant to be exchanged in one run, and are
                trained so (`features.training`); else each site alone.

        Raises:
            BadUsage: a site that the model does not have, k larger than a site's values, what
                `init` cannot be.
            UnknownName, BadPairs: a column that the pairs lack; classes that are not known.
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
    starts = {load_site(cast("SiteLike", site)): start for site, start in given.items()}
    strange = None if isinstance(init, Fit) else next((s for s in starts if s not in sites), None)
    if strange is not None:
        raise BadUsage(f"init has {strange}, which is not among the {len(sites)} sites of the fit.")
    return {site: start for site, start in starts.items() if site in sites}


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
        **origin_of(model),
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

    @checked
    def fit(
        self,
        model: Model,
        pairs: InterchangesLike,
        sites: Sites,
        *,
        init: Init | None = None,
        together: bool = False,
        progress: Progress = BAR,
    ) -> Fit:
        """Find the features of each site, which do not depend on `together`. Nothing is trained, so
        `init` is refused.
        """
        chosen, batch = load_sites(model, sites), model.interchanges(pairs)
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
                direction = Found(site, ours.double().cpu(), wide, classes[at.row].cpu())
                featurizers[site] = self.find(direction)
                advance(1)
        return Fit(
            frozen(featurizers),
            provenance=frozen(provenance_of(self, model, batch, chosen)),
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
