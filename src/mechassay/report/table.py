"""Results as a table: a row for every method, for the random control,
and for every cell that failed.

CPR and CMD stand with their intervals over examples, those of random rankings too, of which the
mean over seeds is shown. A higher CPR and a lower CMD are better.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from mechassay.circuits.differences import AreaName
from mechassay.records import Failure, Record
from mechassay.report.ranks import rank_text, ranked
from mechassay.report.text import (
    CONTROLS,
    at_random,
    control_kinds,
    interval,
    kept_at,
    labels,
    measure,
    measure_text,
    number,
    random_seeds,
    seconds,
    settings,
    value_of,
)

Row = dict[str, str]

COLUMNS = {
    "method": "method",
    "cpr": "CPR",
    "cpr_rank": "rank by CPR",
    "cmd": "CMD",
    "cmd_corrected": "CMD without bias",
    "cmd_rank": "rank by CMD",
    "log_cpr": "log CPR",
    "log_cmd": "log CMD",
    "n": "n",
    "kept": "kept at 1 %",
    "seconds": "seconds",
    "notes": "notes",
}
"""Keys of a row and the headings they stand under;
a row also has `kind`: method, control or failure.
"""

WIDE = 160
"""Characters from which intervals stand beside their numbers."""

MIDDLING = 110
AREAS: tuple[AreaName, ...] = ("cpr", "cmd")
ESSENTIAL = ("method", "cpr", "cmd", "seconds")
"""What is shown on fewer characters than `MIDDLING`; the report has the rest."""

NUMERIC = (
    "cpr",
    "cpr_rank",
    "cmd",
    "cmd_corrected",
    "cmd_rank",
    "log_cpr",
    "log_cmd",
    "n",
    "kept",
    "seconds",
)


def table_rows(records: Sequence[Record], failures: Sequence[Failure] = ()) -> list[Row]:
    """The table as text: a row for every record, one for every distinct random control,
    one for every failure.
    """
    names = dict(zip(map(id, records), labels(records), strict=True))
    rows: list[Row] = []
    for group in settings(records):
        rows += [
            {**_record_row(record, names[id(record)]), **ranks}
            for record, ranks in zip(group, _ranks(group), strict=True)
        ]
        rows += _control_rows(group)
    return rows + [_failure_row(failure) for failure in failures]


def shown_columns(rows: Sequence[Row]) -> dict[str, str]:
    """The columns in which some row has something."""
    return {key: heading for key, heading in COLUMNS.items() if any(row[key] for row in rows)}


def print_table(
    records: Sequence[Record], failures: Sequence[Failure] = (), console: Console | None = None
) -> None:
    """Print the table to a console; standard output if none is given."""
    console = console or Console()
    rows = table_rows(records, failures)
    columns = shown_columns(rows)
    narrow = console.width < WIDE
    if console.width < MIDDLING:
        columns = {key: heading for key, heading in columns.items() if key in ESSENTIAL}
    table = Table(
        caption=(
            "CPR: higher is better. CMD: lower is better. Brackets: 95 % interval over examples."
        )
    )
    for key, heading in columns.items():
        table.add_column(
            heading,
            justify="right" if key in NUMERIC else "left",
            no_wrap=key in NUMERIC or key == "method",
            overflow="fold",
        )
    for row in rows:
        style = {"control": "dim", "failure": "red"}.get(row["kind"])
        table.add_row(
            *(escape(_narrowed(row, key) if narrow else row[key]) for key in columns), style=style
        )
    console.print(table)
    for row in rows if narrow else ():
        if row["kind"] == "failure":
            console.print(
                f"{row['method']}: {row['notes']}", style="red", markup=False, highlight=False
            )


def _narrowed(row: Row, key: str) -> str:
    """A cell on a narrow screen: an interval goes under its number,
    the reason of a failure under the table.
    """
    if key in NUMERIC:
        return row[key].replace(" [", "\n[")
    return "failed" if key == "notes" and row["kind"] == "failure" else row[key]


def _row(kind: str, **cells: str) -> Row:
    return {"kind": kind, **dict.fromkeys(COLUMNS, ""), **cells}


def _record_row(record: Record, label: str) -> Row:
    spent = seconds(record)
    return _row(
        "method",
        method=label,
        **{name: measure_text(record, name) for name in ("cpr", "cmd", "log_cpr", "log_cmd")},
        cmd_corrected=_corrected(record),
        n=f"{len(record.example_ids):,}",
        kept=kept_at(record),
        seconds="" if math.isnan(spent) else f"{spent:.3g}" if spent < 100 else f"{spent:,.0f}",
        notes="; ".join(_notes(record)),
    )


def _ranks(group: Sequence[Record]) -> list[Row]:
    """The ranks of the methods of a setting, by both areas, as far as differences are resolved."""
    found = {f"{area}_rank": ranked(group, area) for area in AREAS}
    return [
        {key: rank_text(each.ranks()[place]) for key, each in found.items() if each is not None}
        for place in range(len(group))
    ]


def _corrected(record: Record) -> str:
    """CMD without bias, to the digits that CMD's interval supports; empty in older records."""
    cmd = measure(record, "cmd")
    return (
        ""
        if cmd is None or measure(record, "cmd_corrected") is None
        else number(value_of(record, "cmd_corrected"), cmd.low, cmd.high)
    )


def _notes(record: Record) -> list[str]:
    notes: list[str] = []
    n_undefined = max((measure.n_undefined for measure in record.measures), default=0)
    if n_undefined:
        notes.append(f"undefined at {n_undefined} sizes")
    if record.warnings:
        notes.append(f"{len(record.warnings)} warning{'s' * (len(record.warnings) > 1)}")
    return notes


def _control_rows(group: Sequence[Record]) -> list[Row]:
    """A row a kind of random rankings, if all records of a setting were compared with the same,
    as they are in one run.
    """
    rows: list[Row] = []
    for record in group:
        for kind in control_kinds(record):
            seeds = len(random_seeds(record, kind))
            cells = {name: interval(*at_random(record, name, kind)) for name in ("cpr", "cmd")}
            about = f"mean of {seeds} seed{'s' * (seeds != 1)}"
            row = _row(
                "control",
                method=CONTROLS[kind],
                **cells,
                n=f"{len(record.example_ids):,}",
                notes=about,
            )
            if row not in rows:
                rows.append(row)
    return rows


def _failure_row(failure: Failure) -> Row:
    others = ", ".join(value for key, value in failure.cell.items() if key != "method")
    where = f" ({others})" if others else ""
    notes = f"{failure.status}{where}: {failure.error}: {failure.message}"
    return _row("failure", method=failure.cell.get("method", "cell"), notes=notes)
