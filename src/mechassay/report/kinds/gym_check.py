"""Accuracy on gym tasks: a row a task, a column a model; by scale and step where there are several.

Tasks that a model does no better than 60 % are grey, as published; of several models a row is grey
if that is so for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechassay.figures import svg
from mechassay.gym.behaviour import ACCURACY_SAYS, LEAST_ACCURACY
from mechassay.interventions.heat_map import draw_points
from mechassay.records import Failure, Record
from mechassay.report.kinds.gym_models import (
    accuracy_sections,
    base_of,
    by_model,
    checkpoint_name,
    checkpoints_of,
    estimate_of,
    last_checkpoints,
)
from mechassay.report.page import Block, Page, Section, Terms, Text
from mechassay.report.page import Figure as PageFigure
from mechassay.report.sections import (
    all_numbers,
    facts_section,
    failures_table,
    measured,
    opening,
    values_section,
)
from mechassay.report.tables import Column, Row, TextTable
from mechassay.stats.intervals import Estimate

READING = {
    "Accuracy": f"{ACCURACY_SAYS} Brackets are 95 % intervals over pairs of sentences.",
    "By type": (
        "A model that says the same label after every sentence is right in half of them: then one"
        " type has an accuracy of 1 and the other one of 0."
    ),
    "Dropped": (
        "Sentences of pairs that were left out while the others were drawn, because a label is not"
        " one token there."
    ),
}


class GymCheckPage(Page):
    """Accuracy of models on gym tasks."""

    def title(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> str:
        """What the page is called."""
        return "Accuracy on gym tasks"

    def tables(
        self, records: Sequence[Record], failures: Sequence[Failure] = ()
    ) -> list[TextTable]:
        """A row a task, a column a model."""
        groups = by_model(records)
        tasks = dict.fromkeys(record.task.name for record in records)
        found = {
            task: [
                next((record for record in some if record.task.name == task), None)
                for some in groups.values()
            ]
            for task in tasks
        }
        alone = len(groups) == 1
        rows = [_row(task, row, alone) for task, row in found.items()]
        if len(tasks) > 1:
            for name, says in (("average", _average), ("tasks above 60 %", _above)):
                rows.append(Row((name, "", "", "", *map(says, groups.values()), *[""] * alone)))
        numbers = map(Column, ("sentences", "dropped", *groups))
        types = (Column("by type", False, optional=1),) if alone else ()
        columns = (Column("task", False), Column("family", False, optional=2), *numbers, *types)
        caption = "Grey: at most 60 %." if alone else "Grey: at most 60 % in every model."
        made = [TextTable("Accuracy", columns, tuple(rows), caption)] if rows else []
        return [*made, *failures_table(failures, "task")]

    def sections(
        self,
        records: Sequence[Record],
        failures: Sequence[Failure] = (),
        drawings: Sequence[object] = (),
    ) -> list[Section]:
        """What was found in words, the table, figures, how to read them, facts and values."""
        groups = by_model(records)
        said: list[Block] = [Text(text, "verdict") for text in _verdicts(records)]
        shown: list[Block] = list(self.tables(records, failures))
        if len(groups) == 1:
            about = "Accuracy of each task with its interval; the table has the numbers."
            shown.insert(0, PageFigure(svg(_draw(records)), name="Accuracy", about=about))
        return [
            opening(records, said, failures),
            Section("Accuracy", tuple(shown)),
            *accuracy_sections(records),
            Section("How to read this", (Terms(READING),)),
            *facts_section([group[0] for group in groups.values()]),
            *values_section(records),
            *all_numbers(records),
        ]

    def draw(self, record: Record, ax: Axes | None = None) -> Figure:
        """The accuracy of one task."""
        return _draw([record], ax)


def _draw(records: Sequence[Record], ax: Axes | None = None) -> Figure:
    """The tasks of one model."""
    found = [estimate_of(record.measure("accuracy")) for record in records]
    points = [each or Estimate(float("nan")) for each in found]
    tasks = [record.task.name for record in records]
    return draw_points({records[0].model.name: points}, tasks, "accuracy", ax=ax)


def _verdicts(records: Sequence[Record]) -> list[str]:
    """How many tasks each model does, and at its first and last checkpoint."""
    checkpoints = checkpoints_of(records)
    said: list[str] = []
    for model, some in last_checkpoints(records).items():
        groups = checkpoints.get(base_of(some[0]))
        if not groups:
            said.append(
                f"{model} does {_above(some)} tasks better than 60 %; its mean accuracy is"
                f" {_average(some)}."
            )
            continue
        ends = (groups[0], groups[-1])
        names = " to ".join(checkpoint_name(group[0]) for group in ends)
        tasks, means = (" to ".join(map(says, ends)) for says in (_above, _average))
        said.append(
            f"{base_of(some[0])}, {len(groups)} checkpoints, {names}: it does {tasks} tasks better"
            f" than 60 %; its mean accuracy goes from {means}."
        )
    return said


def _row(task: str, found: Sequence[Record | None], alone: bool) -> Row:
    there = [record for record in found if record is not None]
    values = [measured(None if record is None else record.measure("accuracy")) for record in found]
    sizes = dict.fromkeys(f"{record.n:,}" for record in there)
    dropped = dict.fromkeys(f"{_dropped(record):,}" for record in there)
    types = [_by_type(there[0])] if alone else []
    counts = (" / ".join(each) for each in (sizes, dropped))
    cells = (task, str(there[0].task.args.get("family", "")), *counts, *values, *types)
    grey = all(_accuracy(record) <= LEAST_ACCURACY for record in there)
    return Row(cells, "control" if grey else "")


def _by_type(record: Record) -> str:
    rows = record.table("types").rows()[1:]
    return ", ".join(f"{row['type']} {float(row['accuracy'] or 0):.2f}" for row in rows)


def _dropped(record: Record) -> int:
    return sum(count for chosen in record.data.values() for count in chosen.dropped.values())


def _accuracy(record: Record) -> float:
    found = estimate_of(record.measure("accuracy"))
    return float("nan") if found is None else found.value


def _average(records: Sequence[Record]) -> str:
    return f"{np.mean([_accuracy(record) for record in records]):.2f}"


def _above(records: Sequence[Record]) -> str:
    return f"{sum(_accuracy(record) > LEAST_ACCURACY for record in records)} of {len(records)}"
