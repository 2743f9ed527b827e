"""Gym tasks: odds and selectivity by task and method, heat maps by layer and region, layers.

The tables have the form of tables 3 to 20 of Arora et al. (2024): a row a task with its accuracy, a
column a method, and the average; the means over tasks of several models are its table 1. Rows of
tasks that a model does no better than 60 % are grey, as published.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure

from mechassay.figures import svg
from mechassay.gym.index_mix_up import CAUSALGYM_2024
from mechassay.gym.methods import RANDOM
from mechassay.gym.odds_figures import draw_layers, draw_odds
from mechassay.gym.task_odds import (
    CELLS,
    CONTROL,
    LEAST_ACCURACY,
    METHODS_TABLE,
    ORIGINAL,
    SELECTIVITY,
)
from mechassay.records import Failure, Measure, Record
from mechassay.report.page import Block, Figure, Fold, Section, Terms, Text
from mechassay.report.sections import (
    all_numbers,
    facts_section,
    failures_table,
    measured,
    opening,
    stored_table,
    values_section,
)
from mechassay.report.tables import Column, Row, TextTable

HEADINGS = {
    ORIGINAL: "Odds",
    SELECTIVITY: "Selectivity",
    CONTROL: "Odds of control labels",
}
READING = {
    "Odds": (
        "The log odds-ratio: how far the interchange moves log p(base label)/p(label), in nats; 0"
        " where it changes nothing. The mean of test items at one region a layer, then the mean of"
        " layers. The region is the best on validation items. Brackets are 95 % intervals over"
        " groups of items and seeds."
    ),
    "Selectivity": (
        "The odds less those of control labels, which have nothing to do with the sentences, at the"
        " same layer and region. A method that can make the model say anything has high odds and a"
        " low selectivity."
    ),
    "Accuracy": "The share of test sentences whose own label is more probable than the other one.",
    CAUSALGYM_2024: (
        "The published rule: of each layer the region that is best on the test items themselves. It"
        " gives more than 0 even where there is nothing; random directions under the same rule say"
        " how much."
    ),
    "Vanilla": "The whole vector exchanged: what all directions together do.",
    "Shuffled": (
        "The probe and the difference of means of labels that were dealt out anew. A direction that"
        " chance makes lies where values vary most, so it need not be worthless."
    ),
    "Untrained model": "The same method on the same architecture with random weights.",
}


def title(records: Sequence[Record], failures: Sequence[Failure] = ()) -> str:
    """What the page is called."""
    tasks = list(dict.fromkeys(record.task.name for record in records))
    told = ", ".join(tasks) if len(tasks) < 4 else f"{len(tasks)} tasks"
    return f"Gym tasks{f': {told}' if tasks else ''}"


def tables(records: Sequence[Record], failures: Sequence[Failure] = ()) -> list[TextTable]:
    """Odds and selectivity of each model; how the published rule is biased; what failed."""
    made: list[TextTable] = []
    for model, group in groupby(records, lambda record: record.model.name):
        some = list(group)
        for of in (ORIGINAL, SELECTIVITY):
            if _known(some, of):
                made.append(_by_task(some, of, model))
        made += [_rules(some, model), *_untrained(some, model)]
    return [*made, *failures_table(failures, "task")]


def sections(
    records: Sequence[Record], failures: Sequence[Failure] = (), drawings: Sequence[object] = ()
) -> list[Section]:
    """What was found in words; tables; figures of every task; how to read them; facts; values."""
    said: list[Block] = [Text(text, "verdict") for text in _verdicts(records)]
    firsts = [next(group) for _, group in groupby(records, lambda record: record.model.name)]
    return [
        opening(records, said, failures),
        Section("Odds and selectivity", tuple(tables(records, failures))),
        *map(_figures, records),
        Section("How to read this", (Terms(READING),)),
        *facts_section(firsts),
        *values_section(records),
        *all_numbers(records),
    ]


def draw(record: Record, ax: Axes | None = None) -> MatplotlibFigure:
    """The heat map of a record's first method."""
    return _draw(record, methods_of(record)[0], None, ax)


def methods_of(record: Record) -> list[str]:
    """The methods of a record, in their order."""
    return [str(name) for name in record.table(METHODS_TABLE).columns["method"]]


def _draw(
    record: Record, method: str, top: float | None, ax: Axes | None = None
) -> MatplotlibFigure:
    cells = record.table(CELLS).where(method=method)
    layers = [int(x) for x in cells.numbers("layer")]
    regions = [str(x) for x in cells.columns["region"]]
    return draw_odds(layers, regions, cells.numbers("odds").tolist(), title=method, top=top, ax=ax)


def _figures(record: Record) -> Section:
    """Heat maps of all methods on one scale, and lines of layers."""
    where = f"{record.task.name}, {record.model.name}"
    every = record.table(CELLS).numbers("odds")
    top = max(1e-9, float(np.nanmax(np.abs(every), initial=0.0)))
    lines: dict[str, list[tuple[int, float, float, float]]] = {}
    blocks: list[Block] = []
    for method in methods_of(record):
        chosen = record.table(CELLS).where(method=method, chosen=True)
        numbers = (chosen.numbers(name).tolist() for name in ("layer", "odds", "low", "high"))
        lines[method] = [(int(row[0]), *row[1:]) for row in zip(*numbers, strict=True)]
    about = f"{where}: odds of test items by layer, each at its region."
    blocks.append(Figure(svg(draw_layers(lines)), title="Layers", name="layers", about=about))
    for method in methods_of(record):
        about = f"{where}, {method}: mean odds of test items by layer and region."
        picture = svg(_draw(record, method, top))
        blocks.append(Figure(picture, title=method, name=method, about=about))
    inner = [stored_table(table, f"{where}: {table.name}") for table in record.tables]
    return Section(where, (*blocks, Fold(f"{where}: tables", tuple(inner))))


def _known(records: Sequence[Record], of: str) -> bool:
    return any(m.name.startswith(f"{of}_") for record in records for m in record.measures)


def _all_methods(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(method for record in records for method in methods_of(record)))


def _by_task(records: Sequence[Record], of: str, model: str) -> TextTable:
    """A row a task, a column a method; the average of tasks below."""
    methods = _all_methods(records)
    columns = (Column("task", False), Column("accuracy"), *map(Column, methods))
    rows = [
        Row(
            (
                record.task.name,
                measured(record.measure("accuracy")),
                *(measured(record.measure(f"{of}_{method}")) for method in methods),
            ),
            "control" if _value(record.measure("accuracy")) <= LEAST_ACCURACY else "",
        )
        for record in records
    ]
    if len(records) > 1:
        accuracy = _average(records, "accuracy")
        means = (_average(records, f"{of}_{method}") for method in methods)
        rows.append(Row(("average", accuracy, *means)))
    caption = f"{READING[HEADINGS[of]]} Grey: an accuracy of at most 60 %."
    return TextTable(f"{HEADINGS[of]}, {model}", columns, tuple(rows), caption)


def _value(measure: Measure | None) -> float:
    return float("nan") if measure is None else measure.value


def _average(records: Sequence[Record], name: str) -> str:
    """The mean over tasks; tasks are not a sample, so it has no interval."""
    values = [_value(record.measure(name)) for record in records]
    return f"{np.mean(values):.2f}" if np.isfinite(values).all() else ""


def _rules(records: Sequence[Record], model: str) -> TextTable:
    """Means over tasks by both rules."""
    methods = _all_methods(records)
    columns = (Column("regions chosen on", False), *map(Column, methods))
    kinds = {
        "validation items": f"{ORIGINAL}_",
        f"test items ({CAUSALGYM_2024})": f"{CAUSALGYM_2024}_{ORIGINAL}_",
        "validation items, selectivity": f"{SELECTIVITY}_",
        f"test items ({CAUSALGYM_2024}), selectivity": f"{CAUSALGYM_2024}_{SELECTIVITY}_",
    }
    rows = [
        Row((name, *(_average(records, f"{start}{method}") for method in methods)))
        for name, start in kinds.items()
        if _known(records, start.rstrip("_"))
    ]
    caption = (
        "Mean odds of the tasks. The published rule looks at the test items before it chooses;"
        " what it gives to random directions is its bias."
    )
    return TextTable(f"The rule that chooses regions, {model}", columns, tuple(rows), caption)


def _untrained(records: Sequence[Record], model: str) -> list[TextTable]:
    of = "control:untrained model"
    methods = _all_methods(records)
    rows = [
        Row(
            (
                record.task.name,
                *(measured(record.measure(f"{ORIGINAL}_{method}", of)) for method in methods),
            )
        )
        for record in records
        if any(measure.of == of for measure in record.measures)
    ]
    columns = (Column("task", False), *map(Column, methods))
    caption = "Odds with original labels; see above."
    return [TextTable(f"Odds, {model} untrained", columns, tuple(rows), caption)] if rows else []


def _verdicts(records: Sequence[Record]) -> list[str]:
    """A sentence for each model: the best methods by odds and by selectivity."""
    said: list[str] = []
    for model, group in groupby(records, lambda record: record.model.name):
        some = list(group)
        parts: list[str] = []
        for of in (ORIGINAL, SELECTIVITY):
            means = {
                method: float(
                    np.mean([_value(record.measure(f"{of}_{method}")) for record in some])
                )
                for method in _all_methods(some)
            }
            known = {method: x for method, x in means.items() if np.isfinite(x)}
            if known:
                best = max(known, key=lambda method: known[method])
                parts.append(f"the highest mean {of} is that of {best}, {known[best]:.2f}")
        bias = [_value(record.measure(f"{CAUSALGYM_2024}_{ORIGINAL}_{RANDOM}")) for record in some]
        if np.isfinite(bias).all():
            parts.append(
                f"random directions have {np.mean(bias):.2f} by the published choice of regions"
            )
        tasks = f"{len(some)} tasks" if len(some) > 1 else some[0].task.name
        said.append(f"{model}, {tasks}: {'; '.join(parts)}.")
    return said
