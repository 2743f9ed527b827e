"""Metrics of measurement: both variants side by side, thresholds with how often they err, readings.

The first table has a row a metric. Below it, each metric has its quantities, its conditions with
false-alarm rate and power, what the published reading table says, and its details.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mechassay.measurement.measurement import PassRate
from mechassay.results.curves import labels
from mechassay.results.page import Block, Column, Fold, Page, Row, Section, Terms, Text, TextTable
from mechassay.results.records import Failure, Measure, Record, Scalar, Table
from mechassay.results.sections import (
    all_numbers,
    facts_section,
    failure_row,
    meanings,
    opening,
    stored_table,
    values_section,
)
from mechassay.utils.display import UNDEFINED, interval

VARIANTS = {"repaired": "result", "page": "page"}
"""Variants, and what their measures are of."""
SPREADS = ("_se", "_sd", "_sem", "standard_error", "minimum_difference", "relative_error")
"""What names of quantities end with that are themselves about how far numbers may be off."""
OWN = ("verdicts", "conditions", "readings", "flags", "rates")
READING = {
    "Repaired, page": (
        "The repaired definition is what counts. That of the page is the published one to the"
        " letter, with its defaults and all conditions of its text."
    ),
    "No verdict": "The metric only reports, or a quantity that decides is undefined.",
    "False alarm, power": (
        "Shares of simulated inputs that meet the condition: inputs that are worth nothing, and"
        " inputs of a known worth; of several kinds the worst. The table of rates says which they"
        " are. Real inputs may differ."
    ),
    "Reading": (
        "What the published table says of the page's value. On an edge two bands meet; in a gap the"
        " table says nothing."
    ),
    "Evidence for": "The criterion of the rubric mv-27 that the repaired numbers speak about.",
}


class MeasurePage(Page):
    """Metrics of measurement."""

    def title(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> str:
        """What the page is called."""
        names = ", ".join(dict.fromkeys(record.model.name for record in records))
        return f"Measurement: {names}" if names else "Measurement"

    def tables(
        self, records: Sequence[Record], failures: Sequence[Failure] = ()
    ) -> list[TextTable]:
        """A row a metric; then the conditions of all."""
        return [_verdicts(records, failures), *(_conditions(record) for record in records)]

    def sections(
        self,
        records: Sequence[Record],
        failures: Sequence[Failure] = (),
        drawings: Sequence[object] = (),
    ) -> list[Section]:
        """Verdicts, a section a metric, how to read them, facts and values."""
        said: list[Block] = [Text(_verdict(record), "verdict") for record in records]
        named = zip(records, labels(records), strict=True)
        return [
            opening(records, said, failures),
            Section("All metrics", (_verdicts(records, failures),)),
            *(Section(name, tuple(_blocks(record))) for record, name in named),
            Section("How to read this", (Terms({**READING, **meanings(records)}),)),
            *facts_section(records),
            *values_section(records),
            *all_numbers(records),
        ]


def _of(record: Record, column: str) -> dict[str, str]:
    """A column of the verdicts by variant."""
    rows = record.table("verdicts").rows() if record.has_table("verdicts") else []
    return {str(row["variant"]): str(row[column]) for row in rows}


def _verdict(record: Record) -> str:
    verdicts, about = _of(record, "verdict"), _of(record, "criterion")
    title = _of(record, "title").get("repaired", "")
    roles = [role for role in ("model", "task", "corpus") if role in record.specs]
    subject = ", ".join(record.specs[role].name for role in roles)
    return (
        f"{record.method.name} ({title}), {subject}: repaired"
        f" {verdicts.get('repaired', UNDEFINED)}, page {verdicts.get('page', UNDEFINED)}; evidence"
        f" for {about.get('repaired', UNDEFINED)}."
    )


def _verdicts(records: Sequence[Record], failures: Sequence[Failure]) -> TextTable:
    rows: list[Row] = []
    for record, name in zip(records, labels(records), strict=True):
        verdicts = _of(record, "verdict")
        rows.append(
            Row(
                (
                    name,
                    verdicts.get("repaired", ""),
                    verdicts.get("page", ""),
                    _headline(record, "repaired"),
                    _headline(record, "page"),
                    _of(record, "criterion").get("repaired", ""),
                    f"{record.n:,}",
                )
            )
        )
    rows += [failure_row(each, "metric") for each in failures]
    headings = ("metric", "repaired", "page", "repaired value", "page's value")
    columns = tuple(Column(name, numeric=False) for name in headings)
    about = Column("evidence for", numeric=False, optional=1)
    return TextTable("Metrics", (*columns, about, Column("n")), tuple(rows))


def _headline(record: Record, variant: str) -> str:
    """The quantity of the first condition, or the first one."""
    decided = [
        str(row["condition"]).split()[0]
        for row in record.table("conditions").rows()
        if row["variant"] == variant
    ]
    own = [m for m in record.measures if m.of == VARIANTS[variant]]
    first = [m for m in own if m.name in decided] or own
    return f"{first[0].heading} {_value(first[0])}" if first else ""


def _value(measure: Measure) -> str:
    """A number with its interval, in as many digits as a small one needs."""
    if math.isnan(measure.value):
        return UNDEFINED
    if math.isfinite(measure.low) and measure.high > measure.low:
        return interval(measure.value, measure.low, measure.high)
    return f"{measure.value:.4g}"


def _number_and_interval(measure: Measure) -> tuple[str, str]:
    """A number and its interval, or why it has none."""
    value, _, ends = _value(measure).partition(" ")
    return value, ends or f"none: {_why_none(measure)}"


def _why_none(measure: Measure) -> str:
    if math.isnan(measure.value):
        return UNDEFINED
    if math.isfinite(measure.low):
        return "both of its ends are the value"
    if measure.of == VARIANTS["page"]:
        return "the published definition has none"
    if measure.name.endswith(("_low", "_high")):
        return "it is an end of an interval"
    if measure.name.endswith(SPREADS):
        return "it is a spread or an error itself"
    return "the definition computes none"


def _blocks(record: Record) -> list[Block]:
    quantities = [
        (variant, m.heading, *_number_and_interval(m), f"{m.n:,}" if m.n else "not said")
        for variant, of in VARIANTS.items()
        for m in record.measures
        if m.of == of
    ]
    blocks: list[Block] = [
        TextTable.of(
            "Quantities",
            ("definition", "quantity", "value", "95 % interval", "n"),
            quantities,
            words=True,
        ),
        _conditions(record),
    ]
    readings = record.table("readings")
    if len(readings):
        blocks.append(stored_table(readings, "What the page's reading table says"))
    blocks += [
        Fold(f"{record.method.name}: {table.name}", (stored_table(table),))
        for table in record.tables
        if len(table) and (table.name not in OWN or table.name == "rates")
    ]
    return blocks


def _conditions(record: Record) -> TextTable:
    """Conditions with how often they err."""
    table: Table = record.table("conditions")
    rows = [
        (
            str(row["variant"]),
            str(row["condition"]),
            _decided(record, row),
            str(row["holds"]),
            _share(row["false_alarm"]),
            _share(row["power"]),
        )
        for row in table.rows()
    ]
    headings = ("definition", "condition", "value", "holds", "false alarm", "power")
    caption = (
        f"n: {record.n:,}. Values without an interval, and how sure the shares are: see the tables"
        " of quantities and of rates."
        if rows
        else "The metric only reports: it has no threshold."
    )
    return TextTable.of(
        f"Conditions, {record.method.name}", headings, rows, words=True, caption=caption
    )


def _decided(record: Record, row: Mapping[str, Scalar]) -> str:
    """The value that a condition is about, with its interval if it has one."""
    name, of = str(row["condition"]).split()[0], VARIANTS[str(row["variant"])]
    found = record.measure(name, of)
    return _number(row["value"]) if found is None else _value(found)


def rates_table(rates: Sequence[PassRate]) -> TextTable:
    """How often thresholds err: a row a condition and scenario."""
    rows = [
        (
            each.variant,
            each.condition,
            each.scenario,
            "false alarm" if each.worthless else "power",
            interval(each.rate, each.low, each.high),
        )
        for each in rates
    ]
    about = f"{rates[0].n_simulations:,} simulations of size {rates[0].n:,}." if rates else ""
    columns = (
        Column("definition", numeric=False),
        Column("condition", numeric=False),
        Column("simulated inputs", numeric=False, optional=1),
        Column("rate of", numeric=False),
        Column("share that passes"),
    )
    caption = f"{about} Brackets: 95 % interval over simulations." if rates else "No threshold."
    return TextTable("How often thresholds err", columns, tuple(map(Row, rows)), caption)


def _number(value: Scalar) -> str:
    return UNDEFINED if value is None else f"{float(value):.4g}"


def _share(value: Scalar) -> str:
    return "not known" if value is None else f"{float(value):.3f}"
