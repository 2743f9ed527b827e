"""What became of a judge's runs: scores, what votes and audits changed, and all that led to it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mechassay.claims.debiasing import SINGLE
from mechassay.claims.minimum_vote import AGGREGATES
from mechassay.records import Failure, Record
from mechassay.report.nats import plain_number
from mechassay.report.page import Block, Fold, Page, Section, Terms, Text
from mechassay.report.sections import (
    all_numbers,
    facts_section,
    stored_table,
    warnings_notice,
)
from mechassay.report.tables import NOTHING, Column, Row, TextTable

FINAL = "after all steps"
READING = {
    "Minimum": (
        "The least status of all runs (Tower 2026). It falls with every run, so scores by it are"
        " low on purpose."
    ),
    "Mean, median, majority": "Other ways to make one status of those of the runs; ties go down.",
    "Support": "How many runs make the claim. A minimum of fewer runs is less strict.",
    "Similarity": "Of a run's claim to that of the run that leads, by words and components.",
    "Audit": "Takes a status to NO whose evidence is that of the system claim.",
    "Alpha": "Krippendorff's, of ordinal data: 0 is chance, 1 is perfect.",
}


class ClaimsVotePage(Page):
    """A vote over runs of a judge."""

    def title(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> str:
        """What the page is called."""
        name = records[0].cell["rater"] if records else "runs of a judge"
        return f"{name[:1].upper()}{name[1:]}"

    def tables(
        self, records: Sequence[Record], failures: Sequence[Failure] = ()
    ) -> list[TextTable]:
        """What a console shows: claims, and what other steps than the vote changed."""
        return [
            table
            for each in records
            for table in (_claims(each), _changes(each, voted=False))
            if table.rows
        ]

    def sections(
        self,
        records: Sequence[Record],
        failures: Sequence[Failure] = (),
        drawings: Sequence[object] = (),
    ) -> list[Section]:
        """Scores by every way, changes, what was rejected, matches, all statuses of all runs."""
        first: list[Block] = [Text(_verdict(record), "verdict") for record in records]
        return [
            Section("", (*first, *warnings_notice(records))),
            Section("Claims", tuple(map(_claims, records))),
            Section("Changes", tuple(_changes(record) for record in records)),
            *_stored(records, "rejected", "Objections that were rejected"),
            *_stored(records, "matches", "Claims that were taken for one"),
            *_stored(records, "scores", "Scores"),
            *_stored(records, "statuses", "Statuses of every run"),
            *_stored(records, "steps", "Steps"),
            Section("How to read this", (Terms(READING),)),
            *facts_section(records),
            *all_numbers(records),
        ]


def _verdict(record: Record) -> str:
    final = record.value("cvs")
    system = _system(record)
    own = {str(row["of"]): row for row in record.table("scores").where(claim=system).rows()}
    single = [plain_number(row["cvs"]) for name, row in own.items() if name.startswith(SINGLE)]
    known = [score for score in single if score == score]
    n = len(record.table("changes"))
    told = "none" if final != final else f"{final:.1f}, {own[FINAL]['tier']}"
    ranged = f" Its {len(known)} runs give {min(known):.1f} to {max(known):.1f}." if known else ""
    return f"{system}: CVS {told}.{ranged} {n} {'status' if n == 1 else 'statuses'} changed."


def _system(record: Record) -> str:
    return next(str(row["claim"]) for row in record.table("claims").rows() if row["system"])


def _claims(record: Record) -> TextTable:
    """A row a claim: support, the range of single runs, and the score by every way."""
    voted = any(row["n_runs"] for row in record.table("claims").rows())
    ways = (*AGGREGATES, FINAL) if voted else (FINAL,)
    columns = [Column("claim", numeric=False), Column("tier", numeric=False)]
    columns += [Column("support"), Column("single runs", optional=1)] if voted else []
    columns += [Column(way, optional=2 if way in AGGREGATES[1:] else 0) for way in ways]
    rows: list[Row] = []
    for row in record.table("claims").rows():
        found = {
            str(each["of"]): each
            for each in record.table("scores").where(claim=row["claim"]).rows()
        }
        single = [plain_number(e["cvs"]) for name, e in found.items() if name.startswith(SINGLE)]
        known = [score for score in single if score == score]
        ranged = f"{min(known):.1f} to {max(known):.1f}" if known else NOTHING
        cells = [f"{row['claim']}{' (system)' if row['system'] else ''}"]
        cells.append(str(found[FINAL]["tier"]) or NOTHING)
        cells += [f"{row['support']} of {row['n_runs']}", ranged] if voted else []
        cells += [_one(plain_number(found[way]["cvs"])) for way in ways]
        rows.append(Row(tuple(cells)))
    return TextTable("Claims", tuple(columns), tuple(rows))


def _one(value: float) -> str:
    return NOTHING if math.isnan(value) else f"{value:.1f}"


def _changes(record: Record, voted: bool = True) -> TextTable:
    rows = [
        tuple(
            str(row[key] or "") for key in ("claim", "criterion", "step", "before", "after", "why")
        )
        for row in record.table("changes").rows()
        if voted or row["step"] != "vote"
    ]
    headings = ("claim", "criterion", "step", "before", "after", "why")
    return TextTable.of("Changes", headings, rows, words=True)


def _stored(records: Sequence[Record], name: str, title: str) -> list[Section]:
    """A table of the records as it is, folded; nothing if it is empty."""
    blocks = [
        Fold(f"{len(record.table(name)):,} rows", (stored_table(record.table(name), title),))
        for record in records
        if len(record.table(name))
    ]
    return [Section(title, tuple(blocks))] if blocks else []
