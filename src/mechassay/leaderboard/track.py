"""What a board evaluates of submissions, as data: models, tasks, splits and limits (`track.yaml`).

    boards: [circuits, variables, gym]  which boards take submissions; see also `adversarial`
    splits: [test]                      "private" too where the board's keeper has a seed for it
    limit: 100                          examples of a cell; `limits` of single tasks: {mcqa: 50}
    models:
      gpt2:                             the public name; folders of submissions have it
        load: openai-community/gpt2     what `load_model` gets; the public name if left out
        tasks: [ioi]
        shape: {n_layers: 12, n_heads: 12, d_model: 768, d_head: 64}
        mib_class: GPT2LMHeadModel      what folders of MIB's causal track call the model
        gym: [agr_gender]               gym tasks, for directions
    gym_k: 1                            directions at a site, at most
    adversarial:                        of submitted circuits, if `boards` names it
      n_clean: 10                       prompts of each pool; every clean one is paired with every
      n_corrupted: 10                   corrupted one of the split test
      sizes: [0.01]                     shares of the edges: one circuit, and one row, for each
      tasks: {gpt2: [ioi]}              what it is done on; all of the track if left out
    upload: {megabytes: 2000}           see `UploadLimits`
    cell: {seconds: 3600}               see `TrackCellLimits`

A model whose shape is not written down is loaded once, when the first submission names it.
Adversarial pools have no private examples.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import AfterValidator, Field, ValidationError, model_validator

from mechassay.circuits.areas import Profile
from mechassay.circuits.series import CircuitSeries
from mechassay.circuits.submission import TrackModel
from mechassay.errors import BadFile, BadUsage, MechassayError, UnknownName, first_line
from mechassay.graph import Graph
from mechassay.interventions.model_shape import ModelShape
from mechassay.models.model import load_model
from mechassay.records import Stored, first_mistake
from mechassay.runs.adversarial import AdversarialJob
from mechassay.tasks import load_task
from mechassay.truth.models import is_truth
from mechassay.variables.mib_board import MIB_BOARD, BoardModel, MIBBoard

SubmissionKind = Literal["circuits", "variables", "gym"]
TrackBoard = SubmissionKind | Literal["adversarial"]
"""Circuits stand on the board of adversarial evaluation too, if the track names it."""
SplitName = Literal["test", "private"]
TEST = "test"
LARGEST_TRACK = 10**6
"""Characters of a track file."""
_PUBLIC = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}")
_GYM_TASK = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def _public(name: str) -> str:
    if not _PUBLIC.fullmatch(name):
        raise ValueError(
            f"{name[:80]!r} is no public name: small letters, digits, dots and hyphens, at most 64"
        )
    return name


def _gym_task(name: str) -> str:
    if not _GYM_TASK.fullmatch(name):
        raise ValueError(
            f"{name[:80]!r} is no name of a gym task: small letters, digits, dots, hyphens and"
            " underscores, at most 64"
        )
    return name


PublicName = Annotated[str, AfterValidator(_public)]
GymTaskName = Annotated[str, AfterValidator(_gym_task)]


class UploadLimits(Stored):
    """What a submission may be at most.

    Attributes:
        megabytes: of the file as it comes, and of all files that it unpacks to.
        files: how many it unpacks to.
        ratio: how many times larger than the file all that it unpacks to may be.
    """

    megabytes: float = Field(default=2000, gt=0)
    files: int = Field(default=2000, ge=1)
    ratio: float = Field(default=100, ge=1)

    @property
    def n_bytes(self) -> int:
        """The bytes that these are."""
        return int(self.megabytes * 10**6)


class TrackCellLimits(Stored):
    """What the evaluation of one cell may take at most; see `runs.execute.CellLimits`."""

    seconds: float = Field(default=3600, gt=0)
    memory_gb: float = Field(default=16, gt=0)


class ModelSizes(Stored):
    """The sizes of a model; see `ModelShape`."""

    n_layers: int = Field(ge=1)
    n_heads: int = Field(ge=1)
    d_model: int = Field(ge=1)
    d_head: int = Field(ge=1)
    parallel: bool = False
    mlp: bool = True

    @property
    def sizes(self) -> ModelShape:
        """The same as sites and graphs know it."""
        graph = Graph(self.n_layers, self.n_heads, parallel=self.parallel, mlp=self.mlp)
        return ModelShape(graph, self.d_model, self.d_head)


class EvaluatedModel(Stored):
    """A model of the track, and the tasks that it is evaluated on; `gym` are its gym tasks."""

    tasks: tuple[PublicName, ...] = ()
    load: str = ""
    shape: ModelSizes | None = None
    mib_class: str = ""
    gym: tuple[GymTaskName, ...] = ()

    @model_validator(mode="after")
    def _has_tasks(self) -> EvaluatedModel:
        if not (self.tasks or self.gym):
            raise ValueError("a model needs tasks, or gym tasks")
        return self


def _different(sizes: tuple[float, ...]) -> tuple[float, ...]:
    if len(set(sizes)) < len(sizes):
        raise ValueError("a size is named twice")
    return sizes


Share = Annotated[float, Field(gt=0, lt=1)]


class AdversarialTrack(Stored):
    """What is evaluated adversarially of submitted circuits.

    Attributes:
        n_clean, n_corrupted: prompts of the two pools.
        sizes: of the circuits, as shares of the model's edges.
        tasks: by the public name of a model; all of the track if it is empty.
    """

    n_clean: int = Field(default=10, ge=1)
    n_corrupted: int = Field(default=10, ge=1)
    sizes: Annotated[tuple[Share, ...], AfterValidator(_different)] = Field(
        default=(0.01,), min_length=1
    )
    tasks: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)

    def has(self, model: str, task: str) -> bool:
        """Whether circuits of a model on a task are evaluated."""
        return not self.tasks or task in self.tasks.get(model, ())

    def job(self, path: Path, model: str, task: str, dtype: str, seed: int) -> AdversarialJob:
        """The job that evaluates a file of scores, or a folder of circuits.

        Args:
            model: what `load_model` gets.
        """
        return AdversarialJob(
            model=model,
            task=task,
            circuits=tuple(f"{path}@{size}" for size in self.sizes),
            n_clean=self.n_clean,
            n_corrupted=self.n_corrupted,
            dtype=dtype,
            seed=seed,
        )

    def described(self, path: Path, graph: Graph) -> list[str]:
        """What of a file of scores, or of a folder of circuits, is evaluated, a line a size.

        Raises:
            BadFile, GraphMismatch: the folder holds no circuits of this graph.
        """
        series = CircuitSeries.load(path, graph) if path.is_dir() else None
        pairs = f"{self.n_clean} x {self.n_corrupted} pairs of prompts, public"
        lines: list[str] = []
        for size in self.sizes:
            which = ""
            if series is not None:
                file, circuit = series.named_within(size)
                which = (
                    f" ({file}, {circuit.weighted_edge_count():,.0f} edges)"
                    if file
                    else " (none is so small)"
                )
            lines.append(f"adversarial at {100 * size:.15g} % of the edges{which}: {pairs}")
        return lines


class BoardTrack(Stored):
    """What a board evaluates of submissions.

    Attributes:
        models: by public name.
        limit, limits: examples of a cell, and of cells of single tasks.
        profile: of the areas under faithfulness; see `circuits.areas`.
        adversarial: what of circuits is evaluated adversarially, if the board is named.
        gym_k: how many directions a submission may have at a site. More change more of the vector,
            all of them the whole one, and the numbers of both stand in one column.
    """

    models: dict[PublicName, EvaluatedModel] = Field(min_length=1)
    boards: tuple[TrackBoard, ...] = ("circuits", "variables", "gym")
    splits: tuple[SplitName, ...] = (TEST,)
    limit: int = Field(default=100, ge=1)
    limits: dict[str, int] = Field(default_factory=dict)
    dtype: str = "float32"
    seed: int = Field(default=0, ge=0)
    profile: Profile = "strict"
    adversarial: AdversarialTrack = AdversarialTrack()
    gym_k: int = Field(default=1, ge=1)
    upload: UploadLimits = UploadLimits()
    cell: TrackCellLimits = TrackCellLimits()

    @model_validator(mode="after")
    def _one_model_a_class(self) -> BoardTrack:
        classes = [about.mib_class for about in self.models.values() if about.mib_class]
        twice = [name for name in classes if classes.count(name) > 1]
        if twice:
            raise ValueError(f"two models have the class {twice[0]} of MIB's causal track")
        return self

    @model_validator(mode="after")
    def _adversarial_of_what_there_is(self) -> BoardTrack:
        if "adversarial" in self.boards and "circuits" not in self.boards:
            raise ValueError("the board adversarial is of circuits: name the board circuits too")
        for model, tasks in self.adversarial.tasks.items():
            known = self.models[model].tasks if model in self.models else ()
            wrong = [task for task in tasks if task not in known]
            if wrong or not known:
                raise ValueError(
                    f"adversarial.tasks: the track does not have {', '.join([model, *wrong])}"
                )
        return self

    @staticmethod
    def read(path: Path | None = None) -> BoardTrack:
        """The track of a file; that of this package if none is given.

        Raises:
            BadFile: missing, no YAML, or not a track: the first mistake is named.
        """
        try:
            text = (
                files("mechassay.leaderboard").joinpath("data/track.yaml").read_text("utf-8")
                if path is None
                else path.read_text("utf-8")
            )
            told = yaml.safe_load(text) if len(text) <= LARGEST_TRACK else None
            return BoardTrack.model_validate(told)
        except ValidationError as error:
            raise BadFile(f"{path}: not a track ({first_mistake(error)}).") from None
        except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
            raise BadFile(f"{path}: not a readable track ({first_line(error)}).") from None

    def model(self, name: str) -> EvaluatedModel:
        """A model by its public name.

        Raises:
            UnknownName: the track has none of this name.
        """
        if name not in self.models:
            raise UnknownName("model of the track", name, self.models)
        return self.models[name]

    def loaded_from(self, name: str) -> str:
        """What `load_model` gets for a public name; errors as `model`."""
        return self.model(name).load or name

    def public_name(self, name: str) -> str:
        """The public name of a model that is named by it or by what it is loaded from.

        Raises:
            UnknownName: the track has no such model.
        """
        same = [public for public in self.models if name in (public, self.loaded_from(public))]
        return same[0] if same else next(iter({name: self.model(name)}))

    def shape(self, name: str) -> ModelShape:
        """The shape of a model; one that is not written down is that of the loaded model.

        Raises:
            UnknownName: no such model. MechassayError: it cannot be loaded; see `load_model`.
        """
        written = self.model(name).shape
        return _shape_of(self.loaded_from(name)) if written is None else written.sizes

    def public_task(self, model: str, task: str) -> str:
        """The track's name of a task on a model, where it is named by it or by its own name.

        Raises:
            UnknownName: there is no such model, or no such task.
            BadUsage: both are there, but not together.
        """
        tasks = self.model(model).tasks
        if task in tasks:
            return task
        # The task of a trained ground truth has the name of its task, and that of the model.
        own = {load_task(each).name: each for each in tasks if is_truth(each)}
        if task in own:
            return own[task]
        every = {each for about in self.models.values() for each in about.tasks}
        raise self._refusal("task", model, task, every, tasks)

    def check_gym(self, model: str, task: str) -> None:
        """Refuse a gym task that is not evaluated on a model; errors as `public_task`."""
        tasks = self.model(model).gym
        if task not in tasks:
            every = {each for about in self.models.values() for each in about.gym}
            raise self._refusal("gym task", model, task, every, tasks)

    def _refusal(
        self, what: str, model: str, task: str, every: Collection[str], own: Sequence[str]
    ) -> MechassayError:
        if task not in every:
            return UnknownName(f"{what} of the track", task, sorted(every))
        return BadUsage(
            f"The track does not evaluate {model} on {task}; it does {', '.join(own) or 'none'}."
        )

    def circuit_model(self, name: str) -> TrackModel:
        """A model as checks of graph files know it; errors as `shape`."""
        shape = self.shape(name)
        return TrackModel(shape.graph, shape.d_model, self.model(name).tasks)

    def causal_board(self) -> MIBBoard:
        """The tasks and models of MIB's causal track that this one evaluates; errors as `shape`."""
        classes = {about.mib_class: name for name, about in self.models.items() if about.mib_class}
        models = {kind: BoardModel(name, self.shape(name)) for kind, name in classes.items()}
        tasks = {
            theirs: about
            for theirs, about in MIB_BOARD.tasks.items()
            if any(about.name in self.models[name].tasks for name in classes.values())
        }
        evaluated = {
            theirs: tuple(
                kind for kind, name in classes.items() if about.name in self.models[name].tasks
            )
            for theirs, about in tasks.items()
        }
        return MIBBoard(
            {name: replace(about, models=evaluated[name]) for name, about in tasks.items()}, models
        )

    def adversarial_jobs(
        self, folder: Path, circuits: Iterable[tuple[str, str, str]]
    ) -> list[AdversarialJob]:
        """The jobs that evaluate circuits adversarially, of those that the track says.

        Args:
            circuits: path in the folder, model and task of each.
        """
        return [
            self.adversarial.job(
                folder / path, self.loaded_from(model), task, self.dtype, self.seed
            )
            for path, model, task in circuits
            if self.has_adversarial(model, task)
        ]

    def has_adversarial(self, model: str, task: str) -> bool:
        """Whether circuits of a model on a task are evaluated adversarially too."""
        return "adversarial" in self.boards and self.adversarial.has(model, task)

    def examples_of(self, task: str) -> int:
        """How many examples of a task a cell has."""
        return self.limits.get(task, self.limit)


@cache
def _shape_of(source: str) -> ModelShape:
    return ModelShape.of(load_model(source))
