"""Pages on gym tasks: odds and selectivity of methods, their settings, and directions of others.

The tables have the form of tables 3 to 20 of Arora et al. (2024): a row a task with its
accuracy, a column a method and, of a method with several settings, a column each of them, and
the average. The means over tasks of several models are its table 1. Rows of tasks that a model
does no better than 60 % are grey, as published. Heat maps are by layer and region.

Of a model with several checkpoints the page has the tables of the last one, and what came before
it as figures over training.

Odds on validation items choose among settings; they are those of each layer at its best region
of the same items. A sweep is shown in the form of its table, as means over tasks (table 2).

Directions that others found stand beside the whole vector and random directions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from markupsafe import Markup
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
    training_sections,
)
from mechassay.gym.directions import best_draw
from mechassay.gym.interchanges import CAUSALGYM_2024
from mechassay.gym.log_odds import draw_layers, draw_odds
from mechassay.gym.names import RANDOM, SWEEPS
from mechassay.gym.task_accuracy import LEAST_ACCURACY
from mechassay.gym.task_odds import (
    CANDIDATES,
    CELLS,
    CONTROL,
    METHODS_TABLE,
    ORIGINAL,
    RANDOM_DIRECTIONS,
    RIGHT,
    SELECTIVITY,
    WHOLE_VECTOR,
)
from mechassay.results.page import (
    Block,
    Column,
    Figure,
    Fold,
    Page,
    Row,
    Section,
    Terms,
    Text,
    TextTable,
)
from mechassay.results.reading import means
from mechassay.results.records import Failure, Measure, Record, Scalar
from mechassay.results.sections import (
    all_numbers,
    facts_section,
    failures_table,
    measured,
    opening,
    stored_table,
    values_section,
)

SWEPT = frozenset(method for methods in SWEEPS.values() for method in methods)
PENALTIES = {"none": "none", "l1": "L1", "l2": "L2", "l1+l2": "L1 + L2"}
NOTHING_HELD = "none"
"""The column of probes without a penalty."""
INTERVALS = "Brackets: 95 % interval over groups of items."
MEANS = "Means over tasks have no interval: tasks are not a sample. The records have every task's."
CAPTION = f"Overall odds on validation items, in nats. The highest of a model is bold. {MEANS}"


def candidates_of(record: Record, method: str) -> list[dict[str, Scalar]]:
    """The settings of a method that were tried, a row each; none in records of other tables."""
    if not record.has_table(CANDIDATES):
        return []
    return record.table(CANDIDATES).where(method=method).rows()


def odds_on_validation(row: Mapping[str, Scalar]) -> Measure:
    """The odds of a setting on validation items, with their interval."""
    return number_of(row, "validation", "validation")


def number_of(row: Mapping[str, Scalar], name: str, items: str = "test") -> Measure:
    """A number of a setting with its interval and its n."""
    value, low, high = (
        math.nan if x is None else float(x)
        for x in (row[name], row[f"{name}_low"], row[f"{name}_high"])
    )
    n = row["n" if items == "test" else "n_validation"]
    return Measure(name=name, value=value, low=low, high=high, n=int(n or 0))


def chosen_table(records: Sequence[Record], methods: Sequence[str], model: str) -> list[TextTable]:
    """A row a setting of each method: its odds on validation items, and how often it was chosen."""
    rows: list[Row] = []
    n_validation: list[Measure] = []
    n_test: list[Measure] = []
    for method in methods:
        settings: dict[str, list[dict[str, Scalar]]] = {}
        for record in records:
            for row in candidates_of(record, method):
                settings.setdefault(str(row["setting"]), []).append(row)
        for setting, found in settings.items():
            chosen = sum(bool(row["chosen"]) for row in found)
            before = [odds_on_validation(row) for row in found]
            after = [[number_of(row, name) for row in found] for name in _NUMBERS]
            counted = f"{chosen} of {len(found)}"
            texts = (mean_text(before), *map(mean_text, after))
            rows.append(Row((method, setting, *texts, counted)))
            n_validation += before
            n_test += after[0]
    headings = ("validation items", "test items", "test items, selectivity")
    chosen_in = Column("chosen in tasks", optional=1)
    columns = (Column("method", False), Column("setting", False), *map(Column, headings), chosen_in)
    caption = (
        "Of several settings the one with the highest odds on validation items counts, task by"
        f" task; test items choose nothing. {_sizes(n_validation, n_test)}"
        f"{INTERVALS if len(records) == 1 else MEANS} Of each layer the region is the best one on"
        " the validation items, so that their odds are too high; the interval does not say by how"
        " much."
    )
    title = f"What was chosen on validation items, {model}"
    return [TextTable(title, columns, tuple(rows), caption)] if rows else []


_NUMBERS = (ORIGINAL, SELECTIVITY)


def mean_text(found: Sequence[Measure | None]) -> str:
    """The mean over tasks, which has no interval; of a single task its number and interval."""
    if len(found) == 1:
        (one,) = found
        return "" if one is None or math.isnan(one.value) else measured(one)
    values = [math.nan if each is None else each.value for each in found]
    return f"{np.mean(values):.2f}" if np.isfinite(values).all() else ""


def sizes_text(found: Sequence[Measure | None]) -> str:
    """How many items a number is of: the least and the most of the tasks."""
    sizes = [each.n for each in found if each is not None and each.n]
    if len(sizes) < len(found) or not sizes:
        return ""
    least, most = min(sizes), max(sizes)
    return f"{least:,}" if least == most else f"{least:,}–{most:,}"


def _sizes(validation: Sequence[Measure], test: Sequence[Measure]) -> str:
    """How many items there are of each kind, in a sentence; nothing where this is not known."""
    sizes = sizes_text(validation), sizes_text(test)
    if not all(sizes):
        return ""
    return f"n: {sizes[0]} validation items and {sizes[1]} test items of a task. "


# Sweeps


def sweep_sections(groups: Mapping[str, Sequence[Record]]) -> list[Section]:
    """The sweeps that were run, of every model, in the form of table 2."""
    scores = {model: _scores(records) for model, records in groups.items()}
    made = (_probes(scores), _axes(scores), _trainings(scores))
    tables = tuple(table for table in made if table.rows)
    return [Section("Settings that the paper compares", tables)] if tables else []


def _scores(records: Sequence[Record]) -> dict[str, tuple[float, str]]:
    """Mean odds on validation items of every swept method that all tasks have, and their text."""
    found: dict[str, tuple[float, str]] = {}
    for method in SWEPT:
        rows = [row for record in records for row in candidates_of(record, method)]
        every = [odds_on_validation(row) for row in rows]
        values = [each.value for each in every]
        if rows and len(rows) == len(records) and np.isfinite(values).all():
            found[method] = float(np.mean(values)), mean_text(every)
    return found


def _settings_in_name(method: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in method.partition(":")[2].split(","))


Scores = Mapping[str, Mapping[str, tuple[float, str]]]


def _table(
    scores: Scores,
    sweep: str,
    title: str,
    names: Sequence[str],
    row_of: Callable[[dict[str, str]], tuple[str, ...]],
    column_of: Callable[[dict[str, str]], float | str],
) -> TextTable:
    """A row a model and setting, a column a value of another one."""
    settings = {method: _settings_in_name(method) for method in SWEEPS[sweep]}
    shown = list(dict.fromkeys(column_of(each) for each in settings.values()))
    rows: list[Row] = []
    for model, found in scores.items():
        some = {method: found[method] for method in settings if method in found}
        best = max((value for value, _ in some.values()), default=0.0)
        cells: dict[tuple[str, ...], dict[float | str, str]] = {}
        for method, (value, text) in some.items():
            told = Markup("<strong>{}</strong>").format(text) if value == best else text
            cells.setdefault(row_of(settings[method]), {})[column_of(settings[method])] = told
        for name, values in cells.items():
            rows.append(Row((model, *name, *(values.get(each, "") for each in shown))))
    headings = [each if isinstance(each, str) else f"{each:,g}" for each in shown]
    columns = (Column("model", False), *(Column(name, False) for name in names))
    return TextTable(title, (*columns, *map(Column, headings)), tuple(rows), CAPTION)


def _probes(scores: Scores) -> TextTable:
    return _table(
        scores,
        "table-2a",
        "Probes, by penalty and its weight (table 2a)",
        ("penalty", "intercept"),
        lambda each: (PENALTIES[each["penalty"]], "yes" if each["intercept"] == "True" else "no"),
        lambda each: float(each["l2"]) if "l2" in each else NOTHING_HELD,
    )


def _axes(scores: Scores) -> TextTable:
    return _table(
        scores,
        "table-2b",
        "Principal axes, by how many are averaged (table 2b)",
        (),
        lambda _: (),
        lambda each: float(each["components"]),
    )


def _trainings(scores: Scores) -> TextTable:
    return _table(
        scores,
        "table-2c",
        "DAS, by learning rate and step (table 2c)",
        ("learning rate",),
        lambda each: (each["lr"],),
        lambda each: float(each["stop"]) - 1,
    )


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


class GymPage(Page):
    """Odds and selectivity on gym tasks."""

    def title(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> str:
        """What the page is called."""
        tasks = list(dict.fromkeys(record.task.name for record in records))
        told = ", ".join(tasks) if len(tasks) < 4 else f"{len(tasks)} tasks"
        return f"Gym tasks{f': {told}' if tasks else ''}{_indices(records)}"

    def tables(
        self, records: Sequence[Record], failures: Sequence[Failure] = ()
    ) -> list[TextTable]:
        """Means of all models; of each, at its last checkpoint, odds and selectivity by task, what
        was chosen, and how the published rule is biased; what failed.
        """
        made = _means(records)
        for model, some in last_checkpoints(records).items():
            made += _of_model(some, model)
        made += [table for part in sweep_sections(by_model(records)) for table in _tables_in(part)]
        return [*made, *failures_table(failures, "task")]

    def sections(
        self,
        records: Sequence[Record],
        failures: Sequence[Failure] = (),
        drawings: Sequence[object] = (),
    ) -> list[Section]:
        """What was found in words; tables; figures of tasks; how to read them; facts; values."""
        said: list[Block] = [Text(text, "verdict") for text in _verdicts(records)]
        every, last = by_model(records), last_checkpoints(records)
        shown: list[Block] = []
        for model, some in last.items():
            shown += _of_model(some, model)
        others = [(model, some) for model, some in every.items() if model not in last]
        earlier = tuple(table for model, some in others for table in _by_tasks(some, model))
        shown += [Fold("Earlier checkpoints", earlier)] if earlier else []
        means = _means(records)
        firsts = [group[0] for group in every.values()]
        return [
            opening([record for some in last.values() for record in some], said, failures),
            *([Section("Means over tasks", tuple(means))] if means else []),
            Section("Odds and selectivity", (*shown, *failures_table(failures, "task"))),
            *sweep_sections(every),
            *accuracy_sections(records),
            *training_sections(records, _main_methods(records)),
            *_mean_layers(last),
            *(figures_of(record) for some in last.values() for record in some),
            Section("How to read this", (Terms(READING),)),
            *facts_section(firsts),
            *values_section(records),
            *all_numbers(records),
        ]

    def draw(self, record: Record, ax: Axes | None = None) -> MatplotlibFigure:
        """The heat map of a record's first method."""
        first = _map(record, methods_of(record)[0])
        return draw_odds(first.layers, first.regions, first.values, title=first.title, ax=ax)

    def recomputed(self, record: Record) -> list[Measure]:
        """The accuracy; the odds of methods and their controls, and their differences."""
        names = record.values.columns if record.values else ()
        odds = {f"{ORIGINAL}_{name}": name for name in names if name != RIGHT}
        return list(means(record, {"accuracy": RIGHT, **odds}))


def _indices(records: Sequence[Record]) -> str:
    """Whose indices were used, if they are not the right ones."""
    compat = "".join({str(record.method.args.get("compat", "")) for record in records})
    return f", with the indices of {compat}" if compat else ""


def _tables_in(section: Section) -> list[TextTable]:
    return [block for block in section.blocks if isinstance(block, TextTable)]


def methods_of(record: Record) -> list[str]:
    """The methods of a record, in their order."""
    return [str(name) for name in record.table(METHODS_TABLE).columns["method"]]


def _map(record: Record, method: str) -> OddsMap:
    cells = record.table(CELLS).where(method=method)
    layers = [int(x) for x in cells.numbers("layer")]
    regions = [str(x) for x in cells.columns["region"]]
    return OddsMap(method, layers, regions, cells.numbers("odds").tolist())


def figures_of(record: Record) -> Section:
    """Heat maps of all methods on one scale, and lines of layers."""
    where = f"{record.task.name}, {record.model.name}"
    methods = _main_methods([record])
    every = record.table(CELLS).numbers("odds")
    top = max(1e-9, float(np.nanmax(np.abs(every), initial=0.0)))
    lines = {method: _layers(record, method) for method in methods}
    blocks: list[Block] = []
    if lines:
        about = f"{where}: odds of test items by layer, each at its region."
        blocks.append(Figure(draw_layers(lines), title="Layers", name="layers", about=about))
    if methods:
        about = f"{where}: mean odds of test items by layer and region, a panel a method."
        picture = draw_maps([_map(record, method) for method in methods], top)
        blocks.append(Figure(picture, title="Layers and regions", name="maps", about=about))
    inner = [stored_table(table, f"{where}: {table.name}") for table in record.tables]
    return Section(where, (*blocks, Fold(f"{where}: tables", tuple(inner))))


def _layers(record: Record, method: str) -> list[tuple[int, float, float, float]]:
    """Of every layer its number, and the odds at its region with their interval."""
    chosen = record.table(CELLS).where(method=method, chosen=True)
    numbers = (chosen.numbers(name).tolist() for name in ("layer", "odds", "low", "high"))
    return [(int(row[0]), *row[1:]) for row in zip(*numbers, strict=True)]


def _mean_layers(groups: Mapping[str, Sequence[Record]]) -> list[Section]:
    """Odds of layers as means over tasks, a figure for each model with several tasks."""
    figures: list[Figure] = []
    for model, records in groups.items():
        lines: dict[str, list[tuple[int, float, float, float]]] = {}
        for method in _main_methods(records) if len(records) > 1 else ():
            rows = [[row[:2] for row in _layers(record, method)] for record in records]
            if len({tuple(layer for layer, _ in some) for some in rows}) == 1 and rows[0]:
                means = np.array([[value for _, value in some] for some in rows]).mean(axis=0)
                lines[method] = [
                    (layer, float(mean), math.nan, math.nan)
                    for (layer, _), mean in zip(rows[0], means, strict=True)
                ]
        if lines:
            about = f"{model}: mean odds of {len(records)} tasks by layer, each at its region."
            figures.append(Figure(draw_layers(lines), title=model, name=model, about=about))
    return [Section("Layers, means over tasks", tuple(figures))] if figures else []


def _known(records: Sequence[Record], of: str) -> bool:
    return any(m.name.startswith(f"{of}_") for record in records for m in record.measures)


def _all_methods(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(method for record in records for method in methods_of(record)))


def _main_methods(records: Sequence[Record]) -> list[str]:
    """All methods but those of sweeps, which have tables of their own."""
    return [method for method in _all_methods(records) if method not in SWEPT]


def _settings(records: Sequence[Record], method: str) -> list[str]:
    """The settings of a method, if there are several."""
    tried = [row["setting"] for record in records for row in candidates_of(record, method)]
    found = list(dict.fromkeys(map(str, tried)))
    return found if len(found) > 1 else []


def _of_model(records: Sequence[Record], model: str) -> list[TextTable]:
    """All tables of one model."""
    return [
        *_by_tasks(records, model),
        *chosen_table(records, _main_methods(records), model),
        *_rules(records, model),
        *_untrained(records, model),
    ]


def _by_tasks(records: Sequence[Record], model: str) -> list[TextTable]:
    kinds = (of for of in (ORIGINAL, SELECTIVITY) if _known(records, of))
    return [_by_task(records, of, model) for of in kinds]


def _by_task(records: Sequence[Record], of: str, model: str) -> TextTable:
    """A row a task, a column a method and each of its settings; the average of tasks below."""
    columns = [Column("task", False), Column("n", optional=1), Column("accuracy")]
    found = [[record.measure("accuracy") for record in records]]
    for method in _main_methods(records):
        columns.append(Column(method))
        found.append([record.measure(f"{of}_{method}") for record in records])
        for setting in _settings(records, method):
            columns.append(Column(f"{method}, {setting}"))
            found.append([_of_setting(record, method, setting, of) for record in records])
    rows = [
        Row(
            (record.task.name, f"{record.n:,}", *map(measured, numbers)),
            "control" if _value(numbers[0]) <= LEAST_ACCURACY else "",
        )
        for record, *numbers in zip(records, *found, strict=True)
    ]
    if len(records) > 1:
        rows.append(Row(("average", "", *map(_average, found))))
    caption = f"{READING[HEADINGS[of]]} Grey: an accuracy of at most 60 %."
    if len(records) > 1:
        caption += " The average has no interval: tasks are not a sample."
    title = f"{HEADINGS[of]}, {model}{_indices(records)}"
    return TextTable(title, tuple(columns), tuple(rows), caption)


def _of_setting(record: Record, method: str, setting: str, of: str) -> Measure | None:
    """The odds or the selectivity of one setting of a method."""
    for row in candidates_of(record, method):
        if row["setting"] == setting:
            return number_of(row, of)
    return None


def _means(records: Sequence[Record]) -> list[TextTable]:
    """A row a model or checkpoint, a column a method: means over tasks, if there are several."""
    groups = by_model(records)
    methods = _main_methods(records)
    if len(groups) < 2 or not methods:
        return []
    columns = (Column("model", False), Column("tasks"), Column("accuracy"), *map(Column, methods))
    made: list[TextTable] = []
    for of in (ORIGINAL, SELECTIVITY):
        rows = [
            Row((model, f"{len(some)}", *(_mean(some, name) for name in ("accuracy", *names))))
            for model, some in groups.items()
            for names in [[f"{of}_{method}" for method in methods]]
            if _known(some, of)
        ]
        caption = f"{READING[HEADINGS[of]].partition(' Brackets')[0]} {MEANS}"
        if rows:
            made.append(TextTable(f"Mean {HEADINGS[of].lower()}", columns, tuple(rows), caption))
    return made


def _value(measure: Measure | None) -> float:
    return float("nan") if measure is None else measure.value


def _average(found: Sequence[Measure | None]) -> str:
    """The mean over tasks; tasks are not a sample, so it has no interval."""
    values = list(map(_value, found))
    return f"{np.mean(values):.2f}" if np.isfinite(values).all() else ""


def _mean(records: Sequence[Record], name: str) -> str:
    """The mean of a measure over tasks."""
    return _average([record.measure(name) for record in records])


def _rules(records: Sequence[Record], model: str) -> list[TextTable]:
    """A row a method: its numbers by both rules, as means over tasks if there are several."""
    methods = _main_methods(records)
    kinds = {
        "odds": f"{ORIGINAL}_",
        "odds, as published": f"{CAUSALGYM_2024}_{ORIGINAL}_",
        "selectivity": f"{SELECTIVITY}_",
        "selectivity, as published": f"{CAUSALGYM_2024}_{SELECTIVITY}_",
    }
    known = {name: start for name, start in kinds.items() if _known(records, start.rstrip("_"))}
    columns = (Column("method", False), *map(Column, known), Column("n", optional=1))
    rows: list[Row] = []
    for method in methods:
        found = [
            [record.measure(f"{start}{method}") for record in records] for start in known.values()
        ]
        rows.append(Row((method, *map(mean_text, found), sizes_text(found[0] if found else []))))
    caption = (
        f"As published ({CAUSALGYM_2024}), regions are chosen on the test items themselves, not on"
        " validation items; what this gives to random directions is its bias. Its numbers have no"
        " interval: one over the same items would not"
        f" hold the bias. {INTERVALS if len(records) == 1 else MEANS}"
    )
    title = f"The rule that chooses regions, {model}{_indices(records)}"
    return [TextTable(title, columns, tuple(rows), caption)] if methods else []


def _untrained(records: Sequence[Record], model: str) -> list[TextTable]:
    of = "control:untrained model"
    methods = _main_methods(records)
    rows = [
        Row(
            (
                record.task.name,
                f"{record.n:,}",
                *(measured(record.measure(f"{ORIGINAL}_{method}", of)) for method in methods),
            )
        )
        for record in records
        if any(measure.of == of for measure in record.measures)
    ]
    columns = (Column("task", False), Column("n", optional=1), *map(Column, methods))
    caption = "Odds with original labels; see above."
    return [TextTable(f"Odds, {model} untrained", columns, tuple(rows), caption)] if rows else []


def _verdicts(records: Sequence[Record]) -> list[str]:
    """A sentence for each model: the best methods by odds and by selectivity, what the published
    rule gives to random directions, and how far training went.
    """
    said: list[str] = []
    checkpoints = checkpoints_of(records)
    for model, some in last_checkpoints(records).items():
        parts: list[str] = []
        best = ""
        for of in (SELECTIVITY, ORIGINAL):
            means = {method: mean_of_tasks(some, f"{of}_{method}") for method in _all_methods(some)}
            known = {method: x for method, x in means.items() if np.isfinite(x)}
            if known:
                best = max(known, key=lambda method: known[method])
                parts.insert(0, f"the highest mean {of} is that of {best}, {known[best]:.2f}")
        bias = mean_of_tasks(some, f"{CAUSALGYM_2024}_{ORIGINAL}_{RANDOM}")
        if np.isfinite(bias):
            parts.append(f"random directions have {bias:.2f} by the published choice of regions")
        tasks = f"{len(some)} tasks" if len(some) > 1 else some[0].task.name
        said.append(f"{model}, {tasks}: {'; '.join(parts)}.")
        if groups := checkpoints.get(base_of(some[0])):
            said.append(_of_training(groups, best))
    return said


def _of_training(groups: Sequence[Sequence[Record]], method: str) -> str:
    """From the first checkpoint to the last one, in words."""
    ends = (groups[0], groups[-1])
    accuracy, odds = (
        " to ".join(f"{mean_of_tasks(some, name):.2f}" for some in ends)
        for name in ("accuracy", f"{ORIGINAL}_{method}")
    )
    names = " to ".join(checkpoint_name(some[0]) for some in ends)
    return (
        f"Over {len(groups)} checkpoints, {names}, the mean accuracy goes from {accuracy}, and the"
        f" mean odds of {method} from {odds}."
    )


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


class DirectionsPage(Page):
    """Directions of others on gym tasks."""

    def title(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> str:
        """What the page is called."""
        tasks = ", ".join(dict.fromkeys(record.task.name for record in records))
        return f"Directions for {tasks}" if tasks else "Directions"

    def tables(
        self, records: Sequence[Record], failures: Sequence[Failure] = ()
    ) -> list[TextTable]:
        """A row a method: its odds beside those of controls, and its selectivity."""
        rows = [Row(_cells(record)) for record in records]
        texts = (Column(name, False) for name in ("method", "task", "model"))
        names = ("k", "accuracy", "odds", WHOLE_VECTOR, "random", "less random", SELECTIVITY)
        caption = (
            "Log odds-ratios of test items in nats, the mean over layers, regions chosen on"
            " validation items. k: the most directions of a site. Brackets are 95 % intervals."
        )
        columns = (*texts, *map(Column, names))
        made = [TextTable("Directions as given", columns, tuple(rows), caption)] if rows else []
        return [*made, *failures_table(failures, "method")]

    def sections(
        self,
        records: Sequence[Record],
        failures: Sequence[Failure] = (),
        drawings: Sequence[object] = (),
    ) -> list[Section]:
        """What was found in words; the table; figures of every record; facts; values."""
        said = [Text(_verdict(record), "verdict") for record in records]
        return [
            opening(records, said, failures),
            Section("Odds beside controls", tuple(self.tables(records, failures))),
            *map(figures_of, records),
            Section("How to read this", (Terms(DIRECTIONS_READING),)),
            *facts_section(records),
            *values_section(records),
            *all_numbers(records),
        ]


def _cells(record: Record) -> tuple[str, ...]:
    method = record.method.name
    odds, selectivity = f"{ORIGINAL}_{method}", f"{SELECTIVITY}_{method}"
    found = (
        record.measure("accuracy"),
        record.measure(odds),
        record.measure(odds, f"control:{WHOLE_VECTOR}"),
        record.measure(odds, f"control:{RANDOM_DIRECTIONS}"),
        record.measure(odds, f"difference:{RANDOM_DIRECTIONS}"),
        record.measure(selectivity),
    )
    k = str(record.method.args.get("k", ""))
    return (method, record.task.name, record.model.name, k, *map(measured, found))


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
        f"{method} in {record.model.name}, {record.task.name}: odds of {own.value:.2f},"
        f" {above} random directions, the best of which have {drawn:.2f}; the whole vector has"
        f" {whole.value:.2f}."
    )
