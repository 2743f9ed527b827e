"""Many methods on many tasks and models: one circuit run for each task on each model, and one table over all.

Each pair of a task and a model is a run of its own, in a folder of its own, so that everything
there can be opened, resumed and reported alone. What is done is not done again; a model is loaded
only if something of it is missing. What fails is a cell of the table, with its reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechassay.circuits.faithfulness import Profile
from mechassay.circuits.methods import METHODS
from mechassay.errors import MechassayError
from mechassay.models.model import Model
from mechassay.progress import BAR, Progress
from mechassay.records import Failure, Record
from mechassay.report.suite import write_suite
from mechassay.runs.accuracy import cell_name
from mechassay.runs.circuits import CircuitJob, CircuitRun, method_name
from mechassay.runs.circuits import write_report as write_circuit_report
from mechassay.runs.folder import RunFolder, write_text
from mechassay.tasks import load_task
from mechassay.tasks.task import Keep

Load = Callable[[str], Model]


@dataclass(frozen=True)
class SuiteRun:
    """What to run. The fields are the plan that is stored with the results."""

    models: tuple[str, ...]
    tasks: tuple[str, ...]
    methods: tuple[str, ...]
    train_limit: int = 100
    test_limit: int = 100
    profile: Profile = "strict"
    ablation: str = "counterfactual"
    keep: Keep = "all"
    dtype: str = "float32"
    seed: int = 0

    def plan(self) -> dict[str, Any]:
        """The plan as plain values."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in dataclasses.asdict(self).items()}

    def cell(self, model: str, task: str) -> CircuitRun:
        """The circuit run of one task on one model."""
        return CircuitRun(
            model=model,
            task=task,
            methods=self.methods,
            train_limit=self.train_limit,
            test_limit=self.test_limit,
            profile=self.profile,
            ablation=self.ablation,
            keep=self.keep,
            dtype=self.dtype,
            seed=self.seed,
        )


def run_suite(run: SuiteRun, output: Path, load: Load, *, progress: Progress = BAR) -> tuple[list[Record], list[Failure]]:
    """Run what the folder does not hold yet; all records, and what failed.

    Raises:
        UnknownName, BadUsage: a method or task that does not exist; the folder holds another plan.
    """
    names = [method_name(METHODS.make(text)) for text in run.methods]
    for task in run.tasks:
        load_task(task)
    folder = RunFolder.open(output, run.plan())
    records: list[Record] = []
    failures: list[Failure] = []
    for model in run.models:
        held = _Held(model, load)
        for task in run.tasks:
            path = output / "cells" / cell_name(model, task)
            stored = [RunFolder(path).record(name) for name in names]
            if all(stored):
                records += [record for record in stored if record is not None]
                continue
            try:
                job = CircuitJob(run.cell(model, task), path, held.get, progress=progress)
                scores = job.localize()
                found = job.evaluate(scores)
                write_circuit_report(job.folder, found, scores)
                records += found
                failures += [
                    Failure(cell={**each.cell, "task": task, "model": model}, error=each.error, message=each.message)
                    for each in job.failures
                ]
            except MechassayError as error:
                cells = [{"method": name, "task": task, "model": model} for name in names]
                failures += [Failure(cell=cell, error=type(error).__name__, message=str(error)) for cell in cells]
    folder.save_failures(failures)
    return records, failures


class _Held:
    """A model that is loaded when it is first needed, and kept until the next one."""

    def __init__(self, name: str, load: Load) -> None:
        self.name, self.load = name, load
        self.model: Model | None = None

    def get(self) -> Model:
        if self.model is None:
            self.model = self.load(self.name)
        return self.model


def write_report(folder: RunFolder, records: list[Record], failures: list[Failure]) -> Path:
    """The suite's page (report.html) and its tables in Markdown (tables.md)."""
    page, markdown = write_suite(records, failures, title="Circuit localization: methods, tasks and models")
    write_text(folder.path / "tables.md", markdown)
    write_text(folder.path / "report.html", page)
    return folder.path / "report.html"
