"""Pages on gym tasks: methods beside their controls, and directions of others.

A page begins with the best method of each model beside its own control (`gym.verdicts`), one
figure, a row a method with its controls, and of several tasks a row a task. All else is folded:
tables in the form of the paper's (`gym.paper_tables`), heat maps by layer and region, and what
came over training. Tables of sweeps are not, where those were run.

Of a model with several checkpoints the page has the tables of the last one. Rows of tasks that a
model does no better than 60 % are grey, as published.

Directions that others found stand beside the whole vector and random directions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure

from mechassay.gym.checkpoint_pages import (
    OddsMap,
    accuracy_sections,
    base_of,
    by_model,
    checkpoint_name,
    checkpoints_of,
    draw_maps,
    last_checkpoints,
    mean_of_tasks,
    places_of,
    training_figures,
    training_folds,
)
from mechassay.gym.directions import best_draw
from mechassay.gym.log_odds import draw_layers, draw_odds
from mechassay.gym.names import RANDOM, VANILLA, in_words
from mechassay.gym.paper_tables import (
    INTERVALS,
    MEANS,
    READING,
    by_tasks,
    chosen_table,
    indices,
    main_methods,
    means_table,
    rules_table,
    sweep_sections,
    untrained_table,
)
from mechassay.gym.task_accuracy import LEAST_ACCURACY
from mechassay.gym.task_odds import (
    CELLS,
    CONTROL,
    ORIGINAL,
    RANDOM_DIRECTIONS,
    RIGHT,
    SELECTIVITY,
    UNTRAINED,
    WHOLE_VECTOR,
)
from mechassay.gym.verdicts import Beside, done, methods_of, ranked, sentences, value_of
from mechassay.results.page import (
    Block,
    Column,
    Figure,
    Fold,
    Page,
    Report,
    Row,
    RowKind,
    Section,
    Text,
    TextTable,
)
from mechassay.results.plots import draw_points
from mechassay.results.reading import means
from mechassay.results.records import Measure, Record, estimate_of
from mechassay.results.sections import (
    LONG,
    facts_section,
    failures_table,
    framed,
    measured,
    stored_table,
)
from mechassay.stats.intervals import Estimate


class GymPage(Page):
    """Odds of methods on gym tasks, beside those of controls."""

    def title(self, report: Report) -> str:
        tasks = list(dict.fromkeys(record.task.name for record in report.records))
        names = ", ".join(tasks) if len(tasks) < 4 else f"{len(tasks)} tasks"
        return f"Gym tasks{f': {names}' if tasks else ''}{indices(report.records)}"

    def tables(self, report: Report) -> list[TextTable]:
        """Methods beside their controls, tasks, and sweeps, at the last checkpoint of every model;
        what failed.
        """
        last = last_checkpoints(report.records)
        parts = sweep_sections(by_model(report.records))
        sweeps = [table for part in parts for table in _tables_in(part)]
        main = [*_methods_table(last), *_tasks_table(last)]
        return [*main, *sweeps, *failures_table(report.failures, "task")]

    def sections(self, report: Report) -> list[Section]:
        """What was found in words; a figure, methods beside controls, tasks; all else folded."""
        records = report.records
        every, last = by_model(records), last_checkpoints(records)
        methods, tasks = _methods_table(last), _tasks_table(last)
        blocks: list[Block] = [*methods]
        blocks += [
            Fold(table.title, (table,), in_markdown=True)
            if len(last) > 1 or len(table.rows) > LONG
            else table
            for table in tasks
        ]
        failed = tuple(failures_table(report.failures, "task"))
        return framed(
            report,
            _verdict_blocks(records),
            [
                *([Section("Methods beside their controls", tuple(blocks))] if blocks else []),
                *sweep_sections(every),
                *([Section("Failures", failed)] if failed else []),
            ],
            figure=_headline_figure(records),
            folded=list(_folds(records)),
            reading=READING,
            facts=facts_section([group[0] for group in every.values()]),
        )

    def draw(self, record: Record, ax: Axes | None = None) -> MatplotlibFigure:
        """The heat map of a record's first method."""
        first = _map(record, methods_of(record)[0])
        return draw_odds(first.layers, first.regions, first.values, title=first.title, ax=ax)

    def recomputed(self, record: Record) -> list[Measure]:
        """The accuracy; the odds of methods and their controls, and their differences."""
        names = record.values.columns if record.values else ()
        odds = {f"{ORIGINAL}_{name}": name for name in names if name != RIGHT}
        return list(means(record, {"accuracy": RIGHT, **odds}))


def _tables_in(section: Section) -> list[TextTable]:
    return [block for block in section.blocks if isinstance(block, TextTable)]


def _verdict_blocks(records: Sequence[Record]) -> list[Block]:
    """Of every model its first sentence, what may mislead in it, and how far training went."""
    blocks: list[Block] = []
    checkpoints = checkpoints_of(records)
    for some in last_checkpoints(records).values():
        first, *more = sentences(some)
        blocks.append(Text(first, "verdict"))
        if groups := checkpoints.get(base_of(some[0])):
            more.append(_of_training(groups))
        blocks += [Text(" ".join(more))] if more else []
    return blocks


def _of_training(groups: Sequence[Sequence[Record]]) -> str:
    """From the first checkpoint to the last one, in words."""
    ends = (groups[0], groups[-1])
    names = " to ".join(checkpoint_name(some[0]) for some in ends)
    best = ranked(done(groups[-1]))
    accuracy, odds = (
        " to ".join(f"{mean_of_tasks(some, name):.2f}" for some in ends)
        for name in ("accuracy", f"{ORIGINAL}_{best[0].method if best else ''}")
    )
    odds_text = f", and the mean odds of {best[0].name} from {odds}" if best else ""
    return (
        f"Over {len(groups)} checkpoints, {names}, the mean accuracy of all tasks goes from"
        f" {accuracy}{odds_text}."
    )


def _methods_table(last: Mapping[str, Sequence[Record]]) -> list[TextTable]:
    """A row a model and method, the best first: its odds beside those of its controls."""
    rows: list[list[str]] = []
    kinds: list[RowKind] = []
    several = any(len(records) > 1 for records in last.values())
    for model, records in last.items():
        some = done(records)
        ranking = ranked(some)
        controls = [Beside(name, some) for name in (RANDOM, VANILLA)]
        for method in (
            *ranking,
            *(control for control in controls if not math.isnan(control.mean())),
        ):
            rows.append([model, method.name, *_beside(method, counted=several)])
            kinds.append("" if method in ranking else "control")
    labels = "better in tasks" if several else "less shuffled"
    headings = ("odds", "shuffled labels", labels, "control labels", "selectivity", "untrained")
    headings = (*headings, "tells types apart")
    numbers = tuple(map(Column, headings))
    texts = (Column("model", False), Column("method", False))
    columns = (*texts, *numbers, Column("loss still falls", False, optional=1))
    counted = [f"{len(done(some))} of {len(some)} tasks" for some in last.values()]
    every = [record for records in last.values() for record in records]
    over = f"Means over tasks that are done better than 60 %, {', '.join(counted)}"
    note = f"{over}. {MEANS}" if several else INTERVALS
    caption = f"Nats; {_items(every)}; the best method first. Grey: controls. {note}"
    where = {(record.task.name if not several else "", record.model.name) for record in every}
    one = f", {', '.join(filter(None, where.pop()))}" if len(where) == 1 else ""
    title = f"Odds beside those of controls{one}{indices(every)}"
    return [_without_empty(title, columns, rows, kinds, caption)] if rows else []


def _items(records: Sequence[Record]) -> str:
    sizes = sorted({record.n for record in records})
    return f"{' to '.join(map(str, sizes[:1] + sizes[1:][-1:]))} test items of a task"


def _beside(method: Beside, *, counted: bool = False) -> tuple[str, ...]:
    """The numbers of a method in the table of methods."""
    shuffled = Beside(method.shuffled, method.records).text() if method.shuffled else ""
    less = method.text(f"difference:{method.shuffled}") if method.shuffled else ""
    n = len(method.records)
    return (
        method.text(),
        shuffled,
        f"{method.better} of {n}" if method.shuffled and counted else less,
        method.text("result", CONTROL),
        method.text("result", SELECTIVITY),
        method.text(f"control:{UNTRAINED}"),
        method.text("result", "classification"),
        "" if method.falls is None else "yes" if method.falls else "no",
    )


def _without_empty(
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    kinds: Sequence[RowKind],
    caption: str,
) -> TextTable:
    """A table without the columns that say nothing: empty ones, and the only model's."""
    kept = [
        place
        for place, cells in enumerate(zip(*rows, strict=True))
        if any(cells) and (columns[place].heading != "model" or len(set(cells)) > 1)
    ]
    made = [
        Row(tuple(row[place] for place in kept), kind)
        for row, kind in zip(rows, kinds, strict=True)
    ]
    return TextTable(title, tuple(columns[place] for place in kept), tuple(made), caption)


def _tasks_table(last: Mapping[str, Sequence[Record]]) -> list[TextTable]:
    """Of every model with several tasks a row a task: its best method beside controls."""
    made: list[TextTable] = []
    headings = ("odds", "shuffled labels", "control labels", "untrained", "whole vector")
    columns = [Column("task", False), Column("accuracy"), Column("best method", False)]
    columns += map(Column, headings)
    for model, records in last.items():
        rows: list[list[str]] = []
        kinds: list[RowKind] = []
        for record in records:
            ranking = ranked([record])
            if len(records) == 1 or not ranking:
                continue
            odds, shuffled, _, control, _, untrained, *_ = _beside(ranking[0])
            accuracy, whole = record.measure("accuracy"), Beside(VANILLA, [record]).text()
            cells = (measured(accuracy), ranking[0].name, odds, shuffled, control, untrained, whole)
            rows.append([record.task.name, *cells])
            kinds.append("control" if value_of(accuracy) <= LEAST_ACCURACY else "")
        if rows:
            caption = f"Nats; {_items(records)}. Grey: an accuracy of at most 60 %. {INTERVALS}"
            title = f"The best method of each task, {model}"
            made.append(_without_empty(title, columns, rows, kinds, caption))
    return made


def _headline_figure(records: Sequence[Record]) -> list[Figure]:
    """The best method beside its controls: over training, else by layer of a single task, by task
    of a single model, or by model.
    """
    last = last_checkpoints(records)
    best = {model: ranking[0] for model, some in last.items() if (ranking := ranked(done(some)))}
    if not best:
        return []
    first = next(iter(best.values()))
    methods = [first.method, *filter(None, [first.shuffled]), RANDOM, VANILLA]
    if over := training_figures(records, methods):
        return over[:1]
    some = next(iter(last.values()))
    lines = {in_words(name): name for name in methods if name in methods_of(some[0])}
    if len(last) == 1 and len(some) == 1:
        about = f"{some[0].task.name}, {some[0].model.name}: odds by layer, each at its region."
        drawn = draw_layers({label: _layers(some[0], name) for label, name in lines.items()})
        return [Figure(drawn, name="Odds by layer", about=about)]
    if len(last) == 1:
        names = [record.task.name for record in some]
        points = {
            label: [estimate_of(record.measure(f"{ORIGINAL}_{name}")) for record in some]
            for label, name in lines.items()
        }
    else:
        names = list(best)
        points = {
            label: [Estimate(Beside(name, method.records).mean()) for method in best.values()]
            for label, name in lines.items()
        }
    about = f"Odds of {', '.join(points)} in {', '.join(names)}."
    return [
        Figure(
            partial(draw_points, points, names, "log odds-ratio, nats"), name="Odds", about=about
        )
    ]


def _folds(records: Sequence[Record]) -> Iterator[Fold]:
    """All other tables and figures."""
    every, last = by_model(records), last_checkpoints(records)
    tables: dict[str, list[TextTable]] = {
        "Means over tasks, a row a model (table 1)": means_table(records),
        "Odds and selectivity, a row a task (tables 3 to 20)": [],
        "What was chosen on validation items": [],
        "The published rule that chooses regions": [],
        "Odds in the untrained model": [],
        "Earlier checkpoints": [],
    }
    makers = (
        by_tasks,
        lambda some, model: chosen_table(some, main_methods(some), model),
        rules_table,
        untrained_table,
    )
    for model, some in last.items():
        for title, make in zip(list(tables)[1:5], makers, strict=True):
            tables[title] += make(some, model)
    for model, some in every.items():
        tables["Earlier checkpoints"] += [] if model in last else by_tasks(some, model)
    yield from (Fold(name, tuple(made), in_markdown=True) for name, made in tables.items() if made)
    if layers := _mean_layers(last):
        yield Fold("Layers, means over tasks", tuple(layers))
    for part in accuracy_sections(records):
        yield Fold(part.title, part.blocks)
    yield from training_folds(records, main_methods(records))
    for record in (record for some in last.values() for record in some):
        blocks = (*_figures(record), *_stored(record))
        yield Fold(f"{record.task.name}, {record.model.name}: figures and tables", blocks)


def _map(record: Record, method: str) -> OddsMap:
    cells = record.table(CELLS).where(method=method)
    layers = [int(x) for x in cells.numbers("layer")]
    names = places_of(record)
    regions = [names.get(str(x), str(x)) for x in cells.columns["region"]]
    return OddsMap(in_words(method), layers, regions, cells.numbers("odds").tolist())


def _figures(record: Record) -> list[Block]:
    """Heat maps of all methods on one scale, and lines of layers."""
    where = f"{record.task.name}, {record.model.name}"
    methods = main_methods([record])
    every = record.table(CELLS).numbers("odds")
    top = max(1e-9, float(np.nanmax(np.abs(every), initial=0.0)))
    if not methods:
        return []
    lines = {in_words(method): _layers(record, method) for method in methods}
    of_layers = f"{where}: odds of test items by layer, each at its region."
    of_maps = (
        f"{where}: mean odds of test items by layer and region, a panel a method; beside each"
        " region what an example pair has there, base/source."
    )
    picture = draw_maps([_map(record, method) for method in methods], top)
    return [
        Figure(draw_layers(lines), title="Layers", name="layers", about=of_layers),
        Figure(picture, title="Layers and regions", name="maps", about=of_maps),
    ]


def _stored(record: Record) -> list[TextTable]:
    where = f"{record.task.name}, {record.model.name}"
    return [stored_table(table, f"{where}: {table.name}") for table in record.tables]


def _layers(record: Record, method: str) -> list[tuple[int, float, float, float]]:
    """Of every layer its number, and the odds at its region with their interval."""
    chosen = record.table(CELLS).where(method=method, chosen=True)
    numbers = (chosen.numbers(name).tolist() for name in ("layer", "odds", "low", "high"))
    return [(int(row[0]), *row[1:]) for row in zip(*numbers, strict=True)]


def _mean_layers(groups: Mapping[str, Sequence[Record]]) -> list[Figure]:
    """Odds of layers as means over tasks, a figure for each model with several tasks."""
    figures: list[Figure] = []
    for model, records in groups.items():
        lines: dict[str, list[tuple[int, float, float, float]]] = {}
        for method in main_methods(records) if len(records) > 1 else ():
            rows = [[row[:2] for row in _layers(record, method)] for record in records]
            if len({tuple(layer for layer, _ in some) for some in rows}) == 1 and rows[0]:
                means = np.array([[value for _, value in some] for some in rows]).mean(axis=0)
                lines[in_words(method)] = [
                    (layer, float(mean), math.nan, math.nan)
                    for (layer, _), mean in zip(rows[0], means, strict=True)
                ]
        if lines:
            about = f"{model}: mean odds of {len(records)} tasks by layer, each at its region."
            figures.append(Figure(draw_layers(lines), title=model, name=model, about=about))
    return figures


DIRECTIONS_READING = {
    "Odds": (
        f"{READING['Odds']} Of a layer with directions at some regions alone, these are chosen"
        " from; a layer without directions counts 0."
    ),
    "Whole vector": "All numbers exchanged at the same sites, and so all directions there.",
    "Random directions": "As many random directions at the same sites, the mean of three draws.",
    "Selectivity": (
        "The odds less those of control labels, which have nothing to do with the sentences."
        " Directions for control labels are taken as they were given; without them it is undefined."
    ),
    "Accuracy": READING["Accuracy"],
}


class DirectionsPage(GymPage):
    """Directions of others on gym tasks."""

    def title(self, report: Report) -> str:
        tasks = ", ".join(dict.fromkeys(record.task.name for record in report.records))
        return f"Directions for {tasks}" if tasks else "Directions"

    def tables(self, report: Report) -> list[TextTable]:
        """A row a method: its odds beside those of controls, and its selectivity."""
        rows = [Row(_cells(record)) for record in report.records]
        texts = (Column(name, False) for name in ("method", "task", "model"))
        names = ("k", "accuracy", "odds", WHOLE_VECTOR, "random", "less random", SELECTIVITY)
        caption = (
            "Log odds-ratios of test items in nats, the mean over layers, regions chosen on"
            " validation items. k: the most directions of a site. Brackets are 95 % intervals."
        )
        columns = (*texts, *map(Column, names))
        made = [TextTable("Directions as given", columns, tuple(rows), caption)] if rows else []
        return [*made, *failures_table(report.failures, "method")]

    def sections(self, report: Report) -> list[Section]:
        """What was found in words; the table; figures of every record; facts; values."""
        records = report.records
        return framed(
            report,
            [Text(_verdict(record), "verdict") for record in records],
            [Section("Odds beside controls", tuple(self.tables(report)))],
            figure=_figures(records[0])[:1] if len(records) == 1 else [],
            folded=_directions_figures(records),
            reading=DIRECTIONS_READING,
        )


def _directions_figures(records: Sequence[Record]) -> list[Section]:
    """Of a single method its figures; of several, folded."""
    folds = [
        Fold(
            f"{record.method.name}, {record.task.name}, {record.model.name}",
            tuple((*_figures(record), *_stored(record))),
        )
        for record in records
    ]
    if len(folds) == 1:
        (record,) = records
        blocks = (*_figures(record)[1:], Fold("Tables", tuple(_stored(record))))
        return [Section("Layers and regions", blocks)]
    return [Section("Layers and regions", tuple(folds))] if folds else []


def _cells(record: Record) -> tuple[str, ...]:
    method = record.method.name
    odds, selectivity = f"{ORIGINAL}_{method}", f"{SELECTIVITY}_{method}"
    measures = (
        record.measure("accuracy"),
        record.measure(odds),
        record.measure(odds, f"control:{WHOLE_VECTOR}"),
        record.measure(odds, f"control:{RANDOM_DIRECTIONS}"),
        record.measure(odds, f"difference:{RANDOM_DIRECTIONS}"),
        record.measure(selectivity),
    )
    k = str(record.method.args.get("k", ""))
    return (method, record.task.name, record.model.name, k, *map(measured, measures))


def _verdict(record: Record) -> str:
    """Whether the directions do more than random ones, in words."""
    method = record.method.name
    own = record.measure(f"{ORIGINAL}_{method}")
    whole = record.measure(f"{ORIGINAL}_{method}", f"control:{WHOLE_VECTOR}")
    drawn = best_draw(record)
    if own is None or whole is None or math.isnan(drawn):
        return f"{method} in {record.model.name}, {record.task.name}: it has no odds."
    above = "more than" if own.low > drawn else "not told apart from"
    return (
        f"{method} in {record.model.name}, {record.task.name}: odds of {measured(own)} nats"
        f" ({own.n:,} test items), {above} random directions, the best of which have {drawn:.2f};"
        f" the whole vector has {measured(whole)}."
    )
