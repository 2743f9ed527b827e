"""Metrics of scores beside faithfulness over size: recovery, completeness and minimality.

    recovery       AUROC, AUPRC and R-precision against a circuit that is known to be there
    completeness   f of the circuit that the scores give at one size, and f of all other edges
    minimality     the share of that circuit's edges that it does as well without
    cma            the area under circuit-model agreement, which a curve has anyway

`--metric` names them. A metric turns scores into measures, and beside them measures of a
control. Table and page show every measure by the heading and meaning it brings. A package adds
metrics under the entry point group `mechassay.metrics`.

Recovery asks: do an edge's scores say whether it is in the ground truth? Every edge of the graph
is one item, positive if it is in the truth; edges without a score rank last, all together.
`recovery_of` has the formulas and the profiles.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.optimize import brentq
from scipy.stats import norm, rankdata

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.curve import TEXTS
from mechassay.circuits.evaluation.faithfulness import (
    Minimality,
    completeness,
    completeness_of,
    magnitude_sweep,
    minimality,
)
from mechassay.circuits.methods.random import Random, RandomPaths
from mechassay.circuits.methods.spec import CircuitSpec
from mechassay.circuits.profiles import PROFILES, Profile
from mechassay.circuits.scores import By, EdgeScores, NeuronScores
from mechassay.circuits.series import FRACTIONS, CircuitSeries, Ranked
from mechassay.errors import BadUsage, GraphMismatch, one_of
from mechassay.models.model import Model
from mechassay.models.objectives import Objective
from mechassay.prompts.batch import Batch
from mechassay.results.records import Measure, Record, Spec, Table
from mechassay.stats.chance import FEW_DRAWS, chance_limit
from mechassay.stats.intervals import (
    LEVEL,
    NO_INTERVAL,
    BootstrapEstimate,
    Interval,
    clopper_pearson,
    mean_estimate,
    trapezoid,
)
from mechassay.utils.arguments import checked
from mechassay.utils.display import BAR, OneLine, Progress

NAN = float("nan")


@dataclass(frozen=True, repr=False)
class Recovery(OneLine):
    """How well scores recover a known circuit; NaN where undefined (no true or no false edges).

    Attributes:
        profile, by: how `auroc` was computed, and what ranked the edges.
        greedy: whether edges rank in the order in which the greedy circuit grows.
        auroc, auroc_interval: area under the ROC curve; its interval over edges.
        auprc: average precision.
        r_precision: precision, and recall, among the best `n_true` edges.
        n_true, n_false: edges in the truth, and the others.
        n_unscored: edges without a score, true or false.
    """

    profile: Profile
    by: By
    greedy: bool
    auroc: float
    auroc_interval: Interval
    auprc: float
    r_precision: float
    n_true: int
    n_false: int
    n_unscored: int


@checked
def recovery_of(
    scores: EdgeScores,
    truth: Circuit,
    by: By | None = None,
    profile: Profile = "strict",
    *,
    greedy: bool = False,
) -> Recovery:
    """Compare a ranking of edges with the circuit that is known to be there.

    Every edge of the graph is one item, positive if it is in the truth. Edges without a score
    rank last, all together. Where circuits are grown from the logits (information flow routes),
    edges rank in the order in which the greedy circuit grows, and those that it never reaches
    last, all together.

    `strict`    (default)
        auroc        P(a true edge scores above a false one) + P(they tie) / 2: the Mann-Whitney
                     statistic, with mid-ranks.
        auprc        average precision, sum_k (R_k - R_k-1) P_k over the distinct scores: edges
                     of one score are taken together, so that constant scores give the share of
                     true edges.
        r_precision  precision among as many edges as the truth has; recall is the same number
                     there. Where the cut falls among ties: its expectation over their orders.
    `mib-2025`  the AUROC of Mueller et al. (2025), section 3.1, as their code has it: circuits
                of ceil(p * edges) edges at ten sizes p, grown greedily by magnitude and pruned;
                the area under true over false positive rates by the trapezoidal rule from the
                first circuit on, divided by the last false positive rate. Other quantities as
                in `strict`, by magnitude.

    The interval of the AUROC takes the edges as independent: it says how far a few true edges
    determine a rank statistic, nothing about other prompts, seeds or models. It holds the
    values that the observed one does not reject, with the standard error of Hanley and McNeil
    (1982) at the value in question, so it stays in [0, 1] and always has a width. It is NaN
    under `mib-2025`.

    Args:
        truth: taken as it is; prune it first if edges on no path should not count.
        by: "value" (the default) or "magnitude" (the default, and all there is, under
            `mib-2025`).
        greedy: rank edges in the order in which the greedy circuit grows; always so for scores
            whose circuits are cut so.

    Raises:
        GraphMismatch: scores and truth belong to different graphs.
        UnknownName: no such profile or ranking.
        BadUsage: by value under `mib-2025`.
    """
    one_of("profile", profile, PROFILES)
    ranked: By = ("magnitude" if profile == "mib-2025" else "value") if by is None else by
    one_of("ranking", ranked, get_args(By))
    if profile == "mib-2025" and ranked != "magnitude":
        raise BadUsage(f"The profile mib-2025 ranks edges by magnitude; got {ranked!r}.")
    if scores.graph != truth.graph:
        raise GraphMismatch(
            f"The scores belong to {scores.graph}; the truth belongs to {truth.graph}."
        )
    greedy = greedy or scores.grows
    ranks = _greedy_ranks(scores, ranked) if greedy else _ranks(scores, ranked)
    member = truth.edges[truth.graph.legal].cpu().numpy()
    n_true, n_false = int(member.sum()), int((~member).sum())
    area, auprc, interval = NAN, NAN, Interval(NAN, NAN)
    if n_true and n_false:
        # Imported here, because it is slow.
        from sklearn.metrics import average_precision_score, roc_auc_score

        area = float(roc_auc_score(member, ranks))
        auprc = float(average_precision_score(member, ranks))
        interval = auroc_interval(area, n_true, n_false)
    if profile == "mib-2025":
        area, interval = _area_over_sizes(scores, truth), Interval(NAN, NAN)
    return Recovery(
        profile=profile,
        by=ranked,
        greedy=greedy,
        auroc=area,
        auroc_interval=interval,
        auprc=auprc,
        r_precision=_r_precision(ranks, member),
        n_true=n_true,
        n_false=n_false,
        n_unscored=len(member) - int(scores.scored().sum()),
    )


def _ranks(scores: EdgeScores, by: By) -> Float[np.ndarray, "edges"]:
    """Mid-ranks of all edges' scores, the best highest; those without a score share the lowest."""
    values = scores.values[scores.graph.legal].double().cpu().numpy()
    keys = np.abs(values) if by == "magnitude" else values
    return rankdata(np.where(np.isnan(keys), -np.inf, keys), method="average")


def _greedy_ranks(scores: EdgeScores, by: By) -> Float[np.ndarray, "edges"]:
    """Ranks in the order in which the greedy circuit grows; edges not reached share the lowest."""
    order = scores.greedy_order(by)
    keys = np.zeros(scores.values.numel())
    keys[order] = np.arange(len(order), 0, -1)
    return rankdata(keys[scores.graph.legal.flatten().numpy()], method="average")


def _r_precision(ranks: Float[np.ndarray, "edges"], member: Bool[np.ndarray, "edges"]) -> float:
    n = int(member.sum())
    if n in (0, len(member)):
        return NAN
    cut = np.partition(ranks, len(ranks) - n)[len(ranks) - n]
    above, tied = ranks > cut, ranks == cut
    expected = (n - above.sum()) * member[tied].mean()
    return float((member[above].sum() + expected) / n)


def auroc_interval(auroc: float, n_true: int, n_false: int, level: float = LEVEL) -> Interval:
    """The areas t with |auroc - t| <= z SE(t), where SE(t) is Hanley and McNeil's standard error.

    SE(t)^2 = t (1 - t) [1 + (n_true - 1) (1 - t) / (2 - t) + (n_false - 1) t / (1 + t)]
              / (n_true n_false),

    or, if that is larger, the same with the roles of true and false exchanged: scores times -1 then
    give the mirrored interval.
    """
    if math.isnan(auroc):
        return Interval(NAN, NAN, level)
    z = float(norm.ppf((1 + level) / 2))
    few, many = sorted((n_true, n_false))

    def excess(t: float) -> float:
        small, large = sorted(((1 - t) / (2 - t), t / (1 + t)))
        spread = 1 + (few - 1) * small + (many - 1) * large
        return (auroc - t) ** 2 - z**2 * t * (1 - t) * spread / (n_true * n_false)

    # SE is 0 at 0 and at 1, so there the excess is not negative; it is at the estimate, or just
    # inside for an estimate of 0 or 1.
    inside = min(max(auroc, 1e-9), 1 - 1e-9)
    low = _root(excess, 0.0, inside) if auroc > 0 else 0.0
    high = _root(excess, inside, 1.0) if auroc < 1 else 1.0
    return Interval(low, high, level)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    root: Any = brentq(function, low, high)
    return float(root)


def _area_over_sizes(scores: EdgeScores, truth: Circuit) -> float:
    """MIB's ten-point area; NaN also if no circuit holds a false edge."""
    true, false = truth.edges, truth.graph.legal & ~truth.edges
    if not bool(true.any()) or not bool(false.any()):
        return NAN
    n_edges = truth.graph.n_edges
    sizes = [math.ceil(fraction * n_edges) for fraction in FRACTIONS]
    grown = [scores.greedy(size, by="magnitude").pruned().edges for size in sizes]
    right, wrong = (
        np.array([int((edges & kind).sum()) for edges in grown]) / int(kind.sum())
        for kind in (true, false)
    )
    return float(trapezoid(right[None], wrong)[0] / wrong[-1]) if wrong[-1] > 0 else NAN


T = TypeVar("T")

RECOVERY = ("auroc", "auprc", "r_precision")


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
        """Return the circuit of one size (`result`) and its control (`control:random-paths`).

        The circuit has the best `size` edges of the scores, pruned: it may have fewer edges. The
        control has `size` edges on random paths. Scores of neurons are summed to nodes. If the
        scores are circuits, the largest circuit that has no more edges is returned.

        Args:
            size: number of edges, or their fraction of all edges up to 1; as many as the known
                circuit has if None. There are no circuits if None and no circuit is known.
        """
        if size is None:
            if self.truth is None:
                return {}
            size = len(self.truth)
        size = _counted(size)
        random = RandomPaths(seed=self.seed).circuit(self.model.graph, size)
        if isinstance(self.scores, CircuitSeries):
            return {"result": self.scores.within(size), "control:random-paths": random}
        scores = self.scores.nodes() if isinstance(self.scores, NeuronScores) else self.scores
        chosen = CircuitSpec("", "method", "", size).cut(scores)
        return {"result": chosen, "control:random-paths": random}

    def random_circuits(self, size: int | float | None) -> dict[str, list[Circuit]]:
        """Enough random circuits of one size to say what chance may reach, by their kind: edges
        drawn one by one, pruned, and random paths, of which the first is that of `circuits`.
        """
        if size is None:
            size = 0 if self.truth is None else len(self.truth)
        size = _counted(size)
        graph, seeds = self.model.graph, range(self.seed, self.seed + FEW_DRAWS)
        return {
            "control:random": [Random(seed=s).draw(graph).top(size).pruned() for s in seeds],
            "control:random-paths": [RandomPaths(seed=s).circuit(graph, size) for s in seeds],
        }

    def n_dead(self, size: int | float | None) -> int:
        """How many edges of the scores' circuit of one size are on no path."""
        if isinstance(self.scores, CircuitSeries):
            return 0
        size = len(self.truth) if size is None and self.truth is not None else size
        size = None if size is None else _counted(size)
        scores = self.scores.nodes() if isinstance(self.scores, NeuronScores) else self.scores
        whole = CircuitSpec("", "method", "", size).unpruned(scores)
        return len(whole) - len(whole.pruned())

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
    """What a metric says of scores; the tables are beside its measures.

    Attributes:
        columns: numbers of each pair, by the names of columns in the values of the record.
    """

    measures: tuple[Measure, ...]
    tables: tuple[Table, ...] = ()
    warnings: tuple[str, ...] = ()
    columns: Mapping[str, Sequence[float]] = field(default_factory=dict)


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


def with_metrics(record: Record, metrics: tuple[Metric, ...], scored: Scored) -> Record:
    """The record with what the metrics say, and the metrics among its specs."""
    for metric in metrics:
        result = metric.measure(scored)
        settings = {name: value for name, value in vars(metric).items() if value is not None}
        spec = Spec(name=metric.name, version=metric.version, args=settings)
        values = record.values
        if values is not None and result.columns:
            columns = {name: list(column) for name, column in result.columns.items()}
            values = values.model_copy(update={"columns": {**values.columns, **columns}})
        record = record.model_copy(
            update={
                "specs": {**record.specs, metric.name + _at(settings.get("size")): spec},
                "measures": [*record.measures, *result.measures],
                "tables": [*record.tables, *result.tables],
                "warnings": [*record.warnings, *result.warnings],
                "values": values,
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
            return Measured(tuple(TEXTS.measure(name, math.nan) for name in RECOVERY))
        recovery = recovery_of(by_edge(scored.scores), scored.truth, by="magnitude")
        n_true, n_false = recovery.n_true, recovery.n_false
        share = n_true / (n_true + n_false)
        values = {
            "auroc": (recovery.auroc, recovery.auroc_interval, 0.5, by_chance(n_true, n_false)),
            "auprc": (recovery.auprc, NO_INTERVAL, auprc_by_chance(n_true, n_false), NO_INTERVAL),
            "r_precision": (recovery.r_precision, NO_INTERVAL, share, NO_INTERVAL),
        }
        return Measured(
            tuple(
                TEXTS.measure(name, value, interval, n=n_true, of=of)
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
        return NO_INTERVAL
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


# Agreement at all sizes


@dataclass(frozen=True)
class AgreementMetric:
    """CMA, as a curve has it: circuits by magnitude alone are run, and random rankings."""

    name: ClassVar[str] = "cma"
    version: ClassVar[int] = 1
    needs_truth: ClassVar[bool] = False

    def measure(self, scored: Scored) -> Measured:
        """CMA, and the means of random rankings of both kinds."""

        def cma(scores: Ranked) -> BootstrapEstimate:
            return magnitude_sweep(
                scored.model,
                scores,
                scored.batch,
                scored.objective,
                seed=scored.seed,
                progress=scored.progress,
            ).cma

        graph, n, own = scored.model.graph, len(scored.batch), cma(scored.scores)
        measures = [TEXTS.measure("cma of magnitudes alone", own.value, own.interval, n=n)]
        for kind in (Random, RandomPaths):
            drawn = [cma(kind(seed=seed).draw(graph)) for seed in range(FEW_DRAWS)]
            mean = mean_estimate(drawn)
            for of, estimate in (("control", mean), ("difference", own - mean)):
                about = f"{of}:{kind.name}"
                measures.append(
                    TEXTS.measure("cma", estimate.value, estimate.interval, of=about, n=n)
                )
        return Measured(tuple(measures))


# The circuit at one size


SHARES = ("circuit", "complement", "agreement")
"""What is left of the effect in the circuit, and without it; and agreement with the model."""


@dataclass(frozen=True)
class OneSizeMetric(ABC):
    """A metric of the circuit at one size, measured on each of `Scored.circuits`.

    Attributes:
        size: edges, or a share of them; as many as the known circuit has if None.
    """

    size: int | float | None = None
    undefined: ClassVar[tuple[str, ...]]

    @property
    def needs_truth(self) -> bool:
        return self.size is None

    def measure(self, scored: Scored) -> Measured:
        """The measures of the circuit, and those of its controls."""
        circuits = scored.circuits(self.size)
        if not circuits:
            return _undefined(*self.undefined)
        groups = {"result": [circuits["result"]], **scored.random_circuits(self.size)}
        parts = [self.of_circuits(scored, some, of) for of, some in groups.items()]
        return Measured(
            tuple(measure for part in parts for measure in part.measures),
            tuple(table for part in parts for table in part.tables),
            tuple(warning for part in parts for warning in part.warnings),
            {name: column for part in parts for name, column in part.columns.items()},
        )

    @abstractmethod
    def of_circuits(self, scored: Scored, circuits: Sequence[Circuit], of: str) -> Measured:
        """What there is to say of the circuit of the scores, or of random ones of one kind."""


@dataclass(frozen=True)
class CompletenessMetric(OneSizeMetric):
    """Faithfulness of the circuit at one size, and of what is left without it."""

    name: ClassVar[str] = "completeness"
    version: ClassVar[int] = 1
    undefined: ClassVar[tuple[str, ...]] = SHARES

    def of_circuits(self, scored: Scored, circuits: Sequence[Circuit], of: str) -> Measured:
        """f of the circuit and of its complement, and its agreement; of random ones the means.

        The objective of each pair stands in the record for the circuit of the scores alone.
        """
        parts = [scored.run(completeness, circuit) for circuit in circuits]
        shares = (
            (
                np.array([getattr(part, name) for part in parts]),
                [getattr(part, f"{name}_interval") for part in parts],
            )
            for name in SHARES
        )
        n, at = len(scored.batch), _at(self.size)
        rows = parts[0].per_example[2:].tolist() if of == "result" else []
        return Measured(
            tuple(
                filled(
                    name, float(values.mean()), _of_another(values, intervals), n=n, of=of, at=at
                )
                for name, (values, intervals) in zip(SHARES, shares, strict=True)
            ),
            columns={name + at: row for name, row in zip(SHARES, rows, strict=False)},
        )


def recomputed_sizes(record: Record) -> list[Measure]:
    """f of the circuit at each size and of its complement, and its agreement, from the objective
    of each pair; nothing of a record without these.
    """
    values = record.values
    again: list[Measure] = []
    if values is None:
        return again
    for name in values.columns:
        if not name.startswith("circuit"):
            continue
        at = name.removeprefix("circuit")
        columns = ("clean", "empty", name, f"complement{at}")
        part = completeness_of(
            np.array([values.columns[column] for column in columns], dtype=float),
            values.groups,
            record.metric.name,
            seed=record.provenance.seed,
        )
        again += [
            filled(
                share,
                getattr(part, share),
                getattr(part, f"{share}_interval"),
                n=len(values.ids),
                at=at,
            )
            for share in SHARES
        ]
    return again


@dataclass(frozen=True)
class MinimalityMetric(OneSizeMetric):
    """Edges of the circuit at one size that it does as well without.

    Attributes:
        most: edges that are left out, drawn at random where the circuit has more: the share then
            has an interval. `n` is the circuit's edges.
    """

    most: int | None = None

    name: ClassVar[str] = "minimality"
    version: ClassVar[int] = 2
    undefined: ClassVar[tuple[str, ...]] = ("unneeded",)

    def of_circuits(self, scored: Scored, circuits: Sequence[Circuit], of: str) -> Measured:
        """The share of edges whose drop's interval is not above 0, and a table of the drops.

        Of random circuits one stands for all, on random paths: its edges alone are live.
        """
        if of == "control:random":
            return Measured(())
        circuit, at = circuits[0], _at(self.size)
        n_dead = scored.n_dead(self.size) if of == "result" else 0
        n = len(circuit) + n_dead
        dead = filled("dead", float(n_dead), n=n, of=of, at=at)
        if not len(circuit):
            lacking = "The circuit has no live edges: minimality is undefined."
            undefined = filled("unneeded", math.nan, of=of, at=at)
            return Measured((undefined, dead), warnings=(lacking,))
        minimal = scored.run(partial(minimality, most=self.most), circuit)
        defined, n_tried = not math.isnan(minimal.drops[0]), len(minimal.parts)
        part = minimal.n_unneeded / n_tried
        ends = clopper_pearson(minimal.n_unneeded, n_tried)
        if n_tried == len(circuit):
            ends = Interval(part, part)  # All were tried: nothing was drawn.
        share, low, high = (
            (n_dead + len(circuit) * x) / n if defined else math.nan for x in (part, *ends[:2])
        )
        unneeded = filled("unneeded", share, Interval(low, high), n=n, of=of, at=at)
        tables = (_drops(f"minimality{at}", minimal),) if of == "result" else ()
        return Measured((unneeded, dead), tables)


def _of_another(values: Float[np.ndarray, "circuits"], intervals: Sequence[Interval]) -> Interval:
    """The interval of one circuit over examples; of several random ones, what another may reach."""
    if len(values) == 1:
        return intervals[0]
    width = float(np.mean([high - low for low, high, _ in intervals]))
    noise = width / (2 * float(norm.ppf((1 + LEVEL) / 2)))
    return Interval(-chance_limit(-values, noise=noise), chance_limit(values, noise=noise))


def _drops(name: str, minimal: Minimality) -> Table:
    rows = [
        {"edge": part, "drop": drop, "low": low, "high": high}
        for part, drop, (low, high, _) in zip(
            minimal.parts, minimal.drops.tolist(), minimal.intervals, strict=True
        )
    ]
    return Table.of(name, ("edge",), rows)


def _counted(size: int | float) -> int | float:
    """Return a whole number above 1 as a number of edges: a typed setting may be a float."""
    return int(size) if size > 1 and size == int(size) else size


def _at(size: int | float | None) -> str:
    return "" if size is None else f"@{size}"


def _undefined(*names: str) -> Measured:
    return Measured(tuple(filled(name, math.nan) for name in names))


def filled(
    name: str,
    value: float,
    interval: Interval = NO_INTERVAL,
    *,
    n: int = 0,
    of: str = "result",
    at: str = "",
) -> Measure:
    """Return a measure of the circuit at one size; `at` is the size, behind its name and title."""
    named, where = f"{name}{{at}}", at.replace("@", " at ")
    return TEXTS.measure(named, value, interval, of=of, n=n, at=at, where=where)
