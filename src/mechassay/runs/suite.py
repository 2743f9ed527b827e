"""Many methods on many tasks and models:
one circuit run for each task on each model, and one table over all.

Each pair of a task and a model is a run of its own, in a folder of its own, so that everything
there can be opened, resumed and reported alone. What is done is not done again; a model is loaded
only if something of it is missing. A ground truth is a model that runs on its own task alone; the
tasks that are named are for the other models. Models, tasks and methods may be added to a suite
that is there.

What fails is a cell of the table, with its reason, and so is what is skipped, before anything of it
is run (`Limits`):

    at chance   the model does not do the task: on the test pairs the interval of its accuracy
                reaches chance
    too dear    finding the circuit would take longer than allowed: the forwards that the method
                says it takes (`Method.forwards`), or that learning the constants of optimal
                ablation takes, times the seconds of one forward, which is timed on train pairs.
                Measuring the circuit is not counted: that is about the same for all methods.

Skipped and failed cells are tried again by the next run; limits are no part of the plan.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mechassay.circuits.ablation import ABLATIONS
from mechassay.circuits.areas import VERSIONS, Profile
from mechassay.circuits.methods import METHODS
from mechassay.circuits.optimal_ablation import OptimalAblation
from mechassay.errors import BadUsage, MechassayError, UnknownName
from mechassay.models.memory import token_budget
from mechassay.models.model import Model
from mechassay.pairs import Batch
from mechassay.progress import BAR, Progress
from mechassay.records import Failure, Record, failure_of
from mechassay.report.kinds.suite import suite_differences
from mechassay.report.reports import write_markdown, write_page
from mechassay.runs.accuracy import cell_name
from mechassay.runs.circuits import CircuitJob, CircuitRun, method_name
from mechassay.runs.circuits import write_report as write_circuit_report
from mechassay.runs.folder import RunFolder, write_text
from mechassay.runs.names import is_truth, task_named
from mechassay.tasks.task import Keep
from mechassay.truth.models import truth_names

Load = Callable[[str], Model]
ALL_TRUTHS = "truth"
AT_CHANCE, TOO_DEAR = "at chance", "too dear"


@dataclass(frozen=True)
class SuiteRun:
    """What to run. The fields are the plan that is stored with the results.

    Attributes:
        tasks: for models that are no ground truth.
    """

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
        plain = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in dataclasses.asdict(self).items()
        }
        return {**plain, "profile_version": VERSIONS[self.profile]}

    def tasks_of(self, model: str) -> tuple[str, ...]:
        """What a model runs on."""
        return (model,) if is_truth(model) else self.tasks

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


@dataclass(frozen=True)
class Limits:
    """What is skipped.

    Attributes:
        max_minutes: most minutes that finding a circuit may be expected to take.
        even_at_chance: also run tasks that the model does not do.
    """

    max_minutes: float = 30.0
    even_at_chance: bool = False

    def __post_init__(self) -> None:
        if not self.max_minutes >= 0:
            raise BadUsage(f"max_minutes must be 0 or more; got {self.max_minutes}.")


def models_named(names: Sequence[str]) -> tuple[str, ...]:
    """Models as they are typed: "truth" stands for all ground truths."""
    return tuple(
        dict.fromkeys(
            each for name in names for each in (truth_names() if name == ALL_TRUTHS else [name])
        )
    )


def run_suite(
    run: SuiteRun,
    output: Path,
    load: Load,
    *,
    limits: Limits | None = None,
    progress: Progress = BAR,
) -> tuple[list[Record], list[Failure]]:
    """Run what the folder does not hold yet;
    all records of the plan, and what failed or was skipped.

    Raises:
        UnknownName, BadUsage: a method, task or ablation that does not exist; a model without a
        task; the folder holds another plan.
    """
    names = [method_name(METHODS.make(text)) for text in run.methods]
    if run.ablation not in ABLATIONS:
        raise UnknownName("ablation", run.ablation, ABLATIONS)
    for task in run.tasks:
        task_named(task)
    for model in run.models:
        if not run.tasks_of(model):
            raise BadUsage(
                f"{model} needs a task to run on; only ground truths have one of their own."
            )
    folder = RunFolder.open(output, run.plan(), growing=("models", "tasks", "methods"))
    records: list[Record] = []
    failures: list[Failure] = []
    for model in run.models:
        held = _Held(model, load)
        for task in run.tasks_of(model):
            path = output / "cells" / cell_name(model, task)
            stored = {name: RunFolder(path).record(name) for name in names}
            if all(stored.values()):
                records += [record for record in stored.values() if record is not None]
                continue
            try:
                job = CircuitJob(run.cell(model, task), path, held.get, progress=progress)
                _skip(job, limits or Limits())
                scores = job.localize()
                found = job.evaluate(scores)
                write_circuit_report(job.folder, found, scores)
                records += found
                failures += job.failures
            except Exception as error:
                records += [record for record in stored.values() if record is not None]
                failures += [
                    failure_of({"method": name, "task": task, "model": held.shown}, error)
                    for name, record in stored.items()
                    if record is None
                ]
    folder.save_failures(failures)
    return records, failures


class _Held:
    """A model that is loaded when it is first needed, and kept until the next one;
    if it cannot be loaded, that is tried once.
    """

    def __init__(self, name: str, load: Load) -> None:
        self.name, self.load = name, load
        self.model: Model | MechassayError | None = None

    @property
    def shown(self) -> str:
        """The model's own name, as in its records, if it was loaded."""
        return self.model.name if isinstance(self.model, Model) else self.name

    def get(self) -> Model:
        if self.model is None:
            try:
                self.model = self.load(self.name)
            except MechassayError as error:
                self.model = error
        if isinstance(self.model, MechassayError):
            raise self.model
        return self.model


def _skip(job: CircuitJob, limits: Limits) -> None:
    """Leave out of a job what is not to be run."""
    missing = job.missing()
    at_chance = [] if limits.even_at_chance or not missing else job.preference.warnings()
    if at_chance:
        for name in missing:
            job.skip(name, AT_CHANCE, at_chance[0])
        return
    unscored = [name for name in missing if not job.folder.scores_file(name).is_file()]
    if not unscored:
        return
    graph, n = job.model.graph, len(job.train)
    seconds = forward_seconds(job.model, job.train)
    costs = {name: job.methods[name].forwards(graph, n) for name in unscored}
    if job.run.ablation == "optimal" and not job.ablated_file.is_file():
        constants = OptimalAblation(seed=job.run.seed).forwards(graph, n)
        costs = {name: cost + constants for name, cost in costs.items()}
    for name, forwards in costs.items():
        if forwards * seconds > 60 * limits.max_minutes:
            job.skip(
                name,
                TOO_DEAR,
                f"{_duration(forwards * seconds)}: {forwards / n:,.0f} forwards a pair x {n} pairs",
            )


def forward_seconds(model: Model, batch: Batch) -> float:
    """Seconds that a forward pass takes for one example, among as many as are run at once."""
    rows, chunk = next(
        iter(batch.chunks(token_budget(model.bytes_per_token, batch.n_tokens, model.device)))
    )
    took: list[float] = []
    for _ in range(2):  # The first one may also be the first of the process.
        begin = time.perf_counter()
        taken, _ = model.run(chunk)
        taken.final.sum().item()
        took.append(time.perf_counter() - begin)
    return min(took) / len(rows)


def _duration(seconds: float) -> str:
    hours = seconds / 3600
    return (
        f"about {hours:,.0f} h"
        if hours >= 10
        else f"about {hours:.1f} h"
        if hours >= 1
        else f"about {seconds / 60:.2g} min"
    )


def write_report(folder: RunFolder, records: list[Record], failures: list[Failure]) -> Path:
    """The suite's page (report.html), its tables in Markdown (tables.md),
    and the differences of methods (differences.json).
    """
    write_markdown(folder.path / "tables.md", records, failures, "suite")
    write_text(folder.path / "differences.json", json.dumps(suite_differences(records), indent=1))
    return write_page(folder.path / "report.html", records, failures=failures, kind="suite")
