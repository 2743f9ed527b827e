"""Settings of gym methods: what was chosen on validation items, and the sweeps of table 2.

Odds on validation items choose among settings; they are those of each layer at its best region of
the same items. A sweep is shown in the form of its table in Arora et al. (2024): means over tasks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from markupsafe import Markup

from mechassay.gym.method_odds import ORIGINAL, SELECTIVITY
from mechassay.gym.methods import SWEEPS
from mechassay.gym.task_odds import CANDIDATES
from mechassay.records import Measure, Record, Scalar
from mechassay.report.page import Section
from mechassay.report.sections import measured
from mechassay.report.tables import Column, Row, TextTable

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


def _settings(method: str) -> dict[str, str]:
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
    settings = {method: _settings(method) for method in SWEEPS[sweep]}
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
