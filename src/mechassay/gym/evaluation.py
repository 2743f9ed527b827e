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
from typing import Any, cast

import torch

from mechassay.errors import BadUsage
from mechassay.features.finder import Finder, ValueFinder
from mechassay.features.fit import Fit
from mechassay.features.trained_finder import TrainedFinder
from mechassay.gym.arms import Arm, ArmMeasurement
from mechassay.gym.gym_task import GymTask
from mechassay.gym.method_odds import CONTROL, ORIGINAL
from mechassay.gym.methods import METHODS, GymMethod, gym_method, has_seed, spelled_methods
from mechassay.gym.pairs import GymPairs
from mechassay.gym.published import load_gym_task
from mechassay.gym.task_items import TaskItems, types_of
from mechassay.gym.task_odds import TaskOdds
from mechassay.gym.value_fits import BaseValues
from mechassay.interventions.site import blocks
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
    types = types_of(task, pairs)
    data = TaskItems.of("evaluate", model, pairs, SPLITS, types, control, compat)
    numbers = {name: number for number, name in enumerate(types)}
    of_train = torch.tensor([numbers[pair.tags.get("type", "")] for pair in pairs["train"]])
    measured = ArmMeasurement(model, data, blocks(model, layers), seed, progress, compat)
    runs = _GymEvaluation(measured, of_train, chosen, tuple(seeds), folder)
    found = runs.result()
    if untrained is None:
        return found
    there = None if folder is None else folder / "untrained"
    elsewhere = replace(measured, model=untrained, data=data.on(untrained))
    other = replace(runs, measured=elsewhere, folder=there)
    return replace(found, untrained=other.result())


@dataclass(frozen=True, eq=False)
class _GymEvaluation:
    """One task in one model.

    Attributes:
        types: of each train base, numbered.
    """

    measured: ArmMeasurement
    types: torch.Tensor
    methods: list[GymMethod]
    seeds: tuple[int, ...]
    folder: Path | None

    def result(self) -> TaskOdds:
        model, data = self.measured.model, self.measured.data
        values = BaseValues.of(model, data.fitted["train"], self.measured.sites, self.types)
        return self.measured.result(
            [arm for method in self.methods for arm in self.arms(method, values)]
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
        model, data = self.measured.model, self.measured.data
        kinds = self.measured.kinds
        drawn: Any = replace(cast(Any, finder), seed=seed) if has_seed(finder) else finder
        if isinstance(drawn, ValueFinder) and not drawn.needs_source:
            fit, lacking = values.fit(drawn, shuffle=seed if method.shuffled else None)
            return Arm(method.name, candidate, seed, dict.fromkeys(kinds, fit), lacking)
        batches = {ORIGINAL: data.items, CONTROL: data.control}
        fits: dict[str, Fit] = {}
        for kind in kinds:
            more: dict[str, Any] = {}
            if self.folder is not None and isinstance(drawn, TrainedFinder):
                # The key inside says whose training it is; the name only keeps them apart.
                name = f"{method.name}-{seed}-{kind}.pt".replace(":", "-").replace("/", "-")
                more["checkpoint"] = self.folder / name
            fits[kind] = drawn.fit(
                model,
                batches[kind]["train"],
                self.measured.sites,
                progress=self.measured.progress,
                **more,
            )
        return Arm(method.name, candidate, seed, fits, {})
