"""Raters compared: disagreements first, then the statistics of agreement, then every table."""

from __future__ import annotations

from collections.abc import Sequence

from mechassay.claims.rubric import load_rubric
from mechassay.claims.scoring import STATUSES
from mechassay.records import Failure, Record
from mechassay.report.page import Block, Page, Section, Terms, Text
from mechassay.report.sections import all_numbers, facts_section, warnings_notice
from mechassay.report.tables import NOTHING, Column, Row, TextTable
from mechassay.text import interval, share

READING = {
    "Exact": "The share of criteria with the same status, among those that both raters judged.",
    "Kappa": "Cohen's, with quadratic weights: 0 is chance, 1 is perfect.",
    "Alpha": "Krippendorff's, of ordinal data, over all raters; n counts judgments.",
    "Difference": "The mean of the first rater less the second; YES less NO is 1.",
    "Distance": "The mean size of that difference.",
    "Intervals": "95 %, over claims drawn again. One claim has none.",
}
LEFT_OUT = ("claim", "criterion", "distance", "reasons")


class ClaimsComparisonPage(Page):
    """Raters of the same claims beside each other."""

    def title(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> str:
        """What the page is called."""
        return f"Raters compared: {records[0].cell['raters']}" if records else "Raters compared"

    def tables(
        self, records: Sequence[Record], failures: Sequence[Failure] = ()
    ) -> list[TextTable]:
        """What a console shows: disagreements first."""
        return [
            table for record in records for table in (_disagreements(record), _agreement(record))
        ]

    def sections(
        self,
        records: Sequence[Record],
        failures: Sequence[Failure] = (),
        drawings: Sequence[object] = (),
    ) -> list[Section]:
        """Disagreements, agreement, how two raters differ on each criterion, what was compared."""
        first: list[Block] = [Text(_verdict(record), "verdict") for record in records]
        return [
            Section("", (*first, *warnings_notice(records))),
            Section("Disagreements", tuple(map(_disagreements, records))),
            Section("Agreement", tuple(map(_agreement, records))),
            Section("Statuses", tuple(table for each in records for table in _confusions(each))),
            Section("Criteria", tuple(map(_criteria, records))),
            Section("How to read this", (Terms(READING),)),
            *facts_section(records),
            *all_numbers(records),
        ]


def _verdict(record: Record) -> str:
    n = len(record.table("disagreements"))
    exact = next((m for m in record.measures if m.name.startswith("exact")), None)
    if exact is None or exact.value != exact.value:
        return f"{n} criteria differ; no criterion was judged by two raters."
    return f"{n} criteria differ; {share(exact.value)} of {exact.n} are the same ({exact.heading})."


def _disagreements(record: Record) -> TextTable:
    rubric = load_rubric(f"{record.specs['rubric'].name}@{record.specs['rubric'].version}")
    table = record.table("disagreements")
    raters = [name for name in table.columns if name not in LEFT_OUT]
    rows = [
        (
            f"{row['criterion']} {rubric.criterion(str(row['criterion'])).name}",
            str(row["claim"]),
            *(str(row[name]) for name in raters),
            str(row["reasons"] or ""),
        )
        for row in table.rows()
    ]
    headings = ("criterion", "claim", *raters, "reasons")
    return TextTable.of("Disagreements", headings, rows, words=True)


def _agreement(record: Record) -> TextTable:
    rows = [Row((m.heading, interval(m.value, m.low, m.high), f"{m.n:,}")) for m in record.measures]
    return TextTable.of("Agreement", ("statistic", "value", "n"), rows)


def _confusions(record: Record) -> list[TextTable]:
    """Of each two raters, a row for each status of the first, a column for each of the second."""
    table = record.table("confusion")
    made: list[TextTable] = []
    for raters in dict.fromkeys(map(str, table.columns.get("raters", []))):
        counts = {
            (row["first"], row["second"]): row["n"] for row in table.where(raters=raters).rows()
        }
        used = [each for each in STATUSES if any(each in pair for pair in counts)]
        rows = [
            Row((first, *(str(counts.get((first, second), 0)) for second in used)))
            for first in used
        ]
        columns = (Column("first, by second", numeric=False), *map(Column, used))
        made.append(TextTable(raters, columns, tuple(rows)))
    return made


def _criteria(record: Record) -> TextTable:
    rows = [
        (
            str(row["criterion"]),
            str(row["raters"]),
            NOTHING if row["exact"] is None else share(float(row["exact"])),
            str(row["differ"]),
            str(row["how"]),
        )
        for row in record.table("criteria").rows()
    ]
    return TextTable.of("", ("criterion", "raters", "exact", "differ", "how"), rows, words=True)
