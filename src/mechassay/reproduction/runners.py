"""How a published number is run: ordinary jobs, and where their records have our number.

circuits     CPR, CMD and AUROC: a method on the pairs of one or two tasks (the column Arithmetic
is the mean over two operators), with the benchmark's own definitions (the profile
mib-2025)
adversarial  percentiles of a divergence: one run of `adversarial paper`
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mechassay.adversarial.paper import PaperJob
from mechassay.discovery.job import CircuitsJob
from mechassay.discovery.study import TypedMethod
from mechassay.errors import one_of
from mechassay.gym.jobs import GymJob
from mechassay.gym.task_odds import METHODS_TABLE
from mechassay.reproduction.published import Published
from mechassay.reproduction.status import Ours
from mechassay.results.records import Measure, Record
from mechassay.results.text import summary
from mechassay.runs import costs
from mechassay.runs.accuracy import AccuracyJob
from mechassay.runs.costs import ModelSize
from mechassay.runs.job import cell_name
from mechassay.variables.jobs import VariablesJob
from mechassay.variables.plan import FEATURIZERS

Shape = Mapping[str, Any]
TOKENS = 40
"""Of a prompt, where the data of a column do not say."""


@dataclass(frozen=True)
class Piece:
    """An ordinary job of a cell, and the name of its folder below `runs`."""

    folder: str
    job: Any


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
    """How the cells of one kind of job run."""

    def key(self, value: Published) -> str:
        """What tells the cell of a value from the others of its column; values of one cell come
        from the same records.
        """
        ...

    def pieces(self, wish: Wish) -> list[Piece]:
        """The jobs of a cell."""
        ...

    def ours(self, value: Published, records: Sequence[Record]) -> Ours:
        """Our number beside a published one, of the records of a cell's jobs."""
        ...

    def operations(self, wish: Wish) -> float:
        """Floating-point operations that the published cell takes, about."""
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
        """See `Runner.key`: the method."""
        return value.method

    def pieces(self, wish: Wish) -> list[Piece]:
        """See `Runner.pieces`: a job a task."""
        about = wish.value.of
        n = (about["n"] or self.ROWS) // len(about["tasks"])
        return [
            Piece(
                cell_name(task, about["model"]),
                CircuitsJob(
                    models=(wish.source,),
                    tasks=(wish.task(task),),
                    methods=(wish.value.method,),
                    train_limit=wish.at_most(about["train"]),
                    test_limit=wish.at_most(n),
                    dtype=wish.shape["dtype"],
                    seed=wish.seed,
                    **self.SETTINGS,
                ),
            )
            for task in about["tasks"]
        ]

    def ours(self, value: Published, records: Sequence[Record]) -> Ours:
        """See `Runner.ours`: the mean over tasks, which have no example in common."""
        measures = [record.measure(value.measure, value.role) for record in records]
        held = [measure for measure in measures if measure is not None]
        if len(held) < len(records):
            return Ours(deviations=(f"no {value.measure} in the record",))
        return mean_of(held)

    def operations(self, wish: Wish) -> float:
        """See `Runner.operations`."""
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
        """See `Runner.key`."""
        return ""

    def pieces(self, wish: Wish) -> list[Piece]:
        """See `Runner.pieces`: one of the six runs of the paper."""
        side = wish.at_most(1000)
        job = PaperJob(
            model=wish.source,
            docstring_model=wish.source,
            n_clean=side,
            n_corrupted=side,
            n_matched=wish.at_most(wish.value.of["n"]),
            seed=wish.seed,
        )
        name = wish.value.column
        return [Piece(name, job.plans()[name])]

    def ours(self, value: Published, records: Sequence[Record]) -> Ours:
        """See `Runner.ours`."""
        (record,) = records
        row = summary(record).get(value.row)
        if row is None:
            return Ours()
        return Ours(row["value"], row["low"], row["high"], record.n)

    def operations(self, wish: Wish) -> float:
        """See `Runner.operations`: a pass of the model a prompt, one of the circuit a pair."""
        _, circuit = costs.token_operations(wish.size)
        return wish.value.of["n"] * wish.value.of["tokens"] * circuit


class AccuracyRunner:
    """Accuracy of a model on a task: of original prompts and of every counterfactual."""

    def key(self, value: Published) -> str:
        """See `Runner.key`."""
        return "accuracy"

    def pieces(self, wish: Wish) -> list[Piece]:
        """See `Runner.pieces`."""
        about = wish.value.of
        job = AccuracyJob(
            models=(wish.source,),
            tasks=(wish.task(about["task"]),),
            limit=wish.at_most(about["n"]),
            dtype=wish.shape["dtype"],
            seed=wish.seed,
            scoring="mib-2025",
        )
        return [Piece(cell_name("accuracy", about["task"], about["model"]), job)]

    def ours(self, value: Published, records: Sequence[Record]) -> Ours:
        """See `Runner.ours`."""
        (record,) = records
        return ours_of(record.measure(value.measure))

    def operations(self, wish: Wish) -> float:
        """See `Runner.operations`: at most ten prompts an example."""
        plain, _ = costs.token_operations(wish.size)
        return 10 * wish.value.of["n"] * TOKENS * plain


class VariablesRunner:
    """Interchange intervention accuracy, in percent."""

    def key(self, value: Published) -> str:
        """See `Runner.key`: the method."""
        return value.method

    def pieces(self, wish: Wish) -> list[Piece]:
        """See `Runner.pieces`."""
        about = wish.value.of
        limits: dict[str, Any] = {}
        if wish.limit is not None:
            limits = dict.fromkeys(("train_limit", "validation_limit", "test_limit"), wish.limit)
        job = VariablesJob(
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
        return [Piece(cell_name(about["task"], about["variable"], about["model"]), job)]

    def ours(self, value: Published, records: Sequence[Record]) -> Ours:
        """See `Runner.ours`."""
        (record,) = records
        ours = ours_of(record.measure(value.measure))
        return replace(ours, value=100 * ours.value, low=100 * ours.low, high=100 * ours.high)

    def operations(self, wish: Wish) -> float:
        """See `Runner.operations`: a training of some hundred pairs at two positions a layer."""
        plain, _ = costs.token_operations(wish.size)
        return 2 * wish.shape["layers"] * 3000 * TOKENS * plain


class GymRunner:
    """All methods on one gym task in one model."""

    METHODS = ("das", "probe-saga", "mean", "pca", "k-means", "lda", "random", "vanilla")
    NAMES: Mapping[str, str] = {"probe": "probe-saga", "kmeans": "k-means"}
    """Of methods, where a table of the paper calls them otherwise."""
    PROBES = "of the two probes the better one is kept here"

    def key(self, value: Published) -> str:
        """See `Runner.key`."""
        return ""

    def pieces(self, wish: Wish) -> list[Piece]:
        """See `Runner.pieces`."""
        about = wish.value.of
        job = GymJob(
            models=(wish.source,),
            tasks=(about["task"],),
            methods=self.METHODS,
            source="" if wish.own else "hub",
            controls=("labels",),
            compat="causalgym-2024",
            train_limit=max(4, wish.at_most(400)),
            validation_limit=wish.at_most(100),
            test_limit=wish.at_most(about["n"]),
            dtype=wish.shape["dtype"],
            seed=wish.seed,
        )
        return [Piece(cell_name(about["task"], about["model"]), job)]

    def ours(self, value: Published, records: Sequence[Record]) -> Ours:
        """See `Runner.ours`."""
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
        """See `Runner.operations`: of every method a test at some five regions of every layer, with
        two labels; of DAS a training there as well.
        """
        plain, _ = costs.token_operations(wish.size)
        places = 5 * wish.shape["layers"]
        passes = places * 2 * (len(self.METHODS) * wish.value.of["n"] + 3 * 400)
        return passes * TOKENS * plain / 2


def ours_of(measure: Measure | None) -> Ours:
    """A measure of a record; nothing if there is none."""
    return Ours() if measure is None else Ours(measure.value, measure.low, measure.high, measure.n)


def mean_of(measures: Sequence[Measure]) -> Ours:
    """The mean of measures over different examples; independent intervals add up by squares."""
    count = len(measures)
    value = sum(m.value for m in measures) / count
    below, above = (
        math.hypot(*(m.value - end for m, end in zip(measures, ends, strict=True))) / count
        for ends in ([m.low for m in measures], [m.high for m in measures])
    )
    return Ours(value, value - below, value + above, sum(m.n for m in measures))


RUNNERS: Mapping[str, Runner] = {
    "circuits": CircuitsRunner(),
    "adversarial": AdversarialRunner(),
    "accuracy": AccuracyRunner(),
    "variables": VariablesRunner(),
    "gym": GymRunner(),
}
"""What runs a table, by the `job` that its data name."""
