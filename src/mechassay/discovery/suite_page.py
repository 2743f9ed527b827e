"""Many methods on many tasks and models as tables: a row for each method, a column for each task.

Each measure has a table (Mueller et al. 2025, tables 2 and 14). Brackets hold intervals over
examples; of random rankings the mean is shown. Ranks stand in tables of their own, as far as paired
differences are resolved (`ranks`). There is one set of tables for each model, its tasks side by
side, and one for all ground truths, each on its own task; no table is wider than `MOST_COLUMNS`
cells. A cell that failed or was skipped says so, with its reason below the tables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from markupsafe import Markup

from mechassay.circuits.drawing import score_text
from mechassay.circuits.evaluation.chance import against_chance, n_groups, n_methods
from mechassay.circuits.evaluation.curve import area_measure, recomputed
from mechassay.circuits.evaluation.differences import AreaName, Differences
from mechassay.circuits.evaluation.metrics import recomputed_sizes
from mechassay.discovery.page import (
    CircuitsPage,
    details,
    edge_text,
    rank_text,
    ranked,
    reading,
    resolved_text,
)
from mechassay.models.sources import truth_names
from mechassay.results.curves import control_kinds, control_name, is_random
from mechassay.results.page import (
    BEST,
    NOTHING,
    Block,
    Figure,
    Fold,
    Heading,
    Page,
    Row,
    Section,
    Text,
    TextTable,
)
from mechassay.results.plots import draw_points
from mechassay.results.records import Failure, Measure, Record, Table, estimate_of
from mechassay.results.report import GenericPage
from mechassay.results.sections import framed, measured, shown_measures
from mechassay.results.text import (
    CHANCE_DECIMALS,
    chance_text,
    measure_text,
    setting_name,
    settings,
)
from mechassay.stats.intervals import FEW_GROUPS
from mechassay.utils.display import counted, interval

MOST_COLUMNS = 6
WITHOUT = "Failed and skipped cells"
TRUTHS = "ground truths"
RANKS: dict[AreaName, str] = {"cmd": "Rank by CMD", "cpr": "Rank by CPR"}
BESIDE_RANDOM = {
    "better": "Better than random rankings",
    "worse": "Worse than these",
    "few rankings": "Too few of these to tell",
    "none": "Without random rankings to compare with",
}
"""What is said of verdicts on methods; the others cannot be told from chance."""
BY_CHANCE = "*"
"""Beside a rank: the method is not better than random rankings."""
STRONGEST = 5
"""Edges that are named of each method."""
MANY_FIGURES = 12
"""Settings up to which the page has the figures of each."""
ARITHMETIC = ("arithmetic-addition", "arithmetic-subtraction")
"""Tasks whose mean is a column (Mueller et al. 2025, tables 2 and 14 to 16)."""
MARKED = (
    f"{BEST} the best of its column, or not resolved from it by paired differences, and better than"
    " random rankings."
)
AVERAGED = "The mean of both operators; its interval is that of two independent estimates."
LEFT_OUT = ("cma", "dead", "log_cpr", "log_cmd")
"""Measures without a table of their own: the details of each task and model have them."""
OVERSHOOT = " (higher is better up to 1; more is overshoot)"
BETTER = {"up": " (higher is better)", "down": " (lower is better)", "": ""}
READING = {
    "Accuracy of the model": (
        "How often its answer beats the foils, and how often guessing does. Where the two cannot be"
        " told apart, circuits explain how the model prefers tokens, not how it does the task."
    ),
    "Skipped": (
        "Not run: because the model does not do the task, or because finding the circuit would take"
        " too long. An estimate is the number of forward passes that a method says it takes, times"
        " the seconds of one."
    ),
    "A star beside a rank": (
        "The method cannot be called better than random rankings, of edges or of paths, among as"
        " many methods as were tried."
    ),
    "Differences resolved": "Of all pairs of methods, those whose difference is resolved.",
}


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


class _Cells:
    """Records and failures by column and method."""

    def __init__(self, records: Sequence[Record], failures: Sequence[Failure]) -> None:
        self.records = {(ModelTask.of(record), _method(record)): record for record in records}
        self.without = {
            (ModelTask.of(failure), failure.cell.get("method", "")): failure.status
            for failure in failures
        }
        places = [*self.records, *self.without]
        self.columns = list(dict.fromkeys(column for column, _ in places if column.model))
        self.methods = list(dict.fromkeys(method for _, method in places if method))
        self.best_of: dict[tuple[ModelTask, str], frozenset[str]] = {}

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
        names = [column.model if column.model in truths else column.task for column in columns]
        kept = [row for row in rows if row.kind or set(row.cells[1:]) != {NOTHING}]
        marked = any(cell.startswith(BEST) for row in kept for cell in row.cells)
        caption = " ".join([MARKED] * marked + [AVERAGED] * averaged)
        names += ["arithmetic (mean)"] * averaged
        return TextTable.of(title, ("method", *names), kept, caption=caption)

    def _mean(self, columns: Sequence[ModelTask], method: str, name: str, of: str) -> str:
        """The mean of a measure over two columns that have no example in common."""
        records = [
            self.records.get((column, method)) if of == "result" else self.head(column)
            for column in columns
        ]
        held = [record.measure(name, of) if record else None for record in records]
        measures = [m for m in held if m is not None]
        if len(measures) < len(columns):
            return NOTHING
        value = sum(m.value for m in measures) / len(measures)
        below, above = (
            math.hypot(*(m.value - end for m, end in zip(measures, ends, strict=True)))
            / len(measures)
            for ends in ([m.low for m in measures], [m.high for m in measures])
        )
        return interval(value, value - below, value + above)

    def best(self, column: ModelTask, area: str) -> frozenset[str]:
        """The methods of a column that no other is resolved to be better than, without those that
        are not better than random rankings.
        """
        if area not in RANKS or (column, area) in self.best_of:
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
        )
        return self.best_of[column, area]

    def measured(self, name: str, record: Record) -> str:
        """A measure of a record, marked where it is the best of its column."""
        text = measured(record.measure(name)) or NOTHING
        is_best = _method(record) in self.best(ModelTask.of(record), name)
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
            differences = self.differences(column, area)
            last.append(NOTHING if differences is None else resolved_text(differences))
            if differences is not None:
                for name, rank in zip(differences.names, differences.ranks(), strict=True):
                    texts[column, name] = rank_text(rank) + BY_CHANCE * self.by_chance(
                        column, name, area
                    )
        rows = [
            Row((method, *(texts.get((column, method), NOTHING) for column in columns)))
            for method in self.methods
        ]
        counts = Row(("differences resolved", *last), "control")
        return self._titled(title, columns, [*rows, counts])

    def chance(self, column: ModelTask, method: str, area: AreaName) -> str:
        """The verdict on a method beside random rankings; "none" where there are none."""
        records = [record for (place, _), record in self.records.items() if place == column]
        record = self.records[column, method]
        if not control_kinds(record):
            return "none"
        return against_chance(record, area, n_methods(records)).verdict

    def by_chance(self, column: ModelTask, method: str, area: AreaName) -> bool:
        """Whether a method cannot be called better than random rankings."""
        is_control = is_random(self.records[column, method])
        return not is_control and self.chance(column, method, area) not in ("better", "none")

    def differences(self, column: ModelTask, area: AreaName) -> Differences | None:
        """Differences between the methods of a column; None where they cannot be compared."""
        records = ((method, self.records.get((column, method))) for method in self.methods)
        held = {method: record for method, record in records if record is not None}
        return ranked(list(held.values()), area, names=list(held))

    def _cell(self, column: ModelTask, method: str, text: Callable[[Record], str]) -> str:
        record = self.records.get((column, method))
        return self.without.get((column, method), NOTHING) if record is None else text(record)


class SuitePage(Page):
    """Methods that find circuits, on several tasks or models."""

    def title(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> str:
        """What the page is called."""
        return "Circuit localization: methods, tasks and models"

    def tables(
        self, records: Sequence[Record], failures: Sequence[Failure] = ()
    ) -> list[TextTable]:
        """The tables, which a console shows too."""
        cells = _Cells(records, failures)
        tables: list[TextTable] = []
        for name, columns in cells.groups():
            heads = [head for head in map(cells.head, columns) if head is not None]
            others = [m for m in shown_measures(heads) if m.name not in (*LEFT_OUT, *RANKS)]
            # The areas are last, and also where no cell has any.
            for m in (*others, *(area_measure(area, math.nan) for area in RANKS)):
                way = OVERSHOOT if m.name == "cpr" else BETTER[m.better]
                title = f"{m.heading}{way}, {name}"
                tables.append(cells.table(title, columns, partial(cells.measured, m.name), m.name))
            for area, title in RANKS.items():
                tables.append(cells.ranks(f"{title}, {name}", columns, area))
            took = f"Seconds (localize + evaluate) and peak memory, {name}"
            tables.append(cells.table(took, columns, _took))
        named = [(column.name, cells.head(column)) for column in cells.columns]
        able = [(name, *_ability(head)) for name, head in named if head is not None]
        columns = ("cell", "accuracy", "chance", "test pairs")
        tables.append(TextTable.of("Accuracy of the model itself", columns, able))
        if failures:
            columns = ("cell", "what", "methods", "reason")
            rows = list(_without_result(failures))
            tables.append(TextTable.of(WITHOUT, columns, rows, words=True))
        return tables

    def sections(
        self,
        records: Sequence[Record],
        failures: Sequence[Failure] = (),
        drawings: Sequence[object] = (),
    ) -> list[Section]:
        """Which method is first where, and a table by CMD; the other tables and each task and model
        are folded.
        """
        cells = _Cells(records, failures)
        tables = self.tables(records, failures)
        first = f"{area_measure('cmd', math.nan).heading}{BETTER['down']}, "
        unfolded = [table for table in tables if table.title.startswith(first)]
        # What has no result stands beside what has one.
        unfolded += [table for table in tables if table.title == WITHOUT]
        groups = settings(records)
        many = len(groups) > MANY_FIGURES
        note = f"Figures of {len(groups)} tasks and models are left out: more than {MANY_FIGURES}."
        blocks: list[Block] = [Text(note, "soft")] if many else []
        for group in groups:
            inside: list[Block] = [
                block for block in details(group) if not (many and isinstance(block, Figure))
            ]
            inside += _strongest_edges(ModelTask.of(group[0]), drawings)
            blocks.append(Fold(setting_name(group[0]), tuple(inside)))
        return framed(
            records,
            [Text(text, "verdict", f"{name}.") for name, text in _answers(cells)],
            [Section(table.title, (table,)) for table in unfolded],
            figure=_cmd_figure(cells),
            failures=failures,
            folded=[
                *(Section(table.title, (table,)) for table in tables if table not in unfolded),
                *([Section("Each task and model", tuple(blocks))] if groups else []),
            ],
            reading={**reading(records), **READING},
            facts=facts(records),
            values=[],
        )


def _answers(cells: _Cells) -> Iterator[tuple[str, str]]:
    """Of each table's columns with enough pairs: which methods are first by CMD as far as paired
    differences tell, and which are better than random rankings.
    """
    for name, columns in cells.groups():
        kind = "ground truth" if name == TRUTHS else "task"
        heads = {column: head for column in columns if (head := cells.head(column)) is not None}
        judged = [column for column, head in heads.items() if n_groups(head) >= FEW_GROUPS]
        n_left = len(heads) - len(judged)
        left = (
            f"No verdict on {counted(n_left, kind)} with fewer than {FEW_GROUPS} independent groups"
            " of test pairs."
        )
        if not judged:
            yield name, left if heads else "There are no results."
            continue
        ranks: dict[str, list[tuple[int, int]]] = {}
        verdicts: dict[str, list[str]] = {}
        for column in judged:
            differences = cells.differences(column, "cmd")
            if differences is not None:
                for method, rank in zip(differences.names, differences.ranks(), strict=True):
                    if rank is not None:
                        ranks.setdefault(method, []).append(rank)
            for method in cells.methods:
                record = cells.records.get((column, method))
                if record is not None and not is_random(record):
                    verdicts.setdefault(method, []).append(cells.chance(column, method, "cmd"))
        on = counted(len(judged), kind)
        sizes = [heads[column].n for column in judged]
        pairs = " to ".join(f"{n:,}" for n in dict.fromkeys((min(sizes), max(sizes))))
        parts = [f"{counted(len(verdicts), 'method')} on {on}, {pairs} test pairs each."]
        if len(ranks) > 1:
            parts.append(f"Nearest to the model (CMD): {_leaders(ranks)}.")
        parts.append(_beside_random(verdicts))
        yield name, " ".join([*parts, *([left] if n_left else [])])


def _beside_random(verdicts: Mapping[str, Sequence[str]]) -> str:
    """In how many columns each method is better than random rankings, by its verdicts there."""
    sentences: list[str] = []
    for verdict, words in BESIDE_RANDOM.items():
        n = {method: list(own).count(verdict) for method, own in verdicts.items()}
        if methods := ", ".join(f"{method} in {some}" for method, some in n.items() if some):
            sentences.append(f"{words}: {methods}.")
        elif verdict == "better":
            sentences.append("None is better than random rankings.")
    return " ".join(sentences)


def _leaders(ranks: Mapping[str, Sequence[tuple[int, int]]]) -> str:
    """Who is first in how many columns, and in how many more it may be."""
    surely = {method: sum(last == 1 for _, last in own) for method, own in ranks.items()}
    perhaps = {method: sum(first == 1 for first, _ in own) for method, own in ranks.items()}
    leaders = sorted(filter(perhaps.get, ranks), key=lambda m: (-surely[m], -perhaps[m]))
    parts = list[str]()
    for method in leaders:
        more = perhaps[method] - surely[method]
        if surely[method]:
            also = f" and may be in {more} more" if more else ""
            parts.append(f"{method} is first in {surely[method]}{also}")
        else:
            parts.append(f"{method} may be first in {more}")
    return "; ".join(parts)


def _cmd_figure(cells: _Cells) -> list[Block]:
    """CMD of every method in every column, if these are few."""
    columns = [column for column in cells.columns if cells.head(column)]
    if not columns or len(columns) > MANY_FIGURES:
        return []
    points = {
        method: [
            estimate_of(record.measure("cmd") if record else None)
            for record in (cells.records.get((column, method)) for column in columns)
        ]
        for method in cells.methods
        if any((column, method) in cells.records for column in columns)
    }
    drawn = draw_points(points, [column.name for column in columns], "CMD (lower is better)")
    about = "CMD of each method with its interval; the tables have the numbers."
    return [Figure(drawn, name="CMD of methods", about=about)]


class FaithfulnessPage(CircuitsPage):
    """Methods that find circuits: of one task and model, or as `SuitePage` of several."""

    def title(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> str:
        return _page(records, failures).title(records, failures)

    def tables(
        self, records: Sequence[Record], failures: Sequence[Failure] = ()
    ) -> list[TextTable]:
        return _page(records, failures).tables(records, failures)

    def sections(
        self,
        records: Sequence[Record],
        failures: Sequence[Failure] = (),
        drawings: Sequence[object] = (),
    ) -> list[Section]:
        return _page(records, failures).sections(records, failures, drawings)

    def recomputed(self, record: Record) -> list[Measure | Table]:
        """Areas, their parts and the curve (`circuits.evaluation.curve.recomputed`), and circuits
        of one size.
        """
        return [*recomputed(record), *recomputed_sizes(record)]


class OneSizePage(GenericPage):
    """Records of circuits of one size, without a curve."""

    def recomputed(self, record: Record) -> list[Measure]:
        """See `circuits.evaluation.metrics.recomputed_sizes`."""
        return recomputed_sizes(record)


def _page(records: Sequence[Record], failures: Sequence[Failure]) -> Page:
    """The page of several tasks or models, if these are cells of several, each method once on
    each; else that of one.
    """
    places = [(ModelTask.of(record), _method(record)) for record in records]
    columns = {column for column, _ in places} | set(map(ModelTask.of, failures))
    several = len({column for column in columns if column.model}) > 1
    is_suite = several and 0 < len(places) == len(set(places))
    return SuitePage() if is_suite else CircuitsPage()


def _strongest_edges(column: ModelTask, drawings: Sequence[object]) -> list[Block]:
    """The edges of the largest scores of each method of a column, as far as they are drawn."""
    rows: list[tuple[str, ...]] = []
    for drawing in drawings:
        of: Mapping[str, str] = getattr(drawing, "of", {})
        strongest: tuple[tuple[str, float], ...] = getattr(drawing, "strongest", ())
        if strongest and ModelTask(of.get("model", ""), of.get("task", "")) == column:
            headings = [
                Markup("{} {}").format(edge_text(edge), score_text(score))
                for edge, score in strongest[:STRONGEST]
            ]
            rows.append((of.get("method", ""), Markup(", ").join(headings)))
    if not rows:
        return []
    caption = "Of each method's largest connected circuit that can be drawn, by |score|."
    columns = ("method", "edges and scores")
    table = TextTable.of("", columns, rows, words=True, caption=caption)
    return [Heading("Strongest edges"), table]


def suite_differences(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Each pair of methods of each column and both areas as plain values."""
    cells = _Cells(records, [])
    return [
        {"model": column.model, "task": column.task, **row}
        for column in cells.columns
        for area in RANKS
        if (differences := cells.differences(column, area)) is not None
        for row in differences.rows()
    ]


def _method(record: Record) -> str:
    """A method by the name its cell was stored under."""
    return record.cell.get("method", record.method.name)


def _took(record: Record) -> str:
    spent = [record.spent.get(name, math.nan) for name in ("localize_seconds", "evaluate_seconds")]
    texts = [f"{seconds:.2g}" if seconds < 10 else f"{seconds:,.0f}" for seconds in spent]
    return f"{' + '.join(texts)} s, {record.spent.get('peak_memory_gb', math.nan):.1f} GB"


def _ability(record: Record) -> tuple[str, str, str]:
    chance = record.measure("chance", "model")
    return (
        measure_text(record, "accuracy", "model", least=CHANCE_DECIMALS),
        NOTHING if chance is None else chance_text(chance.value),
        f"{record.n:,}",
    )


def _without_result(failures: Sequence[Failure]) -> Iterator[tuple[str, ...]]:
    """A row for each column and kind of reason: one reason for all its methods, or one each."""
    groups: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        key = ModelTask.of(failure).name, f"{failure.status}: {failure.error}"
        groups.setdefault(key, []).append(failure)
    for (column, what), members in groups.items():
        methods = [failure.cell.get("method", "all methods") for failure in members]
        reasons = [failure.message for failure in members]
        reason = "; ".join(map(": ".join, zip(methods, reasons, strict=True)))
        yield column, what, ", ".join(methods), reasons[0] if len(set(reasons)) == 1 else reason


def facts(records: Sequence[Record]) -> list[Section]:
    """What was run: a row for each column; what differs between its methods is listed."""
    rows: dict[str, dict[str, list[str]]] = {}
    for record in records:
        row = rows.setdefault(ModelTask.of(record).name, {})
        for key, text in _facts_of(record).items():
            row.setdefault(key, []).append(text)
    if not rows:
        return []
    columns = ("cell", *next(iter(rows.values())))
    lines: list[tuple[str, ...]] = []
    for name, row in rows.items():
        joints = {key: ", " if key == "methods" else "; " for key in row}
        lines.append((name, *(joints[key].join(dict.fromkeys(row[key])) for key in row)))
    return [Section("What was run on what", (TextTable.of("", columns, lines, words=True),))]


def _facts_of(record: Record) -> dict[str, str]:
    args, about = record.task.args, record.provenance
    ablation = str(args.get("ablation", "counterfactual"))
    kept = [str(chosen.kept) for chosen in record.data.values()]
    return {
        "methods": _method(record),
        "ablated edges carry": (
            str(args.get("counterfactual", "")) if ablation == "counterfactual" else ablation
        ),
        "objective, profile": f"{record.metric.name}, {record.metric.args.get('profile', '')}",
        "train + test pairs, data": f"{' + '.join(kept)}, {about.data_hash[:12]}",
        "seed, dtype, commit": f"{about.seed}, {about.dtype}, {(about.commit or '')[:10]}",
    }
