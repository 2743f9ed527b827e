"""Directions that others found for a gym task, measured: a cell is one method, nothing is trained.

Validation and test items are those of `runs.gym` with the same limits and seed, and so is the rule
that chooses regions; so numbers of given directions stand beside those of methods that were run
there.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, ClassVar

from mechassay.errors import BadUsage
from mechassay.gym.control_labels import control_labels
from mechassay.gym.given_directions import GivenDirections, given_directions
from mechassay.gym.given_odds import SPLITS, best_draw, measure_directions
from mechassay.gym.gym_task import GymTask
from mechassay.gym.method_odds import ORIGINAL
from mechassay.gym.published import load_gym_task
from mechassay.interventions.model_shape import ModelShape
from mechassay.models.model import check_dtype
from mechassay.records import Record, Spec
from mechassay.runs import options
from mechassay.runs.gym import (
    at_most,
    gym_cells,
    model_spec,
    selection,
    task_spec,
)
from mechassay.runs.job import Bench, Cell, Job, cell_name, option
from mechassay.runs.layers import MANY, layers_of
from mechassay.runs.names import made_by
from mechassay.variables.given import FEATURES_SHA256

GIVEN_CONTROL = (
    "Selectivity rests on the directions for control labels as they were given: weak ones make it"
    " high."
)


@dataclass(frozen=True)
class DirectionsJob(Job):
    """Measure directions that were found elsewhere on a gym task: log odds-ratios of test items
    beside controls; nothing is trained, and nothing in the folders is executed.

    Attributes:
        directions: folders, which have to be there as long as the run is gone on with or reported.
    """

    directions: Annotated[
        tuple[str, ...],
        option("Folder of directions, as `gym run` leaves them in features.", complete="files"),
    ]
    model: Annotated[str, options.MODEL]
    task: Annotated[
        str,
        option("Gym task, see `mechassay gym list`; or a YAML file.", "--task", "-t"),
    ]
    layers: Annotated[str, option("`all`, numbers such as 0,3,6, or every third: ::3.")] = "all"
    control_labels: Annotated[
        tuple[str, ...],
        option("Word for each type, with its space; dog and give by default.", "--control-label"),
    ] = ()
    validation_limit: Annotated[int, option("Interchanges to choose on.", least=2)] = 100
    test_limit: Annotated[
        int, option("Interchanges to report on.", "--limit", least=2, first=True)
    ] = 100
    dtype: Annotated[str, options.DTYPE] = "float32"
    prepend_bos: Annotated[bool, options.BOS] = False
    seed: Annotated[int, options.SEED] = 0

    kind: ClassVar[str] = "directions"
    for_boards: ClassVar[bool] = True
    test_split: ClassVar[str] = "test"
    command: ClassVar[tuple[str, ...]] = ("gym", "evaluate")

    def words(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """See `Job.words`."""
        return (*self.command, *self.directions), ("directions",)

    @cached_property
    def _task(self) -> GymTask:
        return load_gym_task(self.task)

    @cached_property
    def given(self) -> tuple[GivenDirections, ...]:
        """The directions that are measured, a method each.

        Raises:
            UnknownName: no such task. BadFile: what is wrong with a folder.
        """
        regions = self._task.tested
        return tuple(x for folder in self.directions for x in given_directions(folder, regions))

    def versions(self, bench: Bench) -> dict[str, Any]:
        """See `Job.versions`: what was measured is a part of the plan."""
        return {"files": {each.typed: each.sha256 for each in self.given}}

    def check(self, bench: Bench) -> None:
        """See `Job.check`."""
        check_dtype(self.dtype)
        layers_of(self.layers, MANY)
        if self.control_labels:
            control_labels(self._task.types, self.control_labels)
        names: dict[str, str] = {}
        for each in self.given:
            if each.method in names:
                raise BadUsage(
                    f"{names[each.method]} and {each.typed} are both {each.method!r}: name their"
                    " methods differently."
                )
            names[each.method] = each.typed

    def cells(self) -> list[Cell]:
        """See `Job.cells`."""
        (whole,) = gym_cells((self.model,), (self.task,))
        return [
            Cell(
                f"{whole.name}/{cell_name(each.method)}",
                {**whole.of, "method": each.method},
                whole.name,
                {**whole.typed, "method": each.typed},
            )
            for each in self.given
        ]

    def run(self, cell: Cell, bench: Bench) -> Record:
        """See `Job.run`."""
        begin = time.perf_counter()
        typed = cell.typed["method"]
        (given,) = (each for each in self.given if each.typed == typed)
        model = bench.model(cell.typed["model"], dtype=self.dtype, prepend_bos=self.prepend_bos)
        given_directions(given.folder, self._task.tested, ModelShape.of(model), model.name)
        limits = dict(zip(SPLITS, (self.validation_limit, self.test_limit), strict=True))
        pairs = {
            split: at_most(self._task, model, split, size, self.seed)
            for split, size in limits.items()
        }
        found = measure_directions(
            model,
            pairs,
            given,
            layers=layers_of(self.layers, model.graph.n_layers),
            control=control_labels(self._task.types, self.control_labels or None)
            if given.has_control
            else None,
            seed=self.seed,
            progress=bench.progress,
        )
        chosen = {split: selection(each, model) for split, each in pairs.items()}
        fits = found[given.method].fits[ORIGINAL]
        k = max(fit.directions(site).shape[1] for fit in fits for site in fit.sites)
        about: dict[str, Any] = {
            "seeds": found[given.method].seeds,
            "k": k,
            FEATURES_SHA256: given.sha256,
        }
        record = found.record(
            {
                "model": model_spec(model, cell),
                "task": task_spec(self._task),
                "method": Spec(name=given.method, args=about),
            },
            made_by(model, self.seed, chosen["test"].hash),
            cell=dict(cell.of),
            realised={"seconds": round(time.perf_counter() - begin, 3)},
            data=chosen,
        )
        warnings = [*record.warnings, *_warnings(record, given.method, k)]
        if given.has_control:
            warnings.append(GIVEN_CONTROL)
        return record.changed(warnings=warnings)


def _warnings(record: Record, method: str, k: int) -> Iterator[str]:
    """That a site has several directions, and that they do no more than random ones."""
    if k > 1:
        yield (
            f"{method} exchanges up to {k} directions at a site. Methods have one by default, and"
            " more change more of the vector: compare with methods of as many."
        )
    own, drawn = record.measure(f"{ORIGINAL}_{method}"), best_draw(record)
    if own is not None and own.low <= drawn:
        yield (
            f"{method} is not told apart from as many random directions: its interval begins at"
            f" {own.low:.2f}, and the best of them have {drawn:.2f}."
        )
