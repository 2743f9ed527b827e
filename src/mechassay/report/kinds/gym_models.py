"""Gym tasks over models and checkpoints: accuracy by scale, and how odds come about in training.

Figures 3, 4 and 6 of Arora et al. (2024). A checkpoint is a model whose name has a revision behind
an @; its training step is among the arguments of the record's model. Figures over steps leave out
revisions without one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mechassay.figures import svg
from mechassay.gym.checkpoint_figures import (
    OddsMap,
    Scale,
    brief_number,
    draw_accuracies_by_scale,
    draw_by_scale,
    draw_maps,
)
from mechassay.gym.method_odds import ORIGINAL, SELECTIVITY
from mechassay.gym.published import FAMILIES
from mechassay.gym.task_odds import CELLS
from mechassay.models.revisions import AT
from mechassay.records import Measure, Record
from mechassay.report.page import Block, Fold, Heading, Section, Text
from mechassay.report.page import Figure as PageFigure
from mechassay.stats.intervals import Estimate

MAPS = 8
"""Checkpoints of which a page has maps."""
FIRST = 2
"""Methods whose maps are not folded."""
FEW = 5
"""Tasks with maps of all methods; of more, a page has those of the first methods."""
Place = Callable[[Record], float | None]


def base_of(record: Record) -> str:
    """The model of a record without its revision."""
    revision = record.model.args.get("revision")
    return record.model.name.removesuffix(f"{AT}{revision}") if revision else record.model.name


def step_of(record: Record) -> int | None:
    """The training step of a record's model, if it is known."""
    step = record.model.args.get("step")
    return step if isinstance(step, int) else None


def place_of(record: Record) -> float | None:
    """Where a record's model stands on an axis of steps."""
    step = step_of(record)
    return None if step is None else float(step)


def size_of(record: Record) -> float | None:
    """How many parameters a record's model has, if it is known."""
    size = record.model.args.get("parameters")
    return float(size) if isinstance(size, int) else None


def by_model(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of every model or checkpoint; those of one model by their steps."""
    bases: dict[str, dict[str, list[Record]]] = {}
    for record in records:
        bases.setdefault(base_of(record), {}).setdefault(record.model.name, []).append(record)
    ordered: dict[str, list[Record]] = {}
    for checkpoints in bases.values():
        ordered |= dict(sorted(checkpoints.items(), key=lambda item: _order(item[1][0])))
    return ordered


def _order(record: Record) -> tuple[bool, int]:
    """Steps rise; what has none is the last, as the trained model is."""
    step = step_of(record)
    return step is None, step or 0


def last_checkpoints(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The records of the last checkpoint of every model."""
    last = {base_of(group[0]): group for group in by_model(records).values()}
    return {group[0].model.name: group for group in last.values()}


def checkpoints_of(records: Sequence[Record]) -> dict[str, list[list[Record]]]:
    """Of every model with several checkpoints the records of each, by their steps."""
    found: dict[str, list[list[Record]]] = {}
    for group in by_model(records).values():
        found.setdefault(base_of(group[0]), []).append(group)
    return {base: groups for base, groups in found.items() if len(groups) > 1}


def checkpoint_name(record: Record) -> str:
    """A checkpoint in a figure: its step, or its revision."""
    step = step_of(record)
    return f"step {step:,}" if step is not None else str(record.model.args.get("revision", "last"))


def estimate_of(measure: Measure | None) -> Estimate | None:
    """A measure as an estimate; None if it is not there or undefined."""
    if measure is None or np.isnan(measure.value):
        return None
    return Estimate(measure.value, measure.low, measure.high)


def mean_of_tasks(records: Sequence[Record], name: str) -> float:
    """The mean of a measure over tasks; NaN where one has none."""
    found = [estimate_of(record.measure(name)) for record in records]
    values = [float("nan") if each is None else each.value for each in found]
    return float(np.mean(values)) if values else float("nan")


# Accuracy


def accuracy_sections(records: Sequence[Record]) -> list[Section]:
    """Accuracies of tasks over sizes of models, and over steps of every model; where several."""
    last = [record for group in last_checkpoints(records).values() for record in group]
    blocks: list[Block] = []
    if len({size_of(record) for record in last} - {None}) > 1:
        blocks.append(_accuracies(last, "parameters", size_of, "Accuracy by scale"))
    for base, groups in checkpoints_of(records).items():
        every = [record for group in groups for record in group]
        if len({step_of(record) for record in every} - {None}) > 1:
            title = f"Accuracy over training, {base}"
            blocks.append(_accuracies(every, "training step", place_of, title))
    return [Section("Accuracy by scale and step", tuple(blocks))] if blocks else []


def _accuracies(records: Sequence[Record], axis: Scale, place: Place, title: str) -> PageFigure:
    panels: dict[str, dict[str, list[tuple[float, Estimate]]]] = {}
    families = [*FAMILIES, *(str(record.task.args.get("family", "")) for record in records)]
    for family in dict.fromkeys(families):
        tasks = panels.setdefault(family or "tasks", {})
        for record in records:
            x, found = place(record), estimate_of(record.measure("accuracy"))
            own = str(record.task.args.get("family", ""))
            if own == family and x is not None and found is not None:
                tasks.setdefault(record.task.name, []).append((x, found))
    there = {family: tasks for family, tasks in panels.items() if tasks}
    return PageFigure(
        svg(draw_accuracies_by_scale(there, axis)),
        title=title,
        caption="Bands are 95 % intervals over pairs; the dashed line is guessing.",
        name=title,
        about=f"Accuracy of {sum(map(len, there.values()))} tasks against the {axis}.",
    )


# Odds in training


def training_sections(records: Sequence[Record], methods: Sequence[str]) -> list[Section]:
    """Of every model with several checkpoints: odds by step, and maps of checkpoints."""
    made: list[Section] = []
    for base, groups in checkpoints_of(records).items():
        tasks = dict.fromkeys(record.task.name for group in groups for record in group)
        blocks: list[Block] = []
        if len(tasks) > 1 and (lines := _mean_lines(groups, methods)):
            blocks.append(_by_step(lines, f"Mean odds of {len(tasks)} tasks", base, ""))
        for task in tasks:
            some = [record for group in groups for record in group if record.task.name == task]
            blocks += _of_task(some, task, base, methods, every=len(tasks) <= FEW)
        made.append(Section(f"Over training, {base}", tuple(blocks)))
    return made


def _of_task(
    records: Sequence[Record], task: str, base: str, methods: Sequence[str], *, every: bool
) -> list[Block]:
    """Odds and selectivity by step, and maps: of every method, or of the first ones alone."""
    blocks: list[Block] = [Heading(task)]
    for of, title in ((ORIGINAL, "Odds"), (SELECTIVITY, "Selectivity")):
        lines = _lines(records, methods, of)
        if lines:
            figure = _by_step(lines, f"{title} by training step", base, task)
            blocks.append(figure if of == ORIGINAL else Fold(figure.title, (figure,)))
    shown = _spread(records)
    cells = [record.table(CELLS) for record in shown]
    top = max(float(np.nanmax(np.abs(each.numbers("odds")), initial=1e-9)) for each in cells)
    maps: list[PageFigure] = []
    for method in methods if every else methods[:FIRST]:
        panels: list[OddsMap] = []
        for record, table in zip(shown, cells, strict=True):
            some = table.where(method=method)
            found = record.measure("accuracy")
            told = "" if found is None else f", accuracy {found.value:.2f}"
            layers = [int(x) for x in some.numbers("layer")]
            regions = [str(x) for x in some.columns.get("region", [])]
            values = some.numbers("odds").tolist()
            if layers:
                title = f"{checkpoint_name(record)}{told}"
                panels.append(OddsMap(title, layers, regions, values))
        if panels:
            about = f"{task}, {base}, {method}: mean odds by layer and region, a panel a checkpoint"
            picture, title = svg(draw_maps(panels, top)), f"{method}, by checkpoint"
            maps.append(PageFigure(picture, title=title, name=about, about=about))
    blocks += maps[:FIRST]
    if len(records) > len(shown):
        told = f"Maps are of {len(shown)} of {len(records)} checkpoints; the records have all."
        blocks.append(Text(told, "soft"))
    rest = tuple(maps[FIRST:])
    return [*blocks, *([Fold(f"{task}: maps of the other methods", rest)] if rest else [])]


def _spread(records: Sequence[Record]) -> list[Record]:
    """The first and the last checkpoint, and some between, evenly by their order."""
    n = len(records)
    places = sorted({round(place) for place in np.linspace(0, n - 1, min(n, MAPS))})
    return [records[place] for place in places]


def _lines(
    records: Sequence[Record], methods: Sequence[str], of: str
) -> dict[str, list[tuple[float, Estimate]]]:
    lines: dict[str, list[tuple[float, Estimate]]] = {}
    for method in methods:
        for record in records:
            step, found = place_of(record), estimate_of(record.measure(f"{of}_{method}"))
            if step is not None and found is not None:
                lines.setdefault(method, []).append((step, found))
    return {method: points for method, points in lines.items() if len(points) > 1}


def _mean_lines(
    groups: Sequence[Sequence[Record]], methods: Sequence[str]
) -> dict[str, list[tuple[float, Estimate]]]:
    lines: dict[str, list[tuple[float, Estimate]]] = {}
    for method in methods:
        for group in groups:
            step, mean = place_of(group[0]), mean_of_tasks(group, f"{ORIGINAL}_{method}")
            if step is not None and not np.isnan(mean):
                lines.setdefault(method, []).append((step, Estimate(mean)))
    return {method: points for method, points in lines.items() if len(points) > 1}


def _by_step(
    lines: Mapping[str, Sequence[tuple[float, Estimate]]], title: str, base: str, task: str
) -> PageFigure:
    steps = sorted({x for points in lines.values() for x, _ in points})
    where = ", ".join(filter(None, (task, base)))
    span = f"{len(steps)} checkpoints, step {brief_number(steps[0])} to {brief_number(steps[-1])}"
    figure = draw_by_scale(lines, "log odds-ratio, nats", "training step")
    return PageFigure(svg(figure), title=title, name=title, about=f"{where}: {title}, {span}.")
