"""All methods on one gym task in one model: every region and layer, original and control labels.

    1  bases and sources are run once a split; values of the train bases are kept for all methods
       that look at values alone, whose directions are those of both kinds of labels
    2  DAS is trained for all sites in one stack, once with original and once with control labels,
       and as a control once with the original ones dealt out anew among the train pairs
    3  all directions of all sites are exchanged in one stack, on validation items; the logits of
       all four labels come from the same run
    4  of the candidates of a method the best on validation items counts, by overall odds with
       original labels; test items say what the others would have given

A method may find nothing at a site: LDA where values do not vary within their classes, or a
penalty that leaves no weight. The fit then lacks the site, the reason is kept, and the odds
there are 0.

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
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.errors import BadUsage, NonFinite
from mechassay.features.das import TrainedFinder
from mechassay.features.featurizer import Featurizer
from mechassay.features.finder import (
    Finder,
    Fit,
    Found,
    ValueFinder,
    classes_of,
    provenance_of,
    values_at,
)
from mechassay.features.training import SiteTokens
from mechassay.gym.causalgym import load_gym_task
from mechassay.gym.classification import told_apart
from mechassay.gym.gym_task import GymTask
from mechassay.gym.interchanges import (
    compat_batches,
    control_labels,
    tokens_of_labels,
    with_control_labels,
)
from mechassay.gym.methods import GymMethod, gym_method, has_seed, spelled_methods
from mechassay.gym.names import METHODS
from mechassay.gym.pairs import GymPairs
from mechassay.gym.task_odds import (
    CONTROL,
    ORIGINAL,
    Classified,
    MethodOdds,
    Odds,
    TaskOdds,
    best_mean,
)
from mechassay.interventions.intervention import Interchange, Intervention
from mechassay.interventions.site import Site, blocks, sites
from mechassay.interventions.sweep import token_logits
from mechassay.models.model import Model
from mechassay.prompts.interchange_batch import InterchangeBatch
from mechassay.tasks.task import PUBLIC_SPLITS
from mechassay.utils.arguments import checked
from mechassay.utils.display import BAR, Progress


@dataclass(frozen=True, eq=False)
class BaseValues:
    """The values of the bases at some sites, in fp64 on the CPU.

    Attributes:
        classes: of each base, by its label's type; numbered as they come.
    """

    model: Model
    batch: InterchangeBatch
    values: dict[Site, Float[Tensor, "n d"]]
    classes: Int[Tensor, "n"]

    @staticmethod
    def of(
        model: Model,
        batch: InterchangeBatch,
        sites: tuple[Site, ...],
        classes: Int[Tensor, "n"] | None = None,
    ) -> BaseValues:
        """Run the bases once.

        Args:
            classes: of each base; by its label if not given.

        Raises:
            NonFinite: a value is NaN or infinite.
        """
        tokens = [SiteTokens.of(batch, site) for site in sites]
        with torch.no_grad():
            patched = values_at(model, batch, list(sites), tokens)
        values = {site: x.double().cpu() for site, x in zip(sites, patched, strict=True)}
        for site, x in values.items():
            if not bool(torch.isfinite(x).all()):
                raise NonFinite(f"Values at {site} are NaN or infinite.")
        own = classes_of("A gym method", batch) if classes is None else classes
        return BaseValues(model, batch, values, own.cpu())

    def fit(
        self, finder: ValueFinder, *, shuffle: int | None = None
    ) -> tuple[Fit, dict[Site, str]]:
        """What a finder finds, and why it finds nothing at the sites that the fit lacks.

        Args:
            shuffle: a seed: classes are dealt out anew among the bases.

        Raises:
            BadUsage: it finds nothing at any site, for the reason of the first.
        """
        classes = self.classes
        if shuffle is not None:
            classes = classes[_dealt_out(len(classes), shuffle)]
        featurizers: dict[Site, Featurizer] = {}
        lacking: dict[Site, str] = {}
        for site, values in self.values.items():
            try:
                featurizers[site] = finder.find(Found(site, values, None, classes))
            except BadUsage as reason:
                lacking[site] = str(reason)
        about = provenance_of(finder, self.model, self.batch, list(self.values))
        if shuffle is not None:
            about["shuffled"] = shuffle
        fit = Fit(MappingProxyType(featurizers), provenance=MappingProxyType(about))
        return fit, lacking


def _dealt_out(n: int, seed: int) -> Int[Tensor, "n"]:
    """Whose label each of n rows gets where labels are shuffled."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True, eq=False)
class TaskItems:
    """The items of a task.

    Attributes:
        task: its name.
        regions: at which interventions are tried.
        items, control: of each split, with original and with control labels.
        fitted: of each split, with base columns where values are taken for fits.
        labels: the control label of each type; none without control labels.
    """

    task: str
    regions: tuple[str, ...]
    items: Mapping[str, InterchangeBatch]
    control: Mapping[str, InterchangeBatch]
    fitted: Mapping[str, InterchangeBatch]
    labels: Mapping[str, str]

    @staticmethod
    def of(
        who: str,
        model: Model,
        pairs: Mapping[str, GymPairs],
        splits: Sequence[str],
        types: tuple[str, ...],
        control: Mapping[str, str] | Sequence[str] | bool,
        compat: str | None = None,
    ) -> TaskItems:
        """The items of some splits.

        Args:
            who: needs them; said where a split is missing.
            types: of the task's sentences, in its order.
            control, compat: see `evaluate`.

        Raises:
            BadUsage: a split is missing; no control label for each type.
            BadPairs: pairs that cannot be aligned, labels that are not one token each.
        """
        missing = [split for split in splits if split not in pairs]
        if missing:
            raise BadUsage(f"{who} needs pairs of {', '.join(splits)}; no {missing[0]}.")
        labels = (
            {} if control is False else control_labels(types, None if control is True else control)
        )
        plain = {split: pairs[split].batch(model) for split in splits}
        made = {split: compat_batches(batch, compat) for split, batch in plain.items()}
        of_control = {
            split: with_control_labels(pairs[split], labels, made[split].intervened, model)
            if compat is None
            else replace(
                made[split].intervened,
                **_labels(with_control_labels(pairs[split], labels, plain[split], model)),
            )
            for split in (splits if labels else ())
        }
        first = pairs[splits[0]]
        return TaskItems(
            first.task,
            first.tested,
            {
                split: model.interchanges(split_pairs.intervened)
                for split, split_pairs in made.items()
            },
            {
                split: model.interchanges(control_pairs)
                for split, control_pairs in of_control.items()
            },
            {split: model.interchanges(split_pairs.fitted) for split, split_pairs in made.items()},
            MappingProxyType(labels),
        )

    def on(self, model: Model) -> TaskItems:
        """The same items for another model with the same tokens."""
        items, control, fitted = (
            {split: model.interchanges(batch) for split, batch in batches.items()}
            for batches in (self.items, self.control, self.fitted)
        )
        return replace(self, items=items, control=control, fitted=fitted)


def example_of(pairs: GymPairs) -> dict[str, tuple[str, str]]:
    """What the first pair has in each region at which interventions are tried."""
    first = pairs[0]
    return {
        region: (
            first.base[slice(*first.base_spans.get(region, (0, 0)))],
            first.source[slice(*first.source_spans.get(region, (0, 0)))],
        )
        for region in pairs.tested
    }


def types_of(task: Any, pairs: Mapping[str, GymPairs]) -> tuple[str, ...]:
    """The types of sentences in the order of the task; of pairs alone, as they come."""
    if isinstance(task, GymTask):
        return task.types
    if isinstance(task, str):
        return load_gym_task(task).types
    every = (pair.tags.get("type", "") for split in pairs.values() for pair in split)
    return tuple(dict.fromkeys(every))


def _labels(batch: InterchangeBatch) -> dict[str, Any]:
    return {"labels": batch.labels, "base_labels": batch.base_labels}


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
        logits = token_logits(self.model, batches[0], plans, tokens, progress=self.progress)
        odds: dict[tuple[int, str], Odds] = {}
        for number, kind in enumerate(self.kinds):
            # Log odds-ratios [plans, n] of the base label and the label, two columns of each kind.
            own, other = 2 * number, 2 * number + 1
            before = logits.base[:, own] - logits.base[:, other]
            ratios = before - (logits.after[..., own] - logits.after[..., other])
            for arm in arms:
                fit = arm.fits[kind]
                made = np.zeros((len(self.sites), len(batches[0])))
                for row, site in enumerate(self.sites):
                    if (id(fit), site) in place:
                        made[row] = ratios[place[id(fit), site]]
                shape = (1, len(self.layers), len(self.data.regions), len(batches[0]))
                odds[id(arm), kind] = made.reshape(shape).transpose(0, 3, 1, 2)
        return odds, logits.base[:, 0] - logits.base[:, 1]

    def _scores(
        self, arms: Sequence[Arm], odds: Mapping[tuple[int, str], Odds]
    ) -> Mapping[str, float]:
        """Of each candidate the overall odds on the items that they were measured on."""
        scores: dict[str, float] = {}
        for candidate in dict.fromkeys(arm.candidate for arm in arms):
            every = [odds[id(arm), ORIGINAL] for arm in arms if arm.candidate == candidate]
            own = np.concatenate(every)
            scores[candidate] = best_mean(
                own if self.offered is None else np.where(self.offered, own, -np.inf)
            )
        return scores

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
        odds: dict[str, MethodOdds] = {}
        for candidate in scores:
            own = [arm for arm in arms if arm.candidate == candidate]
            fits = {kind: tuple(arm.fits[kind] for arm in own) for kind in self.kinds}
            odds[candidate] = MethodOdds(
                own[0].method,
                candidate,
                MappingProxyType(dict(scores)),
                of(own, validation),
                of(own, test),
                MappingProxyType(fits),
                MappingProxyType({str(site): why for site, why in own[0].lacking.items()}),
                offered=self.offered,
            )
        best = odds.pop(max(scores, key=lambda candidate: scores[candidate]))
        return replace(best, others=MappingProxyType(odds))


@checked
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
        untrained: the same architecture with random weights, for that control; odds alone, without
            control labels and shuffled ones.
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
    types = types_of(task, pairs)
    data = TaskItems.of("evaluate", model, pairs, PUBLIC_SPLITS, types, control, compat)
    numbers = {name: number for number, name in enumerate(types)}
    classes = {
        split: torch.tensor([numbers[pair.tags.get("type", "")] for pair in pairs[split]])
        for split in PUBLIC_SPLITS
    }
    measured = ArmMeasurement(model, data, blocks(model, layers), seed, progress, compat)
    runs = _GymEvaluation(
        measured, MappingProxyType(classes), example_of(pairs["test"]), chosen, tuple(seeds), folder
    )
    odds = runs.result()
    if untrained is None:
        return odds
    there = None if folder is None else folder / "untrained"
    plain = replace(data.on(untrained), control={}, labels={})
    elsewhere = replace(measured, model=untrained, data=plain)
    own = [method for method in chosen if not method.shuffled]
    other = replace(runs, measured=elsewhere, methods=own, folder=there)
    return replace(odds, untrained=other.result())


@dataclass(frozen=True, eq=False)
class _GymEvaluation:
    """One task in one model.

    Attributes:
        types: of each base of each split, numbered.
    """

    measured: ArmMeasurement
    types: Mapping[str, torch.Tensor]
    example: Mapping[str, tuple[str, str]]
    methods: list[GymMethod]
    seeds: tuple[int, ...]
    folder: Path | None

    def result(self) -> TaskOdds:
        model, data = self.measured.model, self.measured.data
        values = {
            split: BaseValues.of(model, data.fitted[split], self.measured.sites, self.types[split])
            for split in PUBLIC_SPLITS
        }
        arms = [arm for method in self.methods for arm in self.arms(method, values["train"])]
        odds = self.measured.result(arms)
        return replace(
            odds,
            classified=MappingProxyType(
                {name: self._classified(own, values) for name, own in odds.methods.items()}
            ),
            example=self.example,
        )

    def _classified(
        self, method: MethodOdds, values: Mapping[str, BaseValues]
    ) -> Mapping[str, Classified]:
        """Of validation and test items, whether a sentence's own type is the nearest one."""
        train, (n_layers, n_regions) = values["train"], method.test[ORIGINAL].shape[2:]
        return MappingProxyType(
            {
                split: told_apart(
                    method.fits[ORIGINAL],
                    self.measured.sites,
                    train.values,
                    train.classes,
                    values[split].values,
                    values[split].classes,
                ).reshape(method.seeds, -1, n_layers, n_regions)
                for split in PUBLIC_SPLITS[1:]
            }
        )

    def arms(self, method: GymMethod, values: BaseValues) -> list[Arm]:
        """The fits of a method: of every candidate and seed."""
        seeds = self.seeds if method.seeded else self.seeds[:1]
        return [
            self._arm(method, candidate, finder, seed, values)
            for candidate, finder in method.candidates.items()
            for seed in seeds
        ]

    def _arm(
        self, method: GymMethod, candidate: str, finder: Finder, seed: int, values: BaseValues
    ) -> Arm:
        data = self.measured.data
        kinds = self.measured.kinds
        drawn: Any = replace(cast(Any, finder), seed=seed) if has_seed(finder) else finder
        if isinstance(drawn, ValueFinder) and not drawn.needs_source:
            fit, lacking = values.fit(drawn, shuffle=seed if method.shuffled else None)
            return Arm(method.name, candidate, seed, dict.fromkeys(kinds, fit), lacking)
        if method.shuffled:
            train = data.items["train"]
            order = _dealt_out(len(train), seed).to(train.labels.device)
            shuffled = replace(train, labels=train.labels[order])
            fit = self._trained(drawn, shuffled, f"{method.name}-{seed}")
            fit = replace(fit, provenance=MappingProxyType({**fit.provenance, "shuffled": seed}))
            return Arm(method.name, candidate, seed, dict.fromkeys(kinds, fit), {})
        batches = {ORIGINAL: data.items, CONTROL: data.control}
        fits = {
            kind: self._trained(drawn, batches[kind]["train"], f"{method.name}-{seed}-{kind}")
            for kind in kinds
        }
        return Arm(method.name, candidate, seed, fits, {})

    def _trained(self, finder: Any, train: InterchangeBatch, name: str) -> Fit:
        """What a finder finds that needs more than values; its training keeps what is done."""
        more: dict[str, Any] = {}
        if self.folder is not None and isinstance(finder, TrainedFinder):
            # The key inside says whose training it is; the name only keeps them apart.
            file = f"{name}.pt".replace(":", "-").replace("/", "-")
            more["checkpoint"] = self.folder / file
        return finder.fit(
            self.measured.model,
            train,
            self.measured.sites,
            progress=self.measured.progress,
            **more,
        )
