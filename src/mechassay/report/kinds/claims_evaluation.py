"""A judge against reference labels: agreement beside judges that know nothing, and where it errs.

The page begins with the shares and their n, and with how wide their intervals are. Then come the
charts, the papers, baselines, boundaries, and criteria where the labels have them. Of a published
evaluation it lists which of the printed numbers follow from its tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mechassay.claims.rubric import Rubric, load_rubric
from mechassay.figures import svg
from mechassay.records import Failure, Record
from mechassay.report import page
from mechassay.report.claim_charts import draw_confusion, draw_dimensions, draw_scores
from mechassay.report.nats import plain_number
from mechassay.report.page import Block, Page, Section, Terms, Text
from mechassay.report.sections import (
    all_numbers,
    facts_section,
    meanings,
    warnings_notice,
)
from mechassay.report.tables import NOTHING, Column, Row, TextTable
from mechassay.text import interval, number, share

FAILED = "does not hold"
READING = {
    "Error": "Tiers above the label; below 0 the judge is stricter than the label.",
    "Baselines": (
        "Judges that know nothing of a paper: they always say one tier, or draw one. The best"
        " constant is chosen on the same labels, which flatters it."
    ),
    "Boundary": "How far the score is from the nearest boundary of tiers.",
    "Intervals": (
        "95 %: Clopper and Pearson's of shares of papers and claims; of criteria a bootstrap over"
        " claims."
    ),
    "Labels": "What people agreed on, not the truth; agreement with them is no more than that.",
}


class ClaimsEvaluationPage(Page):
    """A judge against labels."""

    def title(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> str:
        """What the page is called."""
        names = dict.fromkeys(record.cell.get("judge", "") for record in records)
        told = ", ".join(names) or "judges"
        return f"{told[:1].upper()}{told[1:]} against labels"

    def tables(
        self, records: Sequence[Record], failures: Sequence[Failure] = ()
    ) -> list[TextTable]:
        """What a console shows."""
        made = (_agreement, _papers, _baselines, _boundaries, _failed_checks)
        found = [make(record) for record in records for make in made]
        return [table for table in found if table.rows]

    def sections(
        self,
        records: Sequence[Record],
        failures: Sequence[Failure] = (),
        drawings: Sequence[object] = (),
    ) -> list[Section]:
        """The verdict, charts, papers, baselines, boundaries, criteria, and printed statements."""
        first: list[Block] = [Text(_verdict(record), "verdict") for record in records]
        made: list[Section] = [
            Section("", (*first, *warnings_notice(records))),
            Section("Agreement", tuple(map(_agreement, records))),
            *(section for record in records for section in _charts(record)),
        ]
        for name, make in {
            "Papers": _papers,
            "Judges that know nothing": _baselines,
            "Labels by source": _sources,
            "Boundaries of tiers": _boundaries,
            "Criteria": _criteria,
            "Printed statements": _checks,
        }.items():
            shown = [table for table in map(make, records) if table.rows]
            made += [Section(name, tuple(shown))] if shown else []
        known = {name: text for name, text in meanings(records).items() if name not in READING}
        return [
            *made,
            Section("How to read this", (Terms({**READING, **known}),)),
            *facts_section(records),
            *all_numbers(records),
        ]

    def draw(self, record: Record, ax: Axes | None = None) -> Figure:
        """Scores with labels and single runs."""
        return draw_scores(record, rubric_of(record), ax)


def rubric_of(record: Record) -> Rubric:
    """The rubric that papers were judged by."""
    spec = record.specs["rubric"]
    return load_rubric(f"{spec.name}@{spec.version}")


def _verdict(record: Record) -> str:
    exact, within = record.measure("exact"), record.measure("within 1")
    if exact is None or within is None or not exact.n:
        return "No paper has both a score and a label."
    n = exact.n
    told = [
        f"{round(each.value * n)} of {n} ({share(each.value)} [{share(each.low)},"
        f" {share(each.high)}]) {words}"
        for each, words in ((exact, "have the tier of their label"), (within, "are within one"))
    ]
    best = _best_constant(record)
    return f"{', '.join(told)}.{best}"


def _best_constant(record: Record) -> str:
    rows = [
        row for row in record.table("baselines").rows() if str(row["judge"]).startswith("always")
    ]
    best = max(rows, key=lambda row: (plain_number(row["exact"]), plain_number(row["within 1"])))
    n = int(plain_number(best["n"]))
    exact, near = (round(plain_number(best[key]) * n) for key in ("exact", "within 1"))
    says = str(best["judge"]).removeprefix("always ")
    return f" A judge that always says {says} has {exact} and {near} of {n}."


def _charts(record: Record) -> list[Section]:
    rubric, blocks = rubric_of(record), list[Block]()
    if len(record.table("papers")):
        about = "Scores of papers on the scale of tiers; the table of papers has the numbers."
        drawn = svg(draw_scores(record, rubric))
        blocks.append(page.Figure(drawn, title="Scores and labels", name="Scores", about=about))
        about = "Counts of papers by label and tier; the table of papers has each of them."
        drawn = svg(draw_confusion(record, rubric))
        blocks.append(page.Figure(drawn, title="Tiers against labels", name="Tiers", about=about))
    if len(record.table("dimensions")):
        about = "Levels of dimensions of system claims, and means over other claims."
        drawn = svg(draw_dimensions(record, rubric))
        blocks.append(page.Figure(drawn, title="Dimensions", name="Dimensions", about=about))
    return [Section("Charts", tuple(blocks))] if blocks else []


def _agreement(record: Record) -> TextTable:
    rows = [
        Row((m.heading, interval(m.value, m.low, m.high), f"{m.n:,}", f"{m.n_undefined:,}"))
        for m in record.measures
    ]
    return TextTable.of("Agreement", ("statistic", "value", "n", "undefined"), rows)


def _papers(record: Record) -> TextTable:
    rows: list[Row] = []
    for row in record.table("papers").rows():
        low, high = plain_number(row["lowest"]), plain_number(row["highest"])
        runs = f"{low:.1f} to {high:.1f}" if not math.isnan(low) else NOTHING
        error = plain_number(row["error"])
        cells = (
            str(row["paper"]),
            _one(plain_number(row["cvs"])),
            runs,
            str(row["tier"]) or NOTHING,
            str(row["expected"]),
            NOTHING if math.isnan(error) else f"{error:+.0f}" if error else "0",
            str(row["source"]),
            _two(plain_number(row["boundary"])),
        )
        rows.append(Row(cells))
    columns = (
        Column("paper", numeric=False),
        Column("CVS"),
        Column("single runs", optional=1),
        Column("tier", numeric=False),
        Column("label", numeric=False),
        Column("error"),
        Column("source", numeric=False, optional=2),
        Column("boundary", optional=3),
    )
    return TextTable("Papers", columns, tuple(rows))


def _one(value: float) -> str:
    return NOTHING if math.isnan(value) else f"{value:.1f}"


def _two(value: float) -> str:
    return NOTHING if math.isnan(value) else number(value)


def _baselines(record: Record) -> TextTable:
    keys = ("exact", "within 1", "within 2", "mae", "signed", "weighted")
    rows = [
        (str(row["judge"]), *(_two(plain_number(row[key])) for key in keys), str(row["n"]))
        for row in record.table("baselines").rows()
    ]
    headings = ("judge", "exact", "within 1", "within 2", "mean error", "signed", "kappa", "n")
    return TextTable.of(
        "Judges that know nothing",
        headings,
        rows,
        caption="Shares of papers, errors in tiers, kappa with quadratic weights. Of random judges"
        " the expected values.",
    )


def _sources(record: Record) -> TextTable:
    rows = [
        (
            str(row["source"]) or NOTHING,
            f"{row['hits']} of {row['n']}",
            interval(*(plain_number(row[key]) for key in ("exact", "low", "high"))),
            str(row["over"]),
            str(row["under"]),
        )
        for row in record.table("sources").rows()
    ]
    return TextTable.of("Labels by source", ("source", "exact", "share", "above", "below"), rows)


def _boundaries(record: Record) -> TextTable:
    rows = [
        (
            str(row["tier"]),
            f"{plain_number(row['least']):g} → {plain_number(row['moved']):.2f}",
            str(row["by"]),
            str(row["n_changed"]),
            str(row["changed"]) or NOTHING,
            f"{row['exact']} of {row['n']}",
        )
        for row in record.table("boundaries").rows()
    ]
    headings = ("tier above", "boundary", "by", "changed", "papers", "exact then")
    return TextTable.of("Boundaries of tiers", headings, rows, words=True)


def _criteria(record: Record) -> TextTable:
    rows = [
        (
            f"{row['criterion']} {row['name']}",
            _two(plain_number(row["exact"])),
            _two(plain_number(row["mae"])),
            str(row["judge_higher"]),
            str(row["judge_lower"]),
            str(row["n"]),
        )
        for row in record.table("criteria").rows()
    ]
    rows += [
        (
            f"always {row['status']}, all criteria",
            _two(plain_number(row["exact"])),
            _two(plain_number(row["mae"])),
            "",
            "",
            str(row["n"]),
        )
        for row in record.table("constants").rows()
    ]
    headings = ("criterion", "exact", "mean error", "judge higher", "judge lower", "n")
    return TextTable.of("Criteria of matched claims", headings, rows)


def _failed_checks(record: Record) -> TextTable:
    """The printed statements that do not hold, which a console has room for."""
    table = _checks(record)
    return replace(table, rows=tuple(row for row in table.rows if row.cells[-1] == FAILED))


def _checks(record: Record) -> TextTable:
    rows = [
        (
            str(row["where"]),
            str(row["about"]),
            str(row["printed"]),
            str(row["recomputed"]),
            NOTHING if row["holds"] is None else "holds" if row["holds"] else FAILED,
        )
        for row in record.table("checks").rows()
    ]
    headings = ("where", "statement", "printed", "recomputed", "")
    return TextTable.of("Printed statements", headings, rows, words=True)
