"""The page of a reproduction: each published number beside ours, with its status."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from mechassay.reproduction.comparison import NUMBERS, PaperComparison, comparisons_of
from mechassay.reproduction.given import CIRCUITS, GAINS
from mechassay.reproduction.published import place_of
from mechassay.reproduction.status import STATUSES
from mechassay.results.page import NOTHING, Page, Report, Section, Text, TextTable
from mechassay.results.records import Failure, Record
from mechassay.results.sections import framed
from mechassay.runs import costs
from mechassay.utils.display import counted, interval, signed

FIRST = 3
"""Cells that are named where many are not run for one reason."""
WORDS = {
    "cmd": "CMD",
    "cpr": "CPR",
    "auroc": "AUROC",
    "kl": "divergence",
    "z": "z-scores",
    "mib-2025": "accuracy",
    "ranked": "accuracy by ranked choice",
    "mib_mean": "interchange accuracy, mean over layers, %",
    "mib_highest": "interchange accuracy, best layer, %",
    "mse": "squared error",
}
"""What headings call measures, where that is not their name."""
TITLE = "Published numbers beside ours"
READING = {
    "reproduced": (
        "Split, definition and n are as published, the published weights ran, and the published"
        " value, as far as it is rounded, is within the 95 % interval of ours, which is no wider"
        " than .1 of the measure's range or 20 % of the value."
    ),
    "too few to tell": "The interval is wider, ours is undefined, or n is less than published.",
    "other model": (
        "Other weights than the published ones ran. Their number says that the command works, and"
        " nothing about the paper."
    ),
    "explained": "The two are no equals, and the last column or the page that it names says why.",
    "differs": "None of these: the published value is not within the interval.",
    "not run": "There is no number of ours; the reason says what it would take.",
    "mib-2025": "The definitions of the table; `strict`: the package's, over sizes after pruning.",
    "best published": "The best number that the table prints in this column, and its row.",
    "gain": (
        "Accuracy less that of the whole vector at the same site, pair by pair, with its 95 %"
        " interval: what exchanges everything gains 0."
    ),
    "as the board has it": (
        "The best layer by MIB's evaluator, which exchanges the whole vector at positions without"
        " features; there the gain is 0 by definition."
    ),
    "Difference": "Ours less the published number.",
    "Takes": "What the published cell would take on this machine, to a factor of about three.",
}


class ReproductionPage(Page):
    """Published numbers beside ours."""

    def title(self, report: Report) -> str:
        return TITLE

    def tables(self, report: Report) -> list[TextTable]:
        """How many numbers have which status, by table; the numbers; what was not run."""
        comparisons = comparisons_of(report.records)
        made = [_counts(comparisons)] if comparisons else []
        made += [_numbers(*group) for group in _by_table(comparisons)]
        circuits, gains = _rows(report.records, CIRCUITS), _rows(report.records, GAINS)
        made += [_circuits_of_others(circuits)] if circuits else []
        made += [_gains(gains)] if gains else []
        return [*made, *([_not_run(report.failures)] if report.failures else [])]

    def sections(self, report: Report) -> list[Section]:
        """How many numbers are reproduced; the tables."""
        comparisons = comparisons_of(report.records)
        by_status = Counter(comparison.verdict().status for comparison in comparisons)
        parts = [f"{by_status[status]} {status}" for status in STATUSES if by_status[status]]
        answer = f"{counted(len(comparisons), 'published number')} beside ours: "
        answer += f"{', '.join(parts) or 'none'}."
        others = {(row["row"], row["column"]) for row in _rows(report.records, CIRCUITS)}
        others |= {(r["row"], r["column"]) for r in _rows(report.records, GAINS) if r["given"]}
        if others:
            answer += f" {counted(len(others), 'result')} of others measured."
        if report.failures:
            left = sum(int(failure.cell.get(NUMBERS, 1)) for failure in report.failures)
            n_cells = counted(len(report.failures), "cell")
            answer += f" {counted(left, 'more number')} in {n_cells} not run."
        return framed(
            report,
            [Text(answer, "verdict")],
            [Section(table.title, (table,)) for table in self.tables(report)],
            reading=READING,
            values=[],
        )


def _by_table(comparisons: Sequence[PaperComparison]) -> list[tuple[str, list[PaperComparison]]]:
    """Comparisons by table and measure, in the order of their first."""
    groups: dict[str, list[PaperComparison]] = {}
    for own in comparisons:
        measure = own.measure.partition("@")[0]
        place = place_of(own.table)
        if own.table.isdigit():
            place += f", {WORDS.get(measure, measure)}"
        groups.setdefault("Statements" if own.statement else place, []).append(own)
    return list(groups.items())


def _counts(comparisons: Sequence[PaperComparison]) -> TextTable:
    """How many numbers of each table have each status."""
    rows = [
        (title, f"{len(own)}", *(f"{_count(own, status) or NOTHING}" for status in STATUSES))
        for title, own in _by_table(comparisons)
    ]
    return TextTable.of("Statuses", ("table", "numbers", *STATUSES), rows)


def _count(comparisons: Sequence[PaperComparison], status: str) -> int:
    return sum(own.verdict().status == status for own in comparisons)


def _numbers(title: str, comparisons: Sequence[PaperComparison]) -> TextTable:
    """The numbers of one table; columns that say nothing are left out."""
    headings = ["", "of", "published", "ours", "difference", "n", "status", "takes", "why"]
    rows: list[list[str]] = []
    for own in comparisons:
        result = own.verdict()
        ours = own.ours
        value = own.statement or interval(ours.value, ours.low, ours.high, least=2)
        exact = ours.low == ours.value == ours.high
        rows.append(
            [
                own.row,
                own.column,
                own.printed,
                f"{ours.value:.6g}" if exact and not own.statement else value,
                NOTHING if math.isnan(own.difference) else signed(own.difference),
                f"{ours.n:,} of {own.n:,}" if own.n and ours.n != own.n else f"{ours.n:,}",
                result.status,
                NOTHING if math.isnan(own.minutes) else costs.cost_text(own.minutes, own.gigabytes),
                result.reason,
            ]
        )
    kept = [
        place
        for place, _ in enumerate(headings)
        if place < 1 or any(row[place] not in ("", NOTHING, "0") for row in rows)
    ]
    return TextTable.of(
        title,
        [headings[place] for place in kept],
        [[row[place] for place in kept] for row in rows],
        words=True,
        leave_out=[name for name in ("takes", "n", "why") if headings.index(name) in kept],
    )


def _rows(records: Sequence[Record], name: str) -> list[dict[str, Any]]:
    return [
        row for record in records if record.has_table(name) for row in record.table(name).rows()
    ]


def _interval(row: Mapping[str, Any], name: str) -> str:
    ends = (
        math.nan if row[key] is None else row[key] for key in (name, f"{name} low", f"{name} high")
    )
    return interval(*ends, least=2)


def _two_digits(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


def _status(row: Mapping[str, Any]) -> str:
    return "other model" if row["stand-in"] else ""


def _circuits_of_others(rows: Sequence[Mapping[str, Any]]) -> TextTable:
    """Areas of circuits of others, by the benchmark's definitions and by ours."""
    headings = ("", "of", "measure", "mib-2025", "strict", "n", "best published", "status", "why")
    texts: list[tuple[str, ...]] = [
        (
            str(row["row"]),
            str(row["column"]),
            WORDS.get(str(row["measure"]), ""),
            _interval(row, "benchmark"),
            _interval(row, "own"),
            f"{row['n']:,}",
            str(row["best"]),
            _status(row),
            str(row["stand-in"]),
        )
        for row in rows
    ]
    return TextTable.of("Circuits of others", headings, texts, words=True, leave_out=("why",))


def _gains(rows: Sequence[Mapping[str, Any]]) -> TextTable:
    """Accuracies at one site beside those of whole vectors there."""
    headings = (
        *("", "of", "site", "accuracy", "whole vector", "no intervention", "gain"),
        *("mean of layers", "as the board has it", "n", "status", "why"),
    )
    texts: list[tuple[str, ...]] = []
    for row in rows:
        board = row["board"]
        exchanged = "whole vector" if row["board whole"] else "features"
        texts.append(
            (
                f"{row['row']} of others" if row["given"] else row["row"],
                row["column"],
                row["site"],
                _interval(row, "accuracy"),
                *(_two_digits(row[key]) for key in ("full", "nothing")),
                _interval(row, "gain"),
                _interval(row, "layers"),
                NOTHING if board is None else f"{board:.3f}: {exchanged} at {row['board site']}",
                f"{row['n']:,}",
                _status(row),
                row["stand-in"],
            )
        )
    return TextTable.of(
        "Gain over the whole vector at the same site",
        headings,
        texts,
        words=True,
        leave_out=("no intervention", "why"),
    )


def _not_run(failures: Sequence[Failure]) -> TextTable:
    """What was not run, and why; cells of one column and reason are one row."""
    rows: list[tuple[str, str, str]] = []
    for reason, group in groupby(failures, key=_reason):
        cells = [failure.cell for failure in group]
        names = [cell.get("what", "") for cell in cells]
        more = f" and {len(names) - FIRST} others" if len(names) > FIRST else ""
        numbers = sum(int(cell.get(NUMBERS, 1)) for cell in cells)
        rows.append((f"{', '.join(names[:FIRST])}{more}", f"{numbers:,}", reason))
    return TextTable.of("Not run", ("what", "numbers", "why"), rows, words=True)


def _reason(failure: Failure) -> str:
    return f"failed: {failure.message}" if failure.status == "failed" else failure.message
