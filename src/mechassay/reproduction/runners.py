"""How a published number is run: ordinary runs, and where their records have our number.

circuits     CPR, CMD and AUROC: a method on the pairs of one or two tasks (the column Arithmetic
is the mean over two operators), with the benchmark's own definitions (the profile
mib-2025)
adversarial  percentiles of a divergence: one run of `adversarial paper`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from mechassay.adversarial.paper import PaperExperiment
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.discovery.inputs import TypedMethod
from mechassay.errors import one_of
from mechassay.gym.experiments import GymExperiment
from mechassay.gym.names import FAMILY_OF, SWEEPS
from mechassay.gym.paper_tables import candidates_of, odds_on_validation
from mechassay.gym.task_odds import METHODS_TABLE
from mechassay.reproduction.published import Published
from mechassay.reproduction.status import Ours
from mechassay.results.records import Measure, Record, estimate_of
from mechassay.results.text import summary
from mechassay.runs import costs
from mechassay.runs.accuracy import AccuracyExperiment
from mechassay.runs.cells import cell_name
from mechassay.runs.costs import ModelSize
from mechassay.stats.intervals import independent_mean
from mechassay.utils.files import path_hash
from mechassay.variables.experiments import AlignmentsExperiment, VariablesExperiment
from mechassay.variables.options import FEATURIZERS

Shape = Mapping[str, Any]
TOKENS = 40
"""Of a prompt, where the data of a column do not say."""


@dataclass(frozen=True)
class Piece:
    """An ordinary run of a cell, and the name of its folder below `runs`.

    Attributes:
        tasks: what is loaded for tasks of the experiment, where it has no way to say so.
    """

    folder: str
    experiment: Any
    tasks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Wish:
    """What a cell is to run.

    Attributes:
        value: one of the published numbers of the cell.
        shape: of the published model.
        source: the model to load; `own`: on prompts of this package instead of published ones.
        limit: most examples; None for as many as published.
    """

    value: Published
    shape: Shape
    source: str
    own: bool
    limit: int | None
    seed: int

    @property
    def size(self) -> ModelSize:
        """Of the published model, for what a cell costs."""
        return ModelSize.published(self.shape)

    def task(self, name: str) -> str:
        """A task of the benchmark: the public data, or this package's prompts."""
        return name if self.own else f"{name}:source=hub"

    def at_most(self, n: int) -> int:
        return n if self.limit is None else min(n, self.limit)


class Runner(Protocol):
    """How the cells of one kind of experiment run."""

    def key(self, value: Published) -> str:
        """What tells the cell of a value from the others of its column; values of one cell come
        from the same records.
        """
        ...

    def pieces(self, wish: Wish) -> list[Piece]:
        """The experiments of a cell."""
        ...

    def ours(self, value: Published, records: Sequence[Record]) -> Ours:
        """Our number beside a published one, of the records of a cell's experiments."""
        ...

    def operations(self, wish: Wish) -> float:
        """Floating-point operations that the published cell takes, about."""
        ...


class GivenRunner(Runner, Protocol):
    """Measures circuits or features of others too."""

    def given(self, wish: Wish, path: str) -> list[Piece]:
        """The experiments of files of others; the first has the benchmark's definitions."""
        ...

    def measuring(self, wish: Wish) -> float:
        """Floating-point operations that this takes, about."""
        ...


class CircuitsRunner:
    """CPR, CMD and AUROC of a method."""

    SETTINGS: Mapping[str, Any] = {
        "profile": "mib-2025",
        "optimal": "loss=language-model,check_every=50",
    }
    ROWS = 1000
    """Pairs where the paper does not say how many."""

    def key(self, value: Published) -> str:
        """Return the method."""
        return value.method

    def pieces(self, wish: Wish) -> list[Piece]:
        """Return an experiment for each task."""
        about = wish.value.of
        n = (about["n"] or self.ROWS) // len(about["tasks"])
        return [
            Piece(
                cell_name(task, about["model"]),
                CircuitsExperiment(
                    models=(wish.source,),
                    tasks=(wish.task(task),),
                    methods=(wish.value.method,),
                    train_limit=wish.at_most(about["train"]),
                    limit=wish.at_most(n),
                    dtype=wish.shape["dtype"],
                    seed=wish.seed,
                    **self.SETTINGS,
                ),
            )
            for task in about["tasks"]
        ]

    def given(self, wish: Wish, path: str) -> list[Piece]:
        """Return experiments by the benchmark's profile, next to its methods, and by ours."""
        (piece,) = self.pieces(wish)
        experiment = replace(piece.experiment, methods=(), scores=(path,))
        strict = replace(experiment, profile="strict", optimal="")
        return [Piece(piece.folder, experiment), Piece(f"{piece.folder}--strict", strict)]

    def measuring(self, wish: Wish) -> float:
        """Return the operations of two curves, and of the random rankings of both."""
        about = wish.value.of
        n_test = about["n"] or self.ROWS
        return 2 * costs.circuit_operations(wish.size, 0, n_test, about["tokens"], controls=True)

    def ours(self, value: Published, records: Sequence[Record]) -> Ours:
        """Return the mean over tasks, which have no example in common."""
        measures = [record.measure(value.measure, value.role) for record in records]
        held = [measure for measure in measures if measure is not None]
        if len(held) < len(records):
            return Ours(deviations=(f"no {value.measure} in the record",))
        return mean_of(held)

    def operations(self, wish: Wish) -> float:
        about = wish.value.of
        method = TypedMethod.of(wish.value.method, "counterfactual").method
        forwards = method.forwards(wish.size.graph, about["train"])
        n_test = (about["n"] or self.ROWS) // len(about["tasks"])
        operations = costs.circuit_operations(
            wish.size,
            forwards,
            n_test,
            about["tokens"],
            controls=wish.value.method == "random",
        )
        return operations * len(about["tasks"])


class AdversarialRunner:
    """Percentiles of KL(model ‖ circuit) over pairs."""

    def key(self, value: Published) -> str:
        return ""

    def pieces(self, wish: Wish) -> list[Piece]:
        """Return one of the six runs of the paper."""
        side = wish.at_most(1000)
        experiment = PaperExperiment(
            model=wish.source,
            docstring_model=wish.source,
            n_clean=side,
            n_corrupted=side,
            n_matched=wish.at_most(wish.value.of["n"]),
            seed=wish.seed,
        )
        name = wish.value.column
        return [Piece(name, experiment.experiments()[name])]

    def ours(self, value: Published, records: Sequence[Record]) -> Ours:
        (record,) = records
        row = summary(record).get(value.row)
        if row is None:
            return Ours()
        return Ours(row["value"], row["low"], row["high"], record.n)

    def operations(self, wish: Wish) -> float:
        """Return the operations of a pass of the model per prompt, and of the circuit per pair."""
        _, circuit = costs.token_operations(wish.size)
        return wish.value.of["n"] * wish.value.of["tokens"] * circuit


class AccuracyRunner:
    """Accuracy of a model on a task: of original prompts and of every counterfactual."""

    def key(self, value: Published) -> str:
        return "accuracy"

    def pieces(self, wish: Wish) -> list[Piece]:
        about = wish.value.of
        experiment = AccuracyExperiment(
            models=(wish.source,),
            tasks=(wish.task(about["task"]),),
            limit=wish.at_most(about["n"]),
            dtype=wish.shape["dtype"],
            seed=wish.seed,
            scoring="mib-2025",
        )
        return [Piece(cell_name("accuracy", about["task"], about["model"]), experiment)]

    def ours(self, value: Published, records: Sequence[Record]) -> Ours:
        (record,) = records
        return ours_of(record.measure(value.measure))

    def operations(self, wish: Wish) -> float:
        """Return the operations of at most ten prompts per example."""
        plain, _ = costs.token_operations(wish.size)
        return 10 * wish.value.of["n"] * TOKENS * plain


class VariablesRunner:
    """Interchange intervention accuracy, in percent."""

    def key(self, value: Published) -> str:
        """Return the method."""
        return value.method

    def pieces(self, wish: Wish) -> list[Piece]:
        about = wish.value.of
        limits: dict[str, Any] = {}
        if wish.limit is not None:
            limits = dict.fromkeys(("train_limit", "validation_limit", "limit"), wish.limit)
        experiment = VariablesExperiment(
            models=(wish.source,),
            tasks=(wish.task(about["task"]),),
            variables=(about["variable"],),
            featurizers=(one_of("featurizer", wish.value.method, FEATURIZERS),),
            profile="mib-2025",
            controls=(),
            dtype=wish.shape["dtype"],
            seed=wish.seed,
            **limits,
        )
        return [Piece(cell_name(about["task"], about["variable"], about["model"]), experiment)]

    def given(self, wish: Wish, path: str) -> list[Piece]:
        """Return experiments on the pairs of the search."""
        (piece,) = self.pieces(wish)
        search: VariablesExperiment = piece.experiment
        task: str = wish.value.of["task"]
        experiment = AlignmentsExperiment(
            (path,),
            wish.source,
            tasks=(task,),
            train_limit=search.train_limit,
            validation_limit=search.validation_limit,
            limit=search.limit,
            dtype=search.dtype,
            seed=search.seed,
        )
        folder = f"given--{piece.folder}--{path_hash(Path(path))[:8]}"
        return [Piece(folder, experiment, {task: wish.task(task)})]

    def measuring(self, wish: Wish) -> float:
        """Return the operations of some hundred pairs at two positions of every layer."""
        plain, _ = costs.token_operations(wish.size)
        return 2 * wish.shape["layers"] * 600 * TOKENS * plain

    def ours(self, value: Published, records: Sequence[Record]) -> Ours:
        (record,) = records
        ours = ours_of(record.measure(value.measure))
        return replace(ours, value=100 * ours.value, low=100 * ours.low, high=100 * ours.high)

    def operations(self, wish: Wish) -> float:
        """Return the operations of a training of some hundred pairs at two positions per layer."""
        plain, _ = costs.token_operations(wish.size)
        return 2 * wish.shape["layers"] * 3000 * TOKENS * plain


class GymRunner:
    """All methods on one gym task in one model."""

    METHODS = ("das", "probe-saga", "mean", "pca", "k-means", "lda", "random", "vanilla")
    NAMES: Mapping[str, str] = {"probe": "probe-saga", "kmeans": "k-means"}
    """Of methods, where a table of the paper calls them otherwise."""
    PROBES = "of the two probes the better one is kept here"

    def key(self, value: Published) -> str:
        return ""

    def pieces(self, wish: Wish) -> list[Piece]:
        about = wish.value.of
        experiment = GymExperiment(
            models=(wish.source,),
            tasks=(about["task"],),
            methods=self.METHODS,
            source="" if wish.own else "hub",
            controls=("labels",),
            compat="causalgym-2024",
            train_limit=max(4, wish.at_most(400)),
            validation_limit=wish.at_most(100),
            limit=wish.at_most(about["n"]),
            dtype=wish.shape["dtype"],
            seed=wish.seed,
        )
        return [Piece(cell_name(about["task"], about["model"]), experiment)]

    def ours(self, value: Published, records: Sequence[Record]) -> Ours:
        (record,) = records
        if value.measure == "accuracy":
            return ours_of(record.measure("accuracy", "model"))
        if value.row in ("probe-0", "probe-1"):
            return Ours(why_not=self.PROBES)
        name = self.NAMES.get(value.row, value.row)
        rows = record.table(METHODS_TABLE).where(method=name).rows()
        if not rows or rows[0][f"{value.measure}_2024"] is None:
            return Ours()
        return Ours(float(str(rows[0][f"{value.measure}_2024"])), n=int(str(rows[0]["n"])))

    def operations(self, wish: Wish) -> float:
        """Return the operations of a test of every method at some five regions of every layer, with
        two labels; of DAS a training there as well.
        """
        plain, _ = costs.token_operations(wish.size)
        places = 5 * wish.shape["layers"]
        passes = places * 2 * (len(self.METHODS) * wish.value.of["n"] + 3 * 400)
        return passes * TOKENS * plain / 2


class SweepRunner:
    """The settings of one kind of method on all gym tasks of one model, on validation items."""

    SWEEPS: Mapping[str, str] = {
        "probe-saga": "table-2a",
        "pca-mean": "table-2b",
        "das-stopped": "table-2c",
    }

    def key(self, value: Published) -> str:
        """Return the kind of method."""
        return value.method.partition(":")[0]

    def pieces(self, wish: Wish) -> list[Piece]:
        """Return an experiment for each task."""
        model, sweep = wish.value.of["model"], self.SWEEPS[self.key(wish.value)]
        experiment = GymExperiment(
            models=(wish.source,),
            methods=(sweep,),
            source="" if wish.own else "hub",
            controls=(),
            compat="causalgym-2024",
            train_limit=max(4, wish.at_most(400)),
            validation_limit=wish.at_most(100),
            # What is not compared: at least as few as can be.
            limit=2,
            dtype=wish.shape["dtype"],
            seed=wish.seed,
        )
        return [
            Piece(cell_name(sweep, task, model), replace(experiment, tasks=(task,)))
            for task in FAMILY_OF
        ]

    def ours(self, value: Published, records: Sequence[Record]) -> Ours:
        """Return the mean over tasks, undefined if a task has no number."""
        held = [candidates_of(record, value.method) for record in records]
        if not all(held):
            return Ours(deviations=(f"no {value.method} in the record of a task",))
        return mean_of([odds_on_validation(row) for (row,) in held])

    def operations(self, wish: Wish) -> float:
        """Return the operations of a table of methods, of every task and setting."""
        plain, _ = costs.token_operations(wish.size)
        n_settings = len(SWEEPS[self.SWEEPS[self.key(wish.value)]])
        passes = len(FAMILY_OF) * 5 * wish.shape["layers"] * n_settings * (100 + 400)
        return passes * TOKENS * plain / 2


def ours_of(measure: Measure | None) -> Ours:
    """A measure of a record; nothing if there is none."""
    return Ours() if measure is None else Ours(measure.value, measure.low, measure.high, measure.n)


def mean_of(measures: Sequence[Measure]) -> Ours:
    """Return the mean of measures over different examples, as `independent_mean`."""
    mean = independent_mean([estimate_of(measure) for measure in measures])
    return Ours(mean.value, mean.low, mean.high, sum(measure.n for measure in measures))


GIVEN: Mapping[str, GivenRunner] = {"circuits": CircuitsRunner(), "variables": VariablesRunner()}
"""What measures files of others, by the kind of an artefact."""
RUNNERS: Mapping[str, Runner] = {
    **GIVEN,
    "adversarial": AdversarialRunner(),
    "accuracy": AccuracyRunner(),
    "gym": GymRunner(),
    "sweep": SweepRunner(),
}
"""What runs a table, by the `experiment` that its data name."""
