"""Where a variable lives: a featurizer at many sites, one of them chosen, and its controls.

    1  the featurizer is trained on train pairs, at all sites and for every number of features
    2  site and number of features are those of the highest accuracy on validation pairs
    3  the accuracy there, on test pairs, is the result

Beside it, at the chosen site and on the same test pairs:

    no intervention    the base run as it is
    full vector        the whole value exchanged
    random             as many random directions, the mean of some draws
    arbitrary labels   the featurizer trained and scored on permuted labels (`arbitrary_labels`)
    untrained model    the featurizer trained and scored on the model with random weights

    gain = (result - no intervention) / (1 - no intervention)

The variable is `found` if the gain is above a half, and the result above no intervention, arbitrary
labels and the untrained model; it is `isolated` if also above random directions. Each time the 95 %
interval must say so, of differences pair by pair. The full vector may carry the variable too. MIB's
code chooses positions, and reports the best layer, on the test pairs themselves: too high where
sites are many (`as_mib`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float

from mechassay.display import OneLine, Tabular, html_facts, html_table
from mechassay.errors import BadUsage, one_of
from mechassay.features.finder import Init, load_sites
from mechassay.features.fit import Fit
from mechassay.features.full_vector import FullVector
from mechassay.interventions.site import Site, SiteLike
from mechassay.interventions.sweep import mean_estimates
from mechassay.models.model import Model
from mechassay.progress import BAR, Progress
from mechassay.stats.intervals import Estimate, Resamples, percentile_interval
from mechassay.variables.arbitrary_labels import with_arbitrary_labels
from mechassay.variables.data import VariablePairs
from mechassay.variables.featurizers import SIZED, FeaturizerSettings, fit_featurizer
from mechassay.variables.interchange_accuracy import (
    FULL,
    NOTHING,
    RANDOM,
    RESULT,
    InterchangeAccuracy,
    accuracy,
    proportion,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ARBITRARY, UNTRAINED = "arbitrary labels", "untrained model"
CONTROLS = (NOTHING, FULL, RANDOM, ARBITRARY, UNTRAINED)
MUST_EXCEED = (NOTHING, ARBITRARY, UNTRAINED)
LEAST_GAIN = 0.5
"""A variable that is there makes more pairs right than it leaves wrong."""
DRAWS = 3
"""Draws of random directions."""

Right = Float[np.ndarray, "n"]


@dataclass(frozen=True, eq=False, repr=False)
class Candidate(OneLine):
    """A featurizer with one number of features at all sites.

    Attributes:
        k: how many features were asked for; None where a featurizer says itself.
    """

    k: int | None
    fit: Fit
    validation: InterchangeAccuracy
    test: InterchangeAccuracy

    def on(self, split: str) -> InterchangeAccuracy:
        """The accuracies of a split."""
        return self.test if split == "test" else self.validation


@dataclass(frozen=True, eq=False, repr=False)
class Localization(OneLine, Tabular):
    """Where a featurizer locates a variable, and how well; see the module.

    Attributes:
        choose_on: the split that site and number of features were chosen on.
        full: the whole vectors of all sites, on test pairs.
        right: at the chosen site, of the features and of each control there is: of every test pair
            1 if the label is written, else 0 (of random directions the share of draws).
    """

    model: str
    causal_model: str
    variable: str
    featurizer: str
    choose_on: str
    candidates: tuple[Candidate, ...]
    site: Site
    chosen: Candidate
    full: InterchangeAccuracy
    right: Mapping[str, Right]

    # --- the chosen site --------------------------------------------------------------------------

    @property
    def fit(self) -> Fit:
        """The fit that was chosen; it has features of every site."""
        return self.chosen.fit

    @property
    def n_features(self) -> int | None:
        """How many features are exchanged at the chosen site."""
        return self.fit.n_features(self.site)

    @property
    def groups(self) -> tuple[str, ...]:
        """The units of the test pairs that intervals respect."""
        return self.chosen.test.groups

    def estimate(self, of: str = RESULT) -> Estimate:
        """The accuracy at the chosen site on test pairs, with its 95 % interval over groups.

        Raises:
            UnknownName: no such control was measured.
        """
        right = self.right[one_of("control", of, self.right)]
        if np.isin(right, (0, 1)).all():
            return proportion(right > 0, self.groups)
        return mean_estimates(right[:, None], self.groups, self.chosen.test.seed)[0]

    def difference(self, control: str) -> Estimate:
        """The result less a control, pair by pair.

        Raises:
            UnknownName: no such control was measured.
        """
        other = self.right[one_of("control", control, self.right)]
        values = (self.right[RESULT] - other)[:, None]
        return mean_estimates(values, self.groups, self.chosen.test.seed)[0]

    @property
    def gain(self) -> Estimate:
        """The share of what no intervention leaves wrong that the features make right; NaN where
        that is nothing.
        """
        rows = np.stack((self.right[RESULT], self.right[NOTHING]))
        result, nothing = (float(row.mean()) for row in rows)
        if nothing == 1:
            return Estimate(float("nan"))
        means = Resamples(self.groups, np.random.default_rng(self.chosen.test.seed)).means(rows)
        with np.errstate(divide="ignore", invalid="ignore"):
            draws = (means[:, 0] - means[:, 1]) / (1 - means[:, 1])
        ends = percentile_interval(draws[np.isfinite(draws)], n_groups=len(set(self.groups)))
        return Estimate((result - nothing) / (1 - nothing), *ends[:2])

    @property
    def found(self) -> bool:
        """Whether the site has the variable, by the controls that were measured; see the module."""
        controls = [control for control in MUST_EXCEED if control in self.right]
        exceeds = all(self.difference(control).low > 0 for control in controls)
        return exceeds and self.gain.low > LEAST_GAIN

    @property
    def isolated(self) -> bool:
        """Whether these features have it, and random ones of their number do not."""
        return self.found and RANDOM in self.right and self.difference(RANDOM).low > 0

    # --- all sites --------------------------------------------------------------------------------

    def by_layer(self, split: str | None = None) -> dict[int, tuple[Candidate, Site]]:
        """Of each layer the best candidate and site, chosen on a split (by default `choose_on`)."""
        best: dict[int, tuple[tuple[float, float], Candidate, Site]] = {}
        for candidate in self.candidates:
            found = candidate.on(split or self.choose_on)
            for site in found.sites:
                score = _score(found, site)
                if site.layer not in best or score > best[site.layer][0]:
                    best[site.layer] = score, candidate, site
        return {layer: (candidate, site) for layer, (_, candidate, site) in sorted(best.items())}

    def mean_of_layers(self) -> Estimate:
        """The mean test accuracy of the layers, each at its chosen position and number."""
        columns = [
            candidate.test.right[RESULT][:, candidate.test.column(site)]
            for candidate, site in self.by_layer().values()
        ]
        values = np.mean(columns, axis=0)[:, None]
        return mean_estimates(values, self.groups, self.chosen.test.seed)[0]

    def as_mib(self) -> tuple[float, float]:
        """Mean and maximum over layers as MIB's code has them: the mean over kinds of
        counterfactuals, and of each layer the position that is best on the test pairs.
        """
        best: dict[int, float] = {}
        for candidate in self.candidates:
            kinds = np.array(candidate.test.kinds)
            right = candidate.test.right[RESULT]
            by_kind = np.stack([right[kinds == kind].mean(axis=0) for kind in sorted(set(kinds))])
            for site, value in zip(candidate.test.sites, by_kind.mean(axis=0), strict=True):
                best[site.layer] = max(best.get(site.layer, 0.0), float(value))
        return float(np.mean(list(best.values()))), max(best.values())

    def columns(self) -> dict[str, list[Any]]:
        """A row a site and number of features: accuracies of both splits."""
        rows: list[dict[str, Any]] = []
        for candidate in self.candidates:
            for number, site in enumerate(candidate.test.sites):
                test = candidate.test.estimate(site)
                validation = candidate.validation.estimate(site)
                rows.append(
                    {
                        "site": str(site),
                        "layer": site.layer,
                        "position": str(site.position),
                        "k": candidate.k,
                        "features": candidate.test.n_features[number],
                        "validation": validation.value,
                        "test": test.value,
                        "low": test.low,
                        "high": test.high,
                        "full_vector": self.full.estimate(site).value,
                        "chosen": candidate is self.chosen and site == self.site,
                    }
                )
        return {name: [row[name] for row in rows] for name in rows[0]}

    def by_kind(self) -> dict[str, list[Any]]:
        """A row a kind of counterfactual: accuracy at the chosen site, and without intervention."""
        kinds = np.array(self.chosen.test.kinds)
        rows: list[dict[str, Any]] = []
        for kind in dict.fromkeys(self.chosen.test.kinds):
            rows_of = np.flatnonzero(kinds == kind)
            groups = [self.groups[row] for row in rows_of]
            found = proportion(self.right[RESULT][rows_of] > 0, groups)
            nothing = float(self.right[NOTHING][rows_of].mean())
            rows.append(
                {
                    "kind": kind or "all",
                    "accuracy": found.value,
                    "low": found.low,
                    "high": found.high,
                    "no_intervention": nothing,
                    "n": len(rows_of),
                }
            )
        return {name: [row[name] for row in rows] for name in rows[0]}

    # --- how it shows itself ----------------------------------------------------------------------

    def shown(self) -> dict[str, Any]:
        told = {of: round(self.estimate(of).value, 3) for of in self.right}
        about = {"variable": self.variable, "featurizer": self.featurizer, "site": str(self.site)}
        return {**about, "found": self.found, **told}

    def plot(self, ax: Axes | None = None) -> Figure:
        """Test accuracies as a heat map of layers and positions."""
        from mechassay.interventions.heat_map import draw_accuracies

        columns = self.columns()
        return draw_accuracies(columns["layer"], columns["position"], columns["test"], ax=ax)

    def _repr_html_(self) -> str:
        rows = [
            (of, f"{e.value:.3f}", f"{e.low:.3f} to {e.high:.3f}")
            for of in self.right
            for e in [self.estimate(of)]
        ]
        facts = {
            "site": str(self.site),
            "features": str(self.n_features),
            "chosen on": self.choose_on,
            "test pairs": f"{len(self.groups):,}",
        }
        said = "found" if self.found else "not found"
        title = f"{self.causal_model}: {self.variable} by {self.featurizer}: {said}"
        return html_facts(title, facts, html_table(("of", "accuracy", "95 % interval"), rows))


def localize(
    model: Model,
    pairs: VariablePairs,
    sites: Sequence[SiteLike],
    featurizer: str = "das",
    *,
    settings: FeaturizerSettings | None = None,
    ks: Sequence[int] = (16,),
    saes: Init | None = None,
    untrained: Model | None = None,
    arbitrary: bool = True,
    full: InterchangeAccuracy | None = None,
    seed: int = 0,
    folder: Path | None = None,
    progress: Progress = BAR,
) -> Localization:
    """Look for a variable at sites with a featurizer; see the module.

    Args:
        pairs: with the splits train, validation and test.
        sites: each looked at alone.
        ks: numbers of features to choose among, for featurizers that are given one.
        saes: for "dbm+sae", the SAE of each site.
        untrained: the model of that control (`models.untrained`); None leaves it out.
        arbitrary: whether there is the control of arbitrary labels.
        full: accuracies of whole vectors at the sites on the test pairs, if they are known.
        seed: of trainings, random directions and intervals.
        folder: where trainings keep what is done, so that a killed run goes on.

    Raises:
        BadUsage: a split is missing, no number of features. Others as `fit_featurizer`.
    """
    missing = [split for split in ("train", "validation", "test") if split not in pairs.batches]
    if missing:
        raise BadUsage(f"localize needs pairs of train, validation and test; no {missing[0]}.")
    if not ks:
        raise BadUsage("localize needs at least one number of features in ks; got none.")
    how = settings or FeaturizerSettings()
    places = load_sites(model, list(sites))
    search = _Search(model, pairs, featurizer, how, saes, seed, folder, progress)
    numbers: list[int | None] = list(ks) if featurizer in SIZED else [None]
    candidates = tuple(search.candidate(places, k) for k in numbers)
    chosen, site = _best(candidates, how.choose_on)
    if full is None:
        whole = FullVector().fit(model, pairs.batches["test"], places, progress=progress)
        full = search.score(whole, "test")
    return Localization(
        model.name,
        pairs.labels["test"].model,
        str(pairs.variable),
        featurizer,
        how.choose_on,
        candidates,
        site,
        chosen,
        full,
        search.controls(chosen, site, full, untrained, arbitrary),
    )


@dataclass(frozen=True)
class _Search:
    """What all parts of one search share."""

    model: Model
    pairs: VariablePairs
    featurizer: str
    settings: FeaturizerSettings
    saes: Init | None
    seed: int
    folder: Path | None
    progress: Progress

    def candidate(self, sites: Sequence[Site], k: int | None) -> Candidate:
        fit = self.fitted(self.model, self.pairs.batches["train"], sites, k, "fit")
        return Candidate(k, fit, self.score(fit, "validation"), self.score(fit, "test"))

    def fitted(
        self, model: Model, batch: Any, sites: Sequence[Site], k: int | None, name: str
    ) -> Fit:
        checkpoint = None if self.folder is None else self.folder / f"{name}-{k or 0}.pt"
        return fit_featurizer(
            self.featurizer,
            model,
            batch,
            sites,
            self.settings,
            k=k or 1,
            saes=self.saes,
            seed=self.seed,
            checkpoint=checkpoint,
            progress=self.progress,
        )

    def score(
        self,
        fit: Fit,
        split: str,
        *,
        model: Model | None = None,
        controls: Sequence[str] = (),
        seed: int | None = None,
    ) -> InterchangeAccuracy:
        return accuracy(
            fit,
            self.pairs.labels[split],
            model=model,
            controls=controls,
            seed=self.seed if seed is None else seed,
            progress=self.progress,
        )

    def controls(
        self,
        chosen: Candidate,
        site: Site,
        full: InterchangeAccuracy,
        untrained: Model | None,
        arbitrary: bool,
    ) -> dict[str, Right]:
        test, here = chosen.test, chosen.test.column(site)
        right = {
            RESULT: test.right[RESULT][:, here].astype(float),
            NOTHING: test.right[NOTHING][:, here].astype(float),
            FULL: full.right[RESULT][:, full.column(site)].astype(float),
        }
        alone = _at(chosen.fit, site)
        if alone.n_features(site) is not None:
            draws = [
                self.score(alone, "test", controls=(RANDOM,), seed=self.seed + draw)
                for draw in range(DRAWS)
            ]
            right[RANDOM] = np.mean([each.right[RANDOM][:, 0] for each in draws], axis=0)
        trained = self.featurizer != "full-vector"
        if arbitrary and trained:
            right[ARBITRARY] = self._of_arbitrary_labels(site, chosen.k)
        if untrained is not None:
            train = self.pairs.batches["train"]
            fit = self.fitted(untrained, train, [site], chosen.k, "untrained")
            right[UNTRAINED] = self.score(fit, "test").right[RESULT][:, 0].astype(float)
        return right

    def _of_arbitrary_labels(self, site: Site, k: int | None) -> Right:
        generator = torch.Generator().manual_seed(self.seed)
        train, test = with_arbitrary_labels(
            [self.pairs.batches["train"], self.pairs.batches["test"]], generator
        )
        fit = self.fitted(self.model, train, [site], k, "arbitrary")
        found = accuracy(fit, test, controls=(), seed=self.seed, progress=self.progress)
        return found.right[RESULT][:, 0].astype(float)


def _best(candidates: Sequence[Candidate], split: str) -> tuple[Candidate, Site]:
    """The candidate and site of the highest accuracy; of several, the highest log-odds, and of
    these the first.
    """
    options = [(each, site) for each in candidates for site in each.test.sites]
    return max(options, key=lambda option: _score(option[0].on(split), option[1]))


def _score(found: InterchangeAccuracy, site: Site) -> tuple[float, float]:
    column = found.column(site)
    odds = found.log_odds[RESULT][:, column]
    defined = odds[np.isfinite(odds)]
    mean = float(defined.mean()) if len(defined) else 0.0
    return float(found.right[RESULT][:, column].mean()), mean


def _at(fit: Fit, site: Site) -> Fit:
    """The fit at one of its sites alone."""
    chosen = {site: fit.chosen[site]} if site in fit.chosen else {}
    return replace(fit, featurizers={site: fit.featurizers[site]}, chosen=chosen)
