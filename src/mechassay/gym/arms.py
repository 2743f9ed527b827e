"""Directions of methods on one task, measured: what each candidate and seed gives on some items.

All directions of all sites are exchanged in one stack; the logits of all four labels come from the
same run. Where an arm has nothing at a site its odds are 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from mechassay.features.fit import Fit
from mechassay.gym.choice_of_regions import Odds, best_mean
from mechassay.gym.control_labels import tokens_of_labels
from mechassay.gym.method_odds import CONTROL, ORIGINAL, MethodOdds
from mechassay.gym.task_items import TaskItems
from mechassay.gym.task_odds import TaskOdds
from mechassay.interventions.intervention import Interchange, Intervention
from mechassay.interventions.site import Site, sites
from mechassay.interventions.token_logits import TokenLogits, token_logits
from mechassay.models.model import Model
from mechassay.progress import Progress


@dataclass(frozen=True, eq=False)
class Arm:
    """A candidate of a method with one seed, and what it found for each kind of labels."""

    method: str
    candidate: str
    seed: int
    fits: Mapping[str, Fit]
    lacking: Mapping[Site, str]


@dataclass(frozen=True, eq=False)
class ArmMeasurement:
    """How arms are measured on one task in one model.

    Attributes:
        seed: of the bootstrap.
        compat: whose indices the items have.
        offered: whether a region of a layer may be chosen; all if not given.
    """

    model: Model
    data: TaskItems
    layers: tuple[int, ...]
    seed: int
    progress: Progress
    compat: str | None = None
    offered: np.ndarray | None = None

    @property
    def sites(self) -> tuple[Site, ...]:
        """All regions of the first layer, then of the next."""
        return sites(self.model, positions=self.data.regions, layers=self.layers)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of labels."""
        return (ORIGINAL, CONTROL) if self.data.control else (ORIGINAL,)

    def result(self, arms: Sequence[Arm], controls: tuple[str, ...] = ()) -> TaskOdds:
        """The odds of the arms' methods, regions and candidates chosen on validation items.

        Args:
            controls: methods that others are compared with.
        """
        validation, _ = self.odds(arms, "validation")
        test, base = self.odds(arms, "test")
        methods = {
            method: self._of_method([arm for arm in arms if arm.method == method], validation, test)
            for method in dict.fromkeys(arm.method for arm in arms)
        }
        items = self.data.items["test"]
        return TaskOdds(
            self.model.name,
            self.data.task,
            self.layers,
            self.data.regions,
            items.ids,
            items.groups,
            base > 0,
            MappingProxyType(methods),
            self.data.labels,
            None,
            self.compat,
            self.seed,
            controls,
            validation_groups=self.data.items["validation"].groups,
        )

    def odds(self, arms: Sequence[Arm], split: str) -> tuple[dict[tuple[int, str], Odds], Any]:
        """Odds [1, n, layers, regions] of every arm, by its id, and kind of labels; and the log
        odds of the items without intervention.
        """
        plans: list[dict[Site, Intervention]] = []
        place: dict[tuple[int, Site], int] = {}
        for arm in arms:
            for fit in dict.fromkeys(arm.fits.values()):
                for site in fit.sites:
                    place[id(fit), site] = len(plans)
                    plans.append({site: Interchange(features=fit.features(site))})
        batches = [self.data.items[split]]
        if self.data.control:
            batches.append(self.data.control[split])
        tokens = tokens_of_labels(*batches)
        found = token_logits(self.model, batches[0], plans, tokens, progress=self.progress)
        odds: dict[tuple[int, str], Odds] = {}
        for number, kind in enumerate(self.kinds):
            ratios = _ratios(found, 2 * number)
            for arm in arms:
                fit = arm.fits[kind]
                made = np.zeros((len(self.sites), len(batches[0])))
                for row, site in enumerate(self.sites):
                    if (id(fit), site) in place:
                        made[row] = ratios[place[id(fit), site]]
                shape = (1, len(self.layers), len(self.data.regions), len(batches[0]))
                odds[id(arm), kind] = made.reshape(shape).transpose(0, 3, 1, 2)
        return odds, found.base[:, 0] - found.base[:, 1]

    def _scores(
        self, arms: Sequence[Arm], odds: Mapping[tuple[int, str], Odds]
    ) -> Mapping[str, float]:
        """Of each candidate the overall odds on the items that they were measured on."""
        found: dict[str, float] = {}
        for candidate in dict.fromkeys(arm.candidate for arm in arms):
            every = [odds[id(arm), ORIGINAL] for arm in arms if arm.candidate == candidate]
            own = np.concatenate(every)
            found[candidate] = best_mean(
                own if self.offered is None else np.where(self.offered, own, -np.inf)
            )
        return found

    def _of_method(
        self,
        arms: Sequence[Arm],
        validation: Mapping[tuple[int, str], Odds],
        test: Mapping[tuple[int, str], Odds],
    ) -> MethodOdds:
        """The candidate with the highest score, which has the others with it."""

        def of(own: Sequence[Arm], odds: Mapping[tuple[int, str], Odds]) -> Mapping[str, Odds]:
            return MappingProxyType(
                {kind: np.concatenate([odds[id(arm), kind] for arm in own]) for kind in self.kinds}
            )

        scores = self._scores(arms, validation)
        found: dict[str, MethodOdds] = {}
        for candidate in scores:
            own = [arm for arm in arms if arm.candidate == candidate]
            fits = {kind: tuple(arm.fits[kind] for arm in own) for kind in self.kinds}
            found[candidate] = MethodOdds(
                own[0].method,
                candidate,
                MappingProxyType(dict(scores)),
                of(own, validation),
                of(own, test),
                MappingProxyType(fits),
                MappingProxyType({str(site): why for site, why in own[0].lacking.items()}),
                offered=self.offered,
            )
        best = found.pop(max(scores, key=lambda candidate: scores[candidate]))
        return replace(best, others=MappingProxyType(found))


def _ratios(found: TokenLogits, first: int) -> np.ndarray:
    """Log odds-ratios [plans, n] of the base label and the label in two columns."""
    base = found.base[:, first] - found.base[:, first + 1]
    return base - (found.after[..., first] - found.after[..., first + 1])
