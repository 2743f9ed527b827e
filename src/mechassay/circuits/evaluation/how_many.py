"""How many circuits a task has: circuits of each kind of prompt, measured on every other kind.

A kind is what pairs have in common, such as their template. Each finds a circuit of k edges (by
magnitude) on its own training pairs, in two disjoint samples. Every circuit is then run on the test
pairs of every kind, and A[g, h] is the agreement (`circuits.series.agreement`) of the circuit of
kind g on pairs of kind h:

    loss[g, h] = A[h, h] - A[g, h]      with an interval over groups of pairs of h, both resampled
                                        at once

The circuit of g *serves* h if the upper end of the loss is at most .1, and *fails* it if the lower
end is above. The control is the circuit of the second sample of h on pairs of h: what another
sample of the same kind loses. The fewest circuits that serve all kinds are counted twice: with
what is open counted as served (`at_least`) and as failed (`at_most`). If another sample of a kind
fails its own pairs, or its circuit keeps less than half of what ablation changes there, the size
gives that kind no circuit, and it is counted apart.

All circuits of one size in a model that has two behaviours may still agree where the size has room
for both; small sizes tell more.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.circuits.methods.method import Method
from mechassay.circuits.series import agreement as agreement_of
from mechassay.circuits.series import kept_effects
from mechassay.errors import BadUsage
from mechassay.models.model import Model
from mechassay.models.objectives import ObjectiveLike
from mechassay.prompts.batch import Batch, PairsLike
from mechassay.results.records import Table
from mechassay.stats.intervals import Resamples, percentile_interval
from mechassay.utils.display import BAR, SILENT, OneLine, Progress, Tabular

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SLACK = 0.1
"""How much of what ablation changes a circuit may keep less than a kind's own."""
LEAST_OWN = 0.5
MOST_KINDS = 16
"""Sets of circuits are searched exactly; so many kinds have 65,535."""


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
class CrossAgreement(OneLine, Tabular):
    """Agreement of the circuit of each kind (rows) on test pairs of each kind (columns).

    Attributes:
        kinds: names of rows and columns.
        size: edges that were asked for.
        n_edges: of each kind's circuit after pruning.
        n_train, n_test: pairs of each kind.
        agreement: A[g, h]; NaN where ablation changes nothing of h.
        loss, low, high: A[h, h] - A[g, h] with its 95 % interval; 0 on the diagonal.
        other_sample, other_low, other_high: the same of another sample of h, on pairs of h.
    """

    kinds: tuple[str, ...]
    size: int
    n_edges: tuple[int, ...]
    n_train: tuple[int, ...]
    n_test: tuple[int, ...]
    agreement: Float[np.ndarray, "kinds kinds"]
    loss: Float[np.ndarray, "kinds kinds"]
    low: Float[np.ndarray, "kinds kinds"]
    high: Float[np.ndarray, "kinds kinds"]
    other_sample: Float[np.ndarray, "kinds"]
    other_low: Float[np.ndarray, "kinds"]
    other_high: Float[np.ndarray, "kinds"]

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

    def verdict(self) -> str:
        """How many circuits serve all kinds, in a sentence."""
        least, most = self.n_circuits
        n, without = int(self.has_circuit.sum()), int((~self.has_circuit).sum())
        apart = f"; {without} of {len(self.kinds)} have no circuit of this size" if without else ""
        if not n:
            return f"No kind of prompt has a circuit of {self.size:,} edges."
        if most == 1:
            (chosen,) = self.smallest_set(open_serves=False)
            first = f"One circuit of {self.size:,} edges, found on {chosen!r}, serves all {n} kinds"
        elif least == most:
            first = f"The {n} kinds need {most} circuits of {self.size:,} edges"
        else:
            first = f"The {n} kinds need {least} to {most} circuits of {self.size:,} edges"
        others = self.loss[~np.eye(len(self.kinds), dtype=bool)]
        known = others[~np.isnan(others)]
        worst = f"{known.max():.2f}" if known.size else "undefined"
        same = self.other_sample[~np.isnan(self.other_sample)]
        noise = f"{same.max():.2f}" if same.size else "undefined"
        return (
            f"{first}{apart}. The circuit of another kind loses at most {worst} of what ablation"
            f" changes, that of another sample of the same kind {noise}."
        )

    def columns(self) -> dict[str, list[Any]]:
        """A row for each circuit and kind; `other sample` of a kind stands beside its own."""
        rows = self._rows()
        return {name: [row[name] for row in rows] for name in rows[0]}

    def table(self) -> Table:
        """The rows as the table of a record."""
        return Table.of("cross agreement", ("circuit", "pairs"), self._rows())

    def _rows(self) -> list[dict[str, Any]]:
        n = len(self.kinds)
        rows = [
            {
                "circuit": self.kinds[g],
                "pairs": self.kinds[h],
                "agreement": float(self.agreement[g, h]),
                "loss": float(self.loss[g, h]),
                "low": float(self.low[g, h]),
                "high": float(self.high[g, h]),
                "n": self.n_test[h],
            }
            for g in range(n)
            for h in range(n)
        ]
        for h in range(n):
            ends = self.other_sample[h], self.other_low[h], self.other_high[h]
            loss, low, high = map(float, ends)
            rows.append(
                {
                    "circuit": f"{self.kinds[h]}, another sample",
                    "pairs": self.kinds[h],
                    "agreement": float(self.agreement[h, h]) - loss,
                    "loss": loss,
                    "low": low,
                    "high": high,
                    "n": self.n_test[h],
                }
            )
        return rows

    def plot(self, ax: Axes | None = None) -> Figure:
        """The agreement as a heat map, circuits by pairs; the matplotlib figure."""
        from matplotlib.figure import Figure

        figure = Figure(layout="constrained") if ax is None else ax.get_figure(root=True)
        assert isinstance(figure, Figure)
        axes = figure.add_subplot() if ax is None else ax
        image = axes.imshow(self.agreement, vmin=0, vmax=1, cmap="viridis")
        places = range(len(self.kinds))
        axes.set_xticks(places, self.kinds, rotation=45, ha="right")
        axes.set_yticks(places, self.kinds)
        axes.set_xlabel("test pairs")
        axes.set_ylabel("circuit of")
        figure.colorbar(image, ax=axes, label="agreement")
        return figure


def cross_agreement(
    method: Method,
    model: Model,
    train: Mapping[str, PairsLike],
    test: Mapping[str, PairsLike],
    size: int | float,
    objective: ObjectiveLike = "logit_diff",
    *,
    seed: int = 0,
    progress: Progress = BAR,
) -> CrossAgreement:
    """Find a circuit on each kind of pairs and measure it on all kinds.

    Args:
        train, test: pairs by kind, such as `by_tag(pairs, "template")`; of each kind two samples of
            half of the training pairs find a circuit.
        size: edges of a circuit, or a share of all.

    Raises:
        BadUsage: fewer than two kinds or more than 16, other kinds in `test`, a kind with fewer
            than two training pairs. Others as `Method.score` and `evaluate`.
    """
    kinds = tuple(train)
    if not 2 <= len(kinds) <= MOST_KINDS or set(test) != set(kinds):
        raise BadUsage(
            f"Circuits are compared between 2 to {MOST_KINDS} kinds of pairs, the same in train and"
            f" test; got {len(kinds)} in train and {len(test)} in test."
        )
    of_kinds: list[tuple[Circuit, Circuit]] = []
    batches = [model.batch(train[kind]) for kind in kinds]
    for kind, batch in zip(kinds, batches, strict=True):
        if len(batch) < 2:
            raise BadUsage(f"Two samples need 2 training pairs; {kind!r} has {len(batch)}.")
    with progress.track("circuits by kind", sum(map(len, batches))) as advance:
        for batch in batches:
            of_kinds.append(_two_circuits(method, model, batch, size, objective, seed))
            advance(len(batch))
    firsts = [first for first, _ in of_kinds]
    measured = [model.batch(test[kind]) for kind in kinds]
    n = len(kinds)
    agreement, loss, low, high = np.full((4, n, n), math.nan)
    other = np.full((3, n), math.nan)
    full, empty = Circuit.full(model.graph), Circuit.empty(model.graph)
    for h, batch in enumerate(measured):
        circuits = [full, empty, *firsts, of_kinds[h][1]]
        values = evaluate(model, circuits, batch, objective, progress=progress)
        shares = agreement_of(full=values[0], empty=values[1], circuit=values[2:])
        if np.isnan(shares).any():
            continue
        effect, kept = kept_effects(values[0], values[1], values[2:])
        agreement[:, h] = shares[:n]
        lost = kept[h] - kept
        resamples = Resamples(batch.groups, np.random.default_rng(seed))
        draws = resamples.means(np.vstack((lost, effect[None])))
        for row in range(n + 1):
            ends = percentile_interval(draws[:, row] / draws[:, -1], n_groups=resamples.n_groups)
            value = float(shares[h] - shares[row])
            if row < n:
                loss[row, h] = value
                low[row, h], high[row, h] = (0.0, 0.0) if row == h else ends[:2]
            else:
                other[:, h] = value, ends.low, ends.high
    return CrossAgreement(
        kinds,
        int(size * model.graph.n_edges + 1e-9) if isinstance(size, float) else size,
        tuple(len(circuit) for circuit in firsts),
        tuple(map(len, batches)),
        tuple(map(len, measured)),
        agreement,
        loss,
        low,
        high,
        *other,
    )


def _two_circuits(
    method: Method,
    model: Model,
    batch: Batch,
    size: int | float,
    objective: ObjectiveLike,
    seed: int,
) -> tuple[Circuit, Circuit]:
    """The circuits of two disjoint samples of half of the pairs, by magnitude, pruned."""
    order = np.random.default_rng(seed).permutation(len(batch)).tolist()
    half = len(order) // 2
    samples: Sequence[Sequence[int]] = (sorted(order[:half]), sorted(order[half:]))
    first, second = (
        method.score(model, batch.select(rows), objective, progress=SILENT)
        .top(size, by="magnitude")
        .pruned()
        for rows in samples
    )
    return first, second
