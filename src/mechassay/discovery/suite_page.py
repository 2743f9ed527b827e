"""Many methods on many tasks and models as tables: a row for each method, a column for each task.

Each measure has a table (Mueller et al. 2025, tables 2 and 14). Brackets hold intervals over
examples; of random rankings the mean is shown. Ranks stand in tables of their own, as far as paired
differences are resolved (`ranks`). There is one set of tables for each model, its tasks side by
side, and one for all ground truths, each on its own task; no table is wider than `MOST_COLUMNS`
cells. A cell that failed or was skipped says so, with its reason below the tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure as MatplotlibFigure

from mechassay.circuits.drawing import signed
from mechassay.circuits.evaluation.curve import SMALLEST, TEXTS, recomputed
from mechassay.circuits.evaluation.metrics import recomputed_sizes
from mechassay.circuits.methods.stability import STABILITY
from mechassay.discovery.conclusion import conclude
from mechassay.discovery.methods_by_column import (
    RANKS,
    MethodsByColumn,
    ModelTask,
    method_name,
)
from mechassay.discovery.page import (
    BY,
    TaskPage,
    details,
    edge_text,
    reading,
    verdict_blocks,
)
from mechassay.discovery.suite_conclusion import (
    CLOSE,
    Candidates,
    chosen_number,
    conclude_suite,
    counted_tasks,
    seconds_text,
)
from mechassay.results.page import (
    NOTHING,
    Block,
    Figure,
    Fold,
    Heading,
    Page,
    Report,
    Section,
    Text,
    TextTable,
)
from mechassay.results.plots import draw_points
from mechassay.results.records import Failure, Measure, Record, Table, estimate_of
from mechassay.results.report import GenericPage
from mechassay.results.sections import framed, shown_measures
from mechassay.results.text import (
    CHANCE_DECIMALS,
    chance_text,
    measure_text,
    setting_name,
    settings,
)
from mechassay.results.verdict import Conclusion
from mechassay.utils.display import interval, share

CHOSEN_BY = "What the method to run is chosen by"
WITHOUT = "Failed and skipped cells"
STABLE_AT = 0.01
"""The size whose stability has a table, a share of all edges."""
STRONGEST = 5
"""Edges that are named of each method."""
MANY_FIGURES = 12
"""Settings up to which the page has the figures of each."""
LEFT_OUT = ("dead", "log_cpr", "log_cmd")
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
    "Which to run": (
        "Chosen where it does not count: on validation pairs, by the mean of CMA over the tasks and"
        f" models. Of methods within {CLOSE} of the highest it is the one that takes the fewest CPU"
        " seconds to find a circuit. What it loses is measured on test pairs, by paired differences"
        " of CMA."
    ),
}


class SuitePage(Page):
    """Methods that find circuits, on several tasks or models."""

    def title(self, report: Report) -> str:
        return "Circuit localization: methods, tasks and models"

    def tables(self, report: Report) -> list[TextTable]:
        """All tables: by measure, ranks, sizes, stability, time and accuracy of the model."""
        return self._tables(MethodsByColumn(report), report.failures)

    def _tables(self, cells: MethodsByColumn, failures: Sequence[Failure]) -> list[TextTable]:
        tables: list[TextTable] = []
        for name, columns in cells.groups():
            heads = [head for head in map(cells.head, columns) if head is not None]
            others = [m for m in shown_measures(heads) if m.name not in (*LEFT_OUT, *RANKS)]
            # The areas are last, and also where no cell has any.
            for m in (*others, *(TEXTS.measure(area, math.nan) for area in RANKS)):
                way = OVERSHOOT if m.name == "cpr" else BETTER[m.better]
                title = f"{m.heading}{BY.get(m.name, '')}{way}, {name}"
                tables.append(cells.table(title, columns, partial(cells.measured, m.name), m.name))
            for area, title in RANKS.items():
                tables.append(cells.ranks(f"{title}, {name}", columns, area))
            holds = f"Smallest circuit that holds, {name}"
            stable = f"Stable edges at {share(STABLE_AT)} (with random signs), {name}"
            took = f"Seconds (localize + evaluate) and peak memory, {name}"
            tables += [
                cells.table(holds, columns, _smallest),
                cells.table(stable, columns, _stable),
                cells.table(took, columns, _took),
            ]
        if len((candidates := Candidates.of(cells)).records) > 1:
            tables.append(_candidates_table(candidates))
        named = [(column.name, cells.head(column)) for column in cells.columns]
        able = [(name, *_ability(head)) for name, head in named if head is not None]
        columns = ("cell", "accuracy", "chance", "test pairs")
        tables.append(TextTable.of("Accuracy of the model itself", columns, able))
        if failures:
            columns = ("cell", "what", "methods", "reason")
            rows = list(_without_result(failures))
            tables.append(TextTable.of(WITHOUT, columns, rows, words=True))
        return tables

    def terminal_tables(self, report: Report) -> list[TextTable]:
        """The tables by CMA, and cells without a result."""
        return _unfolded(self.tables(report))

    def sections(self, report: Report) -> list[Section]:
        """Which method to run and which is first where, and a table by CMA; the other tables and
        each task and model are folded.
        """
        cells = MethodsByColumn(report)
        tables = self._tables(cells, report.failures)
        unfolded = _unfolded(tables)
        groups = settings(report.records)
        many = len(groups) > MANY_FIGURES
        note = f"Figures of {len(groups)} tasks and models are left out: more than {MANY_FIGURES}."
        blocks: list[Block] = [Text(note, "soft")] if many else []
        for group in groups:
            inside: list[Block] = [
                block for block in details(group) if not (many and isinstance(block, Figure))
            ]
            inside += _strongest_edges(ModelTask.of(group[0]), report.drawings)
            blocks.append(Fold(setting_name(group[0]), tuple(inside)))
        first: list[Block] = [
            Text(text, "verdict") for text in conclude_suite(cells, Candidates.of(cells)).lines
        ]
        if len(groups) == 1:  # As the page of one task and model begins.
            first = [*verdict_blocks(groups[0], alone=True), *first]
        return framed(
            report,
            first,
            [Section(table.title, (table,)) for table in unfolded],
            figure=_cma_figure(cells),
            folded=[
                *(Section(table.title, (table,)) for table in tables if table not in unfolded),
                *([Section("Each task and model", tuple(blocks))] if groups else []),
            ],
            reading={**reading(report.records), **READING},
            facts=facts(report.records),
            values=[],
        )


def _unfolded(tables: Sequence[TextTable]) -> list[TextTable]:
    """Return the tables by CMA and the table of failed and skipped cells."""
    by_cma = f"{TEXTS.measure('cma', math.nan).heading}{BY['cma']}{BETTER['up']}, "
    by_cma_tables = [table for table in tables if table.title.startswith(by_cma)]
    return [*by_cma_tables, *(table for table in tables if table.title == WITHOUT)]


def _candidates_table(candidates: Candidates) -> TextTable:
    """Return what the method to run is chosen by, the highest CMA first."""
    kinds = [f"CMA, {counted_tasks(own, kind)}" for kind, own in candidates.columns.items()]
    mean = ["mean"] if len(kinds) > 1 else []
    rows = [
        (
            method,
            *(f"{value:.3f}" for value in candidates.cma[method]),
            *(f"{candidates.mean(method):.3f}" for _ in mean),
            seconds_text(candidates.seconds[method]),
        )
        for method in sorted(candidates.records, key=candidates.mean, reverse=True)
    ]
    caption = (
        "On validation pairs, of methods that were measured on all of them. Seconds are the"
        f" median over {next(iter(candidates.columns))}s, of one core on a CPU."
    )
    columns = ("method", *kinds, *mean, "seconds to find")
    return TextTable.of(CHOSEN_BY, columns, rows, caption=caption)


def _cma_figure(cells: MethodsByColumn) -> list[Block]:
    """CMA of every method in every column, if these are few."""
    columns = [column for column in cells.columns if cells.head(column)]
    if not columns or len(columns) > MANY_FIGURES:
        return []
    points = {
        method: [
            estimate_of(record.measure("cma") if record else None)
            for record in (cells.records.get((column, method)) for column in columns)
        ]
        for method in cells.methods
        if any((column, method) in cells.records for column in columns)
    }
    drawn = draw_points(points, [column.name for column in columns], "CMA (higher is better)")
    about = "CMA of each method with its interval; the tables have the numbers."
    return [Figure(drawn, name="CMA of methods", about=about)]


class OneSizePage(GenericPage):
    """Circuits of one size, and whatever else was measured without a curve."""

    def conclusions(self, records: Sequence[Record]) -> list[Conclusion]:
        return [conclude(group) for group in settings(records)]

    def sentences(self, records: Sequence[Record]) -> list[str]:
        lines = [line for conclusion in self.conclusions(records) for line in conclusion.lines]
        return lines or super().sentences(records)


class CircuitsPage(TaskPage):
    """Methods that find circuits: of one task and model, or as `SuitePage` of several; without a
    curve as any records.
    """

    def title(self, report: Report) -> str:
        return _page(report).title(report)

    def tables(self, report: Report) -> list[TextTable]:
        return _page(report).tables(report)

    def terminal_tables(self, report: Report) -> list[TextTable]:
        return _page(report).terminal_tables(report)

    def conclusions(self, records: Sequence[Record]) -> list[Conclusion]:
        return [conclude(group) for group in settings(records)]

    def answers(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> list[str]:
        return _page(Report(records, failures)).answers(records, failures)

    def sections(self, report: Report) -> list[Section]:
        return _page(report).sections(report)

    def draw(self, record: Record, ax: Axes | None = None, **how: Any) -> MatplotlibFigure | None:
        return super().draw(record, ax, **how) if record.has_table("curve") else None

    def draw_all(self, records: Sequence[Record]) -> MatplotlibFigure | None:
        if not all(record.has_table("curve") for record in records):
            return None
        return super().draw_all(records)

    def recomputed(self, record: Record) -> list[Measure | Table]:
        """Areas, their parts and the curve (`circuits.evaluation.curve.recomputed`), and circuits
        of one size.
        """
        return [*recomputed(record), *recomputed_sizes(record)]


def _page(report: Report) -> Page:
    """Return the page of several tasks or models, if these are cells of several, each method once
    on each; that of one; or that of any records, if none has a curve.
    """
    if report.records and not any(record.has_table("curve") for record in report.records):
        return OneSizePage()
    places = [(ModelTask.of(record), method_name(record)) for record in report.records]
    columns = {column for column, _ in places} | set(map(ModelTask.of, report.failures))
    several = len({column for column in columns if column.model}) > 1
    return SuitePage() if several and len(places) == len(set(places)) else TaskPage()


def _strongest_edges(column: ModelTask, drawings: Sequence[object]) -> list[Block]:
    """The edges of the largest scores of each method of a column, as far as they are drawn."""
    rows: list[tuple[str, ...]] = []
    for drawing in drawings:
        of: Mapping[str, str] = getattr(drawing, "of", {})
        strongest: tuple[tuple[str, float], ...] = getattr(drawing, "strongest", ())
        if strongest and ModelTask(of.get("model", ""), of.get("task", "")) == column:
            edges = [
                Markup("{} {}").format(edge_text(edge), signed(score))
                for edge, score in strongest[:STRONGEST]
            ]
            rows.append((of.get("method", ""), Markup(", ").join(edges)))
    if not rows:
        return []
    caption = "Of each method's largest connected circuit that can be drawn, by |score|."
    columns = ("method", "edges and scores")
    table = TextTable.of("", columns, rows, words=True, caption=caption)
    return [Heading("Strongest edges"), table]


def suite_differences(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Each pair of methods of each column and both areas as plain values."""
    cells = MethodsByColumn(Report(records))
    return [
        {"model": column.model, "task": column.task, **row}
        for column in cells.columns
        for area in RANKS
        if (differences := cells.differences(column, area)) is not None
        for row in differences.rows()
    ]


def _spent(record: Record, name: str) -> float:
    return float(record.spent.get(name, math.nan))


def _took(record: Record) -> str:
    localize, evaluate = (_spent(record, name) for name in ("localize_seconds", "evaluate_seconds"))
    took = f"{seconds_text(localize)[:-2]} + {seconds_text(evaluate)}"
    return f"{took}, {_spent(record, 'peak_memory_gb'):.1f} GB"


def _smallest(record: Record) -> str:
    """The smallest circuit that holds: its size before pruning, and its agreement here."""
    if not record.has_table(SMALLEST):
        return NOTHING
    row = record.table(SMALLEST).where(of="result")
    if not len(row):
        return f"none up to {share(chosen_number(record, 'largest'))}"
    size, *agreement = (
        float(row.numbers(name)[0]) for name in ("fraction", "value", "low", "high")
    )
    return f"{share(size)}: A {interval(*agreement)}"


def _stable(record: Record) -> str:
    """How much of a circuit of one size depends on the pairs it was found on."""
    if not record.has_table(STABILITY):
        return NOTHING
    row = record.table(STABILITY).where(ranking="magnitude", fraction=STABLE_AT)
    if not len(row) or not row.numbers("size")[0]:
        return NOTHING
    stable, by_signs, n_stable, size = (
        float(row.numbers(name)[0])
        for name in ("stable", "stable_random_signs", "n_stable", "size")
    )
    return f"{n_stable:,.0f} of {size:,.0f}, {share(stable)} ({share(by_signs)})"


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
        "methods": method_name(record),
        "ablated edges carry": (
            str(args.get("counterfactual", "")) if ablation == "counterfactual" else ablation
        ),
        "objective, profile": f"{record.metric.name}, {record.metric.args.get('profile', '')}",
        "train + test pairs, data": f"{' + '.join(kept)}, {about.data_hash[:12]}",
        "seed, dtype, commit": f"{about.seed}, {about.dtype}, {(about.commit or '')[:10]}",
    }
