"""What a finder found: a featurizer for every site, and which of its features are meant.

A fit is one safetensors file with a JSON header: arrays of featurizers by their fields, and the
names of the featurizers among those of this package. It is read as data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.display import OneLine, Tabular, html_facts, html_table
from mechassay.errors import BadFile, BadUsage, first_line, one_of
from mechassay.features.featurizer import (
    Affine,
    ChosenFeatures,
    Directions,
    Featurizer,
    Identity,
    PrincipalAxes,
    n_features_of,
)
from mechassay.features.sae import SAE
from mechassay.files import read_tensors, write_tensors, write_text
from mechassay.interventions.intervention import Interchange
from mechassay.interventions.site import Site, SiteLike, load_site
from mechassay.models.model import Model

KIND = "features"
STORED: dict[str, type] = {
    kind.__name__: kind for kind in (Identity, Directions, PrincipalAxes, Affine, SAE)
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
    chosen: Mapping[Site, Bool[Tensor, "k"]] = field(default_factory=lambda: MappingProxyType({}))
    losses: Float[Tensor, "steps sites"] = field(default_factory=lambda: torch.zeros(0, 0))
    provenance: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
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
        names = {str(each): each for each in self.featurizers}
        return names[one_of("site of the fit", str(load_site(site)), names)]

    def featurizer(self, site: SiteLike) -> Featurizer:
        """The featurizer of a site.

        Raises:
            UnknownName: the fit has no such site.
        """
        return self.featurizers[self._site(site)]

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

    def directions(self, site: SiteLike) -> Float[Tensor, "d k"]:
        """The orthonormal directions whose coordinates are exchanged.

        Raises:
            UnknownName: the fit has no such site.
            BadUsage: features that are no coordinates along orthonormal directions.
        """
        at = self._site(site)
        found, chosen = self.featurizers[at], self.chosen.get(at)
        if isinstance(found, Identity) and (chosen is not None or found.width is not None):
            every = torch.eye(found.width or len(chosen if chosen is not None else ()))
        elif isinstance(found, Directions):
            every = found.vectors
        elif isinstance(found, PrincipalAxes):
            every = found.axes
        else:
            raise BadUsage(
                f"Features of a {type(found).__name__} at {at} are no coordinates along"
                " orthonormal directions."
            )
        return every if chosen is None else every[:, chosen]

    def n_features(self, site: SiteLike) -> int | None:
        """How many features are exchanged; None where the featurizer does not say."""
        at = self._site(site)
        found, chosen = self.featurizers[at], self.chosen.get(at)
        if chosen is not None:
            return int(chosen.sum())
        return n_features_of(found)

    # --- how it shows itself ----------------------------------------------------------------------

    def shown(self) -> dict[str, Any]:
        about = {name: self.provenance[name] for name in SHOWN if name in self.provenance}
        told: dict[str, Any] = {"sites": len(self), **about}
        if self.together:
            told["together"] = True
        if len(self.losses):
            told |= {"steps": len(self.losses), "last_loss": float(self.losses[-1].mean())}
        return told

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
            (site, featurizer, "" if n is None else f"{n:,}", *_told(first, last))
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

    def save(self, path: str | Path) -> Path:
        """Write the fit: a file that ends in .safetensors, or into a folder, with a JSON file
        beside it that says what it holds.

        Raises:
            BadUsage: a featurizer of another package; `STORED` are those that files may name.
        """
        tensors: dict[str, Tensor] = {"losses": self.losses}
        told: list[dict[str, Any]] = []
        for number, (site, found) in enumerate(self.featurizers.items()):
            if type(found) not in STORED.values():
                raise BadUsage(
                    f"A file of features holds {', '.join(STORED)}; {site} has a"
                    f" {type(found).__name__}."
                )
            settings: dict[str, Any] = {}
            for each in fields(found):  # pyright: ignore[reportArgumentType]
                value = getattr(found, each.name)
                if isinstance(value, Tensor):
                    # A copy: two sites may share a tensor, which a file does not.
                    tensors[f"{number}.{each.name}"] = value.detach().cpu().clone()
                else:
                    settings[each.name] = value
            if site in self.chosen:
                tensors[f"{number}.chosen"] = self.chosen[site].cpu()
            told.append({"site": str(site), "featurizer": type(found).__name__, **settings})
        header: dict[str, Any] = {
            "kind": KIND,
            "sites": told,
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
            for number, told in enumerate(header["sites"]):
                settings = dict(told)
                site = load_site(settings.pop("site"))
                kind = STORED[one_of("featurizer", settings.pop("featurizer"), STORED)]
                arrays = {
                    name.partition(".")[2]: tensor
                    for name, tensor in tensors.items()
                    if name.startswith(f"{number}.")
                }
                mask = arrays.pop("chosen", None)
                featurizers[site] = found = kind(**settings, **arrays)
                if mask is not None:
                    _check_mask(found, mask)
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
            MappingProxyType(featurizers),
            MappingProxyType(chosen),
            losses,
            MappingProxyType(provenance),
            together=together,
        )


def _file(path: Path) -> Path:
    return path if path.suffix == ".safetensors" else path / "fit.safetensors"


def _check_mask(found: Featurizer, mask: Tensor) -> None:
    known = n_features_of(found)
    if mask.dtype != torch.bool or mask.ndim != 1 or (known is not None and known != len(mask)):
        raise BadUsage(f"a mask of {tuple(mask.shape)} for {known} features")


def _told(first: float, last: float) -> tuple[str, str]:
    return ("", "") if first != first else (f"{first:.4g}", f"{last:.4g}")
