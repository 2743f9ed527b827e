"""Accuracy on gym tasks as a run: a cell is one task in one model, and runs its sentences once."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from mechassay.gym.behaviour import KIND, accuracy
from mechassay.gym.published import load_gym_task
from mechassay.models.model import check_dtype
from mechassay.records import Record
from mechassay.runs import options
from mechassay.runs.gym import (
    ALL_TASKS,
    REVISIONS,
    TASKS,
    at_most,
    gym_cells,
    model_spec,
    selection,
    task_names,
    task_spec,
    with_revisions,
)
from mechassay.runs.job import Bench, Cell, Job, option
from mechassay.runs.names import made_by


@dataclass(frozen=True)
class GymCheckJob(Job):
    """Accuracy of models on gym tasks: how often a sentence's own label is the more probable one.

    Attributes:
        tasks: names of gym tasks, of families, or files; "all" stands for the 29.
        revisions: checkpoints; every model becomes `MODEL@REVISION` of each, and this is empty.
    """

    models: Annotated[tuple[str, ...], options.LOADED_MODELS]
    tasks: Annotated[tuple[str, ...], TASKS] = (ALL_TASKS,)
    revisions: Annotated[tuple[str, ...], REVISIONS] = ()
    limit: Annotated[int, option("Test sentences of each task.", least=2, first=True)] = 100
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    seed: Annotated[int, options.SEED] = 0

    kind: ClassVar[str] = KIND
    command: ClassVar[tuple[str, ...]] = ("gym", "check")
    grows: ClassVar[tuple[str, ...]] = ("models", "tasks")

    def __post_init__(self) -> None:
        object.__setattr__(self, "models", with_revisions(self.models, self.revisions))
        object.__setattr__(self, "revisions", ())

    def check(self, bench: Bench) -> None:
        """See `Job.check`."""
        check_dtype(self.dtype)
        for name in task_names(self.tasks):
            load_gym_task(name)

    def cells(self) -> list[Cell]:
        """See `Job.cells`."""
        return gym_cells(self.models, self.tasks)

    def run(self, cell: Cell, bench: Bench) -> Record:
        """See `Job.run`."""
        begin = time.perf_counter()
        model = bench.model(cell.typed["model"], dtype=self.dtype, prepend_bos=self.prepend_bos)
        task = load_gym_task(cell.typed["task"])
        pairs = at_most(task, model, "test", self.limit, self.seed)
        spec, chosen = model_spec(model, cell), selection(pairs, model)
        found = replace(accuracy(model, pairs, progress=bench.progress), model=spec.name)
        return found.record(
            {"model": spec, "task": task_spec(task)},
            made_by(model, self.seed, chosen.hash),
            cell=dict(cell.of),
            realised={"seconds": round(time.perf_counter() - begin, 3)},
            data={"test": chosen},
        )
