"""Settings of gym methods: what was chosen on validation items, and the sweeps of table 2.

Odds on validation items choose among settings; they are those of each layer at its best region of
the same items. A sweep is shown in the form of its table in Arora et al. (2024): means over tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from markupsafe import Markup

from mechassay.gym.method_odds import ORIGINAL, SELECTIVITY
from mechassay.gym.methods import SWEEPS
from mechassay.gym.task_odds import CANDIDATES
from mechassay.records import Record, Scalar
from mechassay.report.page import Section
from mechassay.report.tables import Column, Row, TextTable

SWEPT = frozenset(method for methods in SWEEPS.values() for method in methods)
PENALTIES = {"none": "none", "l1": "L1", "l2": "L2", "l1+l2": "L1 + L2"}
NOTHING_HELD = "none"
"""The column of probes without a penalty."""
CAPTION = (
    "Overall odds on validation items, in nats; means over tasks. The highest of a model is bold."
)


def candidates_of(record: Record, method: str) -> list[dict[str, Scalar]]:
    """The settings of a method that were tried, a row each; none in records of other tables."""
    if not record.has_table(CANDIDATES):
        return []
    return record.table(CANDIDATES).where(method=method).rows()


def chosen_table(records: Sequence[Record], methods: Sequence[str], model: str) -> list[TextTable]:
    """A row a setting of each method: its odds on validation items, and how often it was chosen."""
    rows: list[Row] = []
    for method in methods:
        settings: dict[str, list[dict[str, Scalar]]] = {}
        for record in records:
            for row in candidates_of(record, method):
                settings.setdefault(str(row["setting"]), []).append(row)
        for setting, found in settings.items():
            chosen = sum(bool(row["chosen"]) for row in found)
            numbers = (_mean(row[name] for row in found) for name in _NUMBERS)
            count = f"{chosen} of {len(found)}"
            rows.append(Row((method, setting, *numbers, count)))
    headings = ("validation items", "test items", "test items, selectivity", "chosen in tasks")
    columns = (Column("method", False), Column("setting", False), *map(Column, headings))
    caption = (
        "Mean odds of the tasks. Of several settings the one with the highest odds on validation"
        " items counts, task by task; test items choose nothing. The records have every task's."
    )
    title = f"What was chosen on validation items, {model}"
    return [TextTable(title, columns, tuple(rows), caption)] if rows else []


_NUMBERS = ("validation", ORIGINAL, SELECTIVITY)


def _mean(values: Iterable[Scalar]) -> str:
    numbers = np.array([np.nan if x is None else x for x in values], dtype=float)
    return f"{numbers.mean():.2f}" if np.isfinite(numbers).all() else ""


# Sweeps


def sweep_sections(groups: Mapping[str, Sequence[Record]]) -> list[Section]:
    """The sweeps that were run, of every model, in the form of table 2."""
    scores = {model: _scores(records) for model, records in groups.items()}
    made = (_probes(scores), _axes(scores), _trainings(scores))
    tables = tuple(table for table in made if table.rows)
    return [Section("Settings that the paper compares", tables)] if tables else []


def _scores(records: Sequence[Record]) -> dict[str, float]:
    """Mean odds on validation items of every swept method that all tasks have."""
    found: dict[str, float] = {}
    for method in SWEPT:
        rows = [row for record in records for row in candidates_of(record, method)]
        values = [float(x) for row in rows if isinstance(x := row["validation"], int | float)]
        if rows and len(values) == len(rows) == len(records):
            found[method] = float(np.mean(values))
    return found


def _settings(method: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in method.partition(":")[2].split(","))


Scores = Mapping[str, Mapping[str, float]]


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
        best = max(some.values(), default=0.0)
        cells: dict[tuple[str, ...], dict[float | str, str]] = {}
        for method, value in some.items():
            text = f"{value:.2f}"
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
