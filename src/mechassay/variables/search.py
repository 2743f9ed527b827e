"""Looking for a variable: a featurizer at all sites, one of which is chosen, and its controls.

    1  a candidate for every number of features: trained on train pairs, scored on the others
    2  the candidate and site of the highest accuracy on the split that is chosen on
    3  controls at that site (`localization`): as many random directions, the featurizer trained on
       arbitrary labels, and trained on a model with random weights

All sites of a candidate are trained in one stack. Whole vectors depend on the pairs alone, so those
who compare featurizers pass them in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from mechassay.errors import BadUsage
from mechassay.features.finder import Init, load_sites
from mechassay.features.fit import Fit
from mechassay.features.full_vector import FullVector
from mechassay.interchange import InterchangeBatch
from mechassay.interventions.site import Site, SiteLike
from mechassay.interventions.sweep import sweep_all
from mechassay.models.model import Model
from mechassay.progress import BAR, Progress
from mechassay.variables.arbitrary_labels import with_arbitrary_labels
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
    random_interchange,
)
from mechassay.variables.localization import (
    ARBITRARY,
    UNTRAINED,
    Localization,
    Right,
    ScoredFit,
    score_of,
)

DRAWS = 3
"""Draws of random directions."""


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
        arbitrary: whether there is the control of arbitrary labels; whole vectors have none.
        full: accuracies of whole vectors at the sites on the test pairs, if they are known.
        seed: of trainings, random directions and intervals.
        folder: where trainings keep what is done, so that a killed run goes on.

    Raises:
        BadUsage: a split is missing, no number of features.
        BadPairs: fewer than three different labels, for arbitrary ones. Others as `fit_featurizer`.
    """
    missing = [split for split in ("train", "validation", "test") if split not in pairs.batches]
    if missing:
        raise BadUsage(f"localize needs pairs of train, validation and test; no {missing[0]}.")
    if not ks:
        raise BadUsage("localize needs at least one number of features in ks; got none.")
    how = settings or FeaturizerSettings()
    places = load_sites(model, list(sites))
    permuted = None
    if arbitrary and featurizer != "full-vector":
        generator = torch.Generator().manual_seed(seed)
        train_and_test = [pairs.batches["train"], pairs.batches["test"]]
        permuted = with_arbitrary_labels(train_and_test, generator)
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
        search.controls(chosen, site, full, untrained, permuted),
    )


def measure_features(
    model: Model,
    pairs: VariablePairs,
    fit: Fit,
    name: str = "given",
    *,
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
    own = replace(fit, model=model)
    whole = FullVector().fit(model, pairs.batches["test"], own.sites, progress=progress)
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
        return tuple(ScoredFit(*each) for each in scored)

    def fitted(
        self, model: Model, batch: InterchangeBatch, sites: Sequence[Site], k: int | None, name: str
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
        permuted: Sequence[InterchangeBatch] | None,
    ) -> dict[str, Right]:
        test, here = chosen.test, chosen.test.column(site)
        right = {
            RESULT: test.right[RESULT][:, here].astype(float),
            NOTHING: test.right[NOTHING][:, here].astype(float),
            FULL: full.right[RESULT][:, full.column(site)].astype(float),
        }
        size = chosen.fit.n_features(site)
        if size is not None:
            right[RANDOM] = self._of_random_directions(site, size)
        if permuted is not None:
            right[ARBITRARY] = self._of_arbitrary_labels(site, chosen.k, *permuted)
        if untrained is not None:
            train = self.pairs.batches["train"]
            fit = self.fitted(untrained, train, [site], chosen.k, "untrained")
            right[UNTRAINED] = self.scores([fit], "test")[0].right[RESULT][:, 0].astype(float)
        return right

    def _of_random_directions(self, site: Site, k: int) -> Right:
        plans = [
            {site: random_interchange(self.model, site, k, self.seed + draw)}
            for draw in range(DRAWS)
        ]
        swept = sweep_all(self.model, self.pairs.batches["test"], plans, progress=self.progress)
        return np.mean([each.written[:, 0] for each in swept], axis=0)

    def _of_arbitrary_labels(
        self, site: Site, k: int | None, train: InterchangeBatch, test: InterchangeBatch
    ) -> Right:
        fit = self.fitted(self.model, train, [site], k, "arbitrary")
        found = accuracy(fit, test, controls=(), seed=self.seed, progress=self.progress)
        return found.right[RESULT][:, 0].astype(float)


def best_of(candidates: Sequence[ScoredFit], split: str) -> tuple[ScoredFit, Site]:
    """The candidate and site of the highest accuracy; of several, the highest log-odds, and of
    these the first.
    """
    options = [(each, site) for each in candidates for site in each.test.sites]
    return max(options, key=lambda option: score_of(option[0].on(split), option[1]))
