"""The page of records of any kind."""

from __future__ import annotations

from collections.abc import Sequence

from mechassay.records import Failure, Record
from mechassay.report.page import Page, Section, Terms, Text
from mechassay.report.sections import (
    all_numbers,
    broken_notice,
    checks_table,
    facts_section,
    failures_text,
    meanings,
    measures_table,
    tables_section,
    values_section,
    warnings_notice,
)
from mechassay.report.tables import TextTable
from mechassay.report.text import measure_text


class GenericPage(Page):
    """Records of any kind."""

    def title(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> str:
        """What the page is called."""
        kinds = dict.fromkeys(record.kind for record in records)
        return f"Results: {', '.join(kinds) or 'none'}"

    def tables(
        self, records: Sequence[Record], failures: Sequence[Failure] = ()
    ) -> list[TextTable]:
        """What a console shows."""
        return [measures_table(records, failures)]

    def sections(
        self,
        records: Sequence[Record],
        failures: Sequence[Failure] = (),
        drawings: Sequence[object] = (),
    ) -> list[Section]:
        """Verdict, failing checks and warnings; measures, checks, tables; facts; values."""
        checks, terms = checks_table(records), meanings(records)
        said = [Text(_verdict(records), "verdict"), *failures_text(failures)]
        return [
            Section("", (*broken_notice(records), *said, *warnings_notice(records))),
            Section("Measures", (measures_table(records, failures),)),
            *([Section("Controls", (checks,))] if checks.rows else []),
            *tables_section(records),
            *([Section("How to read this", (Terms(terms),))] if terms else []),
            *facts_section(records),
            *values_section(records),
            *all_numbers(records),
        ]


def _verdict(records: Sequence[Record]) -> str:
    """The first measure of the first record, in a sentence."""
    measures = [m for record in records[:1] for m in record.measures if m.of == "result"]
    if not measures:
        return "There are no results."
    record, headline = records[0], measures[0]
    of = " ".join(filter(None, (record.model.name, record.task.name, record.method.name)))
    more = f", the first of {len(records)} results" if len(records) > 1 else ""
    said = f"{headline.heading} {measure_text(record, headline.name)}"
    return f"{of}{more}: {said}{f' {headline.unit}' if headline.unit else ''}."
