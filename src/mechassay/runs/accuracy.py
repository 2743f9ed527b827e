"""Accuracy of several models on several tasks, cell by cell: originals and every counterfactual.

A cell is one model on one task. Its record has greedy and ranked-choice accuracy of the original
prompts and of each kind of counterfactual, with intervals; an example that has no counterfactual
of a kind, or whose prompt has no right answer, is undefined there and counted. A cell that fails
is a row like any other; running the same plan again goes on with what is missing.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
from jaxtyping import Float
from rich.console import Console

from mechassay.errors import one_of
from mechassay.examples import Example, Examples
from mechassay.models.model import Model, check_dtype
from mechassay.pairs import content_hash
from mechassay.progress import BAR, Progress
from mechassay.records import Measure, Record, Selection, Spec, Values
from mechassay.report.console import print_text
from mechassay.report.kinds.accuracy import ORIGINAL
from mechassay.runs import options
from mechassay.runs.job import Bench, Cell, Job, Results, cell_name, option
from mechassay.runs.names import made_by, shown_model
from mechassay.stats.intervals import proportion_interval
from mechassay.tasks import TASKS, Task
from mechassay.tasks.behaviour import score_prompts
from mechassay.tasks.mib_scoring import NAME as MIB
from mechassay.tasks.mib_scoring import Scoring, mib_scores
from mechassay.tasks.public import PublicTask
from mechassay.tasks.task import settings_of

KIND = "accuracy"
EXACT = "exact"
AccuracyScoring = Literal["exact", "mib-2025"]


@dataclass(frozen=True)
class AccuracyJob(Job):
    """Greedy and ranked-choice accuracy of models on tasks, for original prompts and every
    counterfactual.

    Attributes:
        tasks: all tasks if empty.
        scoring: "mib-2025" is MIB's scoring beside the exact one, in the tasks that MIB has.
    """

    models: Annotated[tuple[str, ...], options.LOADED_MODELS]
    tasks: Annotated[tuple[str, ...], options.TASKS_OR_ALL] = ()
    split: Annotated[str, option("Split to score.")] = "test"
    limit: Annotated[
        int | None,
        option("Examples of each task, or `all` of the split.", least=1, none="all", first=True),
    ] = None
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    seed: Annotated[int, options.SEED] = 0
    private_seed: Annotated[int | None, options.PRIVATE_SEED] = None
    scoring: Annotated[
        AccuracyScoring, option("With mib-2025, MIB's laxer scoring of what is written is beside.")
    ] = EXACT

    kind: ClassVar[str] = KIND
    markdown: ClassVar[str] = "accuracy.md"
    command: ClassVar[tuple[str, ...]] = ("tasks", "score")
    typed: ClassVar[Mapping[str, Any]] = MappingProxyType({"limit": 200})
    grows: ClassVar[tuple[str, ...]] = ("models", "tasks")

    def __post_init__(self) -> None:
        if not self.tasks:
            object.__setattr__(self, "tasks", tuple(TASKS.names()))

    def check(self, bench: Bench) -> None:
        """See `Job.check`."""
        one_of("scoring", self.scoring, get_args(AccuracyScoring))
        check_dtype(self.dtype)
        for task in self.tasks:
            bench.task(task)

    def cells(self) -> list[Cell]:
        """See `Job.cells`."""
        return [
            Cell(
                cell_name(model, task),
                {"model": shown_model(model), "task": task},
                model,
                {"model": model},
            )
            for model in self.models
            for task in self.tasks
        ]

    def run(self, cell: Cell, bench: Bench) -> Record:
        """See `Job.run`."""
        name = cell.typed["model"]
        model = bench.model(name, dtype=self.dtype, prepend_bos=self.prepend_bos)
        return score_task(model, bench.task(cell.of["task"]), self, progress=bench.progress)

    def show(self, results: Results, console: Console) -> None:
        """See `Job.show`."""
        super().show(results, console)
        print_text(f"Tables: {results.folder.path / self.markdown}", console)


def score_task(model: Model, task: Task, job: AccuracyJob, *, progress: Progress = BAR) -> Record:
    """One cell.

    Raises:
        BadUsage: fewer examples than the run's limit.
    """
    begin = time.perf_counter()
    examples = _examples(model, task, job)
    groups = [example.group or example.id for example in examples]
    hash_of_examples = _hash(examples)
    lax = task.mib_scoring if job.scoring == MIB and isinstance(task, PublicTask) else None
    kinds = (ORIGINAL, *task.counterfactuals)
    columns = _columns(model, examples, kinds, lax, progress)
    # Dropped is only what cannot be read; what an example lacks of a kind is undefined there.
    chosen = Selection(
        task=task.name,
        split=job.split,
        kept=len(examples),
        dropped=dict(examples.dropped),
        hash=hash_of_examples,
    )
    return Record(
        kind=KIND,
        cell={"model": model.name, "task": task.name},
        specs={
            "model": model.spec(),
            "task": Spec(
                name=task.name, version=task.version, args={"split": job.split, **settings_of(task)}
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
        warnings=[
            f"Examples that could not be read and are left out: {count:,} ({reason})."
            for reason, count in sorted(examples.dropped.items())
        ],
        provenance=made_by(model, job.seed, hash_of_examples),
    )


def _examples(model: Model, task: Task, job: AccuracyJob) -> Examples:
    """As many examples as asked for, or all of a split that has fewer."""
    size = task.sizes.get(job.split, 0)
    limit = None if job.limit is None or job.limit >= size > 0 else job.limit
    return task.examples(
        job.split, model, limit=limit, seed=job.seed, private_seed=job.private_seed
    )


def _columns(
    model: Model,
    examples: Sequence[Example],
    kinds: Sequence[str],
    lax: Scoring | None,
    progress: Progress,
) -> dict[str, Float[np.ndarray, "n"]]:
    """Values of each kind of prompt for every example; NaN where it has none.

    All kinds are scored together: an example's prompts have much in common.
    """
    there = [
        (kind, row, prompt)
        for kind in kinds
        for row, example in enumerate(examples)
        if (prompt := example.prompt if kind == ORIGINAL else example.counterfactuals.get(kind))
        and prompt.answers
    ]
    prompts = [prompt for _, _, prompt in there]
    found = score_prompts(model, prompts, progress=progress)
    scores = {"greedy": found.greedy, "ranked": found.ranked, "chance": found.chance}
    if lax is not None:
        scores[MIB] = mib_scores(model, prompts, lax, progress=progress)
    columns: dict[str, Float[np.ndarray, "n"]] = {}
    for kind in kinds:
        mine = [place for place, (other, _, _) in enumerate(there) if other == kind]
        rows = [there[place][1] for place in mine]
        for name, values in scores.items():
            column = columns[f"{name}@{kind}"] = np.full(len(examples), np.nan)
            column[rows] = values[mine]
    return columns


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
