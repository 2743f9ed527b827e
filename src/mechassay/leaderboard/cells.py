"""Cells of a board: numbers of records, each with what it was measured under and where it is from.

Two cells are compared only if they were measured under the same conditions:

    the version of the column's definition
    the task, its version and settings, but for those of the train split
    the test examples, by the hash of their content
    the metric or profile and its version

`conditions` holds these as text. What a method was given to find things on is not among them: it is
shown. The place of a cell is what it was tried on: model, task, variable.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from mechassay.errors import BadFile, BadUsage, MechassayError
from mechassay.leaderboard.rules import BoardColumn, BoardRules
from mechassay.records import Measure, Number, Record, Stored, read_record
from mechassay.runs.command_line import command_line
from mechassay.runs.folder import RunFolder
from mechassay.runs.job import job_of

Origin = Literal["recomputed", "as reported"]
OF_TRAINING = ("train_split", "train_limit")
"""Settings of a task that say what a method was given, not what it is measured on."""
RECORDS = "records"


class BoardCell(Stored):
    """One number of a board.

    Attributes:
        row: what is ranked: a method or a submission.
        place: what it was tried on, by role.
        version: of the column's definition.
        controls: the same measure of the record's controls, by name.
        conditions: what has to be the same for two cells to be compared.
        failing: controls with a known answer that the record fails.
        file, sha256: the record, relative to the folder of runs, and the hash of its bytes.
        command: that makes the record; "" where no command does.
        source: of a number as reported: where it stands.
    """

    board: str
    column: str
    version: int
    row: str
    place: dict[str, str]
    value: Number
    low: Number = math.nan
    high: Number = math.nan
    n: int = 0
    n_undefined: int = 0
    controls: dict[str, Number] = Field(default_factory=dict)
    origin: Origin = "recomputed"
    conditions: dict[str, str] = Field(default_factory=dict)
    failing: list[str] = Field(default_factory=list)
    warnings: list[str] = Field(default_factory=list)
    settings: str = ""
    seconds: Number = math.nan
    file: str = ""
    sha256: str = ""
    command: str = ""
    created: str = ""
    source: str = ""

    @property
    def under(self) -> str:
        """The conditions as a short hash: equal for cells that may be compared."""
        text = json.dumps(self.conditions, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def id(self) -> str:
        """A name of the cell, unique on its board: row, place and column."""
        return "/".join([self.row, *self.place.values(), self.column])


def read_cells(rules: BoardRules, folder: Path) -> tuple[list[BoardCell], list[str]]:
    """The cells of a board in all runs in a folder and below it, and files that cannot be read.

    Raises:
        BadFile: there is no such folder.
    """
    if not folder.is_dir():
        raise BadFile(f"{folder}: there is no such folder.")
    cells: list[BoardCell] = []
    unreadable: list[str] = []
    for plan in sorted(folder.rglob("plan.json")):
        run = plan.parent
        for file in sorted((run / RECORDS).rglob("*.json")):
            try:
                record = read_record(file)
            except BadFile as error:
                unreadable.append(str(error))
                continue
            if record.kind == rules.kind:
                about: dict[str, Any] = {
                    "file": file.relative_to(folder).as_posix(),
                    "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
                    "command": _command(run),
                }
                cells += cells_of(rules, record, **about)
    return cells, unreadable


def cells_of(rules: BoardRules, record: Record, **about: Any) -> Iterator[BoardCell]:
    """The cells that a record has on a board.

    Args:
        about: where it is from: `file`, `sha256`, `command`.

    Raises:
        BadUsage: a record of another kind.
    """
    if record.kind != rules.kind:
        raise BadUsage(f"The board {rules.name} reads {rules.kind}; got a record of {record.kind}.")
    names = {role: spec.name for role, spec in record.specs.items()} | record.cell
    place = {role: names[role] for role in rules.place if names.get(role)}
    common: dict[str, Any] = {
        **about,
        "board": rules.name,
        "place": place,
        "failing": [check.name for check in record.checks if not check.passed],
        "warnings": list(record.warnings),
        "created": record.provenance.created,
        "seconds": _seconds(record),
    }
    for column in rules.columns:
        for row, measure in _measures(rules, column, record, names):
            yield BoardCell(
                column=column.name,
                version=column.version,
                row=row,
                **{key: getattr(measure, key) for key in ("value", "low", "high", "n")},
                n_undefined=measure.n_undefined,
                controls=_controls(record, measure),
                conditions=_conditions(record, column),
                settings=_settings(record, rules.row),
                **common,
            )


def _measures(
    rules: BoardRules, column: BoardColumn, record: Record, names: Mapping[str, str]
) -> Iterator[tuple[str, Measure]]:
    """The rows that a record has in a column, each with its measure."""
    if not column.many_rows:
        measure = record.measure(column.measure)
        row = names.get(rules.row) or names.get("method")
        if measure is not None and row:
            yield row, measure
        return
    begin, _, end = column.measure.partition("{row}")
    for measure in record.measures:
        inner = measure.name[len(begin) : len(measure.name) - len(end)]
        same = measure.of == "result" and inner and measure.name == f"{begin}{inner}{end}"
        if same:
            yield inner, measure


def _controls(record: Record, measure: Measure) -> dict[str, float]:
    return {
        each.of.removeprefix("control:"): each.value
        for each in record.measures
        if each.name == measure.name and each.of.startswith("control:")
    }


def _conditions(record: Record, column: BoardColumn) -> dict[str, str]:
    task, metric = record.specs.get("task"), record.specs.get("metric")
    said: dict[str, Any] = {"definition": f"{column.name}@{column.version}"}
    if task is not None:
        said["task"] = f"{task.name}@{task.version}"
        said |= {key: value for key, value in task.args.items() if key not in OF_TRAINING}
    if metric is not None:
        settings = json.dumps(metric.args, sort_keys=True) if metric.args else ""
        said["metric"] = f"{metric.name}@{metric.version}{settings}"
    said["examples"] = record.provenance.data_hash
    return {
        key: value if isinstance(value, str) else json.dumps(value) for key, value in said.items()
    }


def _settings(record: Record, role: str) -> str:
    """The settings of the method, and what it was given to find things on."""
    method, task = record.specs.get(role) or record.specs.get("method"), record.specs.get("task")
    said: dict[str, Any] = dict(method.args) if method is not None else {}
    given = {} if task is None else {key: task.args[key] for key in OF_TRAINING if key in task.args}
    return ", ".join(f"{key}={value}" for key, value in {**said, **given}.items())


def _seconds(record: Record) -> float:
    spent = [value for key, value in record.realised.items() if key.endswith("seconds")]
    return float(sum(spent)) if spent else math.nan


def _command(run: Path) -> str:
    """The command of a run; "" where its plan is of another version or has no command."""
    try:
        return command_line(job_of(RunFolder(run).plan()), Path(run.name))
    except (MechassayError, TypeError):
        return ""


def newest(cells: Iterable[BoardCell]) -> list[BoardCell]:
    """One cell for each row, place, column, origin and conditions: the newest; in first order."""
    found: dict[tuple[str, ...], BoardCell] = {}
    for cell in cells:
        key = (cell.id, cell.origin, cell.under)
        if key not in found or cell.created > found[key].created:
            found[key] = cell
    return list(found.values())
