"""Circuit records of many methods, tasks and models as the tables of MIB: CMD, CPR, and what each cell took.

A row is a method, a column a task on a model (Mueller et al. 2025, tables 2 and 14). Brackets hold
intervals over examples; the row of the random control has the mean of its rankings. A cell that
failed or was skipped says so, with its reason below the tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from rich.console import Console

from mechassay.records import Failure, Record
from mechassay.report.grids import NOTHING, Grid, grids_markdown, grids_page, print_grids
from mechassay.report.words import measure, measure_text, number, random_seeds

FAILED = "failed"
CONTROL = "random control"
AREAS = {"cmd": "CMD (lower is better)", "cpr": "CPR (higher is better)"}
READING = {
    "CMD": "The area between faithfulness and 1 over circuit size, edges by magnitude: 0 is the model's own behaviour at every size.",
    "CPR": "The area under faithfulness over circuit size, edges by value: how well the circuits perform.",
    "Intervals": "95 %, bootstrapped over groups of examples. They do not cover the choice of the examples that scores were found on.",
    "Random control": "The mean over random rankings, cut to the same sizes.",
    "Accuracy of the model": "How often its answer beats the foils, and how often guessing does. Where the two cannot be told apart, "
    "circuits explain how the model prefers tokens, not how it does the task.",
}


def suite_grids(records: Sequence[Record], failures: Sequence[Failure]) -> list[Grid]:
    """The tables."""
    cells = {(_column(record), _method(record)): record for record in records}
    columns = list(dict.fromkeys([*(column for column, _ in cells), *map(_failed_column, failures)]))
    methods = list(dict.fromkeys([*(method for _, method in cells), *(failure.cell.get("method", "") for failure in failures)]))
    failed = {(_failed_column(failure), failure.cell.get("method", "")) for failure in failures}
    heads = {column: next((record for (name, _), record in cells.items() if name == column), None) for column in columns}

    def row(method: str, name: str) -> tuple[str, ...]:
        found = [cells.get((column, method)) for column in columns]
        texts = [
            FAILED if (column, method) in failed else NOTHING if record is None else measure_text(record, name)
            for column, record in zip(columns, found, strict=True)
        ]
        return (method, *texts)

    def control(name: str) -> tuple[str, ...]:
        return (CONTROL, *(NOTHING if record is None else _control(record, name) for record in heads.values()))

    grids = [
        Grid(title, ("method", *columns), (*(row(method, name) for method in methods if method), control(name)))
        for name, title in AREAS.items()
    ]
    took = [(method, *(_took(cells.get((column, method))) for column in columns)) for method in methods if method]
    grids.append(Grid("Seconds (localize + evaluate), peak memory", ("method", *columns), tuple(took)))
    able = tuple((column, *_ability(record)) for column, record in heads.items() if record is not None)
    grids.append(Grid("Accuracy of the model itself", ("cell", "accuracy", "chance", "test pairs"), able))
    if failures:
        rows = tuple((f"{_failed_column(each)}, {each.cell.get('method', 'all methods')}", each.error, each.message) for each in failures)
        grids.append(Grid("Failed and skipped cells", ("cell", "error", "reason"), rows))
    return grids


def write_suite(records: Sequence[Record], failures: Sequence[Failure], *, title: str) -> tuple[str, str]:
    """The page (HTML) and the tables (Markdown)."""
    grids, facts = suite_grids(records, failures), [_facts(record) for record in records]
    return grids_page(title, grids, [None] * len(grids), READING, facts), grids_markdown(grids, facts)


def print_suite(records: Sequence[Record], failures: Sequence[Failure], console: Console) -> None:
    """Print the tables."""
    print_grids(suite_grids(records, failures), console)


def _column(record: Record) -> str:
    return f"{record.task.name}, {record.model.name}"


def _failed_column(failure: Failure) -> str:
    return f"{failure.cell.get('task', '')}, {failure.cell.get('model', '')}"


def _method(record: Record) -> str:
    """A method by the name its cell was stored under."""
    return str(record.task.args.get("cell", record.method.name))


def _control(record: Record, name: str) -> str:
    values = [each[name] for each in record.controls["random"]["seeds"].values()] if random_seeds(record) else []
    return number(float(np.mean([math.nan if value is None else value for value in values]))) if values else NOTHING


def _took(record: Record | None) -> str:
    if record is None:
        return NOTHING
    spent = [record.realised.get(name, math.nan) for name in ("localize_seconds", "evaluate_seconds")]
    return f"{spent[0]:,.0f} + {spent[1]:,.0f} s, {record.realised.get('peak_memory_gb', math.nan):.1f} GB"


def _ability(record: Record) -> tuple[str, str, str]:
    chance = measure(record, "chance")
    return (measure_text(record, "accuracy"), NOTHING if chance is None else f"{chance.value:.2f}", f"{len(record.example_ids):,}")


def _facts(record: Record) -> dict[str, str]:
    args, about = record.task.args, record.provenance
    return {
        "cell": _column(record),
        "method": _method(record),
        "counterfactual": str(args.get("counterfactual", "")),
        "objective": record.metric.name,
        "profile": str(record.metric.args.get("profile", "")),
        "train, test pairs": ", ".join(str(record.data.get(role, {}).get("kept", "")) for role in ("train", "test")),
        "data hash": about.data_hash[:12],
        "seed": str(about.seed),
        "dtype": about.dtype,
        "commit": (about.commit or "")[:10],
    }
