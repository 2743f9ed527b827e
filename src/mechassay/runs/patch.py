"""Activation patching of models on tasks, as a run: a cell is one model, task and part.

A cell's record has the shares of all its cells with intervals; the objective of every pair after
every patch stands beside it in `maps/`, as a file of tensors that `PatchMap.load` reads.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, get_args

from mechassay.errors import one_of
from mechassay.interventions.patch import patch
from mechassay.interventions.patch_map import DIRECTIONS, Direction
from mechassay.interventions.site import PARTS
from mechassay.models.model import check_dtype
from mechassay.objectives import load_objective
from mechassay.records import Record, Selection, Spec, Values
from mechassay.runs import options
from mechassay.runs.job import Bench, Cell, Job, cell_name, option
from mechassay.runs.names import made_by, shown_model
from mechassay.tasks.task import PRIVATE, Keep, settings_of


@dataclass(frozen=True)
class PatchJob(Job):
    """Patch every site of a part between the prompts of pairs, one at a time: heat maps over layers
    and tokens, or layers and heads.
    """

    models: Annotated[tuple[str, ...], options.LOADED_MODELS]
    tasks: Annotated[tuple[str, ...], options.LOADED_TASKS]
    parts: Annotated[
        tuple[str, ...],
        option(
            "What is patched: resid, heads or mlp. Repeat for several.", "--part", "-p", first=True
        ),
    ] = ("resid",)
    direction: Annotated[
        Direction,
        option("Clean values into counterfactual runs, or the other way."),
    ] = "denoising"
    objective: Annotated[str | None, options.OBJECTIVE] = None
    counterfactual: Annotated[str | None, options.COUNTERFACTUAL] = None
    keep: Annotated[Keep, options.KEEP] = "all"
    split: Annotated[str, option("Split to patch.")] = "test"
    limit: Annotated[int, option("Pairs of each task.", least=1, first=True)] = 40
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    seed: Annotated[int, options.SEED] = 0
    private_seed: Annotated[int | None, options.PRIVATE_SEED] = None

    kind: ClassVar[str] = "patch"
    grows: ClassVar[tuple[str, ...]] = ("models", "tasks", "parts")

    def check(self, bench: Bench) -> None:
        """See `Job.check`."""
        one_of("direction of patching", self.direction, DIRECTIONS)
        one_of("choice of pairs to keep", self.keep, get_args(Keep))
        check_dtype(self.dtype)
        for part in self.parts:
            one_of("part of a site", part, PARTS)
        if self.objective is not None:
            load_objective(self.objective)
        for task in self.tasks:
            bench.task(task)

    def cells(self) -> list[Cell]:
        """See `Job.cells`."""
        return [
            Cell(
                f"{group}/{part}",
                {"model": shown_model(model), "task": task, "part": part},
                group,
                {"model": model},
            )
            for model in self.models
            for task in self.tasks
            for group in [cell_name(model, task)]
            for part in self.parts
        ]

    def run(self, cell: Cell, bench: Bench) -> Record:
        """See `Job.run`."""
        begin = time.perf_counter()
        model = bench.model(cell.typed["model"], dtype=self.dtype, prepend_bos=self.prepend_bos)
        task = bench.task(cell.of["task"])
        pairs = bench.shared(
            "pairs",
            lambda: task.pairs(
                self.split,
                model,
                limit=self.limit,
                counterfactual=self.counterfactual,
                keep=self.keep,
                seed=self.seed,
                private_seed=self.private_seed,
            ),
        )
        found = patch(
            model,
            pairs,
            parts=one_of("part of a site", cell.of["part"], PARTS),
            direction=self.direction,
            objective=self.objective or task.objective,
            seed=self.seed,
            progress=bench.progress,
        )
        if self.split == PRIVATE:
            found = found.without_tokens()
        bench.folder.save_data("test", pairs.selection(), cell.shares)
        file = found.save(map_file(bench.folder.path, cell.name))
        chosen = Selection.of(pairs.selection())
        about = {"split": self.split, "limit": self.limit, **settings_of(task)}
        return found.record(
            {
                "model": model.spec(),
                "task": Spec(name=task.name, version=task.version, args=about),
            },
            made_by(model, self.seed, chosen.hash),
            cell=dict(cell.of),
            values=Values(
                unit="pair",
                ids=list(found.ids),
                groups=list(found.groups),
                columns={"base": found.base.tolist(), "source": found.source.tolist()},
                file=str(file.relative_to(bench.folder.path)),
                sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
            ),
            realised={"seconds": round(time.perf_counter() - begin, 3)},
            data={"test": chosen},
        )


def map_file(folder: Path, cell: str) -> Path:
    """Where the map of a cell stands in the folder of its run."""
    return folder / "maps" / f"{cell}.safetensors"
