"""Interchange intervention accuracy: does the model say what the causal model expects?

    IIA = share of pairs whose whole label is what greedy decoding writes after the interchange

of the features of a fit, at each of its sites alone (Geiger et al. 2021; Mueller et al. 2025,
section 4.1). Labels are compared token by token, over all of their tokens; MIB's code takes a label
that is found anywhere in the text. Beside every number stand what it would be

    no intervention   with the base run as it is
    full vector       with the source's whole value at the site
    random            with as many random directions as the fit has features, one draw a site

A variable lives in features if these do what the whole vector does, and random ones of their
number do not. Where no intervention is right already, the pairs cannot tell. A batch holds one
label a row: where several are right, as in greater-than, others count as wrong, and a warning says
how many rows that is. Labels of the linear IOI model are no expectation of what is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from mechassay.display import OneLine, Tabular, html_facts, html_note, html_table
from mechassay.errors import BadUsage, one_of
from mechassay.features.fit import Fit
from mechassay.features.random_directions import RandomDirections
from mechassay.interchange import InterchangeBatch, InterchangesLike
from mechassay.interventions.intervention import Interchange
from mechassay.interventions.site import Site, SiteLike, load_site
from mechassay.interventions.sweep import SiteSweep, mean_estimates, sweep
from mechassay.models.model import Model
from mechassay.progress import BAR, Progress
from mechassay.stats.intervals import Estimate, proportion_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NOTHING, FULL, RANDOM = "no intervention", "full vector", "random"
RESULT = "features"
KINDS = (RESULT, NOTHING, FULL, RANDOM)
"""What numbers are of: the features, and their controls."""


@dataclass(frozen=True, eq=False, repr=False)
class InterchangeAccuracy(OneLine, Tabular):
    """Whether the label is written after an interchange at each of k sites; n pairs.

    Attributes:
        right: by what it is of (see `KINDS`), of every pair and site.
        log_odds: alike, towards the label, in nats; NaN where the base's own label is not known.
        warnings: what a reader has to know.
        n_features: of each site; None where the featurizer does not say, and there is no random
            control.
    """

    sites: tuple[Site, ...]
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    right: Mapping[str, Bool[np.ndarray, "n k"]]
    log_odds: Mapping[str, Float[np.ndarray, "n k"]]
    n_features: tuple[int | None, ...]
    seed: int = 0
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def shown(self) -> dict[str, Any]:
        site = self.best
        told = {of: self.estimate(site, of).value for of in self.right}
        return {"n": len(self), "sites": len(self.sites), "best": str(site), **told}

    @property
    def best(self) -> Site:
        """The site of the highest accuracy, the first of several. On these pairs: choose on others
        than you report.
        """
        return self.sites[int(self.right[RESULT].mean(axis=0).argmax())]

    def estimate(self, site: SiteLike, of: str = RESULT) -> Estimate:
        """The accuracy of one site with its 95 % interval over groups.

        Raises:
            UnknownName: no such site; no such control.
        """
        names = [str(each) for each in self.sites]
        column = names.index(one_of("site of the fit", str(load_site(site)), names))
        right = self.right[one_of("control", of, self.right)][:, column]
        low, high, _ = proportion_interval(right.astype(float), self.groups)
        return Estimate(float(right.mean()), low, high)

    def columns(self) -> dict[str, list[Any]]:
        """A row a site and what it is of: accuracy and mean log-odds, with intervals."""
        rows: list[tuple[Any, ...]] = []
        for of in self.right:
            odds = mean_estimates(self.log_odds[of], self.groups, self.seed)
            for number, site in enumerate(self.sites):
                found = self.estimate(site, of)
                rows.append(
                    (
                        str(site),
                        site.layer,
                        str(site.position),
                        of,
                        self.n_features[number],
                        *(found.value, found.low, found.high),
                        *(odds[number].value, odds[number].low, odds[number].high),
                        len(self),
                    )
                )
        names = ("site", "layer", "position", "of", "features", "accuracy", "low", "high")
        names += ("log_odds", "log_odds_low", "log_odds_high", "n")
        return {name: [row[i] for row in rows] for i, name in enumerate(names)}

    def plot(self, ax: Axes | None = None) -> Figure:
        """Accuracy against layers: the features and their controls, a line each and position."""
        from mechassay.interventions.heat_map import draw_lines

        lines = {
            f"{of} @{position}": [
                (site.layer, self.estimate(site, of))
                for site in self.sites
                if site.position == position
            ]
            for position in dict.fromkeys(site.position for site in self.sites)
            for of in self.right
        }
        return draw_lines(lines, "interchange intervention accuracy", ax=ax)

    def _repr_html_(self) -> str:
        rows = [
            (str(site), *(f"{self.estimate(site, of).value:.3f}" for of in self.right))
            for site in self.sites
        ]
        table = html_table(("site", *self.right), rows[:30])
        notes = map(html_note, self.warnings)
        facts = {"pairs": len(self)}
        return html_facts("Interchange intervention accuracy", facts, table, *notes)


def accuracy(
    fit: Fit,
    batch: InterchangesLike,
    *,
    model: Model | None = None,
    seed: int = 0,
    progress: Progress = BAR,
) -> InterchangeAccuracy:
    """Interchange intervention accuracy of a fit on pairs, with its controls.

    Args:
        batch: other pairs than the fit was found on, with the labels of a causal model
            (`expected_labels`).
        model: for a fit that was read from a file; else the one it was found on.
        seed: of the random directions and of the bootstrap.

    Raises:
        BadUsage: a fit without a model, or whose sites are meant together. Others as `sweep`.
    """
    model = fit.model if model is None else model
    if model is None:
        raise BadUsage("accuracy needs model=..., as this fit was read from a file.")
    if fit.together:
        raise BadUsage(
            "accuracy exchanges each site alone, and the sites of this fit are meant together: use"
            " intervene(model, pairs, fit.interchanges()), or squared_error."
        )
    ready, sites = model.interchanges(batch), fit.sites
    sizes = tuple(fit.n_features(site) for site in sites)

    def swept(how: Mapping[Site, Interchange]) -> SiteSweep:
        return sweep(model, ready, tuple(how), how, seed=seed, progress=progress)

    found = {
        RESULT: swept({site: Interchange(features=fit.features(site)) for site in sites}),
        FULL: swept({site: Interchange() for site in sites}),
    }
    if all(size is not None for size in sizes):
        fits = {
            site: RandomDirections(k=size, seed=seed).fit(model, ready, [site], progress=progress)
            for site, size in zip(sites, sizes, strict=True)
            if size
        }
        # No feature at all is what random ones of that number are.
        how = {site: Interchange(features=each.features(site)) for site, each in fits.items()}
        rest = {site: Interchange(alpha=0.0) for site in sites if site not in how}
        found[RANDOM] = swept({site: {**how, **rest}[site] for site in sites})
    right = {of: each.written for of, each in found.items()}
    odds = {of: each.log_odds for of, each in found.items()}
    right[NOTHING] = np.repeat(found[RESULT].base_written[:, None], len(sites), axis=1)
    odds[NOTHING] = np.where(np.isnan(odds[RESULT]), np.nan, 0.0)
    kinds = [kind for kind in KINDS if kind in right]
    return InterchangeAccuracy(
        sites,
        ready.ids,
        ready.groups,
        {kind: right[kind] for kind in kinds},
        {kind: odds[kind] for kind in kinds},
        sizes,
        seed,
        _warnings(ready),
    )


def _warnings(batch: InterchangeBatch) -> tuple[str, ...]:
    several = batch.alignment.get("alternatives", 0)
    if not several:
        return ()
    return (
        f"{several:,} of {len(batch):,} rows have other right labels than the one that counts:"
        " their accuracy is too low.",
    )
