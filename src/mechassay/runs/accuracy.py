"""Accuracy of several models on several tasks, cell by cell: originals and every counterfactual.

A cell is one model on one task. Its record has greedy and ranked-choice accuracy of the original
prompts and of each kind of counterfactual, with intervals; an example that has no counterfactual
of a kind, or whose prompt has no right answer, is undefined there and counted. A cell that fails
is a row like any other; running the same plan again goes on with what is missing.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from mechassay.errors import MechassayError, UnknownName
from mechassay.examples import Example
from mechassay.models.model import Model
from mechassay.pairs import content_hash
from mechassay.progress import BAR, Progress
from mechassay.records import (
    Failure,
    Measure,
    Record,
    Selection,
    Spec,
    Values,
    failure_of,
    provenance,
)
from mechassay.report.kinds.accuracy import ORIGINAL
from mechassay.report.reports import write_markdown, write_page
from mechassay.runs.folder import RunFolder
from mechassay.stats.intervals import proportion_interval
from mechassay.tasks import Task, load_task
from mechassay.tasks.behaviour import score_prompts
from mechassay.tasks.mib_scoring import NAME as MIB
from mechassay.tasks.mib_scoring import Scoring, mib_scores
from mechassay.tasks.public import PublicTask
from mechassay.tasks.task import settings_of

Load = Callable[[str], Model]

KIND = "accuracy"
EXACT = "exact"
SCORINGS = (EXACT, MIB)


@dataclass(frozen=True)
class AccuracyRun:
    """What to score. The fields are the plan that is stored with the results.

    Attributes:
        scoring: "exact", or "mib-2025" for MIB's scoring beside it, in the tasks that MIB has.

    Raises:
        UnknownName: another scoring.
    """

    models: tuple[str, ...]
    tasks: tuple[str, ...]
    split: str = "test"
    limit: int | None = None
    dtype: str = "float32"
    prepend_bos: bool = False
    seed: int = 0
    private_seed: int | None = None
    scoring: str = EXACT

    def __post_init__(self) -> None:
        if self.scoring not in SCORINGS:
            raise UnknownName("scoring", self.scoring, SCORINGS)

    def plan(self) -> dict[str, Any]:
        """The plan as plain values; the private seed is never stored."""
        plain = dataclasses.asdict(self) | {"models": list(self.models), "tasks": list(self.tasks)}
        # A plan with the usual scoring is that of a folder made before there was another.
        left_out = {"private_seed", *(["scoring"] if self.scoring == EXACT else [])}
        return {key: value for key, value in plain.items() if key not in left_out}


def run_accuracy(
    run: AccuracyRun, output: Path, load: Load, *, progress: Progress = BAR
) -> tuple[list[Record], list[Failure]]:
    """Score what the folder does not hold yet; all records, models in order, and what failed."""
    tasks = {name: load_task(name) for name in run.tasks}
    folder = RunFolder.open(output, run.plan())
    records: list[Record] = []
    failures: list[Failure] = []
    for name in run.models:
        missing = [task for task in tasks if folder.record(cell_name(name, task)) is None]
        model: Model | MechassayError | None = None
        for task in tasks:
            if task not in missing:
                stored = folder.record(cell_name(name, task))
                assert stored is not None
                records.append(stored)
                continue
            try:
                model = _loaded(name, load) if model is None else model
                if isinstance(model, MechassayError):
                    raise model
                record = score_task(model, tasks[task], run, progress=progress)
                folder.save_record(cell_name(name, task), record)
                records.append(record)
            except Exception as error:
                failures.append(failure_of({"model": name, "task": task}, error))
    folder.save_failures(failures)
    return records, failures


def _loaded(name: str, load: Load) -> Model | MechassayError:
    """A model, or why there is none: it is not tried again for every task."""
    try:
        return load(name)
    except MechassayError as error:
        return error


def cell_name(model: str, task: str) -> str:
    """The file name of a cell: names may be paths or hub ids."""
    return "--".join(re.sub(r"[^\w.=,-]+", "_", part) for part in (model, task))


def score_task(model: Model, task: Task, run: AccuracyRun, *, progress: Progress = BAR) -> Record:
    """One cell.

    Raises:
        BadUsage: fewer examples than the run's limit.
    """
    begin = time.perf_counter()
    examples = _examples(model, task, run)
    groups = [example.group or example.id for example in examples]
    hash_of_examples = _hash(examples)
    columns: dict[str, Float[np.ndarray, "n"]] = {}
    for kind in (ORIGINAL, *task.counterfactuals):
        lax = task.mib_scoring if run.scoring == MIB and isinstance(task, PublicTask) else None
        columns |= {
            f"{name}@{kind}": values
            for name, values in _column(model, examples, kind, lax, progress).items()
        }
    # Every example is scored: nothing is dropped, and what a kind lacks is undefined there.
    chosen = Selection(task=task.name, split=run.split, kept=len(examples), hash=hash_of_examples)
    return Record(
        kind=KIND,
        cell={"model": model.name, "task": task.name},
        specs={
            "model": Spec(name=model.name, args={"family": model.family}),
            "task": Spec(
                name=task.name, version=task.version, args={"split": run.split, **settings_of(task)}
            ),
            "method": Spec(name="behaviour"),
            "metric": Spec(name="accuracy"),
        },
        measures=[_measure(name, values, groups) for name, values in columns.items()],
        values=Values(
            unit="example",
            ids=[example.id for example in examples],
            groups=groups,
            columns={
                name: values.tolist()
                for name, values in columns.items()
                if not name.startswith("chance")
            },
        ),
        data={"test": chosen},
        realised={"seconds": round(time.perf_counter() - begin, 3)},
        provenance=provenance(
            device=str(model.device),
            dtype=str(model.dtype).removeprefix("torch."),
            seed=run.seed,
            data_hash=hash_of_examples,
        ),
    )


def _examples(model: Model, task: Task, run: AccuracyRun) -> list[Example]:
    """As many examples as asked for, or all of a split that has fewer."""
    size = task.sizes.get(run.split, 0)
    limit = None if run.limit is None or run.limit >= size > 0 else run.limit
    return task.examples(
        run.split, model, limit=limit, seed=run.seed, private_seed=run.private_seed
    )


def _column(
    model: Model, examples: Sequence[Example], kind: str, lax: Scoring | None, progress: Progress
) -> dict[str, Float[np.ndarray, "n"]]:
    """Values of one kind of prompt for every example; NaN where it has none."""
    prompts = {
        row: example.prompt if kind == ORIGINAL else example.counterfactuals.get(kind)
        for row, example in enumerate(examples)
    }
    there = {
        row: prompt for row, prompt in prompts.items() if prompt is not None and prompt.answers
    }
    found = score_prompts(model, list(there.values()), progress=progress)
    values = {name: np.full(len(examples), np.nan) for name in ("greedy", "ranked", "chance")}
    for name, column in values.items():
        column[list(there)] = getattr(found, name)
    if lax is not None:
        values[MIB] = np.full(len(examples), np.nan)
        values[MIB][list(there)] = mib_scores(model, list(there.values()), lax, progress=progress)
    return values


def _measure(name: str, values: Float[np.ndarray, "n"], groups: Sequence[str]) -> Measure:
    defined = ~np.isnan(values)
    n, left_out = int(defined.sum()), int((~defined).sum())
    value = float(values[defined].mean()) if n else float("nan")
    if name.startswith("chance"):
        return Measure(name=name, value=value, n=n, n_undefined=left_out)
    low, high, level = proportion_interval(
        values[defined], [group for group, there in zip(groups, defined, strict=True) if there]
    )
    return Measure(
        name=name,
        better="up",
        value=value,
        low=low,
        high=high,
        level=level,
        n=n,
        n_undefined=left_out,
    )


def _hash(examples: Sequence[Example]) -> str:
    return content_hash(
        [example.pair(kind) for example in examples for kind in example.counterfactuals]
    )


def write_report(folder: RunFolder, records: Sequence[Record], failures: Sequence[Failure]) -> Path:
    """The run's page (report.html) and its tables in Markdown (accuracy.md)."""
    write_markdown(folder.path / "accuracy.md", records, failures, KIND)
    return write_page(folder.path / "report.html", records, failures=failures, kind=KIND)
