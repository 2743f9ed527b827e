"""The study's cells: all measures and the recovery of all scorings of one model and sample.

A cell is a model, an ablation, an objective and a sample of pairs. Its scorings are made on train
pairs. Their circuits are cut from each ranking at ten sizes by both profiles, and by magnitude at
`N_DENSE` sizes too; equal circuits are run once on the test pairs, and all measures follow from
these runs. What a cell comes to is a JSON file, written whole or not at all. A file that is there
is not made again unless it was made with other settings.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.ablation import ablate
from mechassay.circuits.evaluation.metrics import by_edge, recovery_of
from mechassay.circuits.profiles import Profile
from mechassay.circuits.scores import By, EdgeScores, Scores
from mechassay.circuits.series import FRACTIONS, FaithfulnessMetric
from mechassay.models.circuit_forward import circuit_runner
from mechassay.models.forward import Contrast
from mechassay.models.graph import Graph
from mechassay.models.memory import token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.models.objectives import Accuracy, Kl, load_objective
from mechassay.models.sources import truth_names
from mechassay.prompts.batch import Batch
from mechassay.utils.display import SILENT
from mechassay.utils.files import write_text
from studies.which_metric.measures import OBJECTIVE, Cut, CutCircuits, Ends, Values, all_measures
from studies.which_metric.scorings import METHODS, Scoring, all_scorings
from studies.which_metric.truths import CHANGES, KnownModel, load_known, without_heads

VERSION = 1
"""Rises when the same settings would give other numbers."""
WITHOUT_BACKUPS = "auroc without backups"
"""The AUROC of the circuit less its backups, of a scoring on a truth that has them."""
N_DENSE = 24
BOTH: tuple[By, By] = ("value", "magnitude")
RANKINGS: tuple[tuple[By, Cut], ...] = (
    ("value", "strict"),
    ("magnitude", "strict"),
    ("value", "mib-2025"),
    ("magnitude", "mib-2025"),
    ("magnitude", "dense"),
)
"""How circuits are ranked and cut."""


@dataclass(frozen=True)
class Grid:
    """Cells of one ablation and objective.

    Attributes:
        n_samples: how many samples of pairs each model has.
        changed: changed models beside the plain ones.
        few: the smaller set of made scorings.
    """

    name: str
    ablation: str
    objective: str
    n_samples: int
    changed: bool
    few: bool


GRIDS = (
    Grid("counterfactual", "counterfactual", "logit_diff", 3, changed=True, few=False),
    Grid("mean", "mean", "logit_diff", 1, changed=False, few=True),
    Grid("zero", "zero", "logit_diff", 1, changed=False, few=True),
    Grid("probability", "counterfactual", "prob_diff", 1, changed=True, few=True),
)


@dataclass(frozen=True)
class Settings:
    """Pairs that scorings are made on and circuits are measured on, and the methods."""

    n_train: int = 50
    n_test: int = 100
    methods: Mapping[str, str] = field(default_factory=lambda: dict(METHODS))


@dataclass(frozen=True)
class Cell:
    """One model and sample of a grid."""

    grid: Grid
    name: str
    sample: int

    @property
    def file(self) -> str:
        return f"{self.grid.name}--{self.name}--{self.sample}.json"


def all_cells(grids: Sequence[Grid] = GRIDS) -> list[Cell]:
    """The cells of all grids; those of one model stand together."""
    changes = ("", *(f"+{change}" for change in CHANGES))
    return [
        Cell(grid, f"{name}{change}", sample)
        for grid in grids
        for name in truth_names()
        for change in (changes if grid.changed else changes[:1])
        for sample in range(grid.n_samples)
    ]


def run(
    folder: Path,
    cells: Sequence[Cell],
    settings: Settings | None = None,
    *,
    report: Callable[[str], None],
) -> list[dict[str, Any]]:
    """The records of all cells; those that are missing in the folder are made.

    Args:
        report: takes a line after each cell that was made.
    """
    settings = settings or Settings()
    records: dict[Cell, dict[str, Any]] = {}
    for cell in cells:
        if (record := _kept(folder / cell.file, settings)) is not None:
            records[cell] = record
    missing = [cell for cell in cells if cell not in records]
    begin = time.perf_counter()
    for number, cell in enumerate(missing, start=1):
        records[cell] = measured_cell(cell, settings)
        write_text(folder / cell.file, json.dumps(_without_nan(records[cell]), indent=1))
        spent = time.perf_counter() - begin
        left = spent / number * (len(missing) - number)
        report(
            f"{number} of {len(missing)}: {cell.file}, {records[cell]['seconds']:.0f} s;"
            f" {spent / 60:.1f} min spent, about {left / 60:.1f} min left"
        )
    return [records[cell] for cell in cells]


def _kept(file: Path, settings: Settings) -> dict[str, Any] | None:
    """The record of a file, if it is there and was made with these settings."""
    if not file.is_file():
        return None
    record = json.loads(file.read_text("utf-8"))
    same = record["version"] == VERSION and record["settings"] == asdict(settings)
    return _with_nan(record) if same else None


def _without_nan(record: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(record, dict):
        return {key: _without_nan(value) for key, value in record.items()}
    return None if isinstance(record, float) and math.isnan(record) else record


def _with_nan(record: Any) -> Any:
    if isinstance(record, dict):
        return {key: _with_nan(value) for key, value in record.items()}
    return math.nan if record is None else record


_load = lru_cache(maxsize=1)(load_known)


def measured_cell(cell: Cell, settings: Settings) -> dict[str, Any]:
    """All measures of all scorings of one cell; none where the model has no known circuit."""
    begin = time.perf_counter()
    known, grid = _load(cell.name), cell.grid
    truth = known.circuits.get(grid.ablation)
    why = known.dropped or ("" if truth else f"no circuit is verified for {grid.ablation}")
    record: dict[str, Any] = {
        "version": VERSION,
        "settings": asdict(settings),
        "grid": grid.name,
        "model": cell.name,
        "sample": cell.sample,
        "margin": known.margin,
        "dropped": why,
        "n_edges": known.model.graph.n_edges,
        "n_true": len(truth or ()),
        "scorings": {},
        "refused": {},
    }
    if truth is not None and not why:
        train, test = (
            _pairs(known, split, limit, cell)
            for split, limit in (("train", settings.n_train), ("test", settings.n_test))
        )
        scorings = all_scorings(
            known.model,
            truth,
            train,
            grid.objective,
            methods=settings.methods,
            few=grid.few,
            seed=cell.sample,
        )
        record["refused"] = dict(scorings.refused)
        record["scorings"] = dict(_measured(known, truth, scorings.made, test, grid.objective))
    record["seconds"] = round(time.perf_counter() - begin, 2)
    return record


def _pairs(known: KnownModel, split: str, limit: int, cell: Cell) -> Batch:
    pairs = known.task.pairs(split, known.model, limit=limit, seed=cell.sample)
    return ablate(known.model, pairs, cell.grid.ablation, data=known.pairs, progress=SILENT)


def _measured(
    known: KnownModel,
    truth: Circuit,
    scorings: Mapping[str, Scoring],
    test: Batch,
    objective: str,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Measures and recovery of each scoring."""
    model, graph = known.model, known.model.graph
    circuits = {
        (label, by, kind): cut(scoring.scores, by, kind)
        for label, scoring in scorings.items()
        for by, kind in RANKINGS
    }
    places = {circuit: place for place, circuit in enumerate(end_circuits(graph))}
    for series in circuits.values():
        for circuit in series:
            places.setdefault(circuit, len(places))
    values = run_circuits(model, list(places), test, objective)
    ends = ends_of(values, test, graph.n_edges, objective)
    for label, scoring in scorings.items():
        cuts: dict[tuple[By, Cut], CutCircuits] = {
            (by, kind): CutCircuits(
                np.array(sizes_of(graph.n_edges, kind)),
                np.array([c.weighted_edge_count() for c in series]) / graph.n_edges,
                values[[places[c] for c in series]],
            )
            for by, kind in RANKINGS
            for series in [circuits[label, by, kind]]
        }
        by_edges = by_edge(scoring.scores)
        recovery = recovery_of(by_edges, truth, by="magnitude")
        beside: dict[str, float] = {}
        if known.backups:
            rest = without_heads(truth, known.backups)
            beside[WITHOUT_BACKUPS] = recovery_of(by_edges, rest, by="magnitude").auroc
        largest = {by: _largest_f(cuts[by, "strict"], ends) for by in BOTH}
        yield (
            label,
            {
                "sort": scoring.sort,
                "auroc": recovery.auroc,
                "auprc": recovery.auprc,
                **beside,
                "measures": all_measures(cuts, ends),
                "largest f": largest,
            },
        )


def end_circuits(graph: Graph) -> tuple[Circuit, Circuit]:
    """The empty and the full circuit, which stand before all others."""
    return Circuit.empty(graph), Circuit.full(graph)


def _largest_f(circuits: CutCircuits, ends: Ends) -> float:
    means = circuits.values[:, OBJECTIVE].mean(axis=1)
    return float((means.max() - ends.empty[OBJECTIVE].mean()) / ends.gap)


def sizes_of(n_edges: int, kind: Cut) -> Sequence[float]:
    """The shares of all edges that circuits are cut at."""
    if kind != "dense":
        return FRACTIONS
    counts = np.unique(np.geomspace(1, n_edges, N_DENSE).round().astype(int))
    return [*(float(count / n_edges) for count in counts[:-1]), 1.0]


def cut(scores: Scores, by: By, kind: Cut) -> list[Circuit]:
    """The circuits of one ranking, without what is on no path, as `faithfulness_curve` has them."""
    profile: Profile = "mib-2025" if kind == "mib-2025" else "strict"
    sizes = sizes_of(scores.graph.n_edges, kind)
    circuits: list[Circuit] = []
    for size in sizes:
        if profile == "strict" and size == 1:
            circuits.append(Circuit.full(scores.graph))
        elif isinstance(scores, EdgeScores):
            top = scores.greedy if scores.grows else scores.top
            circuits.append(top(size, by=by).pruned())
        else:
            top = scores.within if profile == "strict" else scores.top
            circuits.append(top(size, by=by).pruned())
    return circuits


@torch.no_grad()
def run_circuits(model: Model, circuits: Sequence[Circuit], batch: Batch, objective: str) -> Values:
    """What is known of each circuit on each pair, from one run of each."""
    decoder, measured = model.decoder, load_objective(objective)
    runs = [circuit_runner(decoder, model.graph, one.edges, one.neurons) for one in circuits]
    divergence, accuracy = Kl(), Accuracy()
    values = np.full((len(circuits), 4, len(batch)), np.nan)
    budget = token_budget(trace_bytes(decoder), batch.n_tokens, model.device)
    for rows, chunk in batch.chunks(budget):
        contrast = Contrast.run(decoder, chunk)
        clean = contrast.clean.readout(decoder)
        best = clean.all().argmax(dim=-1)
        for place, one in enumerate(runs):
            readout = one(contrast)
            per_pair = (
                measured(readout, chunk, clean),
                divergence(readout, chunk, clean),
                accuracy(readout, chunk),
                readout.all().argmax(dim=-1) == best,
            )
            values[place][:, rows] = torch.stack([x.double() for x in per_pair]).cpu().numpy()
    return values


def ends_of(values: Values, batch: Batch, n_edges: int, objective: str) -> Ends:
    """The empty and the full circuit, which are the first two, and what ablation changes."""
    empty, full = values[0], values[1]
    rule = FaithfulnessMetric(
        "strict",
        FRACTIONS,
        n_edges,
        empty[OBJECTIVE],
        full[OBJECTIVE],
        batch.groups,
        objective=objective,
    )
    gap = float(full[OBJECTIVE].mean() - empty[OBJECTIVE].mean())
    return Ends(empty, full, gap if rule.defined else math.nan)
