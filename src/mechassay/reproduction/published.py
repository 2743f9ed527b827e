"""Numbers that papers print, as data: a value with its place and what it is a number of.

A file of `data` has the tables of one paper: rows as they are printed, and for every row and column
what was measured, on which model and task, on how many examples.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, Literal, get_args

import yaml

from mechassay.errors import UnknownName
from mechassay.reproduction.status import printed_value

Paper = Literal["mib", "adversarial", "causalgym", "measurement", "validity"]
PAPERS: tuple[Paper, ...] = get_args(Paper)
ABSENT = ("-", "")
"""How a table prints that there is no number."""
AVERAGE = "Average"
"""The row that has the means of the others; it is calculated."""
SPANS: Mapping[str, float] = {
    "cmd": 1.0,
    "auroc": 1.0,
    "accuracy": 1.0,
    "mib_mean": 100.0,
    "mib_highest": 100.0,
    "z": 6.0,
}
"""Ranges of measures that have one; CMD counts as one from 0 to 1, which a ranking without any
worth does not leave; z-scores as one from -3 to 3."""


@dataclass(frozen=True)
class Published:
    """A number as it is printed, and what it is a number of.

    Attributes:
        table: its number in the paper, or the section of a number in the text.
        row, column: as the table calls them; the column of circuits is "task/model".
        measure: "cpr", "cmd".
        printed: the text.
        of: what the data say of its column: tasks, model, n, tokens.
        method: what runs for its row, as commands take it.
        role: what of a record is compared: the result, or a control.
        deviation: in what the published number is not one of the definition that it names, or
            not of ours.
    """

    table: str
    row: str
    column: str
    measure: str
    printed: str
    of: Mapping[str, Any] = field(default_factory=dict)
    method: str = ""
    role: str = "result"
    deviation: str = ""
    unmapped: str = ""

    @property
    def value(self) -> float:
        return printed_value(self.printed)

    @property
    def n(self) -> int | None:
        """Examples behind the number; None if the paper does not say."""
        return self.of.get("n") or None

    @property
    def span(self) -> float:
        # "ranked@original" is an accuracy.
        return 1.0 if "@" in self.measure else SPANS.get(self.measure, float("inf"))


@dataclass(frozen=True)
class PublishedTable:
    """A table of a paper, or as much of one as has one measure.

    Attributes:
        page: of the paper; 0 where our copy of it has no pages.
        experiment: the kind of run that measures it: "circuits"; "" if none does, for the reason
            `unmapped`, or because it is calculated.
        values: without the cells that are empty in the paper.
    """

    table: str
    page: int
    title: str
    experiment: str
    unmapped: str
    values: tuple[Published, ...]

    @property
    def heading(self) -> str:
        page = f", p. {self.page}" if self.page else ""
        return f"{place_of(self.table)}{page}: {self.title}"


@dataclass(frozen=True)
class PublishedPaper:
    """The tables of one paper.

    Attributes:
        models: shape and id on the hub of every model, by the name that columns use.
    """

    name: str
    source: str
    models: Mapping[str, Mapping[str, Any]]
    tables: tuple[PublishedTable, ...]

    def chosen(self, tables: Collection[str], columns: Collection[str]) -> list[PublishedTable]:
        """The tables of these numbers, all if there are none, with these columns, all if none.

        Raises:
            UnknownName: there is no such table, or none of the tables has such a column.
        """
        numbers = [table.table for table in self.tables]
        for number in tables:
            if number not in numbers:
                raise UnknownName(f"table of {self.source}", number, numbers)
        kept = [table for table in self.tables if not tables or table.table in tables]
        known = {value.column for table in kept for value in table.values}
        for column in columns:
            if column not in known:
                raise UnknownName("cells", column, known)
        if not columns:
            return kept
        return [
            PublishedTable(
                table.table,
                table.page,
                table.title,
                table.experiment,
                table.unmapped,
                tuple(value for value in table.values if value.column in columns),
            )
            for table in kept
            if any(value.column in columns for value in table.values)
        ]


def place_of(table: str) -> str:
    """A table by its number, or the section that a number of the text stands in."""
    return f"Table {table}" if table.isdigit() else table


@cache
def published(paper: Paper) -> PublishedPaper:
    """Return the tables of a paper."""
    # The page of adversarial runs shows its tables too, and may not import this package.
    room = "mechassay.adversarial" if paper == "adversarial" else "mechassay.reproduction"
    text = files(room).joinpath("data", f"{paper}.yaml").read_text("utf-8")
    plain: Mapping[str, Any] = yaml.safe_load(text)
    columns, rows = plain.get("columns", {}), plain.get("rows", {})
    tables = tuple(_table(table, columns, rows) for table in plain["tables"])
    return PublishedPaper(paper, plain["source"], plain.get("models", {}), tables)


def _table(
    plain: Mapping[str, Any], columns: Mapping[str, Any], rows: Mapping[str, Any]
) -> PublishedTable:
    """A table of a file; each row is one text, with its numbers in the order of the columns.

    Where a row of the paper is a task or a model and a column a method or a kind of prompts, the
    file says so (`by`), and row and column change places: a column is always "task/model".
    """
    names: Sequence[str] = plain["columns"]
    values: list[Published] = []
    for label, text in plain["rows"].items():
        for name, printed in zip(names, str(text).split(), strict=True):
            if printed in ABSENT:
                continue
            row, column, of = label, name, columns.get(name, {})
            if "by" in plain:
                row, column, of = _placed(plain, label, name)
            about = rows.get(row, {})
            values.append(
                Published(
                    table=plain["table"],
                    row=row,
                    column=column,
                    measure=plain.get("measures", {}).get(name, plain["measure"]),
                    printed=printed,
                    of=of,
                    method=about.get("method", ""),
                    role=about.get("of", "result"),
                    unmapped=about.get("unmapped", ""),
                    deviation="; ".join(
                        filter(None, (own.get("deviation") for own in (about, of)))
                    ),
                )
            )
    return PublishedTable(
        table=plain["table"],
        page=plain.get("page", 0),
        title=plain["title"],
        experiment=plain.get("experiment", ""),
        unmapped=plain.get("unmapped", ""),
        values=tuple(values),
    )


def _placed(plain: Mapping[str, Any], label: str, name: str) -> tuple[str, str, Mapping[str, Any]]:
    """Row, column and what is known of the column, of a table whose rows are tasks or models."""
    about = {key: value for key, value in plain.get("of", {}).items() if key != "n"}
    n = plain.get("of", {}).get("n", 0)
    if plain["by"] == "task":
        model = about["model"]
        if label == AVERAGE:
            return name, f"{label}/{model}", {}
        return name, f"{label}/{model}", {**about, "task": label, "n": n}
    model, task = plain["models"][label], about.get("task", name)
    of = {**about, "task": task, "model": model, "n": n[task] if isinstance(n, dict) else n}
    return ("accuracy" if task == name else name), f"{task}/{model}", of
