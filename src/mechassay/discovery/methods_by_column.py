"""Methods beside each other: the records of several tasks and models as a grid.

A row is a method and a column a task on a model. A grid gives each measure as a table, the methods
that no other is resolved to be better than, and ranks by paired differences
(`circuits.evaluation.differences`). Columns of a table are the tasks of one model, or all ground
truths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from mechassay.circuits.evaluation.chance import against_chance, n_methods
from mechassay.circuits.evaluation.differences import AreaName, Differences
from mechassay.circuits.mib_submission import ARITHMETIC
from mechassay.discovery.conclusion import excluded
from mechassay.discovery.page import rank_text, ranked, resolved_text
from mechassay.models.sources import truth_names
from mechassay.results.curves import control_kinds, control_name, is_random
from mechassay.results.page import BEST, NOTHING, OVERSHOT, Report, Row, TextTable
from mechassay.results.preconditions import different, information
from mechassay.results.records import Failure, Record, estimate_of
from mechassay.results.sections import measured
from mechassay.results.verdict import Case, Standing
from mechassay.stats.intervals import independent_mean
from mechassay.utils.display import interval

MOST_COLUMNS = 6
TRUTHS = "ground truths"
RANKS: dict[AreaName, str] = {
    "cma": "Rank by CMA",
    "cmd": "Rank by CMD",
    "cpr": "Rank by CPR",
}
BY_CHANCE = "*"
"""Beside a rank: the method is not better than random rankings."""
MARKED = (
    f"{BEST} the best of its column, or not distinguishable from it by paired differences, of"
    " methods that are better than random rankings."
)
OVERSHOOTS = f"{OVERSHOT} overshoots: resolved to be more than the model itself, and not the best."
AVERAGED = "The mean of both operators; its interval is that of two independent estimates."


@dataclass(frozen=True)
class ModelTask:
    """A task on a model, as both were asked for."""

    model: str
    task: str

    @staticmethod
    def of(row: Record | Failure) -> ModelTask:
        specs = {} if isinstance(row, Failure) else row.specs
        names = {role: spec.name for role, spec in specs.items()} | row.cell
        return ModelTask(names.get("model", ""), names.get("task", ""))

    @property
    def name(self) -> str:
        """What it is called where tables of all models meet."""
        return self.model if self.model == self.task else f"{self.task}, {self.model}"

    @property
    def words(self) -> str:
        """The name in a sentence: "ioi (smollm2-135m)"."""
        return self.model if self.model == self.task else f"{self.task} ({self.model})"


class MethodsByColumn:
    """Records and failures by column and method."""

    def __init__(self, report: Report) -> None:
        self.records = {
            (ModelTask.of(record), method_name(record)): record for record in report.records
        }
        self.without = {
            (ModelTask.of(failure), failure.cell.get("method", "")): failure.status
            for failure in report.failures
        }
        self.messages = {
            (ModelTask.of(failure), failure.cell.get("method", "")): (
                f"{failure.status} ({failure.error}): {failure.message}"
            )
            for failure in report.failures
        }
        places = [*self.records, *self.without]
        self.columns = list(dict.fromkeys(column for column, _ in places if column.model))
        self.methods = list(dict.fromkeys(method for _, method in places if method))
        # Results of equal scores, or of scores that were found on the test pairs, have no rank.
        cases = {place: information(x, place[1]) for place, x in self.records.items()}
        self.broken = {
            place: case
            for place, case in cases.items()
            if case.standing is Standing.NOT_MET and not is_random(self.records[place])
        }
        self.best_of: dict[tuple[ModelTask, str], frozenset[str]] = {}
        self.differences_of: dict[tuple[ModelTask, AreaName], Differences | None] = {}

    @cached_property
    def excluded(self) -> dict[ModelTask, str]:
        """Why no method is judged on a column, such as a model that does not do the task; or ""."""
        reasons: dict[ModelTask, str] = {}
        for column in self.columns:
            head = self.head(column)
            messages = (text for (place, _), text in self.messages.items() if place == column)
            reasons[column] = next(messages, "") if head is None else excluded(head)
        return reasons

    @cached_property
    def copies(self) -> dict[str, Case]:
        """The methods whose rankings are copies of another's on every task that counts."""
        equal: dict[str, list[tuple[str, ...]]] = {}
        for column in (column for column, reason in self.excluded.items() if not reason):
            records = {m: self.records.get((column, m)) for m in self.methods}
            own = [(m, r) for m, r in records.items() if r is not None and not is_random(r)]
            for place, (other, its) in enumerate(own):
                pairs = {one: different([r, its], [one, other])[0] for one, r in own[:place]}
                same = tuple(one for one, case in pairs.items() if case.name == "same")
                equal.setdefault(other, []).append(same)
        copies = dict[str, Case]()
        for other, same in equal.items():
            of_all = [one for one in same[0] if all(one in x for x in same) and one not in copies]
            if of_all:
                copies[other] = Case("different", "same", {"one": of_all[0], "other": other})
        return copies

    def groups(self) -> Iterator[tuple[str, list[ModelTask]]]:
        """Columns of one table and what they share: each model's tasks, then all ground truths."""
        truths = set(truth_names())
        places: dict[str, list[ModelTask]] = {}
        for column in sorted(self.columns, key=lambda column: column.model in truths):
            places.setdefault(TRUTHS if column.model in truths else column.model, []).append(column)
        for name, columns in places.items():
            n, n_parts = len(columns), math.ceil(len(columns) / MOST_COLUMNS)
            for part in range(n_parts):
                some = columns[part * n // n_parts : (part + 1) * n // n_parts]
                yield name if n_parts == 1 else f"{name} ({part + 1} of {n_parts})", some

    def head(self, column: ModelTask) -> Record | None:
        """Any record of a column: what does not depend on the method."""
        return next(
            (record for (place, _), record in self.records.items() if place == column), None
        )

    def table(
        self,
        title: str,
        columns: Sequence[ModelTask],
        text: Callable[[Record], str],
        control: str = "",
    ) -> TextTable:
        """A table of one text a cell, with rows of random rankings' `control` measure if one is
        named.
        """
        operators = [column for task in ARITHMETIC for column in columns if column.task == task]
        # Both operators, if one model has them.
        averaged = operators if control and len(operators) == len(ARITHMETIC) else []
        rows = [
            Row(
                (
                    method,
                    *(self._cell(column, method, text) for column in columns),
                    *([self._mean(averaged, method, control, "result")] if averaged else []),
                )
            )
            for method in self.methods
        ]
        kinds: dict[str, None] = {}
        for head in filter(None, map(self.head, columns)):
            held = [k for k in control_kinds(head) if head.measure(control, f"control:{k}")]
            kinds |= dict.fromkeys(held)
        for kind in kinds:
            numbers = [self._control(column, control, kind) for column in columns]
            if averaged:
                numbers.append(self._mean(averaged, "", control, f"control:{kind}"))
            rows.append(Row((control_name(kind), *numbers), "control"))
        return self._titled(title, columns, rows, averaged=bool(averaged))

    def _titled(
        self,
        title: str,
        columns: Sequence[ModelTask],
        rows: Sequence[Row],
        *,
        averaged: bool = False,
    ) -> TextTable:
        """A table without methods that have nothing in any column."""
        truths = truth_names()
        names = [
            (column.model if column.model in truths else column.task)
            + (" (no verdict)" if self.excluded.get(column) else "")
            for column in columns
        ]
        kept = [row for row in rows if row.kind or set(row.cells[1:]) != {NOTHING}]
        cells = "".join(cell for row in kept for cell in row.cells[1:])
        marks = [words for mark, words in ((BEST, MARKED), (OVERSHOT, OVERSHOOTS)) if mark in cells]
        caption = " ".join([*marks, *[AVERAGED] * averaged])
        names += ["arithmetic (mean)"] * averaged
        return TextTable.of(title, ("method", *names), kept, caption=caption)

    def _mean(self, columns: Sequence[ModelTask], method: str, name: str, of: str) -> str:
        """The mean of a measure over two columns that have no example in common."""
        records = [
            self.records.get((column, method)) if of == "result" else self.head(column)
            for column in columns
        ]
        measures = [record.measure(name, of) if record else None for record in records]
        if None in measures:
            return NOTHING
        mean = independent_mean([estimate_of(measure) for measure in measures])
        return interval(mean.value, mean.low, mean.high)

    def best(self, column: ModelTask, area: str) -> frozenset[str]:
        """The methods of a column that no other is resolved to be better than, without those that
        are not better than random rankings or that overshoot.
        """
        if self.excluded.get(column) or area not in RANKS or (column, area) in self.best_of:
            return self.best_of.get((column, area), frozenset())
        differences = self.differences(column, area)
        ranks = differences.ranks() if differences is not None else ()
        names = differences.names if differences is not None else ()
        self.best_of[column, area] = frozenset(
            name
            for name, rank in zip(names, ranks, strict=True)
            if rank is not None
            and rank[0] == 1
            and not is_random(self.records[column, name])
            and self.chance(column, name, area) == "better"
            and not overshoots(self.records[column, name], area)
        )
        return self.best_of[column, area]

    def measured(self, name: str, record: Record) -> str:
        """A measure of a record, marked where it overshoots or is the best of its column."""
        text = measured(record.measure(name)) or NOTHING
        if overshoots(record, name):
            return f"{OVERSHOT}{text}"
        is_best = method_name(record) in self.best(ModelTask.of(record), name)
        return f"{BEST}{text}" if is_best else text

    def _control(self, column: ModelTask, name: str, kind: str) -> str:
        head = self.head(column)
        return (measured(head.measure(name, f"control:{kind}")) if head else "") or NOTHING

    def ranks(self, title: str, columns: Sequence[ModelTask], area: AreaName) -> TextTable:
        """The ranks that the methods of each column may have, and how many differences are
        resolved.
        """
        texts: dict[tuple[ModelTask, str], str] = {}
        last: list[str] = []
        for column in columns:
            differences = None if self.excluded[column] else self.differences(column, area)
            last.append(NOTHING if differences is None else resolved_text(differences))
            if differences is not None:
                for name, rank in zip(differences.names, differences.ranks(), strict=True):
                    by_chance = BY_CHANCE * self.by_chance(column, name, area)
                    overshot = OVERSHOT * overshoots(self.records[column, name], area)
                    texts[column, name] = f"{rank_text(rank)}{by_chance}{overshot}"
        rows = [
            Row((method, *(texts.get((column, method), NOTHING) for column in columns)))
            for method in self.methods
        ]
        counts = Row(("differences resolved", *last), "control")
        return self._titled(title, columns, [*rows, counts])

    def chance(self, column: ModelTask, method: str, area: AreaName) -> str:
        """The verdict on a method beside random rankings; "none" where there are none."""
        record = self.records[column, method]
        if not control_kinds(record):
            return "none"
        return against_chance(record, area, self.n_tried(column)).verdict

    def n_tried(self, column: ModelTask) -> int:
        """The number of methods of a column, of which one may be best by chance. Copies and results
        that do not count are not tried.
        """
        records = [
            record
            for (place, method), record in self.records.items()
            if place == column and (place, method) not in self.broken and method not in self.copies
        ]
        return n_methods(records)

    def by_chance(self, column: ModelTask, method: str, area: AreaName) -> bool:
        """Whether a method cannot be called better than random rankings."""
        is_control = is_random(self.records[column, method])
        return not is_control and self.chance(column, method, area) not in ("better", "none")

    def differences(self, column: ModelTask, area: AreaName) -> Differences | None:
        """Differences between the methods of a column; None where they cannot be compared."""
        if (column, area) not in self.differences_of:
            records = ((method, self.records.get((column, method))) for method in self.methods)
            held = {
                method: record
                for method, record in records
                if record is not None
                and (column, method) not in self.broken
                and method not in self.copies
            }
            differences = ranked(list(held.values()), area, names=list(held))
            self.differences_of[column, area] = differences
        return self.differences_of[column, area]

    def _cell(self, column: ModelTask, method: str, text: Callable[[Record], str]) -> str:
        record = self.records.get((column, method))
        return self.without.get((column, method), NOTHING) if record is None else text(record)


def method_name(record: Record) -> str:
    """A method by the name its cell was stored under."""
    return record.cell.get("method", record.method.name)


def overshoots(record: Record, area: str) -> bool:
    """Whether this is a CPR, and resolved to be above 1, that of the model itself."""
    cpr = record.measure("cpr") if area == "cpr" else None
    return cpr is not None and cpr.low > 1
