"""Interchange intervention accuracy: does the model say what the causal model expects?

    IIA = share of pairs whose whole label is what greedy decoding writes after the interchange

of the features of a fit, at each of its sites alone (Geiger et al. 2021; Mueller et al. 2025,
section 4.1). Labels are compared token by token, over all of their tokens; MIB's code takes a label
that is found anywhere in the text. Beside every number stand what it would be

    no intervention   with the base run as it is
    full vector       with the source's whole value at the site
    random            with as many random directions as the fit has features, one draw a site; all
                      directions where the features are more

A variable lives in features if these do what the whole vector does, and random ones of their
number do not. Where no intervention is right already, the pairs cannot tell. A batch holds one
label a row: where several are right, others count as wrong, and a warning says how many rows that
is (`variable_pairs` chooses one). Labels of the linear IOI model are no expectation of what is
written.

Beside the accuracy stand the log-odds towards the label, and -log p(label): the KL divergence of
what is said from the expected output, which is one label.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from mechassay.errors import BadUsage, one_of
from mechassay.features.featurizer import ChosenFeatures
from mechassay.features.finder import Fit
from mechassay.features.probes import random_directions
from mechassay.interventions.intervention import Interchange
from mechassay.interventions.site import Site, SiteLike, index_of
from mechassay.interventions.sweep import SiteSweep, mean_estimates, sweep_all
from mechassay.models.model import Model
from mechassay.prompts.interchange_batch import InterchangeBatch, InterchangesLike
from mechassay.stats.intervals import Estimate, proportion_interval
from mechassay.utils.arguments import checked
from mechassay.utils.display import (
    BAR,
    OneLine,
    Progress,
    Tabular,
    html_facts,
    html_note,
    html_table,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


NOTHING, FULL, RANDOM = "no intervention", "full vector", "random"
RESULT = "features"
CONTROLS = (FULL, RANDOM)
"""Controls that are runs of their own."""
KINDS = (RESULT, NOTHING, *CONTROLS)
"""What numbers are of: the features, and their controls."""
OF_ROWS = ("accuracy", "log_odds", "kl")
"""What there is of every pair: 1 where a label is written, and two graded results in nats."""


@dataclass(frozen=True, eq=False, repr=False)
class InterchangeAccuracy(OneLine, Tabular):
    """Whether the label is written after an interchange at each of k sites; n pairs.

    Attributes:
        right: by what it is of (see `KINDS`), of every pair and site.
        log_odds: alike, towards the label, in nats; NaN where the base's own label is not known.
        kl: alike, -log p(label) in nats.
        warnings: what a reader has to know.
        n_features: of each site; None where the featurizer does not say, and there is no random
            control.
    """

    sites: tuple[Site, ...]
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    kinds: tuple[str, ...]
    right: Mapping[str, Bool[np.ndarray, "n k"]]
    log_odds: Mapping[str, Float[np.ndarray, "n k"]]
    kl: Mapping[str, Float[np.ndarray, "n k"]]
    n_features: tuple[int | None, ...]
    seed: int = 0
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.ids)

    def repr_fields(self) -> dict[str, Any]:
        site = self.best
        rates = {of: self.estimate(site, of).value for of in self.right}
        return {"n": len(self), "sites": len(self.sites), "best": str(site), **rates}

    @property
    def best(self) -> Site:
        """The site of the highest accuracy, the first of several. On these pairs: choose on others
        than you report.
        """
        return self.sites[int(self.right[RESULT].mean(axis=0).argmax())]

    @checked
    def estimate(self, site: SiteLike, of: str = RESULT, result: str = "accuracy") -> Estimate:
        """A result at one site with its 95 % interval over groups.

        Args:
            of: the features or a control, one of `right`.
            result: one of `OF_ROWS`.

        Raises:
            UnknownName: no such site; no such control; no such result.
        """
        column = self.column(site)
        one_of("result", result, OF_ROWS)
        right = self.right[one_of("control", of, self.right)]
        if result == "accuracy":
            return proportion(right[:, column], self.groups)
        values = self.log_odds if result == "log_odds" else self.kl
        return mean_estimates(values[of][:, [column]], self.groups, self.seed)[0]

    @checked
    def column(self, site: SiteLike) -> int:
        """The number of a site among `sites`.

        Raises:
            UnknownName: `site` is not a site of the fit.
        """
        return index_of(site, self.sites, "site of the fit")

    def columns(self) -> dict[str, list[Any]]:
        """A row a site and what it is of: accuracy and mean log-odds, with intervals."""
        rows: list[tuple[Any, ...]] = []
        for of in self.right:
            odds = mean_estimates(self.log_odds[of], self.groups, self.seed)
            for number, site in enumerate(self.sites):
                estimate = self.estimate(site, of)
                rows.append(
                    (
                        str(site),
                        site.layer,
                        str(site.position),
                        of,
                        self.n_features[number],
                        *(estimate.value, estimate.low, estimate.high),
                        *(odds[number].value, odds[number].low, odds[number].high),
                        len(self),
                    )
                )
        names = ("site", "layer", "position", "of", "features", "accuracy", "low", "high")
        names += ("log_odds", "log_odds_low", "log_odds_high", "n")
        return {name: [row[i] for row in rows] for i, name in enumerate(names)}

    @checked
    def plot(self, ax: Axes | None = None) -> Figure:
        """Accuracy against layers: the features and their controls, a line each and position."""
        from mechassay.interventions.heatmap import draw_lines

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


def proportion(right: Bool[np.ndarray, "n"], groups: Sequence[str]) -> Estimate:
    """The share that is right, with its 95 % interval over groups."""
    low, high, _ = proportion_interval(right.astype(float), groups)
    return Estimate(float(right.mean()), low, high)


@checked
def accuracy(
    fit: Fit,
    pairs: InterchangesLike,
    *,
    model: Model | None = None,
    controls: Sequence[str] = CONTROLS,
    seed: int = 0,
    progress: Progress = BAR,
) -> InterchangeAccuracy:
    """Interchange intervention accuracy of a fit on pairs, with its controls.

    Args:
        pairs: other pairs than the fit was found on, with the labels of a causal model: as
            `expected_labels` gives them, or a batch.
        model: for a fit that was read from a file; else the one it was found on.
        controls: which of `CONTROLS`; no intervention costs nothing and is always there.
        seed: of the random directions and of the bootstrap.

    Raises:
        BadUsage: a fit without a model, or whose sites are meant together.
        UnknownName: no such control. Others as `sweep`.
    """
    [measured] = accuracies(
        [fit], pairs, model=model, controls=controls, seed=seed, progress=progress
    )
    return measured


def accuracies(
    fits: Sequence[Fit],
    pairs: InterchangesLike,
    *,
    model: Model | None = None,
    controls: Sequence[str] = CONTROLS,
    seed: int = 0,
    progress: Progress = BAR,
) -> list[InterchangeAccuracy]:
    """The accuracies of several fits on the same pairs, whose prompts are run once for all.

    Arguments and errors are those of `accuracy`.
    """
    wanted = {one_of("control", control, CONTROLS) for control in controls}
    model = model or next((fit.model for fit in fits), None)
    if model is None:
        raise BadUsage("accuracy needs model=..., as this fit was read from a file.")
    plans: list[dict[str, dict[Site, Interchange]]] = []
    for fit in fits:
        if fit.together:
            raise BadUsage(
                "accuracy exchanges each site alone, and the sites of this fit are meant together:"
                " use intervene(model, pairs, fit.interchanges()), or squared_error."
            )
        plans.append(_plans(model, fit, wanted, seed))
    ready = model.interchanges(pairs)
    every = [plan for plans_of in plans for plan in plans_of.values()]
    swept = iter(sweep_all(model, ready, every, seed=seed, progress=progress))
    return [
        _accuracy(fit, ready, {of: _results(next(swept)) for of in plans_of}, seed)
        for fit, plans_of in zip(fits, plans, strict=True)
    ]


def _plans(
    model: Model, fit: Fit, wanted: Collection[str], seed: int
) -> dict[str, dict[Site, Interchange]]:
    """What is exchanged at every site: the features, and those controls that are runs."""
    sites = fit.sites
    how = {RESULT: {site: Interchange(features=fit.features(site)) for site in sites}}
    if FULL in wanted:
        how[FULL] = {site: Interchange() for site in sites}
    sizes = {site: fit.n_features(site) for site in sites}
    if RANDOM in wanted and None not in sizes.values():
        how[RANDOM] = {
            site: random_interchange(model, site, size or 0, seed) for site, size in sizes.items()
        }
    return how


def random_interchange(model: Model, site: Site, k: int, seed: int) -> Interchange:
    """The interchange of k random directions, or of all there are, where k is more; of none it is
    no interchange.
    """
    if not k:
        return Interchange(alpha=0.0)
    width = site.width(model.decoder)
    # An SAE may have more features than the space has directions.
    directions = random_directions(site, width, min(k, width), seed)
    return Interchange(features=ChosenFeatures(directions))


def _accuracy(
    fit: Fit, batch: InterchangeBatch, by_control: dict[str, _SiteResults], seed: int
) -> InterchangeAccuracy:
    result, k = by_control[RESULT], len(fit.sites)
    by_control[NOTHING] = _SiteResults(
        np.repeat(result.base_right[:, None], k, axis=1),
        result.base_right,
        np.where(np.isnan(result.log_odds), np.nan, 0.0),
        np.repeat(result.base_kl[:, None], k, axis=1),
        result.base_kl,
    )
    kinds = [kind for kind in KINDS if kind in by_control]
    return InterchangeAccuracy(
        fit.sites,
        batch.ids,
        batch.groups,
        batch.kinds,
        {kind: by_control[kind].right for kind in kinds},
        {kind: by_control[kind].log_odds for kind in kinds},
        {kind: by_control[kind].kl for kind in kinds},
        tuple(fit.n_features(site) for site in fit.sites),
        seed,
        _warnings(batch),
    )


class _SiteResults(NamedTuple):
    """What is said after an interchange at each site alone, and without."""

    right: Bool[np.ndarray, "n k"]
    base_right: Bool[np.ndarray, "n"]
    log_odds: Float[np.ndarray, "n k"]
    kl: Float[np.ndarray, "n k"]
    base_kl: Float[np.ndarray, "n"]


def _results(swept: SiteSweep) -> _SiteResults:
    odds, kl, base_kl = swept.log_odds, -swept.log_probs, -swept.base_log_probs
    return _SiteResults(swept.written, swept.base_written, odds, kl, base_kl)


def _warnings(batch: InterchangeBatch) -> tuple[str, ...]:
    several = batch.alignment.get("alternatives", 0)
    if not several:
        return ()
    return (
        f"{several:,} of {len(batch):,} rows have other right labels than the one that counts:"
        " their accuracy is too low.",
    )
