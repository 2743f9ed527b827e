"""Where a variable lives: a featurizer at many sites, one of them chosen, and its controls.

    1  the featurizer is trained on train pairs, at all sites and for every number of features
    2  site and number of features are those of the highest accuracy on validation pairs
    3  the accuracy there, on test pairs, is the result

Beside it, at the chosen site and on the same test pairs:

    no intervention    the base run as it is
    full vector        the whole value exchanged
    random             as many random directions, the mean of some draws
    random variable    the featurizer trained and scored on labels of a random variable
    untrained model    the featurizer trained and scored on the model with random weights

    gain = (result - no intervention) / (1 - no intervention)

What follows for the variable is in `variables.verdicts`.

MIB's code chooses positions, and reports the best layer, on the test pairs themselves. Intervals
are then those of the best of so many sites and numbers of features (Bonferroni), and `as_mib` has
its numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.special import stdtrit

from mechassay.errors import BadUsage, one_of
from mechassay.features.finder import Fit, Init, load_sites
from mechassay.features.probes import FullVector
from mechassay.interventions.site import Site, SiteLike, load_site
from mechassay.interventions.sweep import mean_estimates, sweep_all
from mechassay.models.model import Model
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.results.measures import measure_texts
from mechassay.results.records import Measure, Spec, Table, Values
from mechassay.results.result import RecordContents, Result
from mechassay.stats.intervals import (
    LEVEL,
    Estimate,
    Resamples,
    percentile_interval,
    proportion_interval,
)
from mechassay.utils.arguments import checked
from mechassay.utils.display import BAR, OneLine, Progress
from mechassay.variables.data import VariablePairs
from mechassay.variables.featurizers import SIZED, FeaturizerSettings, fit_featurizer
from mechassay.variables.interchange_accuracy import (
    FULL,
    NOTHING,
    RANDOM,
    RESULT,
    InterchangeAccuracy,
    accuracies,
    accuracy,
    proportion,
    random_interchange,
)
from mechassay.variables.mib_numbers import LayerBest, best_of_layers
from mechassay.variables.options import FEATURIZERS, Featurizers
from mechassay.variables.verdicts import (
    KINDS_TABLE,
    LEAST_GAIN,
    MUST_EXCEED,
    RANDOM_VARIABLE,
    UNTRAINED,
    training_args,
    training_falls,
    training_measures,
    verdict,
)

SITES, SUBMITTED = "sites", "as submitted"
TEXTS = measure_texts("variables")
Right = Float[np.ndarray, "n"]


@dataclass(frozen=True, eq=False, repr=False)
class ScoredFit(OneLine):
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
class Localization(Result, kind="variables"):
    """Where a featurizer locates a variable, and how well; see the module.

    Attributes:
        choose_on: the split that site and number of features were chosen on.
        full: the whole vectors of all sites, on test pairs.
        right: at the chosen site, of the features and of each control there is: of every test pair
            1 if the label is written, else 0 (of random directions the share of draws).
        given: whether the features were found elsewhere.
    """

    model: str
    causal_model: str
    variable: str
    featurizer: str
    choose_on: str
    candidates: tuple[ScoredFit, ...]
    site: Site
    chosen: ScoredFit
    full: InterchangeAccuracy
    right: Mapping[str, Right]
    given: bool = False

    # --- the chosen site --------------------------------------------------------------------------

    @property
    def fit(self) -> Fit:
        """The fit that was chosen; it has features of every site."""
        return self.chosen.fit

    @property
    def chosen_fit(self) -> Fit:
        """The features of the chosen site alone."""
        return at_site(self.fit, self.site)

    @property
    def n_features(self) -> int | None:
        """How many features are exchanged at the chosen site."""
        return self.fit.n_features(self.site)

    @property
    def groups(self) -> tuple[str, ...]:
        """The units of the test pairs that intervals respect."""
        return self.chosen.test.groups

    @checked
    def estimate(self, of: str = RESULT) -> Estimate:
        """The accuracy at the chosen site on test pairs, with its 95 % interval over groups.

        Raises:
            UnknownName: no such control was measured.
        """
        right = self.right[one_of("control", of, self.right)]
        if np.isin(right, (0, 1)).all():
            level = self.level if of == RESULT else LEVEL
            low, high, _ = proportion_interval(right.astype(float), self.groups, level)
            return Estimate(float(right.mean()), low, high)
        return mean_estimates(right[:, None], self.groups, self.chosen.test.seed)[0]

    @property
    def level(self) -> float:
        """Of the intervals of the result: that of the best of all sites and numbers of features
        where it was chosen on the test pairs.
        """
        n_options = sum(len(candidate.test.sites) for candidate in self.candidates)
        return LEVEL if self.choose_on != "test" else 1 - (1 - LEVEL) / n_options

    @checked
    def difference(self, control: str) -> Estimate:
        """The result less a control, pair by pair, with its 95 % interval over groups.

        Where it is the same in all pairs, resamples have no spread. The interval then holds what
        the mean may be if as many groups as 95 % allow differ from them, by as much as they can.

        Raises:
            UnknownName: no such control was measured.
        """
        other = self.right[one_of("control", control, self.right)]
        values = self.right[RESULT] - other
        if np.ptp(values) > 0:
            estimate = mean_estimates(values[:, None], self.groups, self.chosen.test.seed)[0]
            return self._widened(estimate, -1.0, 1.0)
        agree = np.ones(len(values))
        value, alike = float(values[0]), proportion_interval(agree, self.groups, self.level).low
        return Estimate(value, alike * value - (1 - alike), alike * value + (1 - alike))

    @property
    def gain(self) -> Estimate:
        """The share of what no intervention leaves wrong that the features make right; NaN where
        that is nothing. Where they make nothing wrong this is a proportion, and so is its interval;
        else that of a bootstrap over groups.
        """
        rows = np.stack((self.right[RESULT], self.right[NOTHING]))
        result, nothing = (float(row.mean()) for row in rows)
        if nothing == 1:
            return Estimate(float("nan"))
        if (rows[0] >= rows[1]).all():
            wrong = np.flatnonzero(rows[1] == 0)
            groups = [self.groups[row] for row in wrong]
            low, high, _ = proportion_interval(rows[0][wrong], groups, self.level)
            return Estimate(float(rows[0][wrong].mean()), low, high)
        means = Resamples(self.groups, np.random.default_rng(self.chosen.test.seed)).means(rows)
        with np.errstate(divide="ignore", invalid="ignore"):
            draws = (means[:, 0] - means[:, 1]) / (1 - means[:, 1])
        ends = percentile_interval(draws[np.isfinite(draws)], n_groups=len(set(self.groups)))
        estimate = Estimate((result - nothing) / (1 - nothing), *ends[:2])
        return self._widened(estimate, -math.inf, 1.0)

    def _widened(self, estimate: Estimate, least: float, most: float) -> Estimate:
        """A 95 % interval of a mean at the level of the result, by Student's quantiles."""
        if self.level == LEVEL:
            return estimate
        freedom = max(1, len(set(self.groups)) - 1)
        wider = float(stdtrit(freedom, (1 + self.level) / 2) / stdtrit(freedom, (1 + LEVEL) / 2))
        low, high = (
            estimate.value + wider * (end - estimate.value) for end in (estimate.low, estimate.high)
        )
        return Estimate(estimate.value, max(low, least), min(high, most))

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

    @property
    def verdict(self) -> str:
        """What is said of the variable (`verdict`)."""
        falls = training_falls(self.chosen_fit)
        return verdict(len(set(self.groups)), self.found, self.isolated, falls)

    # --- all sites --------------------------------------------------------------------------------

    @checked
    def by_layer(self, split: str | None = None) -> dict[int, tuple[ScoredFit, Site]]:
        """Of each layer the best candidate and site, chosen on a split (by default `choose_on`)."""
        best: dict[int, tuple[tuple[float, float], ScoredFit, Site]] = {}
        for candidate in self.candidates:
            accuracy_on = candidate.on(split or self.choose_on)
            for site in accuracy_on.sites:
                score = score_of(accuracy_on, site)
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

    def over_full(self) -> Estimate:
        """The mean over layers of the test accuracy less that of the whole vector at the same site,
        pair by pair, each layer at its chosen position and number.
        """
        columns = [
            candidate.test.right[RESULT][:, candidate.test.column(site)].astype(float)
            - self.full.right[RESULT][:, self.full.column(site)]
            for candidate, site in self.by_layer().values()
        ]
        values = np.mean(columns, axis=0)[:, None]
        return mean_estimates(values, self.groups, self.chosen.test.seed)[0]

    def as_mib(self) -> tuple[float, float]:
        """Mean and maximum over layers as MIB's code has them: the mean over kinds of
        counterfactuals, and of each layer the position that is best on the test pairs.
        """
        values = [best.accuracy for best in best_of_layers(self._on_test)]
        return float(np.mean(values)), max(values)

    @property
    def as_submitted(self) -> tuple[LayerBest, ...]:
        """The best position of each layer as MIB's evaluator has it of features that are handed in:
        with whole values at sites that have none. Empty if all that were measured have some.
        """
        by_layer = best_of_layers(self._on_test, self.full)
        n_sites = sum(site.layer in {b.site.layer for b in by_layer} for site in self.full.sites)
        return by_layer if n_sites > len(self.chosen.test.sites) else ()

    @property
    def _on_test(self) -> list[InterchangeAccuracy]:
        return [candidate.test for candidate in self.candidates]

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
            estimate = proportion(self.right[RESULT][rows_of] > 0, groups)
            nothing = float(self.right[NOTHING][rows_of].mean())
            rows.append(
                {
                    "kind": kind or "all",
                    "accuracy": estimate.value,
                    "low": estimate.low,
                    "high": estimate.high,
                    "no_intervention": nothing,
                    "n": len(rows_of),
                }
            )
        return {name: [row[name] for row in rows] for name in rows[0]}

    # --- as a record ------------------------------------------------------------------------------

    def contents(self) -> RecordContents:
        args: dict[str, Any] = {"choose_on": self.choose_on, "site": str(self.site)}
        args |= {} if self.chosen.k is None else {"k": self.chosen.k}
        args |= training_args(self.chosen_fit)
        test = self.chosen.test
        warning = self.fit.provenance.get("warnings", {}).get(str(self.site))
        submitted = [
            {"layer": best.site.layer, **best._asdict(), "site": str(best.site)}
            for best in self.as_submitted
        ]
        trained = [f"{self.featurizer} at {self.site}: {warning}."] if warning else []
        return {
            "specs": {
                "model": Spec(name=self.model),
                "task": Spec(name=self.causal_model),
                "variable": Spec(name=self.variable, args={"causal_model": self.causal_model}),
                "method": Spec(name=self.featurizer, args=args),
                "metric": Spec(name="interchange intervention accuracy"),
            },
            "measures": list(self._measures()),
            "tables": [
                Table(name=SITES, keys=("site", "k"), columns=self.columns()),
                Table(name=KINDS_TABLE, keys=("kind",), columns=self.by_kind()),
                *([Table.of(SUBMITTED, ("layer",), submitted)] if submitted else ()),
            ],
            "values": Values(
                unit="pair",
                ids=list(test.ids),
                groups=list(test.groups),
                columns={of: right.tolist() for of, right in self.right.items()},
            ),
            "warnings": [*test.warnings, *trained],
        }

    def _measures(self) -> Iterator[Measure]:
        n = len(self.groups)
        for of in self.right:
            named = "result" if of == RESULT else f"control:{of}"
            level = self.level if of == RESULT else LEVEL
            yield TEXTS.measure("iia", self.estimate(of), of=named, n=n, level=level)
        yield from training_measures(self.chosen_fit)
        for of in self.right:
            if of != RESULT:
                yield TEXTS.measure("iia", self.difference(of), of=f"difference:{of}", n=n)
        yield TEXTS.measure("gain", self.gain, n=n)
        # A mean over the few layers that were trained would stand beside that of all.
        layers = [{site.layer for site in of.sites} for of in (self.chosen.test, self.full)]
        if layers[0] == layers[1]:
            on = self.choose_on
            yield TEXTS.measure("iia_layers", self.mean_of_layers(), n=n, chosen_on=on)
            # Where numbers are put beside MIB's, whose best layers are mostly the whole vector's.
            if self.given or self.choose_on == "test":
                yield TEXTS.measure("over_full", self.over_full(), n=n, chosen_on=on)
            mean, highest = self.as_mib()
            yield TEXTS.measure("mib_mean", mean, n=n)
            yield TEXTS.measure("mib_highest", highest, n=n)
        validation = self.chosen.validation
        at = validation.estimate(self.site)
        name = "validation" + (" of a site chosen on test" if self.choose_on == "test" else "")
        yield TEXTS.measure(name, at, n=len(validation))
        for result in ("log_odds", "kl"):
            column = self.chosen.test.column(self.site)
            values = getattr(self.chosen.test, result)[RESULT][:, column]
            undefined = int(np.isnan(values).sum())
            estimate = self.chosen.test.estimate(self.site, result=result)
            yield TEXTS.measure(result, estimate, n=n, n_undefined=undefined)

    # --- how it shows itself ----------------------------------------------------------------------

    def repr_fields(self) -> dict[str, Any]:
        rates = {of: round(self.estimate(of).value, 3) for of in self.right}
        about = {"variable": self.variable, "featurizer": self.featurizer, "site": str(self.site)}
        return {**about, "verdict": self.verdict, **rates}


def shown_cells(columns: Mapping[str, Sequence[Any]], choose_on: str) -> dict[str, list[Any]]:
    """One row a site of the table of sites: that of the number of features which is best on the
    split that is chosen on, the first of several; with `place`, what a figure calls it.
    """
    best: dict[Any, int] = {}
    score = columns[choose_on]
    for row, site in enumerate(columns["site"]):
        if site not in best or score[row] > score[best[site]]:
            best[site] = row
    rows = {name: [column[row] for row in best.values()] for name, column in columns.items()}
    return {**rows, "place": [_place_name(load_site(site)) for site in best]}


def _place_name(site: Site) -> str:
    """A site within its layer: its position, and its heads if it has any."""
    heads = f"{','.join(map(str, site.heads))} @" if site.heads else ""
    return f"{heads}{site.position}"


def score_of(
    accuracy_at: InterchangeAccuracy, site: Site, rows: Bool[np.ndarray, "pairs"] | None = None
) -> tuple[float, float]:
    """What sites are chosen by: accuracy, then the mean log-odds, of all pairs or of `rows`."""
    column, chosen = accuracy_at.column(site), slice(None) if rows is None else rows
    odds = accuracy_at.log_odds[RESULT][chosen, column]
    defined = odds[np.isfinite(odds)]
    mean = float(defined.mean()) if len(defined) else 0.0
    return float(accuracy_at.right[RESULT][chosen, column].mean()), mean


def at_site(fit: Fit, site: Site) -> Fit:
    """The fit at one of its sites alone."""
    chosen = {site: fit.chosen[site]} if site in fit.chosen else {}
    losses = fit.losses[:, [fit.sites.index(site)]] if len(fit.losses) else fit.losses
    return replace(fit, featurizers={site: fit.featurizers[site]}, chosen=chosen, losses=losses)


DRAWS = 3
"""Draws of random directions."""


@checked
def localize(
    model: Model,
    pairs: VariablePairs,
    sites: Sequence[SiteLike],
    featurizer: Featurizers = "das",
    *,
    settings: FeaturizerSettings | None = None,
    ks: Sequence[int] = (16,),
    saes: Init | None = None,
    untrained: Model | None = None,
    random_variable: bool = True,
    full: InterchangeAccuracy | None = None,
    seed: int = 0,
    folder: Path | None = None,
    progress: Progress = BAR,
) -> Localization:
    """Look for a variable at sites with a featurizer; see the module.

        pairs = variables.variable_pairs(model, causal_model, "answer", examples)
        found = variables.localize(model, pairs, ma.sites(model), "das", ks=(1, 16))

    For each number of features, a candidate is trained on the train pairs, all sites in one stack,
    and scored on the other pairs. The candidate and the site of the highest accuracy are chosen on
    one split (`settings.choose_on`). Controls are measured at the chosen site.

    Args:
        model: a loaded model, see `load_model`.
        pairs: the splits train, validation and test, see `variable_pairs`.
        sites: sites, or their spellings; each site is examined alone.
        featurizer: one of `variables.options.FEATURIZERS`: "das", "boundless-das", "dbm",
            "dbm+pca", "dbm+svd", "dbm+sae" or "full-vector".
        settings: the training; `FeaturizerSettings()` by default.
        ks: numbers of features to choose among. Only "das" uses the numbers.
        saes: for "dbm+sae", the SAE of each site.
        untrained: an untrained copy of the model (`models.model.untrained`), for that control;
            None leaves the control out.
        random_variable: whether the control of a random variable is measured; "full-vector" has
            no such control.
        full: the accuracies of whole vectors at the sites on the test pairs, if they are known.
            These depend on the pairs alone, so that comparisons of featurizers measure them once.
        seed: of trainings, random directions and intervals.
        folder: finished trainings are kept here, so that a killed run resumes.
        progress: `SILENT` shows no bar.

    Returns:
        The chosen site, its accuracy on the test pairs with an interval, and the controls.

    Raises:
        BadUsage: a split is missing, no number of features; pairs without labels of a random
            variable, for that control. Others as `fit_featurizer`.
    """
    missing = [split for split in ("train", "validation", "test") if split not in pairs.batches]
    if missing:
        raise BadUsage(f"localize needs pairs of train, validation and test; no {missing[0]}.")
    if not ks:
        raise BadUsage("localize needs at least one number of features in ks; got none.")
    how = settings or FeaturizerSettings()
    places = load_sites(model, list(sites))
    drawn = None
    if random_variable and featurizer != "full-vector":
        if not {"train", "test"} <= pairs.random.keys():
            raise BadUsage(
                "localize needs labels of a random variable for that control, as variable_pairs"
                " makes them; these pairs have none. Pass random_variable=False."
            )
        drawn = pairs.random["train"], pairs.random["test"]
    search = _SiteSearch(model, pairs, featurizer, how, saes, seed, folder, progress)
    numbers: list[int | None] = list(ks) if featurizer in SIZED else [None]
    if full is None:
        whole = FullVector().fit(model, pairs.batches["test"], places, progress=progress)
        [full] = search.scores([whole], "test")
    candidates = search.candidates(places, numbers, full)
    chosen, site = best_of(candidates, how.choose_on)
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
        search.controls(chosen, site, full, untrained, drawn),
    )


def measure_features(
    model: Model,
    pairs: VariablePairs,
    fit: Fit,
    name: str = "given",
    *,
    beside: Sequence[Site] = (),
    seed: int = 0,
    progress: Progress = BAR,
) -> Localization:
    """How well features that were found elsewhere hold a variable; nothing is trained.

    The site is the one of the highest accuracy on validation pairs, as in `localize`. Controls are
    those that need no training: no intervention, the full vector and random directions.

    Args:
        pairs: with the splits validation and test.
        fit: features of sites that are meant each alone.
        name: of what found them.
        beside: sites without features where whole vectors are measured too (`as_submitted`).
        seed: of random directions and intervals.

    Raises:
        BadUsage: a split is missing; sites that are meant together. Others as `accuracy`.
    """
    missing = [split for split in ("validation", "test") if split not in pairs.batches]
    if missing:
        raise BadUsage(f"measure_features needs pairs of validation and test; no {missing[0]}.")
    search = _SiteSearch(
        model, pairs, name, FeaturizerSettings(), None, seed, folder=None, progress=progress
    )
    # How they were trained is what their file says; here nothing is.
    own = replace(
        fit,
        model=model,
        losses=torch.zeros(0, 0, dtype=torch.float32),
        provenance=MappingProxyType({}),
    )
    places = (*own.sites, *beside)
    whole = FullVector().fit(model, pairs.batches["test"], places, progress=progress)
    [validation] = search.scores([own], "validation")
    test, full = search.scores([own, whole], "test")
    scored = ScoredFit(None, own, validation, test)
    _, site = best_of([scored], "validation")
    return Localization(
        model.name,
        pairs.labels["test"].model,
        str(pairs.variable),
        name,
        "validation",
        (scored,),
        site,
        scored,
        full,
        search.controls(scored, site, full, None, None),
        given=True,
    )


@dataclass(frozen=True)
class _SiteSearch:
    """What all parts of one search share."""

    model: Model
    pairs: VariablePairs
    featurizer: str
    settings: FeaturizerSettings
    saes: Init | None
    seed: int
    folder: Path | None
    progress: Progress

    def candidates(
        self, sites: Sequence[Site], ks: Sequence[int | None], full: InterchangeAccuracy
    ) -> tuple[ScoredFit, ...]:
        train = self.pairs.batches["train"]
        fits = [self.fitted(self.model, train, sites, k, "fit") for k in ks]
        validation = self.scores(fits, "validation")
        # Whole vectors need not be scored again.
        test = [full] if self.featurizer == FullVector.name else self.scores(fits, "test")
        scored = zip(ks, fits, validation, test, strict=True)
        return tuple(ScoredFit(*parts) for parts in scored)

    def fitted(
        self, model: Model, batch: InterchangeBatch, sites: Sequence[Site], k: int | None, name: str
    ) -> Fit:
        checkpoint = None if self.folder is None else self.folder / f"{name}-{k or 0}.pt"
        return fit_featurizer(
            model,
            batch,
            sites,
            one_of("featurizer", self.featurizer, FEATURIZERS),
            settings=self.settings,
            k=k or 1,
            saes=self.saes,
            seed=self.seed,
            checkpoint=checkpoint,
            progress=self.progress,
        )

    def scores(self, fits: Sequence[Fit], split: str) -> list[InterchangeAccuracy]:
        return accuracies(
            fits, self.pairs.batches[split], controls=(), seed=self.seed, progress=self.progress
        )

    def controls(
        self,
        chosen: ScoredFit,
        site: Site,
        full: InterchangeAccuracy,
        untrained: Model | None,
        drawn: tuple[InterchangeBatch, InterchangeBatch] | None,
    ) -> dict[str, Right]:
        test, here = chosen.test, chosen.test.column(site)
        right = {
            RESULT: test.right[RESULT][:, here].astype(float),
            NOTHING: test.right[NOTHING][:, here].astype(float),
            FULL: full.right[RESULT][:, full.column(site)].astype(float),
        }
        size = chosen.fit.n_features(site)
        if size is not None:
            plans = [
                {site: random_interchange(self.model, site, size, self.seed + draw)}
                for draw in range(DRAWS)
            ]
            swept = sweep_all(self.model, self.pairs.batches["test"], plans, progress=self.progress)
            right[RANDOM] = np.mean([scores.written[:, 0] for scores in swept], axis=0)
        if drawn is not None:
            train, labelled = drawn
            fit = self.fitted(self.model, train, [site], chosen.k, "random-variable")
            on_test = accuracy(fit, labelled, controls=(), seed=self.seed, progress=self.progress)
            right[RANDOM_VARIABLE] = on_test.right[RESULT][:, 0].astype(float)
        if untrained is not None:
            train = self.pairs.batches["train"]
            fit = self.fitted(untrained, train, [site], chosen.k, "untrained")
            right[UNTRAINED] = self.scores([fit], "test")[0].right[RESULT][:, 0].astype(float)
        return right


def best_of(candidates: Sequence[ScoredFit], split: str) -> tuple[ScoredFit, Site]:
    """The candidate and site of the highest accuracy; of several, the highest log-odds, and of
    these the first.
    """
    options = [(candidate, site) for candidate in candidates for site in candidate.test.sites]
    return max(options, key=lambda option: score_of(option[0].on(split), option[1]))
