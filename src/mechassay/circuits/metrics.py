"""Metrics of scores beside faithfulness over size: what `--metric` names.

    recovery       AUROC, AUPRC and R-precision against a circuit that is known to be there
    completeness   f of the circuit that the scores give at one size, and f of all other edges
    minimality     the share of that circuit's edges that it does as well without

A metric turns scores into measures, and beside them measures of a control. Table and page show
every measure by the heading and meaning it brings. A package adds metrics under the entry point
group `mechassay.metrics`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol, TypeVar

import torch
from scipy.stats import norm

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods.random_paths import RandomPaths
from mechassay.circuits.necessity import Minimality, completeness, minimality
from mechassay.circuits.node_scores import NeuronScores
from mechassay.circuits.recovery import recovery_of
from mechassay.circuits.scores import EdgeScores
from mechassay.circuits.series import CircuitSeries, Ranked
from mechassay.circuits.spec import CircuitSpec
from mechassay.display import OneLine
from mechassay.models.model import Model
from mechassay.objectives import Objective
from mechassay.pairs import Batch
from mechassay.progress import BAR, Progress
from mechassay.records import Measure, Record, Spec, Table
from mechassay.registry import Registry
from mechassay.stats.intervals import LEVEL, Interval

T = TypeVar("T")
UNDEFINED = Interval(math.nan, math.nan)

_RECOVERY = {
    "auroc": Measure(
        name="auroc",
        value=math.nan,
        better="up",
        title="AUROC",
        meaning="How well scores tell the edges of a circuit that is known from all others, edges"
        " by magnitude: the probability that one of the first lies above one of the second. Random"
        " rankings have 0.5, and the interval beside it is what 95 % of them are between; other"
        " intervals are over edges. Methods that score nodes give all edges out of a node its"
        " score. Edges of information flow routes rank in the order in which their circuit grows.",
    ),
    "auprc": Measure(
        name="auprc",
        value=math.nan,
        better="up",
        title="AUPRC",
        meaning="Average precision: the area under precision over recall of those edges.",
    ),
    "r_precision": Measure(
        name="r_precision",
        value=math.nan,
        better="up",
        title="R-precision",
        meaning="The share of the known circuit's edges among as many edges of the highest scores.",
    ),
}
_SIZED = (
    " The circuit has the best edges by magnitude, as many as the heading says or as the known"
    " circuit has, pruned."
)
_CIRCUIT = Measure(
    name="circuit",
    value=math.nan,
    better="up",
    title="f of one circuit",
    meaning="Faithfulness of the circuit at one size." + _SIZED,
)
_COMPLEMENT = Measure(
    name="complement",
    value=math.nan,
    better="down",
    title="f without it",
    meaning="Completeness: faithfulness of all edges that are not in the circuit. 0 if the circuit"
    " has everything that the behaviour needs." + _SIZED,
)
_UNNEEDED = Measure(
    name="unneeded",
    value=math.nan,
    better="down",
    title="unneeded edges",
    meaning="Minimality: the share of the circuit's edges without which f does not drop, as far as"
    " the interval of the drop tells." + _SIZED,
)


@dataclass(frozen=True, eq=False, repr=False)
class Scored(OneLine):
    """Scores of a model, or circuits of several sizes, and what they are measured on.

    Attributes:
        batch: with the ablation that the scores are measured under.
        truth: the circuit that is known to be there under this ablation, if one is.
        unknown: why none is.
    """

    model: Model
    scores: Ranked
    batch: Batch
    objective: Objective
    truth: Circuit | None = None
    unknown: str = "No circuit is known"
    seed: int = 0
    progress: Progress = BAR

    def circuits(self, size: int | float | None) -> dict[str, Circuit]:
        """What is measured at one size, by what it is of: the circuit of the scores, pruned, and
        the control, as many edges on random paths. Scores of neurons are summed to nodes; of
        circuits the largest counts that has no more edges.

        Args:
            size: edges, or a share of them; as many as the known circuit has if None, and then
                nothing is measured where none is known.
        """
        if size is None:
            if self.truth is None:
                return {}
            size = len(self.truth)
        random = RandomPaths(seed=self.seed).circuit(self.model.graph, size)
        if isinstance(self.scores, CircuitSeries):
            return {"result": self.scores.within(size), "control:random-paths": random}
        scores = self.scores.nodes() if isinstance(self.scores, NeuronScores) else self.scores
        chosen = CircuitSpec("", "method", "", size).cut(scores)
        return {"result": chosen, "control:random-paths": random}

    def run(self, function: Callable[..., T], circuit: Circuit) -> T:
        """What a function such as `completeness` finds of a circuit on the pairs."""
        return function(
            self.model,
            circuit,
            self.batch,
            self.objective,
            seed=self.seed,
            progress=self.progress,
        )


@dataclass(frozen=True, repr=False)
class Measured(OneLine):
    """What a metric says of scores; the tables are beside its measures."""

    measures: tuple[Measure, ...]
    tables: tuple[Table, ...] = ()
    warnings: tuple[str, ...] = ()


class Metric(Protocol):
    """A metric: a frozen dataclass, its fields its settings."""

    name: ClassVar[str]
    version: ClassVar[int]

    @property
    def needs_truth(self) -> bool:
        """Whether it is undefined where no circuit is known."""
        ...

    def measure(self, scored: Scored) -> Measured:
        """The measures of scores, each with a title, a meaning, and a control beside it.

        Undefined is NaN, with a warning that says why unless the truth is what lacks.
        """
        ...


METRICS = Registry(
    "metric",
    {
        "recovery": "mechassay.circuits.metrics:RecoveryMetric",
        "completeness": "mechassay.circuits.metrics:CompletenessMetric",
        "minimality": "mechassay.circuits.metrics:MinimalityMetric",
    },
)


def with_metrics(record: Record, metrics: tuple[Metric, ...], scored: Scored) -> Record:
    """The record with what the metrics say, and the metrics among its specs."""
    for metric in metrics:
        result = metric.measure(scored)
        settings = {name: value for name, value in vars(metric).items() if value is not None}
        spec = Spec(name=metric.name, version=metric.version, args=settings)
        record = record.model_copy(
            update={
                "specs": {**record.specs, metric.name + _at(settings.get("size")): spec},
                "measures": [*record.measures, *result.measures],
                "tables": [*record.tables, *result.tables],
                "warnings": [*record.warnings, *result.warnings],
            }
        )
    lacking = [metric.name for metric in metrics if metric.needs_truth and scored.truth is None]
    if lacking:
        undefined = f"{scored.unknown}: undefined are {', '.join(lacking)}."
        record = record.changed(warnings=[*record.warnings, undefined])
    return record


# Recovery


@dataclass(frozen=True)
class RecoveryMetric:
    """How well scores tell the edges of the known circuit from all others, by magnitude."""

    name: ClassVar[str] = "recovery"
    version: ClassVar[int] = 1
    needs_truth: ClassVar[bool] = True

    def measure(self, scored: Scored) -> Measured:
        """AUROC, AUPRC and R-precision, and what random rankings have on average.

        Raises:
            GraphMismatch: the scores belong to another graph than the truth.
        """
        if scored.truth is None:
            return _undefined(*_RECOVERY.values())
        found = recovery_of(by_edge(scored.scores), scored.truth, by="magnitude")
        n_true, n_false = found.n_true, found.n_false
        share = n_true / (n_true + n_false)
        values = {
            "auroc": (found.auroc, found.auroc_interval, 0.5, by_chance(n_true, n_false)),
            "auprc": (found.auprc, UNDEFINED, auprc_by_chance(n_true, n_false), UNDEFINED),
            "r_precision": (found.r_precision, UNDEFINED, share, UNDEFINED),
        }
        return Measured(
            tuple(
                filled(_RECOVERY[name], value, interval, n=n_true, of=of)
                for name, (result, within, chance, chance_within) in values.items()
                for of, value, interval in (
                    ("result", result, within),
                    ("control:random", chance, chance_within),
                )
            )
        )


def by_edge(scores: Ranked) -> EdgeScores:
    """Scores of edges as they are; of nodes or neurons, each edge with its writer's; of circuits,
    how many of them have it.

    To include a node is to include all edges out of it, so these are tied. A method that finds
    exactly the right nodes has an AUROC below 1.
    """
    if isinstance(scores, EdgeScores):
        return scores
    if isinstance(scores, CircuitSeries):
        return scores.counts()
    graph, nodes = scores.graph, scores.nodes() if isinstance(scores, NeuronScores) else scores
    return EdgeScores(
        graph, torch.where(graph.legal, nodes.values[:, None], torch.nan), scores.provenance
    )


def by_chance(n_true: int, n_false: int) -> Interval:
    """What the AUROC of 95 % of random rankings is between; its mean is 1/2.

    The Mann-Whitney statistic of n and m without ties has the variance (n + m + 1) / (12 n m), and
    is about normal.
    """
    if not n_true * n_false:
        return UNDEFINED
    half = float(norm.ppf((1 + LEVEL) / 2)) * math.sqrt(
        (n_true + n_false + 1) / (12 * n_true * n_false)
    )
    return Interval(0.5 - half, 0.5 + half)


def auprc_by_chance(n_true: int, n_false: int) -> float:
    """The mean average precision over all orders of n_true true and n_false other edges.

    At place i an edge is true with probability K / N, and then each of the i - 1 before it with
    (K - 1) / (N - 1). So the mean is H / N + (K - 1) / (N - 1) (1 - H / N), H the N-th harmonic
    number: a little more than the share of true edges, K / N.
    """
    n = n_true + n_false
    share = sum(1 / place for place in range(1, n + 1)) / n
    return share + (n_true - 1) / max(1, n - 1) * (1 - share)


# The circuit at one size


@dataclass(frozen=True)
class OneSizeMetric(ABC):
    """A metric of the circuit at one size, measured on each of `Scored.circuits`.

    Attributes:
        size: edges, or a share of them; as many as the known circuit has if None.
    """

    size: int | float | None = None
    undefined: ClassVar[tuple[Measure, ...]]

    @property
    def needs_truth(self) -> bool:
        return self.size is None

    def measure(self, scored: Scored) -> Measured:
        """The measures of the circuit, and those of random paths."""
        circuits = scored.circuits(self.size)
        if not circuits:
            return _undefined(*self.undefined)
        parts = [self.of_circuit(scored, circuit, of) for of, circuit in circuits.items()]
        return Measured(
            tuple(measure for part in parts for measure in part.measures),
            tuple(table for part in parts for table in part.tables),
            tuple(warning for part in parts for warning in part.warnings),
        )

    @abstractmethod
    def of_circuit(self, scored: Scored, circuit: Circuit, of: str) -> Measured:
        """What there is to say of one circuit."""


@dataclass(frozen=True)
class CompletenessMetric(OneSizeMetric):
    """Faithfulness of the circuit at one size, and of what is left without it."""

    name: ClassVar[str] = "completeness"
    version: ClassVar[int] = 1
    undefined: ClassVar[tuple[Measure, ...]] = (_CIRCUIT, _COMPLEMENT)

    def of_circuit(self, scored: Scored, circuit: Circuit, of: str) -> Measured:
        """f of the circuit and of its complement."""
        found = scored.run(completeness, circuit)
        n, at = len(scored.batch), _at(self.size)
        return Measured(
            (
                filled(_CIRCUIT, found.circuit, found.circuit_interval, n=n, of=of, at=at),
                filled(_COMPLEMENT, found.complement, found.complement_interval, n=n, of=of, at=at),
            )
        )


@dataclass(frozen=True)
class MinimalityMetric(OneSizeMetric):
    """Edges of the circuit at one size that it does as well without.

    Attributes:
        most: edges that are left out, drawn at random where the circuit has more: the share is then
            that of a sample, and `n` its size.
    """

    most: int | None = None

    name: ClassVar[str] = "minimality"
    version: ClassVar[int] = 1
    undefined: ClassVar[tuple[Measure, ...]] = (_UNNEEDED,)

    def of_circuit(self, scored: Scored, circuit: Circuit, of: str) -> Measured:
        """The share of edges whose drop's interval is not above 0, and a table of the drops."""
        at = _at(self.size)
        if not len(circuit):
            lacking = "The circuit has no live edges: minimality is undefined."
            return Measured((filled(_UNNEEDED, math.nan, of=of, at=at),), warnings=(lacking,))
        found = scored.run(partial(minimality, most=self.most), circuit)
        defined = not math.isnan(found.drops[0])
        share = found.n_unneeded / len(found.parts) if defined else math.nan
        tables = (_drops(f"minimality{at}", found),) if of == "result" else ()
        return Measured((filled(_UNNEEDED, share, n=len(found.parts), of=of, at=at),), tables)


def _drops(name: str, found: Minimality) -> Table:
    rows = [
        {"edge": part, "drop": drop, "low": low, "high": high}
        for part, drop, (low, high, _) in zip(
            found.parts, found.drops.tolist(), found.intervals, strict=True
        )
    ]
    return Table.of(name, ("edge",), rows)


def _at(size: int | float | None) -> str:
    return "" if size is None else f"@{size}"


def _undefined(*measures: Measure) -> Measured:
    return Measured(tuple(filled(measure, math.nan) for measure in measures))


def filled(
    measure: Measure,
    value: float,
    interval: Interval = UNDEFINED,
    *,
    n: int = 0,
    of: str = "result",
    at: str = "",
) -> Measure:
    """A measure with a value; `at` is a size, behind its name and title."""
    low, high, level = interval
    return measure.model_copy(
        update={
            "name": measure.name + at,
            "title": measure.title + at.replace("@", " at "),
            "value": value,
            "low": low,
            "high": high,
            "level": level,
            "n": n,
            "of": of,
        }
    )
