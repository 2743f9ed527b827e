"""Find circuits with several methods on tasks and models, and measure how faithful they are.

A cell is one method on one task with one model. It finds scores, which stay in the folder, then
measures them. The cells of one model and task share the pairs, the controls, and the constants that
ablated edges carry: means and learned ones are those of the train pairs, for the test pairs too. A
ground truth is a model that runs on its own task alone; there records also say how well the known
circuit is found (`circuits.evaluation.metrics`).

What is skipped is a cell with its reason, before anything of it is run:

    at chance       the model does not do the task: on the test pairs the interval of its accuracy
                    reaches chance (unless `even_at_chance`)
    too expensive   finding the circuit would take more than `max_minutes`: the forwards that the
                    method says it takes (`Method.forwards`), and those that learning the constants
                    of optimal ablation takes, times the seconds of one forward, which is timed on
                    train pairs. Measuring is not counted: it is about the same for all methods.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
from rich.console import Console

from mechassay.circuits.drawing import Drawing, draw_circuit
from mechassay.circuits.evaluation import METRICS
from mechassay.circuits.evaluation.ablation import ABLATIONS
from mechassay.circuits.graph_files import load_scores
from mechassay.circuits.methods import METHODS
from mechassay.circuits.methods.method import check_pairing, versions_of
from mechassay.circuits.methods.stability import (
    SELECTIONS,
    PartScores,
    has_seed,
    is_mean_of_pairs,
    scored_again,
)
from mechassay.circuits.profiles import VERSIONS
from mechassay.circuits.scores import DRAWN_EDGES, EdgeScores, largest_drawable
from mechassay.circuits.series import (
    CircuitSeries,
    is_series,
    load_ranked,
    ranked_name,
)
from mechassay.discovery.inputs import (
    CircuitInputs,
    TypedMethod,
    constructed,
    optimal_ablation,
    part_scores_file,
)
from mechassay.discovery.options import CircuitsOptions, Construction
from mechassay.errors import BadFile, BadUsage, one_of
from mechassay.models.sources import with_truths
from mechassay.results.console import print_text
from mechassay.results.page import Report
from mechassay.results.preconditions import task_of
from mechassay.results.records import Record
from mechassay.results.report import write_page, write_tables
from mechassay.results.verdict import Standing
from mechassay.runs.cells import Cell, cell_name
from mechassay.runs.experiment import Experiment, command_line
from mechassay.runs.folder import RunFolder
from mechassay.runs.names import file_labels
from mechassay.runs.worker import Worker
from mechassay.tasks import TASKS
from mechassay.truth.ground_truth import check_tasks, is_truth, own_task_notes, tasks_of
from mechassay.utils.files import write_text

AT_CHANCE, TOO_EXPENSIVE = "at chance", "too expensive"


@dataclass(frozen=True)
class CircuitsExperiment(CircuitsOptions, Experiment):
    """A cell is one method on one task with one model; see `CircuitsOptions` for the fields."""

    for_boards: ClassVar[bool] = True
    markdown: ClassVar[str] = ""
    grows: ClassVar[tuple[str, ...]] = ("models", "tasks", "methods", "scores")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "models", with_truths(self.models))
        object.__setattr__(self, "tasks", TASKS.full_names(self.tasks))
        object.__setattr__(self, "methods", METHODS.full_names(self.methods))
        object.__setattr__(self, "metrics", METRICS.full_names(self.metrics))

    def words(self) -> tuple[Sequence[str], Sequence[str]]:
        asked_about = ("scores", "stage")
        if self.scores and self.methods:
            return (), asked_about
        if not self.scores:
            return ("circuits", "run" if self.stage == "all" else self.stage), asked_about
        return ("circuits", "evaluate", *self.scores), asked_about

    def versions(self, worker: Worker) -> dict[str, int]:
        """Return versions of definitions, which are part of plan.json."""
        return {"profile_version": VERSIONS[self.profile]}

    def definitions(self) -> dict[str, int]:
        """Return the versions of methods and metrics."""
        methods = [own for typed in self.typed_methods() for own in versions_of(typed.method)]
        metrics = [METRICS.make(text) for text in self.metrics]
        return {
            **{f"method {name}": version for name, version in methods},
            **{f"metric {metric.name}": metric.version for metric in metrics},
        }

    def typed_methods(self) -> list[TypedMethod]:
        """The methods as they were typed."""
        return [TypedMethod.of(text, self.ablation) for text in self.methods]

    def check(self, worker: Worker) -> None:
        super().check(worker)
        known = self.known or any(map(is_truth, self.models))
        if not (self.curve or self.metrics or known):
            raise BadUsage("Without a curve there is nothing to measure: name a metric.")
        one_of("ablation", self.ablation, ABLATIONS)
        if self.construction in SELECTIONS:
            self._check_stable_edges()
        if self.resamples and self.construction in (*SELECTIONS, "faithful"):
            raise BadUsage(f"Circuits of the construction {self.construction} have no resamples.")
        if self.over == "seeds":
            self._check_seeds()
        optimal_ablation(self.optimal, self.seed)
        check_pairing(self.pairing)
        under = {self.ablation, *(typed.ablation for typed in self.typed_methods())}
        if self.pairing != "matched" and under != {"counterfactual"}:
            raise BadUsage(
                f"Only counterfactual ablation pairs prompts; got the pairing {self.pairing} with"
                f" {', '.join(sorted(under - {'counterfactual'}))} ablation."
            )
        self._check_plugins()
        check_tasks(self.models, self.tasks)

    def _check_stable_edges(self) -> None:
        """Refuse a construction by how edges hold over the pairs where that is not known."""
        typed_methods = self.typed_methods()
        others = [typed.name for typed in typed_methods if not is_mean_of_pairs(typed.method)]
        others += self.scores
        if others:
            raise BadUsage(
                f"The construction {self.construction} needs scores of parts of the pairs, which"
                f" methods have that are means over pairs; got {', '.join(others)}."
            )

    def _check_seeds(self) -> None:
        """Refuse other seeds where there are none, or none is asked for."""
        typed_methods = self.typed_methods()
        others = [typed.name for typed in typed_methods if not has_seed(typed.method)]
        others += self.scores
        if others:
            seeded = [name for name in METHODS.names() if "seed" in METHODS.outline(name)[1]]
            raise BadUsage(
                f"--over seeds runs a method again with other seeds, which {', '.join(seeded)}"
                f" have; got {', '.join(others)}."
            )
        if not self.resamples:
            raise BadUsage("--over seeds needs --resamples: how many other seeds to run.")

    def _check_plugins(self) -> None:
        for text in self.metrics:
            known = self.known or any(map(is_truth, self.models))
            if METRICS.make(text).needs_truth and not known:
                raise BadUsage(
                    f"The metric {text} needs a known circuit, which only ground truths have, or"
                    " --known; completeness and minimality take a size instead:"
                    " completeness:size=0.01."
                )
        for file in self.scores:
            load_ranked(file)
        for file in self.scores:
            if file in self._methods() or file in self.methods:
                raise BadUsage(f"{file}: the folder has the name of a method; rename it.")
        if not self.rankings():
            raise BadUsage("Name a method or a score file: there is nothing to do.")

    def _kept_scores(self, method: str, folder: Path, cell: str) -> Path:
        """Return where the scores of a cell are: as given, or as its method found them.

        Args:
            method: the label of the cell's method.
            cell: its name.
        """
        given = {label: Path(path) for path, label in self._file_labels().items()}
        return given.get(method) or RunFolder(folder).scores_file(cell)

    def notes(self) -> Sequence[str]:
        """Return notes on ground truths, which have tasks of their own, and on other seeds."""
        notes = own_task_notes(self.models, self.tasks)
        if self.over != "seeds":
            return notes
        again = f"{self.resamples} other seed{'s' * (self.resamples != 1)}"
        return [*notes, f"Every method runs {1 + self.resamples} times: with {again} too."]

    def rankings(self) -> list[tuple[str, str]]:
        """Return the measured rankings: each method as its name and the typed text, each score file
        as its label and its path.
        """
        files = self._file_labels()
        return [*self._methods().items(), *((label, path) for path, label in files.items())]

    def _methods(self) -> dict[str, str]:
        """Return the methods by name. A method that is spelled in two ways, as with a default
        setting, is one method.
        """
        typed = zip(self.typed_methods(), self.methods, strict=True)
        return {method.name: text for method, text in typed}

    def _file_labels(self) -> dict[str, str]:
        """Return the label of each score file or folder."""
        return file_labels(self.scores, ranked_name, tuple(self._methods()))

    def cells(self) -> list[Cell]:
        ending = ".scores" if self.stage == "localize" else ""
        labels = self.labels()
        return [
            Cell(
                f"{group}/{cell_name(typed if typed in self.scores else name)}{ending}",
                {
                    "method": name,
                    "task": labels.get(("task", task), task),
                    "model": labels["model", model],
                },
                group,
                {"method": typed, "task": task, "model": model},
            )
            for model in self.models
            for task in tasks_of(model, self.tasks)
            for group in [cell_name(model, task)]
            for name, typed in self.rankings()
        ]

    def inputs(self, cell: Cell, worker: Worker) -> CircuitInputs:
        """Return what the cells of one model and task share."""
        return CircuitInputs(self, worker, cell["model"], cell["task"], cell.inputs)

    def preconditions(self, cell: Cell, inputs: CircuitInputs) -> Iterator[tuple[str, str]]:
        """Yield that the model does not do the task, and that the method would take too long."""
        if not self.even_at_chance:
            able = task_of(inputs.ability.table())
            if able.standing is Standing.NOT_MET:
                names = {"model": inputs.model.name, "task": inputs.task.name}
                yield AT_CHANCE, able.text(names)
        if self.max_minutes is None or self.scores or inputs.scores_file(cell).is_file():
            return
        model, n_pairs = inputs.model, len(inputs.train)
        typed = inputs.method(cell)
        forwards = typed.method.forwards(model.graph, n_pairs)
        if scored_again(typed.method, self.over):
            forwards *= 1 + self.resamples
        under = (self.ablation, typed.ablation)
        if "optimal" in under and not inputs.constants_file("optimal").is_file():
            forwards += optimal_ablation(self.optimal, self.seed).forwards(model.graph, n_pairs)
        seconds = forwards * inputs.forward_seconds
        if seconds > 60 * self.max_minutes:
            forwards_text = f"{forwards / n_pairs:,.0f} forwards a pair x {n_pairs} pairs"
            yield TOO_EXPENSIVE, f"{_duration(seconds)}: {forwards_text}"

    def run(self, cell: Cell, worker: Worker) -> Record:
        inputs: CircuitInputs = worker.inputs(self, cell)
        scores = inputs.ranking(cell)
        if self.stage == "all":
            record = inputs.measured(cell, scores).changed(found_in=inputs.found_in(cell))
            return record.concluded()
        if isinstance(scores, CircuitSeries):
            raise BadUsage(f"{cell.labels['method']} are circuits: there is nothing to localize.")
        return inputs.localized(cell, scores)

    def show(self, report: Report, console: Console) -> None:
        if self.stage == "localize":
            for name, record in report.by_name.items():
                file = RunFolder(report.folder).scores_file(name.removesuffix(".scores"))
                scores = load_scores(file)
                best = scores.ranking("magnitude")[:3]
                names = ", ".join(scores.place_name(int(flat)) for flat in best)
                n_scores = len(scores.ranking("value"))
                method = record.cell["method"]
                line = f"{method}: {n_scores:,} scores in {file}; strongest: {names}"
                print_text(line, console)
            return
        several = len(report.by_group()) > 1
        for line in (report.answers if several else []) or [report.conclusion]:
            print_text(line, console)
        console.print()
        super().show(report, console)

    def write(self, report: Report) -> Path:
        """Write a page for each model and task, and one over all; tables.md; differences.json."""
        if self.stage == "localize":
            return report.folder / "scores"
        if not self.curve:
            write_tables(report.folder / "tables.md", report, self.kind)
            return super().write(report)
        from mechassay.discovery.suite_page import suite_differences  # Only writing needs it.

        parts = report.by_group()
        drawings = {group: self._drawings(group, part) for group, part in parts.items()}
        command = command_line(self, Path(report.folder.name))
        for group, part in parts.items() if len(parts) > 1 else ():
            page = report.folder / "pages" / f"{group}.html"
            own = replace(part, drawings=drawings[group])
            write_page(page, own, kind=self.kind, command=command)
        differences = json.dumps(suite_differences(report.records), indent=1)
        write_text(report.folder / "differences.json", differences)
        # A table a measure, for a single model and task too.
        write_tables(report.folder / "tables.md", report, "suite")
        return super().write(replace(report, drawings=[x for y in drawings.values() for x in y]))

    def _drawings(self, group: str, part: Report) -> list[Drawing]:
        """Draw the circuits of the records of one model and task."""
        drawings: list[Drawing] = []
        for name, record in part.by_name.items():
            file = self._kept_scores(record.cell["method"], part.folder, name)
            parts = part_scores_file(part.folder, group, file)
            drawings += _drawings(record.cell, file, parts, self.construction)
        return drawings


def score_files(given: Sequence[Path]) -> tuple[str, ...]:
    """Score files that were typed as files, or as the folder of a run that found them; folders of
    circuits as they are.

    Raises:
        BadFile: a folder has none.
    """
    files: list[Path] = []
    for path in given:
        has_scores = (path / "scores").is_dir()
        if not has_scores and is_series(path):
            files.append(path)
            continue
        folder = path / "scores" if has_scores else path
        held = sorted(folder.rglob("*.safetensors")) if folder.is_dir() else [path]
        if not held:
            raise BadFile(
                f"{path}: the folder has no score files (.safetensors), neither by itself nor in a"
                " folder named scores; nor circuits."
            )
        files += held
    return tuple(map(str, files))


def _duration(seconds: float) -> str:
    hours = seconds / 3600
    if hours < 1:
        return f"about {seconds / 60:.2g} min"
    return f"about {hours:,.0f} h" if hours >= 10 else f"about {hours:.1f} h"


def _drawings(
    cell: Mapping[str, str], file: Path, parts: Path, construction: Construction
) -> list[Drawing]:
    """Draw the strongest connected edges of scores of edges, or the largest circuit that fits.

    Args:
        cell: the labels of the record's cell.
        parts: the file of the scores of parts of the pairs, if there is one.
    """
    name = cell["method"]
    if not file.exists() or name.startswith("random"):
        return []
    scores = constructed(load_ranked(file), construction)
    if isinstance(scores, CircuitSeries):
        circuit, title = scores.within(DRAWN_EDGES), f"{name}: the circuit at its size"
    elif isinstance(scores, EdgeScores):
        circuit, title = largest_drawable(scores), f"{name}: the strongest connected edges"
    else:
        return []
    if isinstance(scores, CircuitSeries) and not len(circuit):
        return []
    edges = scores if isinstance(scores, EdgeScores) else None
    stable = None
    if edges is not None and parts.is_file() and construction in ("own", "top"):
        # The circuit's size before pruning: up to its last edge in the ranking.
        drawn = circuit.edges.flatten().numpy()[edges.ranking("magnitude")]
        n = int(np.flatnonzero(drawn).max(initial=-1)) + 1
        stable = PartScores.load(parts, edges).stable(n)
    drawing = draw_circuit(edges, circuit, title=title, stable=stable)
    return [replace(drawing, of=dict(cell))]
