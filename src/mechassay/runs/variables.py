"""Where causal variables live in models, as a run: a cell is one variable with one featurizer.

The cells of one model and task share the examples that the model answers, those of one variable the
labelled pairs and the accuracies of whole vectors (`variables_study`). A ground truth runs on its
own task, with all hypotheses about it, right and wrong ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from mechassay.errors import BadUsage, one_of
from mechassay.interventions.site import PARTS
from mechassay.models.model import check_dtype
from mechassay.records import Record
from mechassay.runs.job import Bench, Cell, Job, cell_name
from mechassay.runs.layers import MANY, layers_of
from mechassay.runs.names import shown_model
from mechassay.runs.own_tasks import check_tasks, own_task_notes, tasks_of
from mechassay.runs.variables_plan import VARIABLE_CONTROLS, VariablesPlan
from mechassay.runs.variables_study import VariableStudy
from mechassay.tasks.task import PRIVATE
from mechassay.variables.featurizers import FEATURIZERS, PROFILES


@dataclass(frozen=True)
class VariablesJob(VariablesPlan, Job):
    """Look for causal variables in models: for each variable and featurizer the site that is best
    on validation pairs, its interchange intervention accuracy on test pairs, and controls.
    """

    kind: ClassVar[str] = "variables"
    for_boards: ClassVar[bool] = True
    grows: ClassVar[tuple[str, ...]] = ("models", "tasks", "variables", "featurizers")

    def check(self, bench: Bench) -> None:
        """See `Job.check`."""
        check_dtype(self.dtype)
        one_of("part of a site", self.part, PARTS)
        one_of("profile of featurizers", self.profile, PROFILES)
        one_of("split to report on", self.test_split, ("test", PRIVATE))
        for featurizer in self.featurizers:
            one_of("featurizer", featurizer, FEATURIZERS)
        for control in self.controls:
            one_of("control", control, VARIABLE_CONTROLS)
        if not self.featurizers:
            raise BadUsage("Name a featurizer: there is nothing to do.")
        layers_of(self.layers, MANY)
        if any(k < 1 for k in self.ks):
            raise BadUsage(f"k is 1 or more; got {min(self.ks)}.")
        if "dbm+sae" in self.featurizers and not self.saes:
            raise BadUsage("The featurizer dbm+sae needs --saes, a folder with an SAE a site.")
        for task in self.tasks:
            bench.task(task)
        check_tasks(self.models, self.tasks)
        for model in self.models:
            for task in tasks_of(model, self.tasks):
                self.variables_of(task)

    def notes(self) -> Sequence[str]:
        """See `Job.notes`: ground truths have tasks of their own."""
        return own_task_notes(self.models, self.tasks)

    def cells(self) -> list[Cell]:
        """See `Job.cells`."""
        return [
            Cell(
                f"{group}/{cell_name(variable, featurizer)}",
                {
                    "model": shown_model(model),
                    "task": task,
                    "variable": variable,
                    "featurizer": featurizer,
                },
                group,
                {"model": model},
            )
            for model in self.models
            for task in tasks_of(model, self.tasks)
            for group in [cell_name(model, task)]
            for variable in self.variables_of(task)
            for featurizer in self.featurizers
        ]

    def run(self, cell: Cell, bench: Bench) -> Record:
        """See `Job.run`."""
        study = bench.shared("study", lambda: VariableStudy(self, bench, cell))
        return study.record(cell)
