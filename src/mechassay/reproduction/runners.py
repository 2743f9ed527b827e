"""How a published number is run: ordinary jobs, and where their records have our number.

circuits     CPR, CMD and AUROC: a method on the pairs of one or two tasks (the column Arithmetic
is the mean over two operators), with the benchmark's own definitions (the profile
mib-2025)
adversarial  percentiles of a divergence: one run of `adversarial paper`
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from mechassay.adversarial.paper import PaperJob
from mechassay.discovery.job import CircuitsJob
from mechassay.discovery.study import TypedMethod
from mechassay.reproduction import costs
from mechassay.reproduction.published import Published
from mechassay.reproduction.status import Ours
from mechassay.results.records import Measure, Record
from mechassay.results.text import summary
from mechassay.runs.job import cell_name

Shape = Mapping[str, Any]


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

    def at_most(self, n: int) -> int:
        return n if self.limit is None else min(n, self.limit)


class Runner(Protocol):
    """How the cells of one kind of job run."""

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

    def pieces(self, wish: Wish) -> list[Piece]:
        """See `Runner.pieces`: a job a task."""
        about = wish.value.of
        n = (about["n"] or self.ROWS) // len(about["tasks"])
        return [
            Piece(
                cell_name(task, about["model"]),
                CircuitsJob(
                    models=(wish.source,),
                    tasks=(task if wish.own else f"{task}:source=hub",),
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
        forwards = method.forwards(costs.graph_of(wish.shape), about["train"])
        n_test = (about["n"] or self.ROWS) // len(about["tasks"])
        operations = costs.circuit_operations(wish.shape, forwards, n_test, about["tokens"])
        return operations * len(about["tasks"])


class AdversarialRunner:
    """Percentiles of KL(model ‖ circuit) over pairs."""

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
        low, high = (math.nan if row[end] is None else float(row[end]) for end in ("low", "high"))
        return Ours(float(row["value"]), low, high, record.n)

    def operations(self, wish: Wish) -> float:
        """See `Runner.operations`: a pass of the model a prompt, one of the circuit a pair."""
        _, circuit = costs.token_operations(wish.shape)
        return wish.value.of["n"] * wish.value.of["tokens"] * circuit


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
}
"""What runs a table, by the `job` that its data name."""
