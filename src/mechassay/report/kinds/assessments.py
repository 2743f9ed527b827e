"""A document judged by a language model: every run with its scores and cost, and its claims.

With one run of the judge the page is that of its claims. With several it says how far they are
apart, and each has a page of its own beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from mechassay.records import Failure, Record
from mechassay.report.kinds import claims
from mechassay.report.page import Block, Page, Section, Terms, Text
from mechassay.report.sections import (
    facts_section,
    failures_table,
    failures_text,
    warnings_notice,
)
from mechassay.report.tables import NOTHING, Column, Row, TextTable

READING = {
    "Runs of the judge": (
        "The judge was asked anew each time. One run shows what it said once; how far runs are"
        " apart is how far it can be relied on."
    ),
    "Verified": claims.READING["Verified"],
    "Unsupported": (
        "Criteria of all claims that were judged YES or PARTIAL without a quote that is in the"
        " document."
    ),
    "Tried again": "Requests that failed on the way, and answers that were cut off or malformed.",
}

RUNS = "Runs of the judge"


class AssessmentsPage(Page):
    """Runs of a judge on a document."""

    def title(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> str:
        """What the page is called."""
        names = dict.fromkeys(record.specs["document"].name for record in records)
        judges = dict.fromkeys(record.specs["judge"].name for record in records)
        if not records:
            names = dict.fromkeys(failure.cell.get("source", "") for failure in failures)
            judges = dict.fromkeys(failure.cell.get("judge", "") for failure in failures)
        return f"{', '.join(names)}, judged by {', '.join(judges)}"

    def tables(
        self, records: Sequence[Record], failures: Sequence[Failure] = ()
    ) -> list[TextTable]:
        """What a console shows."""
        runs = _runs(records)
        shown = claims.ClaimsPage().tables(runs[0]) if len(runs) == 1 else []
        return [*shown, *([_runs_table(runs)] if runs else []), *failures_table(failures, "run")]

    def sections(
        self,
        records: Sequence[Record],
        failures: Sequence[Failure] = (),
        drawings: Sequence[object] = (),
    ) -> list[Section]:
        """The verdict, what failed, every run of the judge, and the claims of a single one."""
        runs = _runs(records)
        failed = [*failures_text(failures), *failures_table(failures, "run")]
        if not runs:
            return [Section("", (Text("Nothing was judged.", "verdict"), *failed))]
        table = Section(RUNS, (_runs_table(runs),))
        reading = Section("How to read the runs", (Terms(READING),))
        if len(runs) == 1:
            first, *others = claims.ClaimsPage().sections(records)
            return [Section("", (*first.blocks, *failed)), table, *others, reading]
        systems = [own[0] for own in runs]
        said: list[Block] = [*claims.lost_quotes(records), Text(_apart(systems), "verdict")]
        said += [*failed, *warnings_notice(systems)]
        return [Section("", tuple(said)), table, reading, *facts_section(systems)]


def _runs(records: Sequence[Record]) -> list[list[Record]]:
    """The records of each run, that of its system claim first."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(record.cell["run"], []).append(record)
    return list(found.values())


def _apart(systems: Sequence[Record]) -> str:
    """How far the scores of the runs are apart."""
    told: list[str] = []
    for name, how in (("cvs", "as judged"), ("cvs verified", "with quotes that hold alone")):
        known = [each.value(name) for each in systems if not math.isnan(each.value(name))]
        span = f"{min(known):.1f} to {max(known):.1f}" if known else "undefined"
        told.append(f"{span} {how}")
    return f"{len(systems)} runs of the judge: CVS {', '.join(told)}."


def _runs_table(runs: Sequence[Sequence[Record]]) -> TextTable:
    columns = (
        Column("run", numeric=False),
        Column("claims"),
        Column("CVS"),
        Column("verified"),
        Column("gated tier", numeric=False, optional=2),
        Column("unsupported"),
        Column("requests", optional=3),
        Column("tried again", optional=3),
        Column("tokens in", optional=1),
        Column("tokens out", optional=1),
        Column("US dollars"),
    )
    rows = tuple(_row(own, linked=len(runs) > 1) for own in runs)
    return TextTable(RUNS, columns, rows, "CVS of the system claim.")


def _row(own: Sequence[Record], *, linked: bool) -> Row:
    system = own[0]
    number, spent = system.cell["run"], system.realised
    name = Markup('<a href="run-{0}.html">{0}</a>').format(number) if linked else number
    lost = sum(
        row["status"] != row["verified"] for each in own for row in each.table("criteria").rows()
    )
    cost = spent.get("cost", math.nan)
    again = spent.get("faults", 0) + spent.get("invalid_answers", 0)
    return Row(
        (
            name,
            str(len(own)),
            _one(system.value("cvs")),
            _one(system.value("cvs verified")),
            claims.gated_of(system) or NOTHING,
            str(lost),
            f"{spent.get('requests', 0):,.0f}",
            f"{again:,.0f}",
            f"{spent.get('input_tokens', 0):,.0f}",
            f"{spent.get('output_tokens', 0):,.0f}",
            "not known" if math.isnan(cost) else f"{cost:.4f}",
        )
    )


def _one(value: float) -> str:
    return NOTHING if math.isnan(value) else f"{value:.1f}"
