"""The number of circuits that a task needs: the circuit of each kind of prompts, evaluated on the
prompts of every kind.

A kind is a set of pairs with a common property, such as their template. For each kind, a method
finds two circuits of k edges (by magnitude), on two disjoint samples of the kind's training pairs.
A[g, h] is the agreement (`circuits.series.agreement`) of the first circuit of kind g on the test
pairs of kind h:

    loss[g, h] = A[h, h] - A[g, h]      with an interval over groups of pairs of h; both terms use
                                        the same resamples

n kinds have n^2 losses, including those of second samples, and the verdict uses all of them. With
95 % confidence, all intervals contain their losses: each interval has the level 1 - .05 / n^2
(Bonferroni), and follows from the standard error over resamples and Student's distribution.

The circuit of g *serves* h if the upper bound of the loss is at most .1, and *fails* h if the lower
bound is above .1. Otherwise the loss is open. The control is the loss of the second circuit of h on
pairs of h: another sample of the same kind. The minimum number of circuits that serve all kinds is
a range, with open losses counted as served and as failed. A kind has no circuit of the size if its
second circuit fails its own pairs, or if its first circuit keeps less than half of the effect of
ablation there. Such kinds are counted separately. If a kind has fewer than `FEW_GROUPS` groups of
test pairs, there are numbers and no verdict.

If a model has two behaviours and a size has room for both, circuits of that size may serve both.
Small sizes distinguish the behaviours better.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import norm

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.circuits.methods.method import AnyMethod, method_name
from mechassay.circuits.scores import EdgeScores, Scores
from mechassay.circuits.series import agreement as agreement_of
from mechassay.circuits.series import kept_effects
from mechassay.errors import BadUsage
from mechassay.models.graph import Graph
from mechassay.models.model import Model
from mechassay.models.objectives import ObjectiveLike, load_objective
from mechassay.prompts.batch import Batch, PairsLike
from mechassay.results.records import Measure, Record, Spec, Table
from mechassay.results.result import RecordContents, Result
from mechassay.results.text import plain_number
from mechassay.stats.intervals import (
    FEW_GROUPS,
    LEVEL,
    Estimate,
    Resamples,
    percentile_interval,
    widening,
)
from mechassay.utils.display import BAR, SILENT, Progress, counted, interval

MAX_LOSS = 0.1
"""Maximum loss of a circuit that serves a kind, as a fraction of the effect of ablation."""
LEAST_OWN = 0.5
"""Minimum agreement of a kind's own circuit on the kind's test pairs."""
MOST_KINDS = 16
"""Maximum number of kinds. The search visits every set of circuits: 65,535 sets of 16 kinds."""
LOSSES, KINDS, OTHER_SAMPLE = "cross agreement", "kinds", "another sample"
"""The names of the two tables of a record, and of the rows of other samples."""
COLUMNS = ("circuit", "pairs", "agreement", "loss", "low", "high", "n")


def by_tag(pairs: Iterable[Any], tag: str = "template") -> dict[str, list[Any]]:
    """Return the pairs of a task by the value of a tag, in the order of the values.

    Raises:
        BadUsage: A pair does not have the tag.
    """
    kinds: defaultdict[str, list[Any]] = defaultdict(list)
    for pair in pairs:
        if tag not in pair.tags:
            known = ", ".join(sorted(pair.tags)) or "none"
            raise BadUsage(f"The pair {pair.id} has no tag {tag!r}; its tags are {known}.")
        kinds[pair.tags[tag]].append(pair)
    return dict(sorted(kinds.items()))


@dataclass(frozen=True, eq=False, repr=False)
class CrossAgreement(Result, kind="how-many"):
    """Agreement of the circuit of each kind (rows) on test pairs of each kind (columns).

    Attributes:
        kinds: names of the kinds, in the order of rows and columns.
        size: requested number of edges of each circuit.
        n_edges: number of edges of each kind's circuit after pruning.
        n_train, n_test: number of training pairs and of test pairs of each kind.
        n_groups: number of independent groups of test pairs of each kind.
        agreement: A[g, h]; NaN if ablation has no effect on h.
        loss, low, high: A[h, h] - A[g, h] with the bounds of its interval; 0 on the diagonal. All
            intervals together have a confidence of 95 %.
        other_sample, other_low, other_high: loss of the circuit of another sample of h on pairs of
            h, with the bounds of its interval.
        noun: word for a kind in sentences and tables, such as "template" or "task".
    """

    kinds: tuple[str, ...]
    size: int
    n_edges: tuple[int, ...]
    n_train: tuple[int, ...]
    n_test: tuple[int, ...]
    n_groups: tuple[int, ...]
    agreement: Float[np.ndarray, "kinds kinds"]
    loss: Float[np.ndarray, "kinds kinds"]
    low: Float[np.ndarray, "kinds kinds"]
    high: Float[np.ndarray, "kinds kinds"]
    other_sample: Float[np.ndarray, "kinds"]
    other_low: Float[np.ndarray, "kinds"]
    other_high: Float[np.ndarray, "kinds"]
    noun: str = "kind"
    model: str = ""
    method: str = ""
    objective: str = ""

    def repr_fields(self) -> dict[str, Any]:
        return {"kinds": len(self.kinds), "edges": self.size, "circuits": self.n_circuits}

    @property
    def has_circuit(self) -> Bool[np.ndarray, "kinds"]:
        """Whether a kind's circuit keeps half of the effect of ablation on the kind's test pairs,
        and the circuit of another sample does not fail them.
        """
        own = np.nan_to_num(np.diagonal(self.agreement), nan=0.0)
        return (own >= LEAST_OWN) & ~(self.other_low > MAX_LOSS)

    @property
    def serves(self) -> Bool[np.ndarray, "kinds kinds"]:
        """Whether the circuit of a row serves the kind of a column."""
        return (self.high <= MAX_LOSS) | np.eye(len(self.kinds), dtype=bool)

    @property
    def fails(self) -> Bool[np.ndarray, "kinds kinds"]:
        """Whether the circuit of a row fails the kind of a column."""
        return self.low > MAX_LOSS

    def smallest_set(self, *, open_serves: bool) -> tuple[str, ...]:
        """Return a smallest set of kinds whose circuits serve all kinds that have a circuit.

        Args:
            open_serves: whether a circuit serves a kind if its loss there is open.
        """
        serves = ~self.fails if open_serves else self.serves
        members = np.flatnonzero(self.has_circuit)
        for n in range(1, len(members) + 1):
            for chosen in combinations(members.tolist(), n):
                if serves[list(chosen)][:, members].any(axis=0).all():
                    return tuple(self.kinds[place] for place in chosen)
        return ()

    @property
    def n_circuits(self) -> tuple[int, int]:
        """The minimum and the maximum number of circuits that the kinds need."""
        counts = (len(self.smallest_set(open_serves=counted)) for counted in (True, False))
        least, most = counts
        return least, most

    @property
    def worst(self) -> tuple[Estimate, Estimate]:
        """The largest loss of the circuit of another kind, and of the circuit of another sample of
        the same kind, over kinds that have a circuit; NaN if there is no such loss.
        """
        has = self.has_circuit
        others = has[:, None] & has & ~np.eye(len(has), dtype=bool)
        return (
            _largest(self.loss[others], self.low[others], self.high[others]),
            _largest(self.other_sample[has], self.other_low[has], self.other_high[has]),
        )

    def worst_of(self, kind: str) -> Estimate:
        """Return the largest loss of a kind's circuit on the other kinds that have a circuit."""
        row, others = self.kinds.index(kind), self.has_circuit.copy()
        others[row] = False
        return _largest(self.loss[row, others], self.low[row, others], self.high[row, others])

    def verdict(self) -> str:
        """Return a sentence with the number of circuits, and a sentence with the largest losses."""
        (least, most), has = self.n_circuits, self.has_circuit
        n, of_size = int(has.sum()), f"of {counted(self.size, 'edge')}"
        every, of_all = counted(n, self.noun), counted(len(has), self.noun)
        fewest = min(self.n_groups)
        if fewest < FEW_GROUPS:
            return (
                f"There is no verdict on how many circuits {of_all} need: {fewest} independent"
                f" groups of pairs of a {self.noun} are fewer than {FEW_GROUPS}."
            )
        if not n:
            return (
                f"No {self.noun} has a circuit {of_size}: on its own pairs it keeps less than"
                f" {LEAST_OWN:.0%} of what ablation changes, or that of another sample fails."
            )
        apart = f"; {len(has) - n} of {of_all} have no circuit of this size" if n < len(has) else ""
        if n == 1:
            (only,) = np.flatnonzero(has).tolist()
            return f"Of {of_all} only {self.kinds[only]!r} has a circuit {of_size}."
        if most == 1:
            (chosen,) = self.smallest_set(open_serves=False)
            own = self.worst_of(chosen)
            first = (
                f"One circuit {of_size}, found on {chosen!r}, serves all {every}: on another it"
                f" loses at most {interval(own.value, own.low, own.high)}"
            )
        elif least == most:
            first = f"The {every} need {most} circuits {of_size}"
        else:
            first = f"The {every} need at least {least}, at most {most} circuits {of_size}"
        other, same = (interval(loss.value, loss.low, loss.high) for loss in self.worst)
        return (
            f"{first}{apart}. The circuit of another {self.noun} loses at most {other} of what"
            f" ablation changes, that of another sample of the same {self.noun} {same}."
        )

    def table(self) -> Table:
        """Return a table with a row per circuit and kind, then a row per kind for the circuit of
        another sample.
        """
        n = len(self.kinds)
        matrices = (self.agreement, self.loss, self.low, self.high)
        rows = [
            (self.kinds[g], self.kinds[h], *(float(x[g, h]) for x in matrices), self.n_test[h])
            for g in range(n)
            for h in range(n)
        ]
        own = np.diagonal(self.agreement) - self.other_sample
        vectors = (own, self.other_sample, self.other_low, self.other_high)
        rows += [
            (OTHER_SAMPLE, self.kinds[h], *(float(x[h]) for x in vectors), self.n_test[h])
            for h in range(n)
        ]
        return Table(
            name=LOSSES,
            keys=("circuit", "pairs"),
            columns=dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True)),
        )

    def contents(self) -> RecordContents:
        n, (least, most) = sum(self.n_test), self.n_circuits
        undefined = n if math.isnan(self.worst[0].value) else 0
        about: dict[str, Any] = {"size": self.size, "noun": self.noun}
        of_kinds: dict[str, Any] = {
            "kind": list(self.kinds),
            "edges": list(self.n_edges),
            "train": list(self.n_train),
            "test": list(self.n_test),
            "groups": list(self.n_groups),
            "circuit": self.has_circuit.tolist(),
        }
        losses = [
            Measure(
                name="worst_loss",
                title="Largest loss",
                value=loss.value,
                low=loss.low,
                high=loss.high,
                n=n,
                n_undefined=undefined if of == "result" else 0,
                of=of,
                better="down",
                meaning="Largest difference, over circuits and kinds, between the effect of"
                " ablation that a kind's own circuit keeps and the effect that the circuit keeps.",
            )
            for of, loss in zip(("result", "control:another-sample"), self.worst, strict=True)
        ]
        return {
            "specs": {
                "model": Spec(name=self.model),
                "method": Spec(name=self.method),
                "task": Spec(name="", args=about),
                "metric": Spec(name=self.objective),
            },
            "measures": [
                Measure(
                    name="circuits_least",
                    title="Circuits, at least",
                    value=least,
                    n=n,
                    meaning="Minimum number that serves all kinds, if open losses count as served.",
                ),
                Measure(
                    name="circuits_most",
                    title="Circuits, at most",
                    value=most,
                    n=n,
                    meaning="Minimum number that serves all kinds, if open losses count as failed.",
                ),
                *losses,
            ],
            "tables": [
                self.table(),
                Table(name=KINDS, keys=("kind",), columns=of_kinds),
            ],
        }

    @classmethod
    def of_record(cls, record: Record) -> CrossAgreement:
        """Return the result from its record."""
        kinds, losses = record.table(KINDS), record.table(LOSSES)
        names = tuple(map(str, kinds.columns["kind"]))
        n = len(names)
        matrices = [losses.numbers(name)[: n * n].reshape(n, n) for name in COLUMNS[2:6]]
        vectors = [losses.numbers(name)[n * n :] for name in COLUMNS[3:6]]
        counts = (
            tuple(int(plain_number(x)) for x in kinds.columns[name])
            for name in ("edges", "train", "test", "groups")
        )
        about = record.task.args
        size, noun = int(plain_number(about["size"])), str(about["noun"])
        named = {
            "model": record.model.name,
            "method": record.method.name,
            "objective": record.metric.name,
        }
        edges, train, test, groups = counts
        agreement, loss, low, high = matrices
        return cls(
            names, size, edges, train, test, groups, agreement, loss, low, high, *vectors,
            noun=noun, **named,
        )  # fmt: skip


def _largest(losses: np.ndarray, low: np.ndarray, high: np.ndarray) -> Estimate:
    if not losses.size or np.isnan(losses).all():
        return Estimate(math.nan)
    at = int(np.nanargmax(losses))
    return Estimate(float(losses[at]), float(low[at]), float(high[at]))


Kept = Callable[[str, Callable[[], Scores]], Scores]
"""Return the scores of a name: read from a file, or computed by the given function."""


def cross_agreement(
    method: AnyMethod,
    model: Model,
    train: Mapping[str, PairsLike],
    test: Mapping[str, PairsLike],
    size: int | float,
    objective: ObjectiveLike = "logit_diff",
    *,
    noun: str = "kind",
    seed: int = 0,
    progress: Progress = BAR,
    kept: Kept = lambda name, make: make(),
) -> CrossAgreement:
    """Find circuits on each kind of pairs and evaluate them on all kinds.

    Args:
        train, test: pairs by kind, such as `by_tag(pairs, "template")`. Each of a kind's two
            samples is half of its training pairs.
        size: number of edges of a circuit, or fraction of all edges.
        noun: word for a kind in sentences and tables.
        kept: function that reads or stores the scores of a sample, so that a run can resume.

    Raises:
        BadUsage: There are fewer than two kinds or more than 16; `train` and `test` have different
            kinds; a kind has fewer than two training pairs; the size is less than one edge or more
            than the model has; the method does not score edges.

    `Method.score` and `evaluate` list further errors.
    """
    kinds = tuple(train)
    if not 2 <= len(kinds) <= MOST_KINDS or set(test) != set(kinds):
        raise BadUsage(
            f"Circuits are compared between 2 to {MOST_KINDS} kinds of pairs, the same in train and"
            f" test; got {len(kinds)} in train and {len(test)} in test."
        )
    n_asked = _n_edges(model.graph, size)
    batches = {kind: model.batch(train[kind]) for kind in kinds}
    for kind, batch in batches.items():
        if len(batch) < 2:
            raise BadUsage(f"Two samples need 2 training pairs; {kind!r} has {len(batch)}.")
    of_kinds: list[tuple[Circuit, Circuit]] = []
    with progress.track("circuits by kind", sum(map(len, batches.values()))) as advance:
        for place, batch in enumerate(batches.values()):
            name = str(place)
            circuits = _two_circuits(method, model, batch, n_asked, objective, seed, name, kept)
            of_kinds.append(circuits)
            advance(len(batch))
    firsts = [first for first, _ in of_kinds]
    measured = [model.batch(test[kind]) for kind in kinds]
    n = len(kinds)
    agreement, loss, low, high = np.full((4, n, n), math.nan)
    other = np.full((3, n), math.nan)
    level = 1 - (1 - LEVEL) / n**2
    reach = float(norm.ppf((1 + level) / 2))
    full, empty = Circuit.full(model.graph), Circuit.empty(model.graph)
    for h, batch in enumerate(measured):
        circuits = [full, empty, *firsts, of_kinds[h][1]]
        values = evaluate(model, circuits, batch, objective, progress=progress)
        shares = agreement_of(full=values[0], empty=values[1], circuit=values[2:])
        if np.isnan(shares).any():
            continue
        effect, kept_by = kept_effects(values[0], values[1], values[2:])
        agreement[:, h] = shares[:n]
        lost = kept_by[h] - kept_by
        resamples = Resamples(batch.groups, np.random.default_rng(seed))
        draws = resamples.means(np.vstack((lost, effect[None])))
        for row in range(n + 1):
            drawn, value = draws[:, row] / draws[:, -1], float(shares[h] - shares[row])
            defined = not math.isnan(percentile_interval(drawn, n_groups=resamples.n_groups).low)
            half = reach * widening(resamples.n_groups, level) * float(drawn.std())
            ends = (value - half, value + half) if defined else (math.nan, math.nan)
            if row < n:
                loss[row, h] = value
                low[row, h], high[row, h] = (0.0, 0.0) if row == h else ends
            else:
                other[:, h] = value, *ends
    return CrossAgreement(
        kinds,
        n_asked,
        tuple(len(circuit) for circuit in firsts),
        tuple(map(len, batches.values())),
        tuple(map(len, measured)),
        tuple(len(set(batch.groups)) for batch in measured),
        agreement,
        loss,
        low,
        high,
        *other,
        noun=noun,
        model=model.name,
        method=method_name(method),
        objective=load_objective(objective).name,
    )


def _n_edges(graph: Graph, size: int | float) -> int:
    n = int(size * graph.n_edges + 1e-9) if isinstance(size, float) else size
    if not 1 <= n <= graph.n_edges:
        raise BadUsage(
            f"A circuit that is compared has 1 to {graph.n_edges:,} edges, or a share of them that"
            f" is at least one; got {size}."
        )
    return n


def _two_circuits(
    method: AnyMethod,
    model: Model,
    batch: Batch,
    n_edges: int,
    objective: ObjectiveLike,
    seed: int,
    name: str,
    kept: Kept,
) -> tuple[Circuit, Circuit]:
    """Return the pruned circuits, by magnitude, of two disjoint halves of the pairs."""
    order = np.random.default_rng(seed).permutation(len(batch)).tolist()
    half = len(order) // 2
    samples: Sequence[Sequence[int]] = (sorted(order[:half]), sorted(order[half:]))

    def circuit(number: int) -> Circuit:
        chosen = batch.select(samples[number])
        scores = kept(
            f"{name}-{number}", lambda: method.score(model, chosen, objective, progress=SILENT)
        )
        if not isinstance(scores, EdgeScores):
            raise BadUsage(
                f"Circuits of kinds of pairs are compared by their edges; {method.name} scores"
                f" {scores.unit}s."
            )
        return scores.top(n_edges, by="magnitude").pruned()

    return circuit(0), circuit(1)
