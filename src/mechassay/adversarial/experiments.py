"""Adversarial evaluation: divergences of all pairs, and searches for worse pairs.

A cell of either experiment is a circuit. The folder of an evaluation has, beside its records,

    prompts.json       both pools: texts, parts, what was dropped
    values.parquet     the divergence of every pair from every circuit, and from the empty one
    found/             scores of the methods that found circuits

The divergences of all circuits are computed together, when the first cell is run.

A search finds the divergence of a pair that exists, which is a lower bound on the maximum
(`adversarial.hill_climbing`). A search that is interrupted begins anew; what the search had found
is kept in interrupted/<circuit>.json.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from rich.console import Console

from mechassay.adversarial.divergence import arrow
from mechassay.adversarial.field_tables import template_text
from mechassay.adversarial.hill_climbing import SearchResult, search
from mechassay.adversarial.inputs import AdversarialInputs, check_circuits
from mechassay.adversarial.options import (
    AdversarialOptions,
    SearchOptions,
    ShiftOptions,
)
from mechassay.adversarial.pages import BOUND, SEARCH_KIND, AdversarialPage, best_text
from mechassay.adversarial.pools import Pool, check_finite, draw_pools, parse_same, parse_where
from mechassay.adversarial.record import KIND, RecordMaker
from mechassay.adversarial.statistics import parse_map
from mechassay.circuits.evaluation.ablation import ABLATIONS
from mechassay.circuits.methods import METHODS
from mechassay.circuits.methods.method import check_pairing, paired
from mechassay.circuits.methods.spec import CircuitSpec, FoundCircuit
from mechassay.circuits.scores import Scores
from mechassay.errors import BadUsage, one_of
from mechassay.models.model import Model, check_dtype
from mechassay.models.objectives import load_objective
from mechassay.results.console import print_tables, print_text
from mechassay.results.measures import measure_texts
from mechassay.results.page import Report
from mechassay.results.records import Record, Selection, Spec, Table
from mechassay.runs.cells import Cell, cell_name
from mechassay.runs.experiment import Experiment, Interrupted
from mechassay.runs.names import circuit_labels
from mechassay.runs.worker import Worker, draw, made_by
from mechassay.stats import DESIGN_KINDS
from mechassay.tasks import TASKS
from mechassay.tasks.task import Task, settings_of
from mechassay.truth.ground_truth import truth_circuit
from mechassay.utils.files import write_text


@dataclass(frozen=True)
class AdversarialExperiment(AdversarialOptions, Experiment):
    """A cell is a circuit; see `AdversarialOptions` for the fields."""

    for_boards: ClassVar[bool] = True
    markdown: ClassVar[str] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        fields = tuple(name for text in self.same for name in parse_same(text))
        filled = {
            "task": TASKS.full_name(self.task),
            "circuits": tuple(dict.fromkeys(map(CircuitSpec.full_text, self.circuits))),
            "design": self.design or ("matched" if self.enumerate_all else "grid"),
            "n_corrupted": self.n_clean if self.n_corrupted is None else self.n_corrupted,
            "same": fields,
        }
        for name, value in filled.items():
            object.__setattr__(self, name, value)

    def check(self, worker: Worker) -> None:
        """Refuse what cannot be run, before a folder or model is touched.

        Raises:
            MissingExtra: pyarrow is not installed.
            BadFile: the divergences of the folder are not those that its records were made of.
        """
        self.refuse()
        task = worker.task(self.task)
        if self.enumerate_all:
            check_finite(task)
        arrow()
        stored = [worker.folder.record(name) for name in worker.folder.cells_with_records()]
        inputs = AdversarialInputs(self, worker)
        inputs.check_file([record for record in stored if record is not None])

    def refuse(self) -> None:
        """Refuse settings that cannot be run.

        Raises:
            BadUsage, UnknownName: there is one.
        """
        one_of("design", self.design or "", DESIGN_KINDS)
        one_of("ablation", self.ablation, ABLATIONS)
        check_dtype(self.dtype)
        if self.ablation == "resample":
            raise BadUsage(
                "Resample ablation pairs each prompt with another clean one: take --ablation"
                " counterfactual with --design independent."
            )
        check_circuits(self.circuits)
        self._check_labels()
        least = {"worst": 0, "n_resamples": 1, "n_permutations": 1, "train_limit": 1, "controls": 1}
        for name, number in least.items():
            if getattr(self, name) < number:
                raise BadUsage(f"{name} must be {number} or more; got {getattr(self, name)}.")
        self._check_pairs()
        self._check_discovery()

    def _check_pairs(self) -> None:
        """Refuse pairs that a design does not have."""
        if self.design != "grid" and self.n_clean != self.n_corrupted:
            raise BadUsage(
                f"{self.drawn_as.capitalize()} pairs need pools of one size; got {self.n_clean} and"
                f" {self.n_corrupted} prompts."
            )
        if self.enumerate_all and not (self.design == "matched" and self.paired):
            raise BadUsage(
                "Only matched pairs with counterfactual ablation can be enumerated: --design"
                " matched."
            )
        parse_where(self.where)
        if self.same:
            parse_same(",".join(self.same))
        if self.same and not (self.design == "grid" and self.paired):
            raise BadUsage(
                "--same chooses among the pairs of a grid with counterfactual ablation; got"
                f" {self.drawn_as} pairs."
            )
        if self.where and self.enumerate_all:
            raise BadUsage("--where chooses prompts of a sample; --enumerate takes all there are.")

    def _check_discovery(self) -> None:
        """Refuse settings of the search for circuits that no method can have."""
        if self.objective is not None:
            load_objective(self.objective)
        check_pairing(self.pairing)
        if not self.paired and self.pairing != "matched":
            raise BadUsage(
                f"Only counterfactual ablation pairs prompts; got the pairing {self.pairing} with"
                f" {self.ablation} ablation."
            )
        if (self.objective or self.pairing != "matched") and not any(
            CircuitSpec.parse(circuit).kind == "method" for circuit in self.circuits
        ):
            raise BadUsage(
                "--objective and --pairing are of circuits that a method finds, METHOD@SIZE; none"
                " was asked for."
            )

    def _check_labels(self) -> None:
        """Refuse what is wrong with how labels are looked at."""
        for text in self.heat_maps:
            parse_map(text)
        if not (math.isfinite(self.least_effect) and self.least_effect >= 0):
            raise BadUsage(
                "The least effect must be a share of the empty circuit's, 0 or more; got"
                f" {self.least_effect}."
            )

    def cells(self) -> list[Cell]:
        of, labels = {"model": self.model, "task": self.task}, self.labels()
        own = {axis: labels[axis, name] for axis, name in of.items()}
        called = circuit_labels(self.circuits)
        return [
            Cell(cell_name(text), {"circuit": name, **own}, KIND, {"circuit": text, **of})
            for text, name in called.items()
        ]

    def run(self, cell: Cell, worker: Worker) -> Record:
        maker = worker.shared("records", lambda: RecordMaker(AdversarialInputs(self, worker)))
        return maker.record(self.circuits.index(cell["circuit"]))

    def show(self, report: Report, console: Console) -> None:
        print_tables(AdversarialPage().tables(report), console)
        if report.records:
            text = template_text(report.records)
            print_text(text, console)


@dataclass(frozen=True)
class SearchExperiment(SearchOptions, Experiment):
    """A cell is a circuit; see `SearchOptions` for the fields."""

    command: ClassVar[tuple[str, ...]] = ("adversarial", "search")
    grows: ClassVar[tuple[str, ...]] = ("circuits",)

    def check(self, worker: Worker) -> None:
        super().check(worker)
        check_circuits(self.circuits)
        check_pairing(self.pairing)

    def cells(self) -> list[Cell]:
        of, labels = {"model": self.model, "task": self.task}, self.labels()
        own = {axis: labels[axis, name] for axis, name in of.items()}
        called = circuit_labels(self.circuits)
        return [
            Cell(cell_name(text), {"circuit": name, **own}, text, {"circuit": text, **of})
            for text, name in called.items()
        ]

    def run(self, cell: Cell, worker: Worker) -> Record:
        """Search for worse pairs, and return the record.

        Raises:
            Interrupted: by Ctrl-C, after something was evaluated.
        """
        begin = time.perf_counter()
        model = worker.model(self.model, dtype=self.dtype, prepend_bos=self.prepend_bos)
        task = worker.task(self.task)
        circuit = found_circuit(self, cell["circuit"], model, task, worker)
        pools = draw_pools(
            model,
            task,
            self.n_clean,
            self.n_corrupted,
            split=self.split,
            counterfactual=self.counterfactual,
            seed=self.seed,
        )
        result = search(
            model,
            circuit.circuit,
            *pools,
            budget=self.budget,
            starts=self.starts,
            restarts=self.restarts,
            compare=self.compare,
            seed=self.seed,
            progress=worker.progress,
        )
        if not result.finished:
            file = worker.folder.path / "interrupted" / f"{cell.name}.json"
            write_text(file, json.dumps(result.as_dict(), indent=1, ensure_ascii=False))
            raise Interrupted(f"{result}, see {file}. The same command begins this search anew.")
        return self._record(cell, model, task, circuit, pools, result, time.perf_counter() - begin)

    def show(self, report: Report, console: Console) -> None:
        super().show(report, console)
        for record in report.records:
            for line in (*best_text(record), *record.warnings):
                print_text(line, console)

    def _record(
        self,
        cell: Cell,
        model: Model,
        task: Task,
        circuit: FoundCircuit,
        pools: tuple[Pool, Pool],
        result: SearchResult,
        seconds: float,
    ) -> Record:
        digest = hashlib.sha256()
        for pool in pools:
            digest.update(pool.tokens.numpy().tobytes())
        texts, random = measure_texts(SEARCH_KIND), result.random
        measures = [texts.measure(BOUND, result.lower_bound, n=result.evaluations)]
        if self.compare:
            at_random = "lower bound at random"
            measures.append(
                texts.measure(at_random, random.kl, of="control:random", n=random.pairs)
            )
        return Record(
            kind=SEARCH_KIND,
            cell={**cell.labels, "model": model.name, "method": circuit.text},
            found_in=dict(circuit.found_in),
            specs={
                "model": model.spec(n_edges=model.graph.n_edges),
                "task": Spec(name=task.name, version=task.version, args=settings_of(task)),
                "method": Spec(
                    name=circuit.text, args={"edges": len(circuit.circuit), **circuit.about}
                ),
                "search": Spec(
                    name="search",
                    args={
                        name: getattr(self, name)
                        for name in ("budget", "starts", "restarts", "pairing", "train_limit")
                    }
                    | {"objective": self.objective or task.objective},
                ),
            },
            measures=measures,
            tables=_tables(result),
            data={
                "prompts": Selection(
                    hash=digest.hexdigest(),
                    task=task.name,
                    split=self.split,
                    counterfactual=self.counterfactual or "",
                    seed=self.seed,
                    counts=dict(zip(("clean", "corrupted"), map(len, pools), strict=True)),
                )
            },
            spent={"seconds": round(seconds, 3)},
            warnings=without_fields(task, pools),
            provenance=made_by(model, self.seed, digest.hexdigest()),
        )


def found_circuit(
    experiment: SearchOptions | ShiftOptions, text: str, model: Model, task: Task, worker: Worker
) -> FoundCircuit:
    """A circuit as it is typed, found on the train split if need be."""
    spec, scores = CircuitSpec.parse(text), dict[str, Scores]()
    if spec.kind == "method":
        pairs = draw(
            task,
            "pairs",
            "train",
            model,
            limit=experiment.train_limit,
            counterfactual=experiment.counterfactual,
            seed=experiment.seed,
        )
        templates = [task.template(pair.tags) for pair in pairs]
        rng = np.random.default_rng(experiment.seed)
        batch = paired(model.batch(pairs), experiment.pairing, rng, templates).batch
        objective = load_objective(experiment.objective or task.objective)
        method = METHODS.make(spec.name)
        scores[spec.name] = method.score(model, batch, objective, progress=worker.progress)
    truth = partial(truth_circuit, model, "counterfactual")
    about: dict[str, Any] = {"seed": experiment.seed, "scores": scores, "truth": truth}
    return spec.find_in(model, transfer=experiment.transfer, **about)


def _tables(result: SearchResult) -> list[Table]:
    """The climbs, the worst pair first, and the changes of each."""
    climbs = [
        {
            "climb": number,
            "divergence": climb.kl,
            "at its start": climb.steps[0].kl,
            "changes": len(climb.steps) - 1,
            "local maximum": climb.is_local_maximum,
            "clean": climb.clean.text,
            "corrupted": climb.corrupted.text,
        }
        for number, climb in enumerate(result.climbs, start=1)
    ]
    steps = [
        {"climb": number, "step": place, **step._asdict()}
        for number, climb in enumerate(result.climbs, start=1)
        for place, step in enumerate(climb.steps)
    ]
    return [Table.of("climbs", ("climb",), climbs), Table.of("steps", ("climb", "step"), steps)]


def without_fields(task: Task, pools: tuple[Pool, Pool]) -> list[str]:
    """That no prompt has a field to change; nothing if one has."""
    if any(pool.fields for pool in pools):
        return []
    return [
        f"The prompts of {task.name} have no fields, so nothing was changed: the search compared"
        " pairs of the prompts as they are."
    ]
