"""Do metrics tell right from wrong? A row a metric and kind of wrong subject, both variants beside
each other, for circuits and for dictionaries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from mechassay.results.curves import labels
from mechassay.results.page import Column, Fold, Page, Report, Row, Section, Text, TextTable
from mechassay.results.records import Record, Scalar
from mechassay.results.sections import failures_table, framed, stored_table
from mechassay.utils.display import UNDEFINED, interval

VARIANTS = ("repaired", "page")
USEFUL, CHANCE = 0.9, 0.5
"""AUROCs: well above chance, and chance."""
READING = {
    "AUROC": (
        "How probable it is that a right subject has a better score than a wrong one, ties counting"
        " half: 1 tells all apart, .5 is chance, below .5 the metric prefers what is wrong. Over"
        " all worlds at once, as one threshold has to do for all of them. Brackets: 95 % interval"
        " over worlds."
    ),
    "Score": (
        "The quantity that decides the variant's verdict. An undefined one ranks below all others,"
        " as it is never a pass."
    ),
    "Passes": (
        "Shares of right, and of wrong subjects that meet all conditions. A threshold means"
        " something where the first is high and the second low. Empty: the variant only reports."
    ),
    "Undefined": "Subjects without a score: by the repaired definition, and by the published one.",
    "Within worlds": "The mean AUROC of single worlds, where scores of others do not matter.",
    "Worlds": "Ground truths, or planted values, each with all seeds.",
}


class MeasureTrialPage(Page):
    """Trials of metrics of measurement."""

    def title(self, report: Report) -> str:
        """What the page is called."""
        return "Do metrics tell right from wrong?"

    def tables(self, report: Report) -> list[TextTable]:
        """A table a sort of subject; then what was not tried."""
        return [*_discriminations(report.records), *failures_table(report.failures, "metric")]

    def sections(self, report: Report) -> list[Section]:
        """Verdicts, a table a sort of subject, what was not tried; the rest is folded."""
        records = report.records
        left = failures_table(report.failures, "metric")
        return framed(
            report,
            [Text(_verdict(records), "verdict")] if records else [],
            [
                *(Section(table.title, (table,)) for table in _discriminations(records)),
                *([Section("Without a result", tuple(left))] if left else []),
            ],
            folded=_details(records),
            reading=READING,
        )


def _rows(record: Record, variant: str) -> dict[str, dict[str, Scalar]]:
    """The discriminations of a variant, by kind of wrong subject."""
    table = record.table("discrimination").where(variant=variant)
    return {str(row["against"]): row for row in table.rows()}


def _verdict(records: Sequence[Record]) -> str:
    """How many metrics tell how much."""
    parts: list[str] = []
    for variant in VARIANTS:
        least = {
            record.method.name: min(
                (_number(row["auroc"]) for row in _rows(record, variant).values()),
                default=math.nan,
            )
            for record in records
        }
        known = {name: value for name, value in least.items() if not math.isnan(value)}
        good = [name for name, value in known.items() if value >= USEFUL]
        bad = [name for name, value in known.items() if value <= CHANCE]
        parts.append(
            f"{variant}: {', '.join(good) or 'none'} of {len(known)} have an AUROC of {USEFUL:g} or"
            f" more against every kind of wrong subject; {', '.join(bad) or 'none'} {CHANCE:g} or"
            " less against one"
        )
    return f"{'; '.join(parts)}."


def _discriminations(records: Sequence[Record]) -> list[TextTable]:
    found: list[TextTable] = []
    for sort in dict.fromkeys(record.model.name for record in records):
        mine = [record for record in records if record.model.name == sort]
        rows = [row for record in mine for row in _of_metric(record)]
        columns = (
            Column("metric", numeric=False),
            Column("against", numeric=False),
            Column("AUROC, repaired"),
            Column("AUROC, as published"),
            Column("passes, repaired"),
            Column("passes, as published"),
            Column("undefined"),
            Column("right, wrong"),
        )
        about = mine[0].task.args
        worlds, seeds = about.get("worlds"), about.get("seeds")
        told = f"{_count(worlds)} worlds, {_count(seeds)} seeds each. Brackets: 95 % over worlds."
        found.append(TextTable(sort.capitalize(), columns, tuple(rows), told))
    return found


def _of_metric(record: Record) -> list[Row]:
    named = {variant: _rows(record, variant) for variant in VARIANTS}
    kinds = dict.fromkeys(kind for rows in named.values() for kind in rows)
    name = labels([record])[0] if not record.cell else record.cell.get("metric", "")
    out: list[Row] = []
    for kind in kinds:
        rows = [named[variant].get(kind) for variant in VARIANTS]
        some = next(row for row in rows if row is not None)
        cells = (
            name,
            kind,
            *(_auroc(row) for row in rows),
            *(_passes(row) for row in rows),
            ", ".join(_undefined(row) for row in rows),
            f"{some['n_right']}, {some['n_wrong']}",
        )
        out.append(Row(cells))
    return out


def _details(records: Sequence[Record]) -> list[Fold]:
    return [
        Fold(
            f"{record.cell.get('metric', record.method.name)}: every discrimination and subject",
            tuple(stored_table(record.table(name)) for name in ("discrimination", "subjects")),
        )
        for record in records
    ]


def _count(value: object) -> str:
    return str(len(value)) if isinstance(value, list) else "1"


def _number(value: Scalar) -> float:
    return math.nan if value is None else float(value)


def _auroc(row: Mapping[str, Scalar] | None) -> str:
    if row is None:
        return "only reports"
    return interval(*(_number(row[name]) for name in ("auroc", "auroc_low", "auroc_high")), least=2)


def _passes(row: Mapping[str, Scalar] | None) -> str:
    """Two shares, without a decimal more than some dozen subjects deserve."""
    if row is None or row["passes_right"] is None:
        return ""
    shares = (_number(row[name]) for name in ("passes_right", "passes_wrong"))
    return ", ".join(UNDEFINED if math.isnan(x) else f"{x:.2f}" for x in shares)


def _undefined(row: Mapping[str, Scalar] | None) -> str:
    return (
        ""
        if row is None
        else str(int(_number(row["undefined_right"]) + _number(row["undefined_wrong"])))
    )
