"""Runs on gym tasks: methods, accuracies, and directions that others found.

    `GymExperiment`          a cell is all methods on one task in one model
    `GymCheckExperiment`     a cell is one task in one model, and runs its sentences once
    `DirectionsExperiment`   a cell is one method whose directions are given; nothing is trained

The methods of a cell share the runs of bases and sources, and control labels share the
directions of all methods but those that are trained on labels; so a cell is not cut by method.
Trainings keep what they have done in `training/`, so that a killed run goes on in the middle of
a stack. What was found stays in `features/`, a file for each method and seed that `Fit.load`
reads.

Given directions are measured on the validation and test items of `GymExperiment` with the same
limits and seed, and with the same rule that chooses regions. So their numbers stand beside those
of methods that were run there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from mechassay.errors import BadUsage, one_of
from mechassay.gym.causalgym import load_gym_task
from mechassay.gym.directions import (
    SPLITS,
    GivenDirections,
    best_draw,
    given_directions,
    measure_directions,
)
from mechassay.gym.evaluation import evaluate
from mechassay.gym.gym_task import GymTask
from mechassay.gym.interchanges import COMPATS, control_labels
from mechassay.gym.methods import gym_method, spelled_methods, with_training
from mechassay.gym.names import ALL_TASKS, FINDERS, task_names, with_shuffled
from mechassay.gym.options import (
    GYM_CONTROLS,
    PAPER_STEPS,
    DirectionsOptions,
    GymCheckOptions,
    GymOptions,
)
from mechassay.gym.pairs import GymPairs
from mechassay.gym.sources import RowsTask, source_tasks
from mechassay.gym.task_accuracy import accuracy
from mechassay.gym.task_odds import ORIGINAL, TaskOdds
from mechassay.interventions.site import ModelShape
from mechassay.models.model import Model, check_dtype, untrained
from mechassay.models.origin import found_in
from mechassay.models.sources import AT, split_revision, training_step
from mechassay.results.records import Record, Selection, Spec
from mechassay.runs.cells import Cell, cell_name
from mechassay.runs.experiment import Experiment
from mechassay.runs.identities import MODEL, TASK, Source
from mechassay.runs.names import model_labels, task_labels
from mechassay.runs.options import MANY, layers_of
from mechassay.runs.worker import Worker, made_by
from mechassay.variables.mib_submission import FEATURES_SHA256

STEPS = (0, 1000, 2000, 3000, 10_000, 143_000)
"""Checkpoints of Pythia models that section 6.1 of the paper speaks of, the first and the last."""
WIDTH = 512
"""Settings are checked before any model is there."""


class _OnTasks:
    """What experiments on several models and gym tasks share: where tasks are from, and dtypes."""

    if TYPE_CHECKING:  # Fields of the plans, which have their options.
        models: tuple[str, ...]
        tasks: tuple[str, ...]
        source: str
        dtype: str

    @cached_property
    def from_source(self) -> Mapping[str, GymTask | RowsTask]:
        """The tasks of the source; none where tasks are ours.

        Raises:
            BadUsage, BadFile: see `gym.sources.source_tasks`.
        """
        return source_tasks(self.source) if self.source else {}

    @property
    def task_names(self) -> tuple[str, ...]:
        """The tasks, "all" and families written out."""
        if not self.source:
            return task_names(self.tasks)
        every = tuple(self.from_source)
        return every if ALL_TASKS in self.tasks else task_names(self.tasks)

    def gym_task(self, name: str) -> GymTask | RowsTask:
        """A task by name, of the source if there is one.

        Raises:
            UnknownName: no such task.
        """
        if not self.source:
            return load_gym_task(name)
        return self.from_source[one_of(f"gym task of {self.source}", name, self.from_source)]

    def sources(self, cell: Cell) -> dict[str, Source]:
        """Return the model and the gym task; the content of the task stands for its source."""
        model = Source(MODEL, cell["model"], self.dtype_of(cell["model"]))
        digest = self.gym_task(cell["task"]).sha256[:16]
        return {MODEL: model, TASK: Source(TASK, cell["task"], digest=digest)}

    def dtype_of(self, model: str) -> str:
        """The dtype of a model: its own if it is named, else that of all.

        Raises:
            BadUsage: no such dtype. UnknownName: a model that is not among those of the run.
        """
        first, *others = self.dtype.split(",")
        own = {name: kind for name, _, kind in (text.rpartition("=") for text in others)}
        known = dict.fromkeys(name for typed in self.models for name in (typed, bare(typed)))
        for name, dtype in own.items():
            one_of("model with a dtype", name, known)
            check_dtype(dtype)
        check_dtype(first)
        return own.get(model, own.get(bare(model), first))


def bare(model: str) -> str:
    """A model without its checkpoint."""
    return split_revision(model)[0]


@dataclass(frozen=True)
class GymExperiment(_OnTasks, GymOptions, Experiment):
    """A cell is all methods on one task in one model; see `GymOptions` for the fields."""

    for_boards: ClassVar[bool] = True
    grows: ClassVar[tuple[str, ...]] = ("models", "tasks")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "models", with_revisions(self.models, self.revisions))
        object.__setattr__(self, "revisions", ())
        training = {"steps": self.steps, "epochs": self.epochs, "lr": self.lr}
        settings = {name: value for name, value in training.items() if value is not None}
        object.__setattr__(
            self, "methods", with_training(FINDERS.full_names(self.methods), settings)
        )
        for name in training:
            object.__setattr__(self, name, None)

    @property
    def every_method(self) -> tuple[str, ...]:
        """The methods, and their controls on shuffled labels where these are asked for."""
        spelled = spelled_methods(self.methods)
        return with_shuffled(spelled) if "shuffled" in self.controls else spelled

    def definitions(self) -> dict[str, int]:
        """Return the versions of methods."""
        finders = [
            finder
            for text in self.every_method
            for finder in gym_method(text, WIDTH).candidates.values()
        ]
        return {f"method {finder.name}": finder.version for finder in finders}

    def check(self, worker: Worker) -> None:
        for model in self.models:
            self.dtype_of(model)
        for control in self.controls:
            one_of("control", control, GYM_CONTROLS)
        if self.compat:
            one_of("compat", self.compat, COMPATS)
        for method in self.every_method:
            gym_method(method, WIDTH)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise BadUsage(f"Draws are seeds, one or more, each once; got {self.seeds}.")
        layers_of(self.layers, MANY)
        for name in self.task_names:
            task = self.gym_task(name)
            if self.control_labels:
                control_labels(task.types, self.control_labels)

    def cells(self) -> list[Cell]:
        return gym_cells(self.models, self.task_names)

    def run(self, cell: Cell, worker: Worker) -> Record:
        dtype = self.dtype_of(cell["model"])
        model = worker.model(cell["model"], dtype=dtype, prepend_bos=self.prepend_bos)
        task = self.gym_task(cell["task"])
        limits = {
            "train": self.train_limit,
            "validation": self.validation_limit,
            "test": self.limit,
        }
        pairs = {
            split: at_most(task, model, split, size, self.seed) for split, size in limits.items()
        }
        folder = worker.folder.path
        odds = evaluate(
            model,
            pairs,
            self.every_method,
            layers=layers_of(self.layers, model.graph.n_layers),
            control=self._labels(task),
            seeds=self.seeds,
            seed=self.seed,
            untrained=self._untrained(model, worker),
            compat=self.compat or None,
            folder=folder / "training" / cell.name,
            progress=worker.progress,
        )
        save_fits(odds, folder / "features" / cell.name)
        chosen = {split: selection(split_pairs, model) for split, split_pairs in pairs.items()}
        return odds.record(
            {"model": model_spec(model, cell), "task": task_spec(task)},
            made_by(model, self.seed, chosen["test"].hash),
            data=chosen,
        )

    def _labels(self, task: GymTask | RowsTask) -> dict[str, str] | bool:
        """The control label of each type, if there are any."""
        if "labels" not in self.controls:
            return False
        return control_labels(task.types, self.control_labels or None)

    def _untrained(self, model: Model, worker: Worker) -> Model | None:
        if "untrained" not in self.controls:
            return None
        return worker.shared("untrained", lambda: untrained(model, self.seed))


def with_revisions(models: Sequence[str], revisions: Sequence[str]) -> tuple[str, ...]:
    """Every model at every checkpoint, as `MODEL@REVISION`; the models if none is named.

    Raises:
        BadUsage: a model that already has a revision.
    """
    if not revisions:
        return tuple(models)
    paper = tuple(f"step{step}" for step in STEPS)
    every = [
        revision for name in revisions for revision in (paper if name == PAPER_STEPS else (name,))
    ]
    for name in models:
        if split_revision(name)[1]:
            raise BadUsage(
                f"A checkpoint is named once, by --revision or after the @; got {name!r}."
            )
    return tuple(f"{name}{AT}{revision}" for name in models for revision in dict.fromkeys(every))


def gym_cells(models: Sequence[str], tasks: Sequence[str]) -> list[Cell]:
    """A cell for each model and task."""
    named, called = model_labels(models), task_labels(task_names(tasks))
    return [
        Cell(
            cell_name(model, task),
            {"model": named[model], "task": called[task]},
            model,
            {"model": model, "task": task},
        )
        for model in models
        for task in task_names(tasks)
    ]


def model_spec(model: Model, cell: Cell) -> Spec:
    """A model and what its size and its checkpoint are."""
    revision = split_revision(cell["model"])[1]
    spec = model.spec(parameters=model.n_parameters)
    if not revision:
        return spec
    step = training_step(revision)
    about = {"revision": revision, **({} if step is None else {"step": step})}
    return Spec(name=cell.labels["model"], args={**spec.args, **about})


def task_spec(task: GymTask | RowsTask) -> Spec:
    """A gym task and what it is made of."""
    args: dict[str, Any] = {"family": task.family, "lengths": task.lengths, "sha256": task.sha256}
    return Spec(name=task.name, version=task.version, args=args)


def at_most(task: GymTask | RowsTask, model: Model, split: str, size: int, seed: int) -> GymPairs:
    """As many interchanges of a split as are asked for, or as there are."""
    if size >= task.sizes[split]:
        return task.interchanges(split, model, seed=seed)
    return task.interchanges(split, model, limit=size, seed=seed)


def selection(pairs: GymPairs, model: Model) -> Selection:
    """What was kept and dropped of a split."""
    return Selection(
        hash=pairs.batch(model).content_hash,
        task=pairs.task,
        split=pairs.split,
        kept=len(pairs),
        dropped=dict(pairs.dropped),
        seed=pairs.seed,
    )


def save_fits(odds: TaskOdds, folder: Path) -> None:
    """Write what methods found: a file for each method and seed, of DAS also of control labels."""
    for method, method_odds in odds.methods.items():
        name = cell_name(method.replace(":", " "))
        for kind, fits in method_odds.fits.items():
            if kind != "odds" and fits[0] is method_odds.fits["odds"][0]:
                continue
            for number, fit in enumerate(fits):
                more = "" if kind == "odds" else f"-{kind}"
                fit.save(folder / f"{name}-{number}{more}.safetensors")


@dataclass(frozen=True)
class GymCheckExperiment(_OnTasks, GymCheckOptions, Experiment):
    """A cell is one task in one model; see `GymCheckOptions` for the fields."""

    command: ClassVar[tuple[str, ...]] = ("gym", "check")
    grows: ClassVar[tuple[str, ...]] = ("models", "tasks")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "models", with_revisions(self.models, self.revisions))
        object.__setattr__(self, "revisions", ())

    def check(self, worker: Worker) -> None:
        for model in self.models:
            self.dtype_of(model)
        for name in self.task_names:
            self.gym_task(name)

    def cells(self) -> list[Cell]:
        return gym_cells(self.models, self.task_names)

    def run(self, cell: Cell, worker: Worker) -> Record:
        dtype = self.dtype_of(cell["model"])
        model = worker.model(cell["model"], dtype=dtype, prepend_bos=self.prepend_bos)
        task = self.gym_task(cell["task"])
        pairs = at_most(task, model, "test", self.limit, self.seed)
        spec, chosen = model_spec(model, cell), selection(pairs, model)
        behaviour = replace(accuracy(model, pairs, progress=worker.progress), model=spec.name)
        return behaviour.record(
            {"model": spec, "task": task_spec(task)},
            made_by(model, self.seed, chosen.hash),
            data={"test": chosen},
        )


GIVEN_CONTROL = (
    "Selectivity rests on the directions for control labels as they were given: weak ones make it"
    " high."
)


@dataclass(frozen=True)
class DirectionsExperiment(DirectionsOptions, Experiment):
    """A cell is one method whose directions are given; see `DirectionsOptions` for the fields."""

    for_boards: ClassVar[bool] = True
    split: ClassVar[str] = "test"
    command: ClassVar[tuple[str, ...]] = ("gym", "evaluate")

    def words(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (*self.command, *self.directions), ("directions",)

    @cached_property
    def _task(self) -> GymTask:
        return load_gym_task(self.task)

    @cached_property
    def given(self) -> tuple[GivenDirections, ...]:
        """The directions that are measured, a method each.

        Raises:
            UnknownName: the task is unknown. BadFile: a folder has no readable directions.
        """
        regions = self._task.tested
        return tuple(x for folder in self.directions for x in given_directions(folder, regions))

    def sources(self, cell: Cell) -> dict[str, Source]:
        (digest,) = (x.sha256 for x in self.given if x.typed == cell["method"])
        return {
            MODEL: Source(MODEL, cell["model"], self.dtype),
            TASK: Source(TASK, cell["task"], digest=self._task.sha256[:16]),
            "directions": Source("directions", cell["method"], digest=digest[:16]),
        }

    def check(self, worker: Worker) -> None:
        super().check(worker)
        layers_of(self.layers, MANY)
        if self.control_labels:
            control_labels(self._task.types, self.control_labels)
        names: dict[str, str] = {}
        for directions in self.given:
            if directions.method in names:
                raise BadUsage(
                    f"{names[directions.method]} and {directions.typed} are both"
                    f" {directions.method!r}: name their methods differently."
                )
            names[directions.method] = directions.typed

    def cells(self) -> list[Cell]:
        (whole,) = gym_cells((self.model,), (self.task,))
        return [
            Cell(
                f"{whole.name}/{cell_name(directions.method)}",
                {**whole.labels, "method": directions.method},
                whole.name,
                {**whole.typed, "method": directions.typed},
            )
            for directions in self.given
        ]

    def run(self, cell: Cell, worker: Worker) -> Record:
        typed = cell["method"]
        (given,) = (directions for directions in self.given if directions.typed == typed)
        model = worker.model(cell["model"], dtype=self.dtype, prepend_bos=self.prepend_bos)
        given_directions(given.folder, self._task.tested, ModelShape.of(model), model.name)
        elsewhere = {
            what: where
            for fits in given.fits().values()
            for fit in fits
            for what, where in found_in(
                f"directions {given.method}", fit.provenance, model, transfer=self.transfer
            ).items()
        }
        limits = dict(zip(SPLITS, (self.validation_limit, self.limit), strict=True))
        pairs = {
            split: at_most(self._task, model, split, size, self.seed)
            for split, size in limits.items()
        }
        odds = measure_directions(
            model,
            pairs,
            given,
            layers=layers_of(self.layers, model.graph.n_layers),
            control=control_labels(self._task.types, self.control_labels or None)
            if given.has_control
            else None,
            seed=self.seed,
            progress=worker.progress,
        )
        chosen = {split: selection(split_pairs, model) for split, split_pairs in pairs.items()}
        fits = odds[given.method].fits[ORIGINAL]
        k = max(fit.directions(site).shape[1] for fit in fits for site in fit.sites)
        about: dict[str, Any] = {
            "seeds": odds[given.method].seeds,
            "k": k,
            FEATURES_SHA256: given.sha256,
        }
        record = odds.record(
            {
                "model": model_spec(model, cell),
                "task": task_spec(self._task),
                "method": Spec(name=given.method, args=about),
            },
            made_by(model, self.seed, chosen["test"].hash),
            data=chosen,
        )
        warnings = [*record.warnings, *_warnings(record, given.method, k)]
        if given.has_control:
            warnings.append(GIVEN_CONTROL)
        return record.changed(warnings=warnings, found_in=elsewhere)


def _warnings(record: Record, method: str, k: int) -> Iterator[str]:
    """That a site has several directions, and that they do no more than random ones."""
    if k > 1:
        yield (
            f"{method} exchanges up to {k} directions at a site. Methods have one by default, and"
            " more change more of the vector: compare with methods of as many."
        )
    own, drawn = record.measure(f"{ORIGINAL}_{method}"), best_draw(record)
    if own is not None and not (math.isnan(drawn) or own.low > drawn):
        begins = (
            "it has no interval" if math.isnan(own.low) else f"its interval begins at {own.low:.2f}"
        )
        yield (
            f"{method} is not told apart from as many random directions: {begins}, and the best of"
            f" them have {drawn:.2f}."
        )
