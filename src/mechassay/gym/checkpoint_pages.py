"""Gym tasks over models and checkpoints: accuracy by scale and step, and odds during training.

The figures are those of figures 3, 4 and 6 of Arora et al. (2024). A checkpoint is a model whose
name has a revision behind an @; its training step is among the arguments of the record's model.
Figures over steps leave out revisions without a step. Steps stand on a logarithmic axis, on
which step 0 has a place left of the first step.

The table of accuracies has a row a task and a column a model. Tasks that a model does no better
than 60 % are grey, as published; of several models a row is grey if that is so for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from mechassay.gym.names import FAMILIES, in_words
from mechassay.gym.task_accuracy import LEAST_ACCURACY
from mechassay.gym.task_odds import CELLS, EXAMPLE, ORIGINAL, RIGHT, SELECTIVITY
from mechassay.interventions.heatmap import as_grid, look_of_line
from mechassay.models.sources import AT
from mechassay.results.measures import measure_texts
from mechassay.results.page import (
    Block,
    Column,
    Fold,
    Page,
    Report,
    Row,
    Section,
    Text,
    TextTable,
)
from mechassay.results.page import Figure as PageFigure
from mechassay.results.plots import GREY, INK, SETTINGS, SIZE, Picture, draw_points
from mechassay.results.reading import means
from mechassay.results.records import Measure, Record, estimate_of
from mechassay.results.sections import facts_section, failures_table, framed, measured
from mechassay.stats.intervals import Estimate
from mechassay.utils.display import shortened

Scale = Literal["training step", "parameters"]
Points = Sequence[tuple[float, Estimate]]
AXIS = 28
"""Characters of a region and its example on the axis of a heat map."""
ACROSS = 4
"""Panels beside each other at most."""
TICKS = 8
"""Ticks of an axis at most."""
APART = 0.055
"""Nearest that two ticks with names stand, as a share of the axis."""


@dataclass(frozen=True)
class OddsMap:
    """Mean odds of cells: one panel of `draw_maps`; NaN is grey."""

    title: str
    layers: Sequence[int]
    regions: Sequence[str]
    values: Sequence[float]


def places_of(record: Record) -> dict[str, str]:
    """What the axis of a heat map calls regions: each with what an example pair has there, base and
    source, as in figures 4 to 6 of Arora et al. (2024).
    """
    if not record.has_table(EXAMPLE):
        return {}
    names: dict[str, str] = {}
    for row in record.table(EXAMPLE).rows():
        texts = dict.fromkeys((str(row["base"]), str(row["source"])))
        names[str(row["region"])] = f"{row['region']}: {'/'.join(texts)}"
    return names


def draw_by_scale(
    lines: Mapping[str, Points], title: str, axis: Scale, *, ax: Axes | None = None
) -> Figure:
    """Draw estimates with intervals over steps or sizes, a line for each name.

    Args:
        title: of the vertical axis.
    """
    with rc_context(SETTINGS):
        figure: Any = Picture(figsize=(7.4, 4.0), layout="constrained") if ax is None else ax.figure
        ax = figure.subplots() if ax is None else ax
        assert ax is not None
        for number, (name, points) in enumerate(lines.items()):
            _line(ax, points, look_of_line(number), name)
        _scale(ax, [x for points in lines.values() for x, _ in points], axis)
        ax.set_ylabel(title, color=INK)
        ax.spines[["top", "right"]].set_visible(False)
        ax.axhline(0, color=GREY, lw=0.8, ls=":", zorder=1)
        if len(lines) > 1:
            where: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5)}
            ax.legend(frameon=False, labelcolor=INK, fontsize=SIZE - 1, **where)
        return figure


def draw_accuracies_by_scale(
    panels: Mapping[str, Mapping[str, Points]], axis: Scale, *, ax: Axes | None = None
) -> Figure:
    """Draw accuracies over steps or sizes: a panel each family, a line each task.

    Guessing (50 %) is dashed. On `ax` if given, which then has the first panel alone.
    """
    with rc_context(SETTINGS):
        n = len(panels) if ax is None else 1
        across = min(3, n)
        rows = -(-n // across)
        size = (3.2 * across + 0.6, 2.9 * rows + 0.3)
        figure: Any = Picture(figsize=size, layout="constrained") if ax is None else ax.figure
        places: Any = (
            figure.subplots(rows, across, squeeze=False, sharey=True).ravel()
            if ax is None
            else np.array([ax])
        )
        every = [x for tasks in panels.values() for points in tasks.values() for x, _ in points]
        for place, (family, tasks) in zip(places, panels.items(), strict=False):
            for number, (task, points) in enumerate(tasks.items()):
                _line(place, points, look_of_line(number), shortened(task, 26))
            place.axhline(0.5, color=GREY, lw=1, ls="--", zorder=1)
            place.set_ylim(-0.03, 1.03)
            _scale(place, every, axis)
            place.set_title(family, fontsize=SIZE, loc="left", color=INK)
            place.spines[["top", "right"]].set_visible(False)
            place.legend(frameon=False, labelcolor=INK, fontsize=SIZE - 4, loc="lower right")
        for place in places[::across]:
            place.set_ylabel("accuracy", color=INK)
        for place in places[n:]:
            place.set_visible(False)
        return figure


def draw_maps(maps: Sequence[OddsMap], top: float) -> Figure:
    """Draw heat maps of layers and regions side by side, on one scale of -top to top nats."""
    with rc_context(SETTINGS):
        rows = -(-len(maps) // ACROSS)
        across = -(-len(maps) // rows)
        columns = max(len(set(odds_map.regions)) for odds_map in maps)
        height = max(len(set(odds_map.layers)) for odds_map in maps)
        wide = min(max(1.5, 0.2 * columns + 0.3), 2.6)
        size = (wide * across + 1.6, rows * (0.6 + max(1.2, 0.11 * height)) + 1.1)
        figure = Picture(figsize=size, layout="constrained")
        places: Any = figure.subplots(rows, across, squeeze=False, sharex=True, sharey=True)
        cmap = colormaps["RdBu_r"].with_extremes(bad="#d9d9d9")
        image: Any = None
        for place, odds_map in zip(places.ravel(), maps, strict=False):
            cells, layers, regions = as_grid(odds_map.layers, odds_map.regions, odds_map.values)
            image = place.imshow(
                np.ma.masked_invalid(cells),
                cmap=cmap,
                vmin=-top,
                vmax=top,
                aspect="auto",
                origin="lower",
                interpolation="nearest",
            )
            place.set_title(odds_map.title, fontsize=SIZE - 1.5, loc="left", color=INK)
            place.title.set_parse_math(False)
            labels = [f" {shortened(name, AXIS)}" for name in regions]
            look: dict[str, Any] = {"rotation": 60, "ha": "right", "rotation_mode": "anchor"}
            place.set_xticks(range(len(regions)), labels, fontsize=SIZE - 3, **look)
            step = max(1, -(-len(layers) // 8))
            ticks = range(0, len(layers), step)
            place.set_yticks(ticks, [str(layers[i]) for i in ticks], fontsize=SIZE - 3)
            place.spines[:].set_color(GREY)
            place.tick_params(length=2, colors=GREY, labelcolor=INK)
            for text in place.get_xticklabels():
                text.set_parse_math(False)
        for row in places:
            row[0].set_ylabel("layer", color=INK)
        for number in range(len(maps), places.size):
            places.ravel()[number].set_visible(False)
            # The panel above has no neighbour below that carries the names of regions.
            places.ravel()[number - across].tick_params(labelbottom=True)
        bar = figure.colorbar(image, ax=places.ravel().tolist(), shrink=0.7, pad=0.02, aspect=24)
        bar.set_label("log odds-ratio, nats", color=INK)
        bar.ax.tick_params(colors=INK)
        return figure


def _line(ax: Axes, points: Points, look: Mapping[str, Any], name: str) -> None:
    some = sorted(points, key=lambda point: point[0])
    x = [place for place, _ in some]
    values = np.array([[e.value, e.low, e.high] for _, e in some]).T
    ax.plot(x, values[0], **look, label=f" {name}")
    ax.fill_between(x, values[1], values[2], color=look["color"], alpha=0.15, linewidth=0)


def _scale(ax: Axes, every: Sequence[float], axis: Scale) -> None:
    """A logarithmic axis with a place for step 0, and names of what there is."""
    values = sorted(set(every))
    positive = [x for x in values if x > 0] or [1.0]
    if values[0] > 0:
        ax.set_xscale("log")
        ax.set_xlim(positive[0] / 1.3, positive[-1] * 1.3)
    else:
        # From 0 to the first step is as far as a factor of ten; at least as far as to the next.
        ax.set_xscale("symlog", linthresh=positive[0], linscale=0.6)
        ax.set_xlim(-0.12 * positive[0], positive[-1] * 1.3)
    ax.xaxis.set_major_locator(FixedLocator(_apart(ax, values)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: brief_number(float(x))))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel(axis, color=INK)
    ax.tick_params(labelsize=SIZE - 2)


def _apart(ax: Axes, values: Sequence[float]) -> list[float]:
    """The values whose names have room beside each other: the last one, and those before it."""
    transform = ax.get_xaxis_transform() + ax.transAxes.inverted()
    kept: list[float] = []
    places: list[float] = []
    for x in reversed(values):
        place = float(transform.transform((x, 0.0))[0])
        if not places or places[-1] - place > max(APART, 1 / (2 * TICKS)):
            kept.append(x)
            places.append(place)
    return kept[::-1]


def brief_number(x: float) -> str:
    """A step or a number of parameters in few letters: 512, 10k, 1.4B."""
    for size, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(x) >= size:
            return f"{x / size:.3g}{letter}"
    return f"{x:g}"


MAPS = 8
"""Checkpoints of which a page has maps."""
FIRST = 2
FEW = 5
"""Tasks with maps of all methods; of more, a page has those of the first ones (`FIRST`)."""
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
    columns: dict[str, list[list[Record]]] = {}
    for group in by_model(records).values():
        columns.setdefault(base_of(group[0]), []).append(group)
    return {base: groups for base, groups in columns.items() if len(groups) > 1}


def checkpoint_name(record: Record) -> str:
    """A checkpoint in a figure: its step, or its revision."""
    step = step_of(record)
    return f"step {step:,}" if step is not None else str(record.model.args.get("revision", "last"))


def mean_of_tasks(records: Sequence[Record], name: str) -> float:
    """The mean of a measure over tasks; NaN where one has none."""
    values = [record.value(name) for record in records]
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
            x, accuracy = place(record), estimate_of(record.measure("accuracy"))
            own = str(record.task.args.get("family", ""))
            if own == family and x is not None and not np.isnan(accuracy.value):
                tasks.setdefault(record.task.name, []).append((x, accuracy))
    there = {family: tasks for family, tasks in panels.items() if tasks}
    return PageFigure(
        draw_accuracies_by_scale(there, axis),
        title=title,
        caption="Bands are 95 % intervals over pairs; the dashed line is guessing.",
        name=title,
        about=f"Accuracy of {sum(map(len, there.values()))} tasks against the {axis}.",
    )


# Odds in training


def training_figures(records: Sequence[Record], methods: Sequence[str]) -> list[PageFigure]:
    """Of every model with several checkpoints the odds by step: of its task, or the mean of all."""
    made: list[PageFigure] = []
    for base, groups in checkpoints_of(records).items():
        tasks = list(dict.fromkeys(record.task.name for group in groups for record in group))
        if lines := _mean_lines(groups, methods):
            title = (
                "Odds by training step" if len(tasks) == 1 else f"Mean odds of {len(tasks)} tasks"
            )
            made.append(_by_step(lines, title, base, tasks[0] if len(tasks) == 1 else ""))
    return made


def training_folds(records: Sequence[Record], methods: Sequence[str]) -> list[Fold]:
    """Of every model with several checkpoints: the mean of its tasks, and each task."""
    made: list[Fold] = []
    for base, groups in checkpoints_of(records).items():
        tasks = dict.fromkeys(record.task.name for group in groups for record in group)
        if len(tasks) > 1 and (lines := _mean_lines(groups, methods)):
            figure = _by_step(lines, f"Mean odds of {len(tasks)} tasks", base, "")
            made.append(Fold(f"Over training, {base}: {figure.title}", (figure,)))
        for task in tasks:
            some = [record for group in groups for record in group if record.task.name == task]
            blocks = tuple(_of_task(some, task, base, methods, every=len(tasks) <= FEW))
            made += [Fold(f"Over training, {base}: {task}", blocks)] if blocks else []
    return made


def _of_task(
    records: Sequence[Record], task: str, base: str, methods: Sequence[str], *, every: bool
) -> Iterator[Block]:
    """Odds and selectivity by step, and maps: of every method, or of the first ones alone."""
    for of, title in ((ORIGINAL, "Odds"), (SELECTIVITY, "Selectivity")):
        if lines := _lines(records, methods, of):
            yield _by_step(lines, f"{title} by training step", base, task)
    # The first and the last checkpoint, and some between, evenly by their order.
    n = len(records)
    kept = sorted({round(place) for place in np.linspace(0, n - 1, min(n, MAPS))})
    chosen = [records[place] for place in kept]
    cells = [record.table(CELLS) for record in chosen]
    top = max(float(np.nanmax(np.abs(cell.numbers("odds")), initial=1e-9)) for cell in cells)
    for method in methods if every else methods[:FIRST]:
        panels: list[OddsMap] = []
        for record, table in zip(chosen, cells, strict=True):
            some = table.where(method=method)
            accuracy = record.measure("accuracy")
            text = "" if accuracy is None else f", accuracy {accuracy.value:.2f}"
            layers = [int(x) for x in some.numbers("layer")]
            regions = [str(x) for x in some.columns.get("region", [])]
            values = some.numbers("odds").tolist()
            if layers:
                title = f"{checkpoint_name(record)}{text}"
                names = places_of(record)
                places = [names.get(region, region) for region in regions]
                panels.append(OddsMap(title, layers, places, values))
        if panels:
            name = in_words(method)
            about = f"{task}, {base}, {name}: mean odds by layer and region, a panel a checkpoint"
            picture, title = draw_maps(panels, top), f"{name}, by checkpoint"
            yield PageFigure(picture, title=title, name=about, about=about)
    if len(records) > len(chosen):
        text = f"Maps are of {len(chosen)} of {len(records)} checkpoints; the records have all."
        yield Text(text, "soft")


def _lines(
    records: Sequence[Record], methods: Sequence[str], of: str
) -> dict[str, list[tuple[float, Estimate]]]:
    lines: dict[str, list[tuple[float, Estimate]]] = {}
    for method in methods:
        for record in records:
            step, odds = place_of(record), estimate_of(record.measure(f"{of}_{method}"))
            if step is not None and not np.isnan(odds.value):
                lines.setdefault(method, []).append((step, odds))
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
    named = {in_words(method): points for method, points in lines.items()}
    figure = draw_by_scale(named, "log odds-ratio, nats", "training step")
    return PageFigure(figure, title=title, name=title, about=f"{where}: {title}, {span}.")


READING = {
    "Accuracy": (
        f"{measure_texts('gym').by_name['accuracy'].meaning} Brackets are 95 % intervals over pairs"
        " of sentences."
    ),
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

    def title(self, report: Report) -> str:
        return "Accuracy on gym tasks"

    def tables(self, report: Report) -> list[TextTable]:
        """A row a task, a column a model."""
        groups = by_model(report.records)
        tasks = dict.fromkeys(record.task.name for record in report.records)
        by_task = {
            task: [
                next((record for record in some if record.task.name == task), None)
                for some in groups.values()
            ]
            for task in tasks
        }
        alone = len(groups) == 1
        rows = [_row(task, row, alone) for task, row in by_task.items()]
        if len(tasks) > 1:
            for name, says in (("average", _average), ("tasks above 60 %", _above)):
                rows.append(Row((name, "", "", "", *map(says, groups.values()), *[""] * alone)))
        numbers = map(Column, ("sentences", "dropped", *groups))
        types = (Column("by type", False, optional=1),) if alone else ()
        columns = (Column("task", False), Column("family", False, optional=2), *numbers, *types)
        caption = "Grey: at most 60 %." if alone else "Grey: at most 60 % in every model."
        made = [TextTable("Accuracy", columns, tuple(rows), caption)] if rows else []
        return [*made, *failures_table(report.failures, "task")]

    def sections(self, report: Report) -> list[Section]:
        """What was found in words, the table, figures, how to read them, facts and values."""
        records = report.records
        groups = by_model(records)
        blocks: list[Block] = [Text(text, "verdict") for text in _verdicts(records)]
        about = "Accuracy of each task with its interval; the table has the numbers."
        alone = len(groups) == 1
        return framed(
            report,
            blocks,
            [Section("Accuracy", tuple(self.tables(report)))],
            figure=[PageFigure(_draw(records), name="Accuracy", about=about)] if alone else [],
            folded=accuracy_sections(records),
            reading=READING,
            facts=facts_section([group[0] for group in groups.values()]),
        )

    def draw(self, record: Record, ax: Axes | None = None) -> Figure:
        """The accuracy of one task."""
        return _draw([record], ax)

    def recomputed(self, record: Record) -> list[Measure]:
        """The accuracy."""
        return list(means(record, {"accuracy": RIGHT}))


def _draw(records: Sequence[Record], ax: Axes | None = None) -> Figure:
    """The tasks of one model."""
    points = [estimate_of(record.measure("accuracy")) for record in records]
    tasks = [record.task.name for record in records]
    return draw_points({records[0].model.name: points}, tasks, "accuracy", ax=ax)


def _verdicts(records: Sequence[Record]) -> list[str]:
    """How many tasks each model does, and at its first and last checkpoint."""
    checkpoints = checkpoints_of(records)
    sentences: list[str] = []
    for model, some in last_checkpoints(records).items():
        groups = checkpoints.get(base_of(some[0]))
        if not groups:
            # A task of a few sentences is never above 60 % with its whole interval.
            lows = [estimate_of(record.measure("accuracy")).low for record in some]
            surely = sum(low > LEAST_ACCURACY for low in lows)
            sizes = sorted({record.n for record in some})
            n = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
            sentences.append(
                f"{model} does {_above(some)} tasks better than 60 %, {surely} of them with their"
                f" whole 95 % interval; its mean accuracy is {_average(some)}, on {n} test"
                " sentences of each."
            )
            continue
        ends = (groups[0], groups[-1])
        names = " to ".join(checkpoint_name(group[0]) for group in ends)
        tasks, means = (" to ".join(map(says, ends)) for says in (_above, _average))
        sentences.append(
            f"{base_of(some[0])}, {len(groups)} checkpoints, {names}: it does {tasks} tasks better"
            f" than 60 %; its mean accuracy goes from {means}."
        )
    return sentences


def _row(task: str, records: Sequence[Record | None], alone: bool) -> Row:
    there = [record for record in records if record is not None]
    values = [
        measured(None if record is None else record.measure("accuracy")) for record in records
    ]
    sizes = dict.fromkeys(f"{record.n:,}" for record in there)
    dropped = dict.fromkeys(f"{_dropped(record):,}" for record in there)
    types = [_by_type(there[0])] if alone else []
    counts = (" / ".join(numbers) for numbers in (sizes, dropped))
    cells = (task, str(there[0].task.args.get("family", "")), *counts, *values, *types)
    grey = all(_accuracy(record) <= LEAST_ACCURACY for record in there)
    return Row(cells, "control" if grey else "")


def _by_type(record: Record) -> str:
    rows = record.table("types").rows()[1:]
    return ", ".join(f"{row['type']} {float(row['accuracy'] or 0):.2f}" for row in rows)


def _dropped(record: Record) -> int:
    return sum(count for chosen in record.data.values() for count in chosen.dropped.values())


def _accuracy(record: Record) -> float:
    return record.value("accuracy")


def _average(records: Sequence[Record]) -> str:
    return f"{np.mean([_accuracy(record) for record in records]):.2f}"


def _above(records: Sequence[Record]) -> str:
    return f"{sum(_accuracy(record) > LEAST_ACCURACY for record in records)} of {len(records)}"
