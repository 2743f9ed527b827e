"""A board: rows in places, one number each; averages over places, and differences of two rows.

A place is what rows are tried on, under one set of conditions (`leaderboard.cells`). The same
task of the same model on other examples, or by another version of a definition, is another
place. So nothing that differs in what it measured stands in one column.

Average and score (`summarised`) are over the places that are shown. They are undefined (NaN) for
a row that lacks one of them: else a row that skips a hard place would win. Language models and
ground truths are never averaged together: an area of 3 on a model with a known circuit says
nothing of an area of 0.7 on a language model. Without a choice, one place stands for each task
of a model: the one with most recomputed rows. Places with numbers as reported alone are left
out, unless there are no others.

`independent_mean` combines the intervals of the cells to the interval of an average: places of
one task are a group, because they may have examples in common. `paired_differences` compares two
rows of one place example by example.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, Literal, get_args

import numpy as np

from mechassay.circuits.evaluation.differences import AreaName, differences_of
from mechassay.errors import BadUsage, UnknownName, one_of
from mechassay.leaderboard.cells import BoardCell, newest, told_apart
from mechassay.leaderboard.rules import Better, BoardColumn, BoardRules, PlaceConditions, in_words
from mechassay.results.records import Record, Values
from mechassay.stats.intervals import Estimate, Resamples, independent_mean, percentile_interval
from mechassay.truth.ground_truth import is_truth
from mechassay.utils.display import OneLine, number
from mechassay.utils.files import csv_text

ScoreFormula = Literal["repaired", "mib-2025"]


@dataclass(frozen=True)
class RowSummary:
    """What a row has over places.

    Attributes:
        lacks: why there is no number, or no interval; "" if there is one.
    """

    average: Estimate
    score: Estimate
    lacks: str = ""


def sigmoid(value: float) -> float:
    """1 / (1 + e^-x); NaN of NaN."""
    return float(0.5 * (1 + np.tanh(value / 2)))


def summarised(
    numbers: Sequence[Estimate],
    tasks: Sequence[str],
    better: Better,
    formula: ScoreFormula = "repaired",
) -> RowSummary:
    """Average and score of numbers, one a place.

        average    the mean of the numbers x_i
        score      the mean of s(x_i), s(x) = 1 / (1 + e^-x) where higher is better, and
                   1 / (1 + e^x) where lower is: a better row has a higher score
        mib-2025   the score as MIB's board has it: 1 / (1 + e^-x) whichever way is better, so
                   that of a column where lower is better it is lower for the better row

    The intervals are those of `independent_mean`. That of a score is made of s(l_i) and s(u_i), as
    s is monotone. A row that lacks a place or a number has neither average nor score, and one that
    lacks an interval anywhere has no interval here.

    Args:
        numbers: NaN where a row has none.
        tasks: whose examples each was measured on.

    Raises:
        BadUsage: not a task for each number. UnknownName: no such formula.
    """
    one_of("formula of a score", formula, get_args(ScoreFormula))
    if len(numbers) != len(tasks):
        raise BadUsage(f"Every number has a task; got {len(numbers)} and {len(tasks)}.")
    sign = -1.0 if better == "down" and formula == "repaired" else 1.0
    scores: list[Estimate] = []
    for estimate in numbers:
        low, high = sorted((sigmoid(sign * estimate.low), sigmoid(sign * estimate.high)))
        scores.append(Estimate(sigmoid(sign * estimate.value), low, high))
    return RowSummary(
        independent_mean(numbers, tasks), independent_mean(scores, tasks), _lacking(numbers)
    )


def _lacking(numbers: Sequence[Estimate]) -> str:
    if not numbers:
        return "no place is shown"
    if n := sum(math.isnan(estimate.value) for estimate in numbers):
        return f"lacks {n} of {len(numbers)} places"
    n = sum(math.isnan(estimate.low + estimate.high) for estimate in numbers)
    return f"no interval: {n} of {len(numbers)} numbers have none" if n else ""


FORMAT = 1
ModelKind = Literal["language models", "ground truths"]
"""What places are averaged together: models whose circuit is not known, or is."""


@dataclass(frozen=True)
class BoardPlace:
    """What rows are tried on, under one set of conditions.

    Attributes:
        roles: model, task and what else, by name.
        under: the hash of the conditions.
        differs: what tells it from other places of the same roles, in short.
        conditions: by which it differs from them, in full.
        examples_of: the task whose examples it has.
        weights: the digest of the model's weights, if the model's name does not say which weights
            it has.
    """

    roles: tuple[tuple[str, str], ...]
    under: str
    differs: str = ""
    conditions: str = ""
    examples_of: str = ""
    weights: str = ""

    @property
    def kind(self) -> ModelKind:
        """Which kind of model it is on."""
        return "ground truths" if is_truth(dict(self.roles).get("model", "")) else "language models"

    @property
    def names(self) -> list[str]:
        """Of variable, task and model, each once."""
        return list(dict.fromkeys(value for _, value in reversed(self.roles)))

    @property
    def title(self) -> str:
        """What a table calls it."""
        return ", ".join(self.names) + (f" ({self.differs})" if self.differs else "")


@dataclass(frozen=True, eq=False, repr=False)
class Board(OneLine):
    """The cells of a board, the newest of each."""

    rules: BoardRules
    cells: tuple[BoardCell, ...]

    @staticmethod
    def of(rules: BoardRules, cells: Iterable[BoardCell]) -> Board:
        """A board of cells; of those that measure the same again, the newest stands."""
        return Board(rules, tuple(newest(cells)))

    def repr_fields(self) -> dict[str, Any]:
        return {"name": self.rules.name, "rows": len(self.rows()), "cells": len(self.cells)}

    @cached_property
    def _at(self) -> dict[tuple[str, str, BoardPlace], BoardCell]:
        cells: dict[tuple[str, str, BoardPlace], BoardCell] = {}
        for name in self.columns:
            places = {(place.roles, place.under): place for place in self.places(name)}
            for cell in self.cells:
                if cell.column == name:
                    place = places[tuple(cell.place.items()), cell.under]
                    cells[cell.row, name, place] = cell
        return cells

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
        groups: dict[tuple[tuple[str, str], ...], dict[str, list[BoardCell]]] = {}
        for cell in self.cells:
            if cell.column == column:
                roles = tuple(cell.place.items())
                groups.setdefault(roles, {}).setdefault(cell.under, []).append(cell)
        places: list[BoardPlace] = []
        for roles, by_hash in sorted(groups.items()):
            conditions = in_words(
                [_conditions_of(under, cells) for under, cells in by_hash.items()]
            )
            places += [
                BoardPlace(
                    *(roles, under, short, full, cells[0].examples_of),
                    cells[0].conditions.get("weights", ""),
                )
                for (under, cells), (short, full) in zip(by_hash.items(), conditions, strict=True)
            ]
        return places

    def place_of(self, cell: BoardCell) -> BoardPlace:
        """The place that a cell of the board is at."""
        at = tuple(cell.place.items()), cell.under
        return next(place for place in self.places(cell.column) if (place.roles, place.under) == at)

    def kinds(self, column: str) -> dict[ModelKind, list[BoardPlace]]:
        """The places of a column by the kind of their models, language models first.

        Raises:
            UnknownName: the board has no such column.
        """
        places = self.places(column)
        return {
            kind: of_kind
            for kind in get_args(ModelKind)
            if (of_kind := [place for place in places if place.kind == kind])
        }

    def comparable(self, column: str, kind: ModelKind | None = None) -> list[BoardPlace]:
        """One place for each set of roles: that which most rows have, recomputed before reported.

        Args:
            kind: of the models; without it language models, or ground truths if there are no
                others.

        Raises:
            UnknownName: the board has no such column, or the column no such kind.
        """
        kinds = self.kinds(column)
        if not kinds:
            return []
        every = kinds[one_of("kind of models", kind or next(iter(kinds)), kinds)]
        best: dict[tuple[Any, str], tuple[int, BoardPlace]] = {}
        for place in every:
            n = sum(cell.origin == "recomputed" for cell in self._at_place(column, place))
            key = place.roles, place.weights  # Two models may have one name.
            if key not in best or n > best[key][0]:
                best[key] = n, place
        chosen = [place for n, place in best.values() if n] or [p for _, p in best.values()]
        return [place for place in every if place in chosen]

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
        named = [cell for cell in self.cells if name in (cell.id, cell.full_id)]
        if not named:
            known = told_apart([cell.full_id for cell in self.cells])
            raise UnknownName("cell", name, known)
        if len(named) > 1:
            names = ", ".join(cell.full_id for cell in named)
            raise BadUsage(f"{name} is measured under several conditions: name one of {names}.")
        return named[0]

    def average(self, row: str, column: str, places: Sequence[BoardPlace] | None = None) -> float:
        """The mean of a row over places, by default `comparable(column)`; NaN if it lacks one."""
        return self.summary(row, column, places).average.value

    def score(
        self,
        row: str,
        column: str,
        places: Sequence[BoardPlace] | None = None,
        formula: ScoreFormula = "repaired",
    ) -> float:
        """The score of a row over places, higher for a better row; NaN if it lacks one.

        Args:
            formula: "mib-2025" for the one of MIB's board.
        """
        return self.summary(row, column, places, formula).score.value

    def summary(
        self,
        row: str,
        column: str,
        places: Sequence[BoardPlace] | None = None,
        formula: ScoreFormula = "repaired",
    ) -> RowSummary:
        """Average and score of a row over places, with their intervals.

        Raises:
            UnknownName: no such column or formula.
        """
        columns = self.comparable(column) if places is None else places
        cells = [self.cell(row, place, column) for place in columns]
        numbers = [
            Estimate(math.nan) if cell is None else Estimate(cell.value, cell.low, cell.high)
            for cell in cells
        ]
        tasks = [place.examples_of for place in columns]
        return summarised(numbers, tasks, self.rules.column(column).better, formula)

    def shared_controls(self, column: str) -> dict[str, dict[BoardPlace, float]]:
        """The controls that all rows of each place have, with one number there, as it is shown.

        Others belong to their cells: a control of a featurizer has its number of dimensions.
        """
        at = {place: self._at_place(column, place) for place in self.places(column)}
        names = dict.fromkeys(x for cells in at.values() for cell in cells for x in cell.controls)
        shared: dict[str, dict[BoardPlace, float]] = {}
        for name in names:
            values = {
                place: [cell.controls.get(name) for cell in cells] for place, cells in at.items()
            }
            held = {
                place: cells_of for place, cells_of in values.items() if set(cells_of) != {None}
            }
            if all(_shown_alike(cells_of) for cells_of in held.values()):
                shared[name] = {
                    place: float(cells_of[0] or 0.0) for place, cells_of in held.items()
                }
        return shared

    def _at_place(self, column: str, place: BoardPlace) -> list[BoardCell]:
        return [cell for row in self.rows() if (cell := self.cell(row, place, column))]

    def ranked(self, column: str, kind: ModelKind | None = None) -> list[str]:
        """Rows with a number on a kind of models, the best average first, those without one last.

        Args:
            kind: as in `comparable`.
        """
        comparable = self.comparable(column, kind)
        of_kind = {place.kind for place in comparable}
        places = [place for place in self.places(column) if place.kind in of_kind]
        rows = [row for row in self.rows() if any(self.cell(row, at, column) for at in places)]
        sign = -1.0 if self.rules.column(column).better == "up" else 1.0
        averages = {row: sign * self.average(row, column, comparable) for row in rows}
        return sorted(rows, key=lambda row: (math.isnan(averages[row]), averages[row]))

    def to_json(self) -> str:
        """Everything: rules and cells."""
        facts = {
            "format": FORMAT,
            "board": self.rules.name,
            "columns": [vars(column) for column in self.rules.columns],
            "cells": [
                json.loads(cell.model_dump_json()) | {"id": cell.full_id} for cell in self.cells
            ],
        }
        return json.dumps(facts, indent=1)

    def to_csv(self) -> str:
        """A line a cell; roles of places are columns."""
        head = ["row", *self.rules.place, "column", "version", "value", "low", "high", "n"]
        head += ["n_undefined", "origin", "conditions", "created", "sha256", "command", "source"]
        head += ["examples", "reason"]
        rows = (
            {**cell.place, **cell.model_dump(), "conditions": cell.under} for cell in self.cells
        )
        return csv_text(head, rows)


def _conditions_of(under: str, cells: Sequence[BoardCell]) -> PlaceConditions:
    n = max(cell.examples or cell.n for cell in cells)
    reported = all(cell.origin == "as reported" for cell in cells)
    return PlaceConditions(under, cells[0].conditions, n, reported)


def _shown_alike(values: Sequence[float | None]) -> bool:
    """Whether all are numbers that look the same on a page."""
    texts = {None if value is None else number(value) for value in values}
    return len(texts) == 1 and None not in texts


AREAS = "areas"

Pairs = dict[tuple[str, str], Estimate]


def paired_differences(column: BoardColumn, records: Mapping[str, Record], seed: int = 0) -> Pairs:
    """For each two rows, the first less the second with its 95 % interval.

    What makes an example hard makes it hard for both rows. So the interval of their difference
    resamples whole groups of examples once for both. Areas of faithfulness are compared as in
    `circuits.evaluation.differences`: the intervals of all pairs of rows hold together.

    Args:
        records: of one place, by row.

    Returns:
        Nothing for a column without values of examples; NaN where a value is undefined.

    Raises:
        BadUsage: records that are not about the same examples.
    """
    if not column.paired or len(records) < 2:
        return {}
    if column.paired == AREAS:
        area = one_of("area", column.name, get_args(AreaName))
        rows = list(records)
        differences = differences_of(list(records.values()), area, names=rows, seed=seed)
        ends = differences.values, differences.low, differences.high
        return {
            (rows[i], rows[j]): Estimate(*(float(numbers_of[i, j]) for numbers_of in ends))
            for i, j in combinations(range(len(rows)), 2)
        }
    held = {row: _column(column, row, record) for row, record in records.items()}
    return {(a, b): _difference((a, b), (held[a], held[b]), seed) for a, b in combinations(held, 2)}


def _column(column: BoardColumn, row: str, record: Record) -> tuple[Values, np.ndarray]:
    name = column.values_in(record, row)
    if record.values is None or name not in record.values.columns:
        raise BadUsage(f"The record of {row} has no values of examples named {name}.")
    return record.values, np.array(record.values.columns[name], dtype=float)


def _difference(
    rows: tuple[str, str],
    held: tuple[tuple[Values, np.ndarray], tuple[Values, np.ndarray]],
    seed: int,
) -> Estimate:
    (first, a), (second, b) = held
    if first.ids != second.ids:
        raise BadUsage(
            f"{rows[0]} and {rows[1]} were measured on other examples ({len(first.ids)} and"
            f" {len(second.ids)}): they are not compared."
        )
    less = a - b
    if np.isnan(less).any():
        return Estimate(math.nan)
    resamples = Resamples(first.groups or first.ids, np.random.default_rng(seed))
    draws = resamples.means(less[None])[:, 0]
    interval = percentile_interval(draws, n_groups=resamples.n_groups)
    return Estimate(float(less.mean()), interval.low, interval.high)
