"""Tables in the form of those of Arora et al. (2024).

    table 1            means over tasks: a row a model, a column a method
    table 2            sweeps of settings: a row a model and setting, a column a value of another
    tables 3 to 20     a row a task with its accuracy, a column a method and each of its settings

Beside these: what was chosen on validation items, both rules that choose regions, and the
untrained model. Odds on validation items choose among settings; they are those of each layer at
its best region of the same items.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from markupsafe import Markup

from mechassay.gym.checkpoint_pages import by_model
from mechassay.gym.interchanges import CAUSALGYM_2024
from mechassay.gym.names import SWEEPS, SWEPT, in_words
from mechassay.gym.task_accuracy import LEAST_ACCURACY
from mechassay.gym.task_odds import CANDIDATES, CONTROL, ORIGINAL, SELECTIVITY, UNTRAINED
from mechassay.gym.verdicts import mean_text, methods_of, value_of
from mechassay.results.page import Column, Row, Section, TextTable
from mechassay.results.records import Measure, Record, Scalar
from mechassay.results.sections import measured
from mechassay.utils.display import number

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
    "Tells types apart": (
        "The share of test sentences whose own type is the nearest class mean along what was found;"
        " half is chance where there are two types. A feature that can be read need not be used."
    ),
    "Whole vector": (
        "All numbers exchanged: what all directions together do. A method with more moves the"
        " output further than all of the source does."
    ),
    "Shuffled labels": (
        "The same method on labels that were dealt out anew among the train items. It need not be"
        " worthless. A difference of means that chance makes lies where values vary most. DAS on"
        " shuffled labels learns to make both labels as likely: base and source still differ in"
        " what tells the types apart, so it finds a part of that."
    ),
    "Best method": (
        "That with the highest gain on validation items: its odds, at most those of the whole"
        " vector, less its odds with shuffled labels. Its numbers are those of test items. Controls"
        " are never the best."
    ),
    "Means over tasks": (
        "In words and in the table of methods, over the tasks that the model does better than 60 %;"
        " over all if it does none. They have no interval: tasks are not a sample."
    ),
    "Loss still falls": (
        "The last quarter of the training may still have lowered the loss by an eighth of it, or"
        " surely did by a tenth of all that it fell; or there are fewer than eight steps."
    ),
    "Untrained model": "The same method on the same architecture with random weights.",
}


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
        for setting, measures in settings.items():
            chosen = sum(bool(row["chosen"]) for row in measures)
            before = [odds_on_validation(row) for row in measures]
            after = [[number_of(row, name) for row in measures] for name in _NUMBERS]
            counted = f"{chosen} of {len(measures)}"
            texts = (mean_text(before), *map(mean_text, after))
            rows.append(Row((in_words(method), setting, *texts, counted)))
            n_validation += before
            n_test += after[0]
    headings = ("validation items", "test items", "test items, selectivity")
    chosen_in = Column("chosen in tasks", optional=1)
    columns = (Column("method", False), Column("setting", False), *map(Column, headings), chosen_in)
    sizes = (sizes_text(n_validation), sizes_text(n_test))
    n = "n: {} validation items and {} test items of a task. ".format(*sizes) if all(sizes) else ""
    caption = (
        "Of several settings the one with the highest odds on validation items counts, task by"
        f" task; test items choose nothing. {n}{INTERVALS if len(records) == 1 else MEANS} Of each"
        " layer the region is the best one on the validation items, so that their odds are too"
        " high; the interval does not say by how much."
    )
    title = f"What was chosen on validation items, {model}"
    return [TextTable(title, columns, tuple(rows), caption)] if rows else []


_NUMBERS = (ORIGINAL, SELECTIVITY)


def sizes_text(measures: Sequence[Measure | None]) -> str:
    """How many items a number is of: the least and the most of the tasks."""
    sizes = [measure.n for measure in measures if measure is not None and measure.n]
    if len(sizes) < len(measures) or not sizes:
        return ""
    least, most = min(sizes), max(sizes)
    return f"{least:,}" if least == most else f"{least:,}–{most:,}"


# Sweeps


def sweep_sections(groups: Mapping[str, Sequence[Record]]) -> list[Section]:
    """The sweeps that were run, of every model, in the form of table 2."""
    scores = {model: _scores(records) for model, records in groups.items()}
    if len(scores) > 1:
        common = set.intersection(*map(set, scores.values()))
        means = {
            method: float(np.mean([own[method][0] for own in scores.values()])) for method in common
        }
        # Table 2 is of the mean of the three smallest models.
        scores[f"mean of {len(scores)} models"] = {
            method: (mean, number(mean)) for method, mean in means.items()
        }
    made = (_probes(scores), _axes(scores), _trainings(scores))
    tables = tuple(table for table in made if table.rows)
    return [Section("Settings that the paper compares", tables)] if tables else []


def _scores(records: Sequence[Record]) -> dict[str, tuple[float, str]]:
    """Mean odds on validation items of every swept method that all tasks have, and their text."""
    means: dict[str, tuple[float, str]] = {}
    for method in SWEPT:
        rows = [row for record in records for row in candidates_of(record, method)]
        every = [odds_on_validation(row) for row in rows]
        values = [measure.value for measure in every]
        if rows and len(rows) == len(records) and np.isfinite(values).all():
            means[method] = float(np.mean(values)), mean_text(every)
    return means


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
    settings = {
        method: dict(part.split("=", 1) for part in method.partition(":")[2].split(","))
        for method in SWEEPS[sweep]
    }
    method_name = in_words(SWEEPS[sweep][0].partition(":")[0])
    in_table = list(dict.fromkeys(column_of(setting) for setting in settings.values()))
    rows: list[Row] = []
    for model, by_setting in scores.items():
        some = {method: by_setting[method] for method in settings if method in by_setting}
        best = max((value for value, _ in some.values()), default=0.0)
        cells: dict[tuple[str, ...], dict[float | str, str]] = {}
        for method, (value, text) in some.items():
            cell = Markup("<strong>{}</strong>").format(text) if value == best else text
            cells.setdefault(row_of(settings[method]), {})[column_of(settings[method])] = cell
        for name, values in cells.items():
            numbers = (values.get(column, "") for column in in_table)
            rows.append(Row((model, method_name, *name, *numbers)))
    headings = [column if isinstance(column, str) else f"{column:,g}" for column in in_table]
    columns = tuple(Column(name, False) for name in ("model", "method", *names))
    return TextTable(title, (*columns, *map(Column, headings)), tuple(rows), CAPTION)


def _probes(scores: Scores) -> TextTable:
    return _table(
        scores,
        "table-2a",
        "Probes, by penalty and its weight (table 2a)",
        ("penalty", "intercept"),
        lambda setting: (
            PENALTIES[setting["penalty"]],
            "yes" if setting["intercept"] == "True" else "no",
        ),
        lambda setting: float(setting["l2"]) if "l2" in setting else NOTHING_HELD,
    )


def _axes(scores: Scores) -> TextTable:
    return _table(
        scores,
        "table-2b",
        "Principal axes, by how many are averaged (table 2b)",
        (),
        lambda _: (),
        lambda setting: float(setting["components"]),
    )


def _trainings(scores: Scores) -> TextTable:
    return _table(
        scores,
        "table-2c",
        "DAS, by learning rate and step (table 2c)",
        ("learning rate",),
        lambda setting: (setting["lr"],),
        lambda setting: float(setting["stop"]) - 1,
    )


# By task and by model


def indices(records: Sequence[Record]) -> str:
    """Whose indices were used, if they are not the right ones."""
    compat = "".join({str(record.method.args.get("compat", "")) for record in records})
    return f", with the indices of {compat}" if compat else ""


def _known(records: Sequence[Record], of: str) -> bool:
    return any(m.name.startswith(f"{of}_") for record in records for m in record.measures)


def main_methods(records: Sequence[Record]) -> list[str]:
    """All methods but those of sweeps, which have tables of their own."""
    methods = dict.fromkeys(method for record in records for method in methods_of(record))
    return [method for method in methods if method not in SWEPT]


def by_tasks(records: Sequence[Record], model: str) -> list[TextTable]:
    """Odds and selectivity by task."""
    kinds = (of for of in (ORIGINAL, SELECTIVITY) if main_methods(records) and _known(records, of))
    return [_by_task(records, of, model) for of in kinds]


def _by_task(records: Sequence[Record], of: str, model: str) -> TextTable:
    """A row a task, a column a method and each of its settings; the average of tasks below."""
    columns = [Column("task", False), Column("n", optional=1), Column("accuracy")]
    groups = [[record.measure("accuracy") for record in records]]
    for method in main_methods(records):
        columns.append(Column(in_words(method)))
        groups.append([record.measure(f"{of}_{method}") for record in records])
        tried = [row["setting"] for record in records for row in candidates_of(record, method)]
        settings = list(dict.fromkeys(map(str, tried)))
        for setting in settings if len(settings) > 1 else ():
            columns.append(Column(f"{in_words(method)}, {setting}"))
            groups.append([_of_setting(record, method, setting, of) for record in records])
    rows = [
        Row(
            (record.task.name, f"{record.n:,}", *map(measured, numbers)),
            "control" if value_of(numbers[0]) <= LEAST_ACCURACY else "",
        )
        for record, *numbers in zip(records, *groups, strict=True)
    ]
    if len(records) > 1:
        rows.append(Row(("average", "", *map(_average, groups))))
    caption = f"{READING[HEADINGS[of]]} Grey: an accuracy of at most 60 %."
    if len(records) > 1:
        caption += " The average has no interval: tasks are not a sample."
    title = f"{HEADINGS[of]}, {model}{indices(records)}"
    return TextTable(title, tuple(columns), tuple(rows), caption)


def _of_setting(record: Record, method: str, setting: str, of: str) -> Measure | None:
    """The odds or the selectivity of one setting of a method."""
    for row in candidates_of(record, method):
        if row["setting"] == setting:
            return number_of(row, of)
    return None


def means_table(records: Sequence[Record]) -> list[TextTable]:
    """A row a model or checkpoint, a column a method: means over tasks, if there are several."""
    groups = by_model(records)
    methods = main_methods(records)
    if len(groups) < 2 or not methods:
        return []
    names = (Column("model", False), Column("tasks"), Column("accuracy"))
    columns = (*names, *(Column(in_words(method)) for method in methods))
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


def _average(measures: Sequence[Measure | None]) -> str:
    """The mean over tasks; tasks are not a sample, so it has no interval."""
    values = list(map(value_of, measures))
    return f"{np.mean(values):.2f}" if np.isfinite(values).all() else ""


def _mean(records: Sequence[Record], name: str) -> str:
    """The mean of a measure over tasks."""
    return _average([record.measure(name) for record in records])


def rules_table(records: Sequence[Record], model: str) -> list[TextTable]:
    """A row a method: its numbers by both rules, as means over tasks if there are several."""
    methods = main_methods(records)
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
        measures = [
            [record.measure(f"{start}{method}") for record in records] for start in known.values()
        ]
        rows.append(
            Row(
                (
                    in_words(method),
                    *map(mean_text, measures),
                    sizes_text(measures[0] if measures else []),
                )
            )
        )
    caption = (
        f"As published ({CAUSALGYM_2024}), regions are chosen on the test items themselves, not on"
        " validation items; what this gives to random directions is its bias. Its numbers have no"
        " interval: one over the same items would not"
        f" hold the bias. {INTERVALS if len(records) == 1 else MEANS}"
    )
    title = f"The rule that chooses regions, {model}{indices(records)}"
    return [TextTable(title, columns, tuple(rows), caption)] if methods else []


def untrained_table(records: Sequence[Record], model: str) -> list[TextTable]:
    """A row a task: odds in the model of random weights, where they were measured."""
    of = f"control:{UNTRAINED}"
    methods = [
        method
        for method in main_methods(records)
        if any(record.measure(f"{ORIGINAL}_{method}", of) for record in records)
    ]
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
    numbers = (Column(in_words(method)) for method in methods)
    columns = (Column("task", False), Column("n", optional=1), *numbers)
    caption = "Odds with original labels; see above."
    return [TextTable(f"Odds, {model} untrained", columns, tuple(rows), caption)] if rows else []
