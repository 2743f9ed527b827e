"""Does robust discovery help? Rankings of one method, compared on held-out pairs.

    matched        scored on the task's own pairs, from its split train
    random         on the same clean prompts, each with the corrupted prompt of another pair
    same-template  the same, where both prompts are of one template (if that is the pairing)
    a tail         that pairing, where pairs that the circuit fails on count for more

all with the objective KL to the clean run. The difference of the second and third from the first
is what re-pairing does; the difference of a tail from the third is what the tail does. All but the
first draw `rounds` times as many pairs as that has, and all tails the same (`discovery`).

Rankings are compared at equal numbers of edges on two sets of pairs of the split test. *Matched*
pairs are the task's own. The *grid* has the clean prompts of one half of the examples with the
corrupted ones of the other half, all of them or, under same-template, wherever both have one
template. Prompts that training and held-out pairs share are refused. As in any grid all prompts of
a split have equally many tokens: the number that most of them have.

A cell is a repeat. Repeats draw all pairs anew, each with the seed after. Intervals of one repeat
are over the held-out prompts, rankings given. The folder keeps each ranking once it is found.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Annotated, Any, ClassVar

import numpy as np
from jaxtyping import Float

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.circuits.methods import METHODS
from mechassay.circuits.methods.method import check_pairing, paired
from mechassay.circuits.scores import EdgeScores, Scores
from mechassay.errors import BadUsage
from mechassay.models.graph import Graph
from mechassay.models.model import Model, check_dtype
from mechassay.models.objectives import load_objective
from mechassay.results.records import Measure, Record, Selection, Spec, Table
from mechassay.runs import options
from mechassay.runs.cells import Cell, cell_name
from mechassay.runs.experiment import Experiment
from mechassay.runs.options import option
from mechassay.runs.worker import Worker, made_by
from mechassay.stats.bootstrap import Resampled
from mechassay.stats.intervals import LEVEL, Estimate, percentile_interval, resampled_means
from studies.robust.discovery import (
    CutKind,
    Known,
    Redrawn,
    Robust,
    Stratified,
    check_apart,
    check_divergence,
    draw_stratified,
    strata_grid,
)
from studies.robust.page import EMPTY, OWN
from studies.robust.tails import MEAN, TAILS, Tail

KIND = "robust"
DIVERGENCE = "kl"
FOUND_ON, HELD_OUT = "train", "test"
MATCHED, RANDOM = "matched", "random"
TAIL_NAMES = ("cvar", "mixture", "worst-group")

Place = tuple[str, int | float]
"""A ranking and a size."""


@dataclass(frozen=True)
class RobustExperiment(Experiment):
    """Compare a method's circuits with those it finds on pairs drawn anew, where pairs that fail
    count for more, on held-out pairs.
    """

    model: Annotated[str, options.MODEL]
    task: Annotated[str, options.TASK]
    method: Annotated[
        str,
        option(
            "Method that scores edges and can use kl, or trains a mask.",
            "--method",
            "-M",
            complete="methods",
        ),
    ] = "eap-ig-inputs"
    tails: Annotated[
        tuple[str, ...],
        option(
            "How losses become one: cvar, mixture:weight=0.5,alpha=0.2, worst-group; repeat for"
            " several.",
            "--tail",
        ),
    ] = TAIL_NAMES
    pairing: Annotated[str, option("Of training and held-out pairs: same-template, or random.")] = (
        "same-template"
    )
    group: Annotated[
        str, option("Field whose values are the groups of worst-group; the templates if not given.")
    ] = ""
    objective: Annotated[
        str, option("What circuits are found by: kl or js. Held-out pairs are measured by kl.")
    ] = DIVERGENCE
    edges: Annotated[
        int | float,
        option("Size of the circuit whose losses are looked at: edges (500) or a share (0.01)."),
    ] = 0.02
    sizes: Annotated[
        tuple[int | float, ...],
        option("Size at which rankings are compared, like --edges; repeat for several.", "--size"),
    ] = (0.01, 0.02, 0.05)
    rounds: Annotated[
        int,
        option("How often pairs are drawn and weighed; a method that trains a mask has its steps."),
    ] = 3
    cut: Annotated[CutKind, option("Greedy circuits grow from the logits.")] = "top"
    n_base: Annotated[
        int, option("Pairs that circuits are found on, of the split train.", "--base")
    ] = 100
    n_held_out: Annotated[
        int,
        option(
            "Held-out matched pairs, of the split test; the grid takes as many again.", "--held-out"
        ),
    ] = 100
    counterfactual: Annotated[str | None, options.COUNTERFACTUAL] = None
    repeats: Annotated[
        int,
        option("Times all is done, with other prompts; from two on, intervals are over repeats."),
    ] = 1
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    seed: Annotated[int, options.SEED] = 0

    kind: ClassVar[str] = KIND

    def versions(self, worker: Worker) -> dict[str, int]:
        """The version of robust discovery."""
        return {"robust_version": Robust.version}

    def definitions(self) -> dict[str, int]:
        """Return the version of the method."""
        method = METHODS.make(self.method)
        return {f"method {method.name}": method.version}

    def check(self, worker: Worker) -> None:
        if self.repeats < 1 or (self.repeats > 1 and not worker.task(self.task).seeded):
            raise BadUsage(
                "Repeats must be 1 or more, and just 1 for a task whose examples do not depend on a"
                f" seed; got {self.repeats}."
            )
        worker.task(self.task)
        check_dtype(self.dtype)
        self.robust()
        self.arms()
        check_divergence(load_objective(self.objective))
        if not self.sizes or len(set(self.sizes)) < len(self.sizes):
            raise BadUsage(
                "Give one or more different sizes to compare rankings at; got"
                f" {', '.join(map(str, self.sizes)) or 'none'}."
            )

    def cells(self) -> list[Cell]:
        """Return a cell for each repeat."""
        of, labels = {"model": self.model, "task": self.task}, self.labels()
        own = {axis: labels[axis, name] for axis, name in of.items()} | {"method": self.method}
        names = [f"repeat-{number}" for number in range(self.repeats)]
        return [Cell(name, {"repeat": name, **own}, name, of) for name in names]

    def run(self, cell: Cell, worker: Worker) -> Record:
        return _Repeat(self, cell, worker).record()

    def robust(self, tail: Tail = MEAN, n_edges: int | float | None = None) -> Robust:
        """The wrapped method."""
        edges = self.edges if n_edges is None else n_edges
        return Robust(METHODS.make(self.method), tail, edges, self.rounds, self.cut)

    def arms(self) -> dict[str, tuple[str, Tail]]:
        """Pairing and tail of every ranking but the matched one, by name.

        Raises:
            UnknownName: no such pairing or tail. BadUsage: matched pairs, or a tail twice.
        """
        check_pairing(self.pairing)
        if self.pairing == MATCHED:
            raise BadUsage(
                "Robust discovery draws pairs anew, and matched ones are always the same: the"
                " pairing is same-template or random."
            )
        named = [TAILS.make(text) for text in self.tails]
        if MEAN in named or len(set(named)) < len(named):
            raise BadUsage(
                "Give different tails, and not the mean, which is there anyway; got"
                f" {', '.join(self.tails)}."
            )
        return {
            **{pairing: (pairing, MEAN) for pairing in dict.fromkeys((RANDOM, self.pairing))},
            **{text: (self.pairing, tail) for text, tail in zip(self.tails, named, strict=True)},
        }

    def differences(self) -> list[tuple[str, str]]:
        """What is compared with what: each ranking with those before it that have no tail."""
        names = [MATCHED, *self.arms()]
        return [
            (of, minus)
            for place, of in enumerate(names)
            for minus in names[:place]
            if minus not in self.tails
        ]

    def check_sizes(self, graph: Graph) -> None:
        """Refuse (BadUsage) sizes that the graph does not have."""
        edges = EdgeScores.of(graph, graph.legal.float())
        for size in (self.edges, *self.sizes):
            edges.size(size)


class _Repeat:
    """One comparison, of one seed."""

    def __init__(self, experiment: RobustExperiment, cell: Cell, worker: Worker) -> None:
        self.experiment, self.cell, self.worker = experiment, cell, worker
        self.seed = experiment.seed + int(cell.name.rpartition("-")[2])

    @cached_property
    def model(self) -> Model:
        experiment = self.experiment
        return self.worker.model(
            experiment.model, dtype=experiment.dtype, prepend_bos=experiment.prepend_bos
        )

    def record(self) -> Record:
        begin = time.perf_counter()
        experiment, model, task = (
            self.experiment,
            self.model,
            self.worker.task(self.experiment.task),
        )
        experiment.check_sizes(model.graph)
        base = self._drawn(FOUND_ON, experiment.n_base, experiment.group)
        # Whoever has no partner would be in the matched ranking alone.
        rows = paired(base.batch, experiment.pairing, np.random.default_rng(0), base.templates).rows
        kept, held = base.select(rows), self._drawn(HELD_OUT, 2 * experiment.n_held_out)
        check_apart("pairs that circuits are found on", kept.batch, "held-out pairs", held.batch)
        alone = {"no partner of their template": experiment.n_base - len(rows)}
        data = {
            "train": self._selection(
                FOUND_ON, kept, alone if len(rows) < experiment.n_base else {}
            ),
            "held-out": self._selection(HELD_OUT, held, {}),
        }
        # Rankings in the folder are of the same plan; here of the same prompts, too.
        for role, chosen in data.items():
            self.worker.folder.save_data(role, chosen.model_dump(mode="json"), self.cell.name)
        scores = self._rank(kept)
        places: list[Place] = [(name, size) for size in experiment.sizes for name in scores]
        circuits = [experiment.robust(n_edges=size).circuit(scores[name]) for name, size in places]
        statistics, empty, n_pairs = self._evaluated(held, places, circuits)
        by_place = dict(zip(places, circuits, strict=True))
        method = METHODS.make(experiment.method)
        return Record(
            kind=KIND,
            cell={**self.cell.labels, "model": model.name},
            specs={
                "model": model.spec(n_edges=model.graph.n_edges),
                "task": Spec(name=task.name, version=task.version),
                "method": Spec(name=experiment.method, version=method.version),
                "robust": Spec(name=Robust.name, version=Robust.version, args=asdict(experiment)),
            },
            measures=_measures(statistics, empty, n_pairs),
            tables=[
                Table.of(
                    "rankings", ("ranking", "size", "statistic"), _rankings(statistics, empty)
                ),
                self._differences(statistics),
                _circuits(by_place, scores),
                *_rounds(scores),
            ],
            data=data,
            spent={
                "seconds": round(time.perf_counter() - begin, 3),
                "pairs_of_the_grid": n_pairs,
            },
            provenance=made_by(
                model,
                self.seed,
                hashlib.sha256((kept.batch.content + held.batch.content).encode()).hexdigest(),
            ),
        )

    def _drawn(self, split: str, n: int, group: str = "") -> Stratified:
        experiment = self.experiment
        return draw_stratified(
            self.worker.task(experiment.task),
            self.model,
            split,
            n,
            pairing=experiment.pairing,
            group=group,
            counterfactual=experiment.counterfactual,
            seed=self.seed,
        )

    def _selection(self, split: str, pairs: Stratified, dropped: dict[str, int]) -> Selection:
        return Selection(
            hash=hashlib.sha256(pairs.batch.content.encode()).hexdigest(),
            task=self.experiment.task,
            split=split,
            pairing=self.experiment.pairing,
            seed=self.seed,
            kept=len(pairs.batch),
            dropped=dropped,
        )

    def _evaluated(
        self, held: Stratified, places: Sequence[Place], circuits: Sequence[Circuit]
    ) -> tuple[dict[Place, _CircuitStatistics], _CircuitStatistics, int]:
        """Statistics of every circuit and of no edges, and how many pairs the grid has."""
        n, seed, progress = self.experiment.n_held_out, self.experiment.seed, self.worker.progress
        first, second = held.select(range(n)), held.select(range(n, 2 * n))
        strata = first.strata, second.strata
        grid = strata_grid(self.model, circuits, first.batch, second.batch, strata, progress)
        none = replace(circuits[0], edges=circuits[0].edges & False)
        own = evaluate(self.model, [*circuits, none], first.batch, DIVERGENCE, progress=progress)
        draws = resampled_means(own, first.batch.groups, np.random.default_rng(seed))
        found = [
            _CircuitStatistics(Resampled.of(values, seed), float(own[row].mean()), draws[:, row])
            for row, values in enumerate(grid)
        ]
        return dict(zip(places, found, strict=False)), found[-1], int(np.isfinite(grid[0]).sum())

    def _rank(self, base: Stratified) -> dict[str, EdgeScores]:
        """All rankings. None depends on whether another was made or read."""
        experiment, model, progress = self.experiment, self.model, self.worker.progress
        method, known = experiment.robust().method, dict[bytes, Any]()
        scores = {
            MATCHED: self._kept(
                MATCHED,
                lambda: method.score(model, base.batch, experiment.objective, progress=progress),
            )
        }
        for name, (pairing, tail) in experiment.arms().items():

            def score(pairing: str = pairing, tail: Tail = tail, known: Known = known) -> Scores:
                pairs = Redrawn.of(base.batch, pairing, base.templates, base.groups)
                return experiment.robust(tail).score(
                    model,
                    pairs,
                    experiment.objective,
                    seed=self.seed,
                    known=known,
                    progress=progress,
                )

            scores[name] = self._kept(name, score)
        return scores

    def _kept(self, ranking: str, score: Callable[[], Scores]) -> EdgeScores:
        """Scores that the folder has, or that it has from now on."""
        file = self.worker.folder.scores_file(cell_name(self.cell.name, ranking))
        if not file.is_file():
            score().save(file)
        return EdgeScores.load(file, self.model.graph)

    def _differences(self, statistics: Mapping[Place, _CircuitStatistics]) -> Table:
        rows = [
            {"of": of, "minus": minus, "size": size, **row}
            for size in self.experiment.sizes
            for of, minus in self.experiment.differences()
            for row in statistics[of, size].minus(statistics[minus, size]).rows()
        ]
        return Table.of("differences", ("of", "minus", "size", "statistic"), rows)


@dataclass(frozen=True, eq=False)
class _CircuitStatistics:
    """What one circuit did: on the grid, and the mean on matched pairs with its resamples."""

    grid: Resampled
    own: float
    own_draws: Float[np.ndarray, "resamples"]

    def minus(self, other: _CircuitStatistics) -> _CircuitStatistics:
        return _CircuitStatistics(
            self.grid.minus(other.grid), self.own - other.own, self.own_draws - other.own_draws
        )

    def estimates(self) -> dict[str, Estimate]:
        low, high, _ = percentile_interval(self.own_draws, LEVEL)
        return {OWN: Estimate(self.own, low, high), **self.grid.estimates()}

    def rows(self) -> list[dict[str, Any]]:
        return [{"statistic": name, **asdict(each)} for name, each in self.estimates().items()]


def _rankings(
    statistics: Mapping[Place, _CircuitStatistics], empty: _CircuitStatistics
) -> list[dict[str, Any]]:
    """The statistics of every circuit, and of no edges."""
    return [
        {"ranking": ranking, "size": size, **row}
        for (ranking, size), found in {(EMPTY, 0): empty, **statistics}.items()
        for row in found.rows()
    ]


def _circuits(circuits: Mapping[Place, Circuit], scores: Mapping[str, EdgeScores]) -> Table:
    """What the circuits are, and how many pairs their scores are of."""
    live = {place: circuit.pruned().edges for place, circuit in circuits.items()}
    rows = [
        {
            "ranking": name,
            "size": size,
            "edges": len(circuit),
            "edges on a path": int(live[name, size].sum()),
            "in matched": int((live[name, size] & live[MATCHED, size]).sum()),
            "pairs": scores[name].provenance["n_examples"],
        }
        for (name, size), circuit in circuits.items()
    ]
    return Table.of("circuits", ("ranking", "size"), rows)


def _rounds(scores: Mapping[str, EdgeScores]) -> list[Table]:
    """What each round's circuit did, and how much the groups counted in it."""
    entries = [
        (name, entry)
        for name, each in scores.items()
        for entry in each.provenance.get("rounds", ())
    ]
    rounds = [
        {"ranking": name, **{key: value for key, value in entry.items() if key != "groups"}}
        for name, entry in entries
    ]
    groups = [
        {"ranking": name, "round": entry["round"], "group": group, "weight": weight}
        for name, entry in entries
        for group, weight in entry["groups"].items()
    ]
    return [
        Table.of("rounds", ("ranking", "round"), rounds),
        Table.of("groups", ("ranking", "round", "group"), groups),
    ]


def _measures(
    statistics: Mapping[Place, _CircuitStatistics], empty: _CircuitStatistics, n_pairs: int
) -> list[Measure]:
    """The mean of every circuit, and of no edges, on the grid."""
    named = {
        **{f"mean KL, {name} at {size}": each for (name, size), each in statistics.items()},
        "mean KL": empty,
    }
    return [
        Measure(
            name=name,
            of="control:empty" if found is empty else "result",
            **asdict(found.estimates()["mean"]),
            n=n_pairs,
            better="down",
            unit="nats",
        )
        for name, found in named.items()
    ]
