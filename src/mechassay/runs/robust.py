"""Does robust discovery help? Three rankings of one method, compared on a grid of prompts that none of them has seen.

    plain                 scored on base pairs: the task's own, from its split train
    plain + random pairs  scored on these and on as many pairs of the discovery grid as robust ends up with, drawn at random
    robust                scored on these and on the worst pairs of the discovery grid (`mechassay.adversarial.robust`)

all with the objective KL to the clean run. The discovery grid is of the split validation, the grid they are compared on of the
split test; no two of the three share a prompt. What more data of the grid's kind does is the difference of the
second from the first; what choosing the worst does is the difference of the third from the second.

Intervals of one repeat are over the held-out grid's prompts, rankings given. Repeats draw base pairs and both grids anew, each with
the seed after; with two or more, intervals are Student's over repeats, and cover what the rankings were found on too.

The folder keeps finished repeats, and each ranking once it is found; the same command goes on with what is missing.
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

from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.paired import Estimate, Resampled, over_repeats
from mechassay.adversarial.pools import Pool, draw_pools
from mechassay.adversarial.robust import Cut, Robust, check_apart
from mechassay.circuits.methods import METHODS
from mechassay.circuits.node_scores import Scores
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadUsage
from mechassay.graph import Graph
from mechassay.models.model import Model
from mechassay.pairs import Batch
from mechassay.progress import BAR, Progress
from mechassay.report.grids import Grid, grids_markdown, grids_page
from mechassay.report.words import interval, number, share
from mechassay.runs.folder import RunFolder, read_json, write_text
from mechassay.tasks.task import Task

OBJECTIVE = "kl"
BASE, DISCOVERY, HELD_OUT = "train", "validation", "test"
PLAIN, RANDOM, ROBUST = "plain", "plain + random pairs", "robust"
DIFFERENCES = ((RANDOM, PLAIN), (ROBUST, PLAIN), (ROBUST, RANDOM))
STATISTICS = ("mean", "95%", "99%", "max")
READING = {
    "KL": "KL(M(x) || C(x, x~)) in nats at the last token, for every clean prompt x with every corrupted prompt x~ of the held-out grid.",
    PLAIN: "The method's ranking, scored on the base pairs alone.",
    RANDOM: "The same with pairs of the discovery grid drawn at random, as many as robust has: what more data of that kind does.",
    ROBUST: "The same with the pairs that the circuit of each round failed on most: what choosing them does is its difference from the row "
    "before.",
    "Intervals": "95 %. Of one repeat: two-way bootstrap over the held-out prompts, rankings given; differences are of the same resampled "
    "prompts. Of several: Student's over repeats, each with base pairs, discovery grid and held-out grid of its own. Where an interval "
    "of a difference holds 0, nothing was shown. A percentile with few prompts beyond it, and the maximum, are estimated badly.",
    "Discovery": "The grid that worst pairs were taken from. From round 1 on its numbers are a training error.",
    "Edges on a path": "Those of the edges asked for that are on a path from input to logits; the others do nothing.",
}


@dataclass(frozen=True)
class RobustRun:
    """What to run. The fields are the plan that is stored with the results.

    Attributes:
        edges: size of the circuit whose worst pairs are looked for: a number, or a share as a float.
        sizes: at which rankings are compared.
        n_base, n_discovery, n_held_out: base pairs, and clean and corrupted prompts of each grid.
        counterfactual: the kind of corrupted prompts; the task's default if empty.
    """

    model: str
    task: str
    method: str = "eap-ig-inputs"
    edges: int | float = 0.02
    sizes: tuple[int | float, ...] = (0.01, 0.02, 0.05)
    rounds: int = 3
    worst: int | float = 10
    cut: Cut = "top"
    weight: float | None = None
    n_base: int = 100
    n_discovery: int = 100
    n_held_out: int = 100
    counterfactual: str = ""
    repeats: int = 1
    dtype: str = "float32"
    prepend_bos: bool = False
    seed: int = 0

    def robust(self) -> Robust:
        """The wrapped method."""
        return Robust(METHODS.make(self.method), self.edges, self.rounds, self.worst, self.cut, weight=self.weight)

    def check_sizes(self, graph: Graph) -> None:
        """Refuse sizes that the graph does not have, and repeated ones.

        Raises:
            BadUsage: there is one.
        """
        edges = EdgeScores.of(graph, graph.legal.float())
        for size in (self.edges, *self.sizes):
            edges.size(size)
        if not self.sizes or len(set(self.sizes)) < len(self.sizes):
            raise BadUsage(f"Give one or more different sizes to compare rankings at; got {', '.join(map(str, self.sizes)) or 'none'}.")


def run_robust(run: RobustRun, output: Path, model: Model, task: Task, *, progress: Progress = BAR) -> list[dict[str, Any]]:
    """The comparisons of all repeats, as plain values; those that the folder holds are not made again.

    Raises:
        UnknownName, BadUsage, BadPairs: no such method or setting; several repeats of a task that has no seed; too few prompts;
            a size that the graph does not have.
        BadFile: the folder holds a damaged file.
    """
    if run.repeats < 1 or (run.repeats > 1 and not task.seeded):
        raise BadUsage(f"Repeats must be 1 or more, and just 1 for a task whose examples do not depend on a seed; got {run.repeats}.")
    robust = run.robust()
    run.check_sizes(model.graph)
    folder = RunFolder.open(output, dataclasses.asdict(run))
    found: list[dict[str, Any]] = []
    for repeat in range(run.repeats):
        file = output / "repeats" / f"{repeat}.json"
        if not file.is_file():
            made = _Repeat(run, robust, model, task, run.seed + repeat, progress).compare(folder, repeat)
            write_text(file, json.dumps(made, indent=1, ensure_ascii=False))
        found.append(read_json(file, "repeat", dict))
    return found


@dataclass(frozen=True, eq=False)
class _Repeat:
    """One comparison, of one seed."""

    run: RobustRun
    robust: Robust
    model: Model
    task: Task
    seed: int
    progress: Progress

    def compare(self, folder: RunFolder, number: int) -> dict[str, Any]:
        run, model = self.run, self.model
        kind = run.counterfactual or None
        base = model.batch(self.task.pairs(BASE, model, limit=run.n_base, counterfactual=kind, seed=self.seed))
        grids = {
            split: draw_pools(self.task, model, n, n, split=split, counterfactual=kind, seed=self.seed)
            for split, n in ((DISCOVERY, run.n_discovery), (HELD_OUT, run.n_held_out))
        }
        for name, others in (("base pairs", base), ("discovery grid", grids[DISCOVERY])):
            check_apart(name, others, "held-out grid", grids[HELD_OUT])
        # Rankings in the folder are of the same plan; here of the same prompts, too.
        digest = hashlib.sha256(base.content.encode())
        for pool in (*grids[DISCOVERY], *grids[HELD_OUT]):
            digest.update(pool.tokens.cpu().numpy().tobytes())
        folder.save_data(f"repeat {number}", {"hash": digest.hexdigest()})
        scores = self._rank(base, *grids[DISCOVERY], lambda name: folder.scores_file(f"{number}-{name.replace(' ', '')}"))
        places = [(name, size) for size in run.sizes for name in scores]
        circuits = [dataclasses.replace(self.robust, n_edges=size).circuit(scores[name]) for name, size in places]
        values = evaluate_pairs(model, circuits, *grids[HELD_OUT], progress=self.progress)
        seed = self.run.seed
        by_place = {place: Resampled.of(each, seed) for place, each in zip(places, values.circuits, strict=True)}
        plain = {size: circuit.pruned().edges for (name, size), circuit in zip(places, circuits, strict=True) if name == PLAIN}
        cells: list[dict[str, Any]] = []
        for (name, size), circuit in zip(places, circuits, strict=True):
            live = circuit.pruned().edges
            cells.append(
                {
                    "ranking": name,
                    "size": size,
                    "edges": len(circuit),
                    "edges_on_a_path": int(live.sum()),
                    "in_plain": int((live & plain[size]).sum()),
                    "pairs": scores[name].provenance["n_examples"],
                    "statistics": _stored(by_place[name, size]),
                }
            )
        differences = [
            {"of": of, "minus": minus, "size": size, "statistics": _stored(by_place[of, size].minus(by_place[minus, size]))}
            for size in run.sizes
            for of, minus in DIFFERENCES
        ]
        dropped = {split: [dict(pool.dropped) for pool in pools] for split, pools in grids.items()}
        return {
            "seed": self.seed,
            "rounds": scores[ROBUST].provenance["rounds"],
            "cells": cells,
            "differences": differences,
            "empty": _stored(Resampled.of(values.corrupted, seed)),
            "dropped": dropped,
        }

    def _rank(self, base: Batch, clean: Pool, corrupted: Pool, file: Callable[[str], Path]) -> dict[str, EdgeScores]:
        """The three rankings; robust comes first, as the control has as many pairs. None depends on whether another was made or read."""
        data, progress = (self.model, base, clean, corrupted), self.progress
        robust = self._kept(file(ROBUST), lambda: self.robust.score(*data, OBJECTIVE, progress=progress))
        n_added = int(robust.provenance["n_added"])
        rng = np.random.default_rng(self.seed)
        random = self._kept(file(RANDOM), lambda: self.robust.score_random(*data, n_added, rng, OBJECTIVE, progress=progress))
        plain = self._kept(file(PLAIN), lambda: self.robust.method.score(self.model, base, OBJECTIVE, progress=progress))
        return {PLAIN: plain, RANDOM: random, ROBUST: robust}

    def _kept(self, file: Path, score: Callable[[], Scores]) -> EdgeScores:
        """Scores that the folder has, or that it has from now on."""
        if not file.is_file():
            score().save(file)
        return EdgeScores.load(file, self.model.graph)


def _stored(found: Resampled) -> dict[str, list[float | None]]:
    """Estimates as plain values: value, low, high."""
    return {name: [_plain(end) for end in (each.value, each.low, each.high)] for name, each in found.estimates().items()}


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else value


def _estimates(rows: Sequence[Mapping[str, Any]], name: str) -> Estimate:
    """A statistic over the repeats."""
    stored = [row["statistics"][name] for row in rows]
    return over_repeats([Estimate(*(math.nan if end is None else float(end) for end in each)) for each in stored])


def _texts(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for name in STATISTICS:
        found = _estimates(rows, name)
        yield interval(found.value, found.low, found.high)


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    return f"{np.mean([row[name] for row in rows]):,.4g}"


def robust_grids(run: RobustRun, repeats: Sequence[Mapping[str, Any]]) -> list[Grid]:
    """The tables: at every size the rankings and their differences, then the rounds on the discovery grid."""
    grids: list[Grid] = []
    heads = tuple(name.replace("%", " %") for name in STATISTICS)
    for size in run.sizes:
        title = f"{share(size)} of the edges" if isinstance(size, float) else f"{size:,} edges"
        rows: list[tuple[str, ...]] = [
            ("no edges (corrupted run)", "0", "0", "0", *_texts([{"statistics": repeat["empty"]} for repeat in repeats]))
        ]
        for ranking in (PLAIN, RANDOM, ROBUST):
            cells = [cell for repeat in repeats for cell in repeat["cells"] if cell["ranking"] == ranking and cell["size"] == size]
            rows.append((ranking, *(_mean(cells, name) for name in ("pairs", "edges_on_a_path", "in_plain")), *_texts(cells)))
        grids.append(Grid(f"KL, {title}", ("ranking", "pairs", "edges on a path", "also in plain", *heads), tuple(rows)))
        less = "mean is lower in"
        rows = []
        for of, minus in DIFFERENCES:
            found = [
                row for repeat in repeats for row in repeat["differences"] if (row["of"], row["minus"], row["size"]) == (of, minus, size)
            ]
            n_less = sum(row["statistics"]["mean"][0] < 0 for row in found)
            rows.append((f"{of} minus {minus}", *_texts(found), f"{n_less} of {len(found)} repeats"))
        grids.append(Grid(f"Differences of KL, {title}", ("difference", *heads, less), tuple(rows)))
    grids.append(_rounds(repeats))
    return grids


def _rounds(repeats: Sequence[Mapping[str, Any]]) -> Grid:
    rows: list[tuple[str, ...]] = []
    for place in range(max(len(repeat["rounds"]) for repeat in repeats)):
        entries = [repeat["rounds"][place] for repeat in repeats if place < len(repeat["rounds"])]
        means = (number(float(np.mean([entry[name] for entry in entries]))) for name in ("mean", "p99", "max"))
        added = f"{np.mean([len(entry['added']) for entry in entries]):.3g}"
        rows.append((str(place), str(len(entries)), *means, added))
    return Grid("KL on the discovery grid, mean over repeats", ("round", "repeats", "mean", "99 %", "max", "pairs then added"), tuple(rows))


def write_robust(run: RobustRun, output: Path, repeats: Sequence[Mapping[str, Any]]) -> Path:
    """Write report.html, tables.md and result.json into the folder; the path of the first."""
    grids = robust_grids(run, repeats)
    facts = [{"setting": name, "value": str(value)} for name, value in dataclasses.asdict(run).items()]
    write_text(output / "result.json", json.dumps({"run": dataclasses.asdict(run), "repeats": list(repeats)}, indent=1, ensure_ascii=False))
    write_text(output / "tables.md", grids_markdown(grids, facts))
    page = output / "report.html"
    write_text(page, grids_page(f"Robust discovery: {run.task}, {run.model}", grids, [None] * len(grids), READING, facts))
    return page
