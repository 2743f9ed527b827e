"""Does robust discovery help? Rankings of one method, compared on held-out pairs.

    matched        scored on the task's own pairs, from its split train
    random         on the same clean prompts, each with the corrupted prompt of another pair
    same-template  the same, where both prompts are of one template (if that is the pairing)
    a tail         that pairing, where pairs that the circuit fails on count for more

all with the objective KL to the clean run. What re-pairing does is the difference of the second and
third from the first; what a tail does is its difference from the third. All but the first draw
`rounds` times as many pairs as that has, and each tail the same ones (`adversarial.robust`).

Rankings are compared on two sets of pairs of the split test, at equal numbers of edges. *Matched*
pairs are the task's own. The *grid* has the clean prompts of one half of the examples with the
corrupted ones of the other half, all of them or, under same-template, wherever both have one
template. Prompts that training and held-out pairs share are refused. As in any grid all prompts of
a split have equally many tokens: the number that most of them have.

Intervals of one repeat are over the held-out prompts, rankings given. Repeats draw all pairs anew,
each with the seed after; with two or more, intervals are Student's over repeats, and cover what the
rankings were found on too.

The folder keeps finished repeats, and each ranking once it is found; the same command goes on with
what is missing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.pools import Pool
from mechassay.adversarial.robust import (
    CutKind,
    Known,
    Redrawn,
    Robust,
    check_divergence,
    labels_of,
)
from mechassay.circuits.faithfulness import evaluate
from mechassay.circuits.methods import METHODS
from mechassay.circuits.node_scores import Scores
from mechassay.circuits.pairing import check_pairing, paired
from mechassay.circuits.scores import Circuit, EdgeScores
from mechassay.circuits.tail import MEAN, TAILS, Tail
from mechassay.errors import BadPairs, BadUsage
from mechassay.examples import Prompt
from mechassay.graph import Graph
from mechassay.models.model import Model
from mechassay.objectives import load_objective
from mechassay.pairs import Batch
from mechassay.progress import BAR, Progress
from mechassay.report.page import markdown, render
from mechassay.report.sections import table_sections
from mechassay.report.tables import Table
from mechassay.report.text import interval, number, share
from mechassay.runs.folder import RunFolder, read_json, write_text
from mechassay.stats.intervals import LEVEL, percentile_interval, resampled_means
from mechassay.stats.resampled import Estimate, Resampled, over_repeats
from mechassay.tasks.task import Task

DIVERGENCE = "kl"
FOUND_ON, HELD_OUT = "train", "test"
MATCHED, RANDOM = "matched", "random"
OWN = "matched pairs: mean"
STATISTICS = (OWN, "mean", "worst 10%", "99%", "max")
TAIL_NAMES = ("cvar", "mixture", "worst-group")
READING = {
    "KL": (
        "KL(M(x) || C(x, x~)) in nats at the last token. All columns but one are about the held-out"
        " grid: clean prompts x with corrupted prompts x~ of other examples, of one template where"
        " the pairing is same-template."
    ),
    OWN: "The mean over held-out pairs as the task makes them.",
    "worst 10 %": "The mean of the tenth of the pairs with the largest KL.",
    "Rankings": (
        "matched: scored on the task's own pairs. random, same-template: on the same clean prompts,"
        " each with corrupted prompts of other examples. The others: on such pairs, where those"
        " that the circuit fails on count for more."
    ),
    "Intervals": (
        "95 %. Of one repeat: bootstraps over the held-out prompts, rankings given; differences are"
        " of the same resampled prompts. Of several: Student's over repeats, each with pairs of its"
        " own. Where an interval of a difference holds 0, nothing was shown. They are not adjusted"
        " for the number of comparisons."
    ),
    "Rounds": (
        "What the circuit of each round did on its fresh pairs. Their clean prompts are those that"
        " the circuit was found on. The heaviest group is the one that worst-group lets count most,"
        " and its share."
    ),
    "Edges on a path": (
        "Those of the edges asked for that are on a path from input to logits; the others do"
        " nothing."
    ),
}


@dataclass(frozen=True)
class RobustRun:
    """What to run. The fields are the plan that is stored with the results.

    Attributes:
        tails: how losses are made into one, each a ranking ("cvar", "mixture:alpha=0.1"); see
            `TAILS`.
        pairing: of the pairs that tails are looked for on, and of the held-out grid:
            "same-template" or "random".
        group: a field of the clean prompts, whose values are the groups of worst-group; the
            templates if empty.
        objective: what circuits are found by, and what a pair's loss is: "kl" or "js"; held-out
            pairs are always measured by KL.
        edges: size of the circuit whose losses are looked at: a number, or a share as a float.
        sizes: at which rankings are compared.
        n_base, n_held_out: pairs that circuits are found on, and held-out matched pairs. The grid
            has these pairs' clean prompts, and the corrupted ones of as many others.
        counterfactual: the kind of corrupted prompts; the task's default if empty.
    """

    model: str
    task: str
    method: str = "eap-ig-inputs"
    tails: tuple[str, ...] = TAIL_NAMES
    pairing: str = "same-template"
    group: str = ""
    objective: str = DIVERGENCE
    edges: int | float = 0.02
    sizes: tuple[int | float, ...] = (0.01, 0.02, 0.05)
    rounds: int = 3
    cut: CutKind = "top"
    n_base: int = 100
    n_held_out: int = 100
    counterfactual: str = ""
    repeats: int = 1
    dtype: str = "float32"
    prepend_bos: bool = False
    seed: int = 0

    def robust(self, tail: Tail = MEAN) -> Robust:
        """The wrapped method."""
        return Robust(METHODS.make(self.method), tail, self.edges, self.rounds, self.cut)

    def check_objective(self) -> None:
        """Refuse an objective that does not compare a circuit with the model.

        Raises:
            BadUsage: it does not. UnknownName: there is none of that name.
        """
        check_divergence(load_objective(self.objective))

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
        pairings = dict.fromkeys((RANDOM, self.pairing))
        return {
            **{each: (each, MEAN) for each in pairings},
            **dict(zip(self.tails, [(self.pairing, each) for each in named], strict=True)),
        }

    def differences(self) -> list[tuple[str, str]]:
        """What is compared with what: each ranking with those before it that have no tail."""
        arms = [MATCHED, *self.arms()]
        plain = [name for name in arms if name not in self.tails]
        return [
            (of, minus) for place, of in enumerate(arms) for minus in plain if minus in arms[:place]
        ]

    def check_sizes(self, graph: Graph) -> None:
        """Refuse sizes that the graph does not have, and repeated ones.

        Raises:
            BadUsage: there is one.
        """
        edges = EdgeScores.of(graph, graph.legal.float())
        for size in (self.edges, *self.sizes):
            edges.size(size)
        if not self.sizes or len(set(self.sizes)) < len(self.sizes):
            raise BadUsage(
                "Give one or more different sizes to compare rankings at; got"
                f" {', '.join(map(str, self.sizes)) or 'none'}."
            )


def run_robust(
    run: RobustRun, output: Path, model: Model, task: Task, *, progress: Progress = BAR
) -> list[dict[str, Any]]:
    """The comparisons of all repeats, as plain values;
    those that the folder holds are not made again.

    Raises:
        UnknownName, BadUsage, BadPairs: no such method or setting; several repeats of a task that
            has no seed; too few prompts; a size that the graph does not have.
        BadFile: the folder holds a damaged file.
    """
    if run.repeats < 1 or (run.repeats > 1 and not task.seeded):
        raise BadUsage(
            "Repeats must be 1 or more, and just 1 for a task whose examples do not depend on a"
            f" seed; got {run.repeats}."
        )
    run.robust()
    run.arms()
    run.check_objective()
    run.check_sizes(model.graph)
    folder = RunFolder.open(output, dataclasses.asdict(run))
    found: list[dict[str, Any]] = []
    for repeat in range(run.repeats):
        file = output / "repeats" / f"{repeat}.json"
        if not file.is_file():
            made = _Repeat(run, model, task, run.seed + repeat, progress).compare(folder, repeat)
            write_text(file, json.dumps(made, indent=1, ensure_ascii=False))
        found.append(read_json(file, "repeat", dict))
    return found


@dataclass(frozen=True, eq=False)
class _Strata:
    """Pairs of a split, all of one length, with what says which prompts may meet."""

    batch: Batch
    templates: tuple[str | None, ...]
    groups: tuple[str, ...]
    strata: tuple[str, ...]

    @staticmethod
    def drawn(
        run: RobustRun, model: Model, task: Task, split: str, n: int, seed: int, group: str
    ) -> _Strata:
        """The first pairs of a split that have as many tokens as most.

        Their groups are the values of the field `group`, or the templates if it is empty.
        """
        asked, rows, pairs, batch = n, list[int](), (), None
        while batch is None or len(rows) < n:
            pairs = task.pairs(
                split, model, limit=asked, counterfactual=run.counterfactual or None, seed=seed
            )
            batch = model.batch(pairs)
            rows = (batch.lengths == batch.lengths.mode().values).nonzero()[:n, 0].tolist()
            asked *= 2
        chosen = [pairs[row] for row in rows]
        templates = tuple(task.template(pair.tags) for pair in chosen)
        if run.pairing != RANDOM and None in templates:
            raise BadUsage(
                f"{task.name} does not say which template its prompts have: take the pairing"
                " random."
            )
        kinds = tuple(template or "" for template in templates)
        groups = tuple(labels_of(chosen, group)) if group else kinds
        return _Strata(
            batch.select(rows), templates, groups, kinds if run.pairing != RANDOM else ("",) * n
        )

    def select(self, rows: Sequence[int]) -> _Strata:
        """The pairs at `rows`, in that order."""
        groups, strata = (tuple(each[row] for row in rows) for each in (self.groups, self.strata))
        return _Strata(
            self.batch.select(rows), tuple(self.templates[row] for row in rows), groups, strata
        )


def strata_grid(
    model: Model,
    circuits: Sequence[Circuit],
    clean: Batch,
    corrupted: Batch,
    strata: tuple[Sequence[str], Sequence[str]],
    progress: Progress,
) -> Float[np.ndarray, "circuits_and_empty clean corrupted"]:
    """KL of each circuit, and last of no edges, for every pair of prompts of one stratum, else NaN.

    Args:
        clean, corrupted: batches whose clean, and whose corrupted, prompts are taken.
        strata: of each, in their order.

    Raises:
        BadPairs: no two prompts are of one stratum.
    """
    found = np.full((len(circuits) + 1, len(clean), len(corrupted)), np.nan, dtype=np.float32)
    for each in sorted(set(strata[0]) & set(strata[1])):
        rows, columns = (
            [place for place, stratum in enumerate(side) if stratum == each] for side in strata
        )
        pools = [
            _pool(batch.select(places), name)
            for batch, places, name in (
                (clean, rows, "clean"),
                (corrupted, columns, "counterfactual"),
            )
        ]
        values = evaluate_pairs(model, circuits, *pools, progress=progress)
        found[(slice(None), *np.ix_(rows, columns))] = np.concatenate(
            (values.circuits, values.corrupted[None])
        )
    if np.isnan(found).all():
        raise BadPairs(
            "No held-out clean prompt has the template of a corrupted one: there is no grid."
        )
    return found


def _pool(batch: Batch, side: str) -> Pool:
    return Pool((Prompt(""),) * len(batch), getattr(batch, side))


@dataclass(frozen=True, eq=False)
class _Repeat:
    """One comparison, of one seed."""

    run: RobustRun
    model: Model
    task: Task
    seed: int
    progress: Progress

    def compare(self, folder: RunFolder, number: int) -> dict[str, Any]:
        run, model = self.run, self.model
        draw = (run, model, self.task)
        base = _Strata.drawn(*draw, FOUND_ON, run.n_base, self.seed, run.group)
        # Whoever has no partner would be in the matched ranking alone.
        rows = paired(base.batch, run.pairing, np.random.default_rng(0), base.templates).rows
        kept = base.select(rows)
        held = _Strata.drawn(*draw, HELD_OUT, 2 * run.n_held_out, self.seed, "")
        check_apart("pairs that circuits are found on", kept.batch, "held-out pairs", held.batch)
        # Rankings in the folder are of the same plan; here of the same prompts, too.
        folder.save_data(
            f"repeat {number}",
            {
                "hash": (
                    hashlib.sha256((kept.batch.content + held.batch.content).encode()).hexdigest()
                )
            },
        )
        scores = self._rank(kept, lambda name: folder.scores_file(f"{number}-{_file(name)}"))
        places = [(name, size) for size in run.sizes for name in scores]
        circuits = [
            dataclasses.replace(run.robust(), n_edges=size).circuit(scores[name])
            for name, size in places
        ]
        statistics, empty, n_pairs = self._evaluated(held, places, circuits)
        matched = {
            size: circuit.pruned().edges
            for (name, size), circuit in zip(places, circuits, strict=True)
            if name == MATCHED
        }
        cells: list[dict[str, Any]] = []
        for (name, size), circuit in zip(places, circuits, strict=True):
            live = circuit.pruned().edges
            cells.append(
                {
                    "ranking": name,
                    "size": size,
                    "edges": len(circuit),
                    "edges_on_a_path": int(live.sum()),
                    "in_matched": int((live & matched[size]).sum()),
                    "pairs": scores[name].provenance["n_examples"],
                    "statistics": statistics[name, size].stored(),
                }
            )
        differences = [
            {
                "of": of,
                "minus": minus,
                "size": size,
                "statistics": statistics[of, size].minus(statistics[minus, size]).stored(),
            }
            for size in run.sizes
            for of, minus in run.differences()
        ]
        return {
            "seed": self.seed,
            "n_pairs": len(kept.batch),
            "n_alone": run.n_base - len(kept.batch),
            "n_grid": n_pairs,
            "rounds": {name: each.provenance.get("rounds", []) for name, each in scores.items()},
            "cells": cells,
            "differences": differences,
            "empty": empty.stored(),
        }

    def _evaluated(
        self, held: _Strata, places: Sequence[tuple[str, int | float]], circuits: Sequence[Circuit]
    ) -> tuple[dict[tuple[str, int | float], _Statistics], _Statistics, int]:
        """Statistics of every circuit and of no edges, and how many pairs the grid has."""
        n, seed = self.run.n_held_out, self.run.seed
        first, second = held.select(range(n)), held.select(range(n, 2 * n))
        grid = strata_grid(
            self.model,
            circuits,
            first.batch,
            second.batch,
            (first.strata, second.strata),
            self.progress,
        )
        none = dataclasses.replace(circuits[0], edges=circuits[0].edges & False)
        own = evaluate(
            self.model, [*circuits, none], first.batch, DIVERGENCE, progress=self.progress
        )
        draws = resampled_means(own, first.batch.groups, np.random.default_rng(seed))
        found = [
            _Statistics(Resampled.of(each, seed), float(own[row].mean()), draws[:, row])
            for row, each in enumerate(grid)
        ]
        return dict(zip(places, found, strict=False)), found[-1], int(np.isfinite(grid[0]).sum())

    def _rank(self, base: _Strata, file: Callable[[str], Path]) -> dict[str, EdgeScores]:
        """All rankings. None depends on whether another was made or read."""
        run, model, known, progress = self.run, self.model, dict[bytes, Any](), self.progress
        method = run.robust().method
        found = {
            MATCHED: self._kept(
                file(MATCHED),
                lambda: method.score(model, base.batch, run.objective, progress=progress),
            )
        }
        for name, (pairing, tail) in run.arms().items():

            def score(pairing: str = pairing, tail: Tail = tail, known: Known = known) -> Scores:
                pairs = Redrawn.of(base.batch, pairing, base.templates, base.groups)
                return run.robust(tail).score(
                    model, pairs, run.objective, seed=self.seed, known=known, progress=progress
                )

            found[name] = self._kept(file(name), score)
        return found

    def _kept(self, file: Path, score: Callable[[], Scores]) -> EdgeScores:
        """Scores that the folder has, or that it has from now on."""
        if not file.is_file():
            score().save(file)
        return EdgeScores.load(file, self.model.graph)


def _file(ranking: str) -> str:
    """A ranking's name as that of a file."""
    return "".join(letter if letter.isalnum() or letter in "-." else "_" for letter in ranking)


@dataclass(frozen=True, eq=False)
class _Statistics:
    """What one circuit did: on the grid, and the mean on matched pairs with its resamples."""

    grid: Resampled
    own: float
    own_draws: Float[np.ndarray, "resamples"]

    def minus(self, other: _Statistics) -> _Statistics:
        return _Statistics(
            self.grid.minus(other.grid), self.own - other.own, self.own_draws - other.own_draws
        )

    def stored(self) -> dict[str, list[float | None]]:
        """Estimates as plain values: value, low, high."""
        low, high, _ = percentile_interval(self.own_draws, LEVEL)
        found = {OWN: Estimate(self.own, low, high), **self.grid.estimates()}
        return {
            name: [_plain(end) for end in (each.value, each.low, each.high)]
            for name, each in found.items()
        }


def check_apart(first: str, some: Batch, second: str, others: Batch) -> None:
    """Refuse two sets of pairs that have a prompt, clean or corrupted, in common.

    Raises:
        BadPairs: they do; the message has their names and how many.
    """
    shared = _prompts(some) & _prompts(others)
    if shared:
        raise BadPairs(
            f"The {first} and the {second} share {len(shared)} prompts; take them from different"
            " splits."
        )


def _prompts(batch: Batch) -> set[tuple[int, ...]]:
    """Prompts without their padding."""
    rows = [
        zip(tokens.cpu(), batch.mask.cpu(), strict=True)
        for tokens in (batch.clean, batch.counterfactual)
    ]
    return {tuple(row[keep].tolist()) for side in rows for row, keep in side}


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value


def _estimates(rows: Sequence[Mapping[str, Any]], name: str) -> Estimate:
    """A statistic over the repeats."""
    stored = [row["statistics"][name] for row in rows]
    return over_repeats(
        [Estimate(*(math.nan if end is None else float(end) for end in each)) for each in stored]
    )


def _texts(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for name in STATISTICS:
        found = _estimates(rows, name)
        yield interval(found.value, found.low, found.high)


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    return f"{np.mean([row[name] for row in rows]):,.4g}"


def robust_grids(run: RobustRun, repeats: Sequence[Mapping[str, Any]]) -> list[Table]:
    """The tables: at every size the rankings and their differences,
    then the rounds of each tail.
    """
    grids: list[Table] = []
    heads = tuple(name.replace("%", " %") for name in STATISTICS)
    for size in run.sizes:
        title = f"{share(size)} of the edges" if isinstance(size, float) else f"{size:,} edges"
        rows: list[tuple[str, ...]] = [
            (
                "no edges (corrupted run)",
                "0",
                "0",
                *_texts([{"statistics": repeat["empty"]} for repeat in repeats]),
            )
        ]
        for ranking in (MATCHED, *run.arms()):
            cells = [
                cell
                for repeat in repeats
                for cell in repeat["cells"]
                if cell["ranking"] == ranking and cell["size"] == size
            ]
            rows.append(
                (
                    ranking,
                    *(_mean(cells, name) for name in ("pairs", "edges_on_a_path")),
                    *_texts(cells),
                )
            )
        grids.append(
            Table.of(f"KL, {title}", ("ranking", "pairs", "edges on a path", *heads), tuple(rows))
        )
        less = "mean is lower in"
        rows = []
        for of, minus in run.differences():
            found = [
                row
                for repeat in repeats
                for row in repeat["differences"]
                if (row["of"], row["minus"], row["size"]) == (of, minus, size)
            ]
            n_less = sum(row["statistics"]["mean"][0] < 0 for row in found)
            rows.append(
                (f"{of} minus {minus}", *_texts(found), f"{n_less} of {len(found)} repeats")
            )
        grids.append(
            Table.of(f"Differences of KL, {title}", ("difference", *heads, less), tuple(rows))
        )
    if rows := [
        row
        for name in run.arms()
        for row in _rounds(name, [repeat["rounds"][name] for repeat in repeats])
    ]:
        grids.append(
            Table.of(
                "KL of each round's circuit on its fresh pairs, mean over repeats",
                ROUND_HEADS,
                tuple(rows),
            )
        )
    return grids


ROUND_HEADS = ("ranking", "round", "mean", "tail", "max", "pairs counted", "heaviest group")


def _rounds(
    name: str, histories: Sequence[Sequence[Mapping[str, Any]]]
) -> Iterator[tuple[str, ...]]:
    """The rows of a ranking, a round each; none for what has no rounds."""
    for entries in zip(*histories, strict=True):
        means = (
            number(float(np.mean([entry[each] for entry in entries])))
            for each in ("mean", "tail", "max")
        )
        tops = [max(entry["groups"].items(), key=lambda group: group[1]) for entry in entries]
        moved = any(len(set(entry["groups"].values())) > 1 for entry in entries)
        label = f" ({tops[0][0]})" if len({name for name, _ in tops}) == 1 else ""
        heaviest = (
            f"{share(float(np.mean([weight for _, weight in tops])))}{label}" if moved else ""
        )
        yield (name, str(entries[0]["round"]), *means, _mean(entries, "counted"), heaviest)


def write_robust(run: RobustRun, output: Path, repeats: Sequence[Mapping[str, Any]]) -> Path:
    """Write report.html, tables.md and result.json into the folder; the path of the first."""
    grids = robust_grids(run, repeats)
    facts = [
        {"setting": name, "value": str(value)} for name, value in dataclasses.asdict(run).items()
    ]
    write_text(
        output / "result.json",
        json.dumps(
            {"run": dataclasses.asdict(run), "repeats": list(repeats)}, indent=1, ensure_ascii=False
        ),
    )
    sections = table_sections(grids, READING, facts)
    write_text(output / "tables.md", markdown(sections))
    page = output / "report.html"
    write_text(page, render(f"Robust discovery: {run.task}, {run.model}", sections))
    return page
