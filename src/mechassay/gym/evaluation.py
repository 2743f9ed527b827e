"""All methods on one gym task in one model: every region and layer, original and control labels.

    1  bases and sources are run once a split; values of the train bases are kept for all methods
       that look at values alone, whose directions are those of both kinds of labels
    2  DAS is trained for all sites in one stack, once with original and once with control labels
    3  all directions of all sites are exchanged in one stack, on validation items; the logits of
       all four labels come from the same run
    4  of the candidates of a method the best on validation items counts, by overall odds with
       original labels; test items say what the others would have given

`compat="causalgym-2024"` reads and fits where the public code does (`compat_batches`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import numpy as np
import torch

from mechassay.errors import BadUsage
from mechassay.features.finder import Finder, ValueFinder
from mechassay.features.fit import Fit
from mechassay.features.trained_finder import TrainedFinder
from mechassay.gym.choice_of_regions import Odds, best_mean
from mechassay.gym.control_labels import (
    control_labels,
    tokens_of_labels,
    with_control_labels,
)
from mechassay.gym.gym_task import GymTask
from mechassay.gym.index_mix_up import compat_batches
from mechassay.gym.methods import METHODS, GymMethod, gym_method, has_seed, spelled_methods
from mechassay.gym.pairs import GymPairs
from mechassay.gym.published import load_gym_task
from mechassay.gym.task_odds import CONTROL, ORIGINAL, MethodOdds, TaskOdds
from mechassay.gym.value_fits import BaseValues
from mechassay.interchange import InterchangeBatch
from mechassay.interventions.intervention import Interchange, Intervention
from mechassay.interventions.site import Site, blocks, sites
from mechassay.interventions.token_logits import TokenLogits, token_logits
from mechassay.models.model import Model
from mechassay.progress import BAR, Progress

SPLITS = ("train", "validation", "test")


def evaluate(
    model: Model,
    task: GymTask | str | Mapping[str, GymPairs],
    methods: Sequence[str] = METHODS,
    *,
    layers: Sequence[int] | int | None = None,
    control: Mapping[str, str] | Sequence[str] | bool = True,
    seeds: Sequence[int] = (0,),
    seed: int = 0,
    limits: Mapping[str, int] | None = None,
    untrained: Model | None = None,
    compat: str | None = None,
    folder: Path | None = None,
    progress: Progress = BAR,
) -> TaskOdds:
    """The odds of methods on one task; see the module.

    Args:
        task: a gym task, its name, or its pairs by split (train, validation, test).
        methods: names of `gym.methods`, with settings if wanted, or of `SWEEPS`.
        layers: blocks; all of them by default.
        control: the control label of each type, by type or in their order; dog and give if True,
            none if False.
        seeds: of what methods draw: the start of DAS, random directions, shuffled labels.
        seed: of the pairs and of the bootstrap.
        limits: interchanges by split, where they are not the split's.
        untrained: the same architecture with random weights, for that control.
        compat: "causalgym-2024" for the public code's indices.
        folder: where trainings keep what is done, so that a killed run goes on.

    Raises:
        UnknownName: no such task, method, setting or code.
        BadUsage: no method, no seed, a seed twice, a split is missing.
        BadPairs: labels that are not one token each.
    """
    if not seeds or len(set(seeds)) < len(seeds):
        raise BadUsage(f"evaluate needs seeds, one or more, each once; got {tuple(seeds)}.")
    names = spelled_methods(methods)
    width = model.decoder.d_model
    chosen = [gym_method(name, width) for name in names]
    if isinstance(task, Mapping):
        pairs = dict(task)
    else:
        loaded = load_gym_task(task) if isinstance(task, str) else task
        pairs = loaded.splits(model, seed=seed, limits=limits)
    data = _data(model, pairs, _types(task, pairs), control, compat)
    runs = _GymEvaluation(
        model, data, blocks(model, layers), chosen, tuple(seeds), seed, compat, folder, progress
    )
    found = runs.result()
    if untrained is None:
        return found
    there = None if folder is None else folder / "untrained"
    other = replace(runs, model=untrained, data=data.on(untrained), folder=there)
    return replace(found, untrained=other.result())


@dataclass(frozen=True, eq=False)
class _TaskData:
    """The items of a task as token ids.

    Attributes:
        items, control: of each split, with original and with control labels.
        fitted: the train items, with base columns where values are taken for fits.
        types: of each train base, numbered.
    """

    task: str
    regions: tuple[str, ...]
    items: Mapping[str, InterchangeBatch]
    control: Mapping[str, InterchangeBatch]
    fitted: InterchangeBatch
    types: torch.Tensor
    labels: Mapping[str, str]

    def on(self, model: Model) -> _TaskData:
        """The same items for another model with the same tokens."""
        moved = (
            {split: model.interchanges(batch) for split, batch in batches.items()}
            for batches in (self.items, self.control)
        )
        items, control = moved
        fitted = model.interchanges(self.fitted)
        return replace(self, items=items, control=control, fitted=fitted)


def _types(task: Any, pairs: Mapping[str, GymPairs]) -> tuple[str, ...]:
    """The types of sentences in the order of the task; of pairs alone, as they come."""
    if isinstance(task, GymTask):
        return task.types
    if isinstance(task, str):
        return load_gym_task(task).types
    every = (pair.tags.get("type", "") for split in pairs.values() for pair in split)
    return tuple(dict.fromkeys(every))


def _data(
    model: Model,
    pairs: Mapping[str, GymPairs],
    types: tuple[str, ...],
    control: Mapping[str, str] | Sequence[str] | bool,
    compat: str | None,
) -> _TaskData:
    missing = [split for split in SPLITS if split not in pairs]
    if missing:
        raise BadUsage(f"evaluate needs pairs of {', '.join(SPLITS)}; no {missing[0]}.")
    labels = {} if control is False else control_labels(types, None if control is True else control)
    plain = {split: pairs[split].batch(model) for split in SPLITS}
    items = {split: compat_batches(batch, compat) for split, batch in plain.items()}
    of_control = {
        split: with_control_labels(pairs[split], labels, items[split].intervened, model)
        if compat is None
        else replace(
            items[split].intervened,
            **_labels(with_control_labels(pairs[split], labels, plain[split], model)),
        )
        for split in (SPLITS if labels else ())
    }
    numbers = {name: number for number, name in enumerate(types)}
    train = pairs["train"]
    return _TaskData(
        train.task,
        train.tested,
        {split: model.interchanges(each.intervened) for split, each in items.items()},
        {split: model.interchanges(each) for split, each in of_control.items()},
        model.interchanges(items["train"].fitted),
        torch.tensor([numbers[pair.tags.get("type", "")] for pair in train]),
        MappingProxyType(labels),
    )


def _labels(batch: InterchangeBatch) -> dict[str, Any]:
    return {"labels": batch.labels, "base_labels": batch.base_labels}


@dataclass(frozen=True, eq=False)
class _Arm:
    """A finder with one seed, and what it found for each kind of labels."""

    method: str
    candidate: str
    seed: int
    fits: Mapping[str, Fit]
    lacking: Mapping[Site, str]


@dataclass(frozen=True, eq=False)
class _GymEvaluation:
    """One task in one model."""

    model: Model
    data: _TaskData
    layers: tuple[int, ...]
    methods: list[GymMethod]
    seeds: tuple[int, ...]
    seed: int
    compat: str | None
    folder: Path | None
    progress: Progress

    @property
    def sites(self) -> tuple[Site, ...]:
        """All regions of the first layer, then of the next."""
        return sites(self.model, positions=self.data.regions, layers=self.layers)

    @property
    def kinds(self) -> tuple[str, ...]:
        """Of labels."""
        return (ORIGINAL, CONTROL) if self.data.control else (ORIGINAL,)

    def result(self) -> TaskOdds:
        values = BaseValues.of(self.model, self.data.fitted, self.sites, self.data.types)
        arms = [arm for method in self.methods for arm in self.arms(method, values)]
        validation, _ = self.odds(arms, "validation")
        test, base = self.odds(arms, "test")
        methods = {
            method.name: self._of_method(
                self._scores(method, arms, validation),
                [arm for arm in arms if arm.method == method.name],
                validation,
                test,
            )
            for method in self.methods
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
        )

    def arms(self, method: GymMethod, values: BaseValues) -> list[_Arm]:
        """The fits of a method: of every candidate and seed."""
        seeds = self.seeds if method.seeded else self.seeds[:1]
        return [
            self._arm(method, candidate, finder, seed, values)
            for candidate, finder in method.candidates.items()
            for seed in seeds
        ]

    def _arm(
        self, method: GymMethod, candidate: str, finder: Finder, seed: int, values: BaseValues
    ) -> _Arm:
        drawn: Any = replace(cast(Any, finder), seed=seed) if has_seed(finder) else finder
        if isinstance(drawn, ValueFinder) and not drawn.needs_source:
            fit, lacking = values.fit(drawn, shuffle=seed if method.shuffled else None)
            return _Arm(method.name, candidate, seed, dict.fromkeys(self.kinds, fit), lacking)
        batches = {ORIGINAL: self.data.items, CONTROL: self.data.control}
        fits: dict[str, Fit] = {}
        for kind in self.kinds:
            more: dict[str, Any] = {}
            if self.folder is not None and isinstance(drawn, TrainedFinder):
                # The key inside says whose training it is; the name only keeps them apart.
                name = f"{method.name}-{seed}-{kind}.pt".replace(":", "-").replace("/", "-")
                more["checkpoint"] = self.folder / name
            fits[kind] = drawn.fit(
                self.model, batches[kind]["train"], self.sites, progress=self.progress, **more
            )
        return _Arm(method.name, candidate, seed, fits, {})

    def odds(self, arms: Sequence[_Arm], split: str) -> tuple[dict[tuple[int, str], Odds], Any]:
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
        self, method: GymMethod, arms: Sequence[_Arm], odds: Mapping[tuple[int, str], Odds]
    ) -> Mapping[str, float]:
        """Of each candidate the overall odds on the items that they were measured on."""
        return {
            candidate: best_mean(
                np.concatenate(
                    [
                        odds[id(arm), ORIGINAL]
                        for arm in arms
                        if arm.method == method.name and arm.candidate == candidate
                    ]
                )
            )
            for candidate in method.candidates
        }

    def _of_method(
        self,
        scores: Mapping[str, float],
        arms: Sequence[_Arm],
        validation: Mapping[tuple[int, str], Odds],
        test: Mapping[tuple[int, str], Odds],
    ) -> MethodOdds:
        """The candidate with the highest score, which has the others with it."""

        def of(own: Sequence[_Arm], odds: Mapping[tuple[int, str], Odds]) -> Mapping[str, Odds]:
            return MappingProxyType(
                {kind: np.concatenate([odds[id(arm), kind] for arm in own]) for kind in self.kinds}
            )

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
            )
        best = found.pop(max(scores, key=lambda candidate: scores[candidate]))
        return replace(best, others=MappingProxyType(found))


def _ratios(found: TokenLogits, first: int) -> np.ndarray:
    """Log odds-ratios [plans, n] of the base label and the label in two columns."""
    base = found.base[:, first] - found.base[:, first + 1]
    return base - (found.after[..., first] - found.after[..., first + 1])
