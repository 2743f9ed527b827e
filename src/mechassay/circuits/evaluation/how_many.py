"""How many circuits a task has: circuits of each kind of prompt, measured on every other kind.

A kind is what pairs have in common, such as their template. Each finds a circuit of k edges (by
magnitude) on its own training pairs, in two disjoint samples. Every circuit is then run on the test
pairs of every kind, and A[g, h] is the agreement (`circuits.series.agreement`) of the circuit of
kind g on pairs of kind h:

    loss[g, h] = A[h, h] - A[g, h]      with an interval over groups of pairs of h, both resampled
                                        at once

Of n kinds there are n^2 losses, with those of second samples, and a verdict looks at all of them:
so their intervals hold at once with 95 %, each at the level 1 - .05 / n^2 (Bonferroni) by its
standard error over resamples and Student's distribution.

The circuit of g *serves* h if the upper end of the loss is at most .1, and *fails* it if the lower
end is above. The control is the circuit of the second sample of h on pairs of h: what another
sample of the same kind loses. The fewest circuits that serve all kinds are counted twice: with
what is open counted as served (`at_least`) and as failed (`at_most`). If another sample of a kind
fails its own pairs, or its circuit keeps less than half of what ablation changes there, the size
gives that kind no circuit, and it is counted apart. Fewer than `FEW_GROUPS` groups of test pairs of
a kind get numbers and no verdict.

All circuits of one size in a model that has two behaviours may still agree where the size has room
for both; small sizes tell more.
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
from mechassay.circuits.methods.method import Method, method_name
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

SLACK = 0.1
"""How much of what ablation changes a circuit may keep less than a kind's own."""
LEAST_OWN = 0.5
MOST_KINDS = 16
"""Sets of circuits are searched exactly; so many kinds have 65,535."""
LOSSES, KINDS, OTHER_SAMPLE = "cross agreement", "kinds", "another sample"
"""The tables of a record, and what the rows of other samples are called."""
COLUMNS = ("circuit", "pairs", "agreement", "loss", "low", "high", "n")


def by_tag(pairs: Iterable[Any], tag: str = "template") -> dict[str, list[Any]]:
    """Pairs of a task by one of their tags, in the order of the tag's values.

    Raises:
        BadUsage: a pair without the tag.
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
        kinds: names of rows and columns.
        size: edges that were asked for.
        n_edges: of each kind's circuit after pruning.
        n_train, n_test: pairs of each kind.
        n_groups: independent groups among the test pairs of each kind.
        agreement: A[g, h]; NaN where ablation changes nothing of h.
        loss, low, high: A[h, h] - A[g, h] with its interval; 0 on the diagonal. Intervals hold for
            all losses at once with 95 %.
        other_sample, other_low, other_high: the same of another sample of h, on pairs of h.
        noun: what a kind is: "template", "task".
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
        """Whether a kind's circuit keeps half of what ablation changes on its own test pairs, and
        another sample's does not fail them.
        """
        own = np.nan_to_num(np.diagonal(self.agreement), nan=0.0)
        return (own >= LEAST_OWN) & ~(self.other_low > SLACK)

    @property
    def serves(self) -> Bool[np.ndarray, "kinds kinds"]:
        """Whether the circuit of a row serves the kind of a column, for certain."""
        return (self.high <= SLACK) | np.eye(len(self.kinds), dtype=bool)

    @property
    def fails(self) -> Bool[np.ndarray, "kinds kinds"]:
        """Whether the circuit of a row fails the kind of a column, for certain."""
        return self.low > SLACK

    def smallest_set(self, *, open_serves: bool) -> tuple[str, ...]:
        """The fewest kinds whose circuits serve all kinds that have one.

        Args:
            open_serves: whether a circuit that neither serves nor fails a kind counts as serving.
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
        """The least and the most circuits that the kinds need."""
        counts = (len(self.smallest_set(open_serves=counted)) for counted in (True, False))
        least, most = counts
        return least, most

    @property
    def worst(self) -> tuple[Estimate, Estimate]:
        """The largest loss of the circuit of another kind, and that of another sample of the same
        kind, among kinds that have a circuit; NaN where there is none.
        """
        has = self.has_circuit
        others = has[:, None] & has & ~np.eye(len(has), dtype=bool)
        return (
            _largest(self.loss[others], self.low[others], self.high[others]),
            _largest(self.other_sample[has], self.other_low[has], self.other_high[has]),
        )

    def worst_of(self, kind: str) -> Estimate:
        """The largest loss of the circuit of one kind on another that has a circuit."""
        row, others = self.kinds.index(kind), self.has_circuit.copy()
        others[row] = False
        return _largest(self.loss[row, others], self.low[row, others], self.high[row, others])

    def verdict(self) -> str:
        """How many circuits serve all kinds, in a sentence, and what they lose, in another."""
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
        """A row for each circuit and kind; `another sample` of a kind stands behind them."""
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
        means = "Of what ablation changes, how much less than a kind's own circuit keeps on its"
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
                meaning=f"{means} pairs: the most, over all circuits and kinds.",
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
                    meaning="The fewest that serve all kinds, if what is open serves.",
                ),
                Measure(
                    name="circuits_most",
                    title="Circuits, at most",
                    value=most,
                    n=n,
                    meaning="The fewest that serve all kinds, if what is open fails.",
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
        """The result that a record was made of."""
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
"""Scores by a name for files: those that are kept, or those made now."""


def cross_agreement(
    method: Method,
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
    """Find a circuit on each kind of pairs and measure it on all kinds.

    Args:
        train, test: pairs by kind, such as `by_tag(pairs, "template")`; of each kind two samples of
            half of the training pairs find a circuit.
        size: edges of a circuit, or a share of all.
        noun: what a kind is.
        kept: where scores of samples are kept, for runs that are taken up.

    Raises:
        BadUsage: fewer than two kinds or more than 16, other kinds in `test`, a kind with fewer
            than two training pairs, a size of no edge or more than there are, scores that are not
            of edges. Others as `Method.score` and `evaluate`.
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
    method: Method,
    model: Model,
    batch: Batch,
    n_edges: int,
    objective: ObjectiveLike,
    seed: int,
    name: str,
    kept: Kept,
) -> tuple[Circuit, Circuit]:
    """The circuits of two disjoint samples of half of the pairs, by magnitude, pruned."""
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
