"""A board: rows in places, one number each; averages over the places that are shown.

A place is what rows are tried on, under one set of conditions (`cells`): the same task of the same
model on other examples, or by another version of a definition, is another place. So nothing that
differs in what it measured stands in one column.

    average    the mean over places
    score      the mean over places of 1 / (1 + e^-x), as MIB's board has it (2025)

Both are over the places that are shown, and undefined (NaN) for a row that lacks one of them: else
a row that skips a hard place would win. Without a choice, one place stands for each task of a
model, that of most rows, and none for numbers as reported, if there are others.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mechassay.display import OneLine
from mechassay.errors import BadUsage, UnknownName
from mechassay.leaderboard.cells import BoardCell, newest, told_apart
from mechassay.leaderboard.rules import BoardRules

FORMAT = 1


@dataclass(frozen=True)
class BoardPlace:
    """What rows are tried on, under one set of conditions.

    Attributes:
        roles: model, task and what else, by name.
        under: the hash of the conditions.
        differs: the conditions by which it differs from other places of the same roles.
    """

    roles: tuple[tuple[str, str], ...]
    under: str
    differs: str = ""

    @property
    def title(self) -> str:
        """What a table calls it."""
        names = list(dict.fromkeys(value for _, value in reversed(self.roles)))
        return ", ".join(names) + (f" ({self.differs})" if self.differs else "")


@dataclass(frozen=True, eq=False, repr=False)
class Board(OneLine):
    """The cells of a board, the newest of each."""

    rules: BoardRules
    cells: tuple[BoardCell, ...]

    @staticmethod
    def of(rules: BoardRules, cells: Iterable[BoardCell]) -> Board:
        """A board of cells; of those that measure the same again, the newest stands."""
        return Board(rules, tuple(newest(cells)))

    def shown(self) -> dict[str, Any]:
        return {"name": self.rules.name, "rows": len(self.rows()), "cells": len(self.cells)}

    @cached_property
    def _at(self) -> dict[tuple[str, str, BoardPlace], BoardCell]:
        found: dict[tuple[str, str, BoardPlace], BoardCell] = {}
        for name in self.columns:
            places = {(place.roles, place.under): place for place in self.places(name)}
            for cell in self.cells:
                if cell.column == name:
                    place = places[tuple(cell.place.items()), cell.under]
                    found[cell.row, name, place] = cell
        return found

    @property
    def columns(self) -> list[str]:
        """The columns that have a number, in the order of the rules."""
        held = {cell.column for cell in self.cells}
        return [column.name for column in self.rules.columns if column.name in held]

    def rows(self) -> list[str]:
        """The rows, in the order of the cells."""
        return list(dict.fromkeys(cell.row for cell in self.cells))

    def places(self, column: str) -> list[BoardPlace]:
        """The places of a column, sorted by their names.

        Raises:
            UnknownName: the board has no such column.
        """
        self.rules.column(column)
        groups: dict[tuple[tuple[str, str], ...], dict[str, Mapping[str, str]]] = {}
        for cell in self.cells:
            if cell.column == column:
                roles = tuple(cell.place.items())
                groups.setdefault(roles, {}).setdefault(cell.under, cell.conditions)
        return [
            BoardPlace(roles, under, _differing(conditions, list(by_hash.values())))
            for roles, by_hash in sorted(groups.items())
            for under, conditions in by_hash.items()
        ]

    def comparable(self, column: str) -> list[BoardPlace]:
        """One place for each set of roles: that which most rows have, recomputed before reported.

        Raises:
            UnknownName: the board has no such column.
        """
        best: dict[tuple[tuple[str, str], ...], tuple[int, BoardPlace]] = {}
        every = self.places(column)
        for place in every:
            cells = [cell for row in self.rows() if (cell := self.cell(row, place, column))]
            n = sum(cell.origin == "recomputed" for cell in cells)
            if place.roles not in best or n > best[place.roles][0]:
                best[place.roles] = n, place
        found = [place for n, place in best.values() if n] or [p for _, p in best.values()]
        return [place for place in every if place in found]

    def cell(self, row: str, place: BoardPlace, column: str) -> BoardCell | None:
        """The cell of a row at a place; None if there is none."""
        return self._at.get((row, column, place))

    def find(self, name: str) -> BoardCell:
        """A cell by its name, `row/place/.../column`, with `@` and its conditions if there are
        several.

        Raises:
            UnknownName: there is none.
            BadUsage: the name is that of cells under several conditions.
        """
        found = [cell for cell in self.cells if name in (cell.id, cell.full_id)]
        if not found:
            known = told_apart([cell.full_id for cell in self.cells])
            raise UnknownName("cell", name, known)
        if len(found) > 1:
            names = ", ".join(cell.full_id for cell in found)
            raise BadUsage(f"{name} is measured under several conditions: name one of {names}.")
        return found[0]

    def average(self, row: str, column: str, places: Sequence[BoardPlace] | None = None) -> float:
        """The mean of a row over places, the comparable ones by default; NaN if it lacks one."""
        return _mean(self._values(row, column, places))

    def score(self, row: str, column: str, places: Sequence[BoardPlace] | None = None) -> float:
        """MIB's score: the mean of 1 / (1 + e^-x) over places; NaN if one is lacking."""
        return _mean([sigmoid(value) for value in self._values(row, column, places)])

    def _values(self, row: str, column: str, places: Sequence[BoardPlace] | None) -> list[float]:
        shown = self.comparable(column) if places is None else places
        cells = [self.cell(row, place, column) for place in shown]
        return [math.nan if cell is None else cell.value for cell in cells]

    def ranked(self, column: str, places: Sequence[BoardPlace] | None = None) -> list[str]:
        """Rows with a number in a column, the best average first, those without one last."""
        shown = self.comparable(column) if places is None else list(places)
        every = self.places(column)
        rows = [row for row in self.rows() if any(self.cell(row, p, column) for p in every)]
        sign = -1.0 if self.rules.column(column).better == "up" else 1.0
        averages = {row: sign * self.average(row, column, shown) for row in rows}
        return sorted(rows, key=lambda row: (math.isnan(averages[row]), averages[row]))

    def to_json(self) -> str:
        """Everything: rules and cells."""
        told = {
            "format": FORMAT,
            "board": self.rules.name,
            "columns": [vars(column) for column in self.rules.columns],
            "cells": [
                json.loads(cell.model_dump_json()) | {"id": cell.full_id} for cell in self.cells
            ],
        }
        return json.dumps(told, indent=1)

    def to_csv(self) -> str:
        """A line a cell; roles of places are columns."""
        out = io.StringIO()
        head = ["row", *self.rules.place, "column", "version", "value", "low", "high", "n"]
        head += ["n_undefined", "origin", "conditions", "created", "sha256", "command", "source"]
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(head)
        for cell in self.cells:
            plain = {**cell.place, **cell.model_dump(), "conditions": cell.under}
            writer.writerow([_csv_text(plain.get(name, "")) for name in head])
        return out.getvalue()


def sigmoid(value: float) -> float:
    """1 / (1 + e^-x); NaN of NaN."""
    return float(0.5 * (1 + np.tanh(value / 2)))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else math.nan


def _differing(own: Mapping[str, str], every: Sequence[Mapping[str, str]]) -> str:
    """The conditions that are not those of all others, in words."""
    names = dict.fromkeys(name for each in every for name in each)
    changed = [name for name in names if len({each.get(name) for each in every}) > 1]
    return ", ".join(f"{name} {own.get(name, 'none')[:24]}" for name in changed)


def _csv_text(value: Any) -> str:
    """A value as text that no spreadsheet takes for a formula."""
    if isinstance(value, float):
        return "" if math.isnan(value) else repr(value)
    text = str(value)
    return f"'{text}" if text[:1] in "=+-@\t\r" else text
