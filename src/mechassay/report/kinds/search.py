"""Searches for the worst pair of a circuit: the lower bound, its pair, and all climbs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mechassay.adversarial.search import bound_text
from mechassay.curves import labels
from mechassay.records import Failure, Record
from mechassay.report.page import Page, Section, Terms, Text
from mechassay.report.sections import (
    all_numbers,
    facts_section,
    failure_row,
    failures_text,
    warnings_notice,
)
from mechassay.report.tables import TextTable

KIND = "adversarial-search"
BOUND = "lower bound on the maximum"
READING = {
    "Lower bound": (
        "The divergence KL(M(x) || C(x, x~)) of a pair that exists, in nats: the largest one over"
        " all pairs is at least this. How probable such pairs are it does not say."
    ),
    "Random sampling": "The largest divergence of as many random pairs of the prompts.",
    "Climbs": (
        "From a pair, the change of one field that leads to the worst pair, until none does: then"
        " it is a local maximum."
    ),
}


class SearchPage(Page):
    """Searches for the worst inputs of circuits."""

    def title(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> str:
        """What the page is called."""
        return "Search for the worst inputs of circuits"

    def tables(
        self, records: Sequence[Record], failures: Sequence[Failure] = ()
    ) -> list[TextTable]:
        """The climbs of every circuit, and what failed."""
        made: list[TextTable] = []
        for record, label in zip(records, labels(records), strict=True):
            head = "Climbs, in nats" if len(records) == 1 else f"{label}: climbs, in nats"
            rows = [
                (
                    f"{row['climb']}",
                    f"{row['divergence']:.6g}",
                    f"{row['at its start']:.6g}",
                    f"{row['changes']}",
                    "yes" if row["local maximum"] else "no",
                )
                for row in record.table("climbs").rows()
            ]
            columns = ("climb", "divergence", "at its start", "changes", "local maximum")
            made.append(TextTable.of(head, columns, rows))
        if failures:
            failed = [failure_row(failure, "circuit") for failure in failures]
            made.append(TextTable.of("What failed", ("circuit", "why"), failed, words=True))
        return made

    def sections(
        self,
        records: Sequence[Record],
        failures: Sequence[Failure] = (),
        drawings: Sequence[object] = (),
    ) -> list[Section]:
        """What was found; the worst pair and the climbs of every circuit; what was run."""
        verdicts = [
            Text(f"{label}: {best_text(record)[-1]}.", "verdict")
            for record, label in zip(records, labels(records), strict=True)
        ]
        best = [
            Section(f"The worst pair of {label}", tuple(map(Text, best_text(record)[:-1])))
            for record, label in zip(records, labels(records), strict=True)
        ]
        return [
            Section("", (*verdicts, *failures_text(failures), *warnings_notice(records))),
            *best,
            *(Section(table.title, (table,)) for table in self.tables(records, failures)),
            Section("How to read this", (Terms(READING),)),
            *facts_section(records),
            *all_numbers(records),
        ]


def best_text(record: Record) -> list[str]:
    """The worst pair, the changes that led to it, and the lower bound, a line each."""
    (climb,) = record.table("climbs").where(climb=1).rows()
    steps = record.table("steps").where(climb=1).rows()
    bound, random = record.measure(BOUND), record.measure(BOUND, "control:random")
    assert bound is not None
    other, n = (random.value, random.n) if random else (math.nan, 0)
    said = bound_text(bound.value, bound.n, other, n)
    return [
        f"clean      {climb['clean']}",
        f"corrupted  {climb['corrupted']}",
        *(f"  {step['kl']:.6g}  {step['change'] or 'start'}" for step in steps),
        said[0].upper() + said[1:],
    ]
