"""Circuit records of many methods, tasks and models as the tables of MIB:
CMD, CPR, and what each cell took.

A row is a method, a column a task on a model (Mueller et al. 2025, tables 2 and 14). Brackets hold
intervals over examples; so do those of random rankings, of which the mean is shown. Ranks stand in
tables of their own, as far as paired differences are resolved (`ranks`). There is one set of tables
for each model, its tasks side by side, and one for all ground truths, each on its own task, with
the AUROC against the known circuit; no table is wider than `MOST_COLUMNS` cells. A cell that failed
or was skipped says so, with its reason below the tables, where cells of one task and model with one
kind of reason stand together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from mechassay.circuits.differences import AreaName, Differences
from mechassay.records import Failure, Record
from mechassay.report.ranks import rank_text, ranked, resolved_text
from mechassay.report.tables import NOTHING, Grid, grids_markdown, grids_page, print_grids
from mechassay.report.text import (
    CHANCE_DECIMALS,
    CONTROLS,
    at_random,
    chance_text,
    control_kinds,
    interval,
    measure,
    measure_text,
)
from mechassay.truth.models import truth_names

MOST_COLUMNS = 6
CHANCE = "random rankings"
TRUTHS = "ground truths"
AUROC = "AUROC (known circuit)"
RANKS: dict[AreaName, str] = {"cmd": "Rank by CMD", "cpr": "Rank by CPR"}
AREAS = {"cmd": "CMD (lower is better)", "cpr": "CPR (higher is better)"}
READING = {
    "CMD": (
        "The area between faithfulness and 1 over circuit size, edges by magnitude: 0 is the"
        " model's own behaviour at every size."
    ),
    "CPR": (
        "The area under faithfulness over circuit size, edges by value: how well the circuits"
        " perform."
    ),
    "AUROC": (
        "How well scores tell the edges of a circuit that is known from all others, edges by"
        " magnitude: the probability that one of the first lies above one of the second. Its"
        " interval is over edges. Methods that score nodes give all edges out of a node its score."
        " Edges of information flow routes rank in the order in which their circuit grows."
    ),
    "Intervals": (
        "95 %, bootstrapped over groups of examples. They do not cover the choice of the examples"
        " that scores were found on."
    ),
    "Ranks": (
        "1 is best. 2–4: one method is better, and which of the second to the fourth it is cannot"
        " be told. Differences are those over the same examples; all intervals of a column hold"
        " together, with 95 %. Two intervals of the tables may overlap while the difference of the"
        " methods is resolved. The last row counts resolved differences, of all pairs of methods."
    ),
    "Random edges, random paths": (
        "The mean over random rankings of edges drawn one by one, and of paths, whose edges all"
        " lead from input to logits, cut to the same sizes. Circuits without any effect have CPR 0"
        " and CMD 1."
    ),
    "Random rankings (AUROC)": (
        "The mean, which is 0.5, and what 95 % of random rankings are between."
    ),
    "Accuracy of the model": (
        "How often its answer beats the foils, and how often guessing does. Where the two cannot be"
        " told apart, circuits explain how the model prefers tokens, not how it does the task."
    ),
    "Skipped": (
        "Not run: because the model does not do the task, or because finding the circuit would take"
        " too long. An estimate is the number of forward passes that a method says it takes, times"
        " the seconds of one."
    ),
}


@dataclass(frozen=True)
class Column:
    """A task on a model, as both were asked for."""

    model: str
    task: str

    @staticmethod
    def of(row: Record | Failure) -> Column:
        if isinstance(row, Failure):
            return Column(row.cell.get("model", ""), row.cell.get("task", ""))
        return Column(row.model.name, str(row.task.args.get("cell_task", row.task.name)))

    @property
    def name(self) -> str:
        """What it is called where tables of all models meet."""
        return self.model if self.model == self.task else f"{self.task}, {self.model}"


class _Cells:
    """Records and failures by column and method."""

    def __init__(self, records: Sequence[Record], failures: Sequence[Failure]) -> None:
        self.failures = failures
        self.records = {(Column.of(record), _method(record)): record for record in records}
        self.without = {
            (Column.of(failure), failure.cell.get("method", "")): failure.status
            for failure in failures
        }
        places = [*self.records, *self.without]
        self.columns = list(dict.fromkeys(column for column, _ in places))
        self.methods = list(dict.fromkeys(method for _, method in places if method))

    def groups(self) -> Iterator[tuple[str, list[Column]]]:
        """Columns of one table and what they have in common:
        each model's tasks, then all ground truths.
        """
        truths = set(truth_names())
        found: dict[str, list[Column]] = {}
        for column in sorted(self.columns, key=lambda column: column.model in truths):
            found.setdefault(TRUTHS if column.model in truths else column.model, []).append(column)
        for name, columns in found.items():
            n_parts = math.ceil(len(columns) / MOST_COLUMNS)
            for part in range(n_parts):
                some = columns[
                    part * len(columns) // n_parts : (part + 1) * len(columns) // n_parts
                ]
                yield name if n_parts == 1 else f"{name} ({part + 1} of {n_parts})", some

    def head(self, column: Column) -> Record | None:
        """Any record of a column: what does not depend on the method."""
        return next(
            (record for (place, _), record in self.records.items() if place == column), None
        )

    def grid(
        self,
        title: str,
        columns: Sequence[Column],
        text: Callable[[Record], str],
        control: str = "",
    ) -> Grid:
        """A table of one text a cell, for the methods asked for here,
        and rows of random rankings' measure if that is named.
        """
        names = [
            column.model if column.model in truth_names() else column.task for column in columns
        ]
        rows = [
            (method, *(self._cell(column, method, text) for column in columns))
            for method in self.methods
        ]
        rows = [row for row in rows if set(row[1:]) != {NOTHING}]
        heads = list(map(self.head, columns))
        for name, shown in _controls(control).items():
            rows.append((name, *(NOTHING if head is None else shown(head) for head in heads)))
        return Grid(title, ("method", *names), tuple(rows))

    def ranks(self, title: str, columns: Sequence[Column], area: AreaName) -> Grid:
        """A table of the ranks that the methods of each column may have,
        and how many differences are resolved.
        """
        names = [
            column.model if column.model in truth_names() else column.task for column in columns
        ]
        texts: dict[tuple[Column, str], str] = {}
        last: list[str] = []
        for column in columns:
            found = self.differences(column, area)
            last.append(NOTHING if found is None else resolved_text(found))
            if found is not None:
                texts |= {
                    (column, name): rank_text(rank)
                    for name, rank in zip(found.names, found.ranks(), strict=True)
                }
        rows = [
            (method, *(texts.get((column, method), NOTHING) for column in columns))
            for method in self.methods
        ]
        rows = [row for row in rows if set(row[1:]) != {NOTHING}]
        return Grid(title, ("method", *names), (*rows, ("differences resolved", *last)))

    def differences(self, column: Column, area: AreaName) -> Differences | None:
        """Differences between the methods of a column; None where they cannot be compared."""
        held = {
            method: self.records[column, method]
            for method in self.methods
            if (column, method) in self.records
        }
        return ranked(list(held.values()), area, names=list(held))

    def _cell(self, column: Column, method: str, text: Callable[[Record], str]) -> str:
        record = self.records.get((column, method))
        return self.without.get((column, method), NOTHING) if record is None else text(record)


def suite_grids(records: Sequence[Record], failures: Sequence[Failure]) -> list[Grid]:
    """The tables."""
    cells = _Cells(records, failures)
    grids: list[Grid] = []
    for name, columns in cells.groups():
        known = (
            {"auroc": AUROC}
            if any(measure(head, "auroc") for head in map(cells.head, columns) if head is not None)
            else {}
        )
        grids += [
            cells.grid(
                f"{title}, {name}",
                columns,
                lambda record, key=key: measure_text(record, key) or NOTHING,
                key,
            )
            for key, title in {**known, **AREAS}.items()
        ]
        for area, title in RANKS.items():
            grids.append(cells.ranks(f"{title}, {name}", columns, area))
        grids.append(
            cells.grid(f"Seconds (localize + evaluate) and peak memory, {name}", columns, _took)
        )
    heads = [(column.name, cells.head(column)) for column in cells.columns]
    able = tuple((name, *_ability(head)) for name, head in heads if head is not None)
    grids.append(
        Grid("Accuracy of the model itself", ("cell", "accuracy", "chance", "test pairs"), able)
    )
    if failures:
        grids.append(
            Grid(
                "Failed and skipped cells",
                ("cell", "what", "methods", "reason"),
                tuple(_without_result(failures)),
                words=True,
            )
        )
    return grids


def suite_differences(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Each pair of methods of each column as plain values, for both areas:
    differences, intervals, and whether they are resolved.
    """
    cells = _Cells(records, [])
    found = [
        (column, cells.differences(column, area)) for column in cells.columns for area in RANKS
    ]
    return [
        {"model": column.model, "task": column.task, **row}
        for column, each in found
        if each is not None
        for row in each.rows()
    ]


def write_suite(
    records: Sequence[Record], failures: Sequence[Failure], *, title: str
) -> tuple[str, str]:
    """The page (HTML) and the tables (Markdown)."""
    grids, facts = suite_grids(records, failures), _facts(records)
    return grids_page(title, grids, [None] * len(grids), READING, facts), grids_markdown(
        grids, facts
    )


def print_suite(records: Sequence[Record], failures: Sequence[Failure], console: Console) -> None:
    """Print the tables."""
    print_grids(suite_grids(records, failures), console)


def _method(record: Record) -> str:
    """A method by the name its cell was stored under."""
    return str(record.task.args.get("cell", record.method.name))


def _controls(name: str) -> dict[str, Callable[[Record], str]]:
    """Rows of random rankings under a table of a measure: what they are called, and their text."""
    if not name:
        return {}
    if name == "auroc":
        return {CHANCE: _chance}
    return {
        shown: lambda record, kind=kind: _control(record, name, kind)
        for kind, shown in CONTROLS.items()
    }


def _chance(record: Record) -> str:
    found = record.controls.get("random", {}).get("auroc")
    return NOTHING if found is None else interval(found["mean"], found["low"], found["high"])


def _control(record: Record, name: str, kind: str) -> str:
    return interval(*at_random(record, name, kind)) if kind in control_kinds(record) else NOTHING


def _took(record: Record) -> str:
    spent = [
        record.realised.get(name, math.nan) for name in ("localize_seconds", "evaluate_seconds")
    ]
    shown = [f"{seconds:.2g}" if seconds < 10 else f"{seconds:,.0f}" for seconds in spent]
    return f"{' + '.join(shown)} s, {record.realised.get('peak_memory_gb', math.nan):.1f} GB"


def _ability(record: Record) -> tuple[str, str, str]:
    chance = measure(record, "chance")
    return (
        measure_text(record, "accuracy", least=CHANCE_DECIMALS),
        NOTHING if chance is None else chance_text(chance.value),
        f"{len(record.example_ids):,}",
    )


def _without_result(failures: Sequence[Failure]) -> Iterator[tuple[str, ...]]:
    """A row for each column and kind of reason: one reason for all its methods, or one each."""
    groups: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        groups.setdefault(
            (Column.of(failure).name, f"{failure.status}: {failure.error}"), []
        ).append(failure)
    for (column, what), members in groups.items():
        methods = [failure.cell.get("method", "all methods") for failure in members]
        reasons = [failure.message for failure in members]
        told = (
            reasons[0]
            if len(set(reasons)) == 1
            else "; ".join(map(": ".join, zip(methods, reasons, strict=True)))
        )
        yield column, what, ", ".join(methods), told


def _facts(records: Sequence[Record]) -> list[dict[str, str]]:
    """What was run: a row for each column; what differs between its methods is listed."""
    rows: dict[str, dict[str, list[str]]] = {}
    for record in records:
        row = rows.setdefault(Column.of(record).name, {})
        for key, text in _facts_of(record).items():
            row.setdefault(key, []).append(text)
    return [
        {
            "cell": name,
            **{
                key: (", " if key == "methods" else "; ").join(dict.fromkeys(texts))
                for key, texts in row.items()
            },
        }
        for name, row in rows.items()
    ]


def _facts_of(record: Record) -> dict[str, str]:
    args, about = record.task.args, record.provenance
    ablation = str(args.get("ablation", "counterfactual"))
    kept = [str(record.data.get(role, {}).get("kept", "")) for role in ("train", "test")]
    return {
        "methods": _method(record),
        "ablated edges carry": (
            str(args.get("counterfactual", "")) if ablation == "counterfactual" else ablation
        ),
        "objective, profile": f"{record.metric.name}, {record.metric.args.get('profile', '')}",
        "train + test pairs, data": f"{' + '.join(kept)}, {about.data_hash[:12]}",
        "seed, dtype, commit": f"{about.seed}, {about.dtype}, {(about.commit or '')[:10]}",
    }
