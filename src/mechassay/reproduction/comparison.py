"""A published number beside ours, as one row of a record's table, and the verdict on it.

A row holds what the verdict follows from, never the verdict: it is drawn anew wherever rows are
shown (`PaperComparison.verdict`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mechassay.reproduction.status import Ours, StatusAndReason, printed_value, verdict
from mechassay.results.records import Record, Table

ROWS = "comparisons"
"""The table of a record."""
NUMBERS = "numbers"
"""What a cell says of itself: how many published numbers it is about."""
UNKNOWN_N = -1
"""How a row says that the paper does not say of how many examples a number is."""
BETWEEN = "; "


@dataclass(frozen=True)
class PaperComparison:
    """One published number beside ours.

    Attributes:
        n: examples behind the published number; 0 if it was calculated, None if not printed.
        explained: why the two are no equals, as a page says it.
        statement: our answer in words, where what is printed is a statement and not a number;
            `agrees`: whether it is the printed one.
        minutes, gigabytes: what the published cell would take on this machine.
    """

    table: str
    row: str
    column: str
    measure: str
    printed: str
    ours: Ours
    n: int | None = 0
    span: float = math.inf
    explained: str = ""
    statement: str = ""
    agrees: bool = False
    minutes: float = math.nan
    gigabytes: float = math.nan

    def verdict(self) -> StatusAndReason:
        """Return the verdict on a number or on a statement."""
        if self.statement:
            if self.agrees:
                return StatusAndReason("reproduced")
            return StatusAndReason("explained" if self.explained else "differs", self.explained)
        return verdict(self.printed, self.ours, n=self.n, span=self.span, explained=self.explained)

    @property
    def difference(self) -> float:
        """Ours less the published number."""
        return self.ours.value - printed_value(self.printed)

    def plain(self) -> dict[str, Any]:
        """As a row of a table."""
        ours = self.ours
        return {
            "table": self.table,
            "row": self.row,
            "column": self.column,
            "measure": self.measure,
            "printed": self.printed,
            "value": ours.value,
            "low": ours.low,
            "high": ours.high,
            "n": ours.n,
            "published n": UNKNOWN_N if self.n is None else self.n,
            "span": self.span if math.isfinite(self.span) else math.nan,
            "stand-in": ours.stand_in,
            "why not": ours.why_not,
            "deviations": BETWEEN.join(ours.deviations),
            "explained": self.explained,
            "statement": self.statement,
            "agrees": self.agrees,
            "minutes": self.minutes,
            "gigabytes": self.gigabytes,
        }

    @staticmethod
    def of(row: Mapping[str, Any]) -> PaperComparison:
        """The comparison of a row of a table."""
        number = {
            name: math.nan if row[name] is None else float(row[name])
            for name in ("value", "low", "high", "span", "minutes", "gigabytes")
        }
        deviations = tuple(filter(None, str(row["deviations"]).split(BETWEEN)))
        ours = Ours(
            number["value"],
            number["low"],
            number["high"],
            int(row["n"]),
            str(row["stand-in"]),
            deviations,
            str(row["why not"]),
        )
        n = int(row["published n"])
        return PaperComparison(
            *(str(row[name]) for name in ("table", "row", "column", "measure", "printed")),
            ours=ours,
            n=None if n == UNKNOWN_N else n,
            span=number["span"] if math.isfinite(number["span"]) else math.inf,
            explained=str(row["explained"]),
            statement=str(row["statement"]),
            agrees=bool(row["agrees"]),
            minutes=number["minutes"],
            gigabytes=number["gigabytes"],
        )


def comparison_table(comparisons: Iterable[PaperComparison]) -> Table:
    """The table of a record."""
    keys = ("table", "row", "column", "measure")
    return Table.of(ROWS, keys, [comparison.plain() for comparison in comparisons])


def comparisons_of(records: Sequence[Record]) -> list[PaperComparison]:
    """What records hold, in their order."""
    return [
        PaperComparison.of(row)
        for record in records
        if record.has_table(ROWS)
        for row in record.table(ROWS).rows()
    ]


def of_tables(record: Record, tables: Collection[str]) -> Record:
    """A record with its comparisons of some tables alone."""
    kept = [own for own in comparisons_of([record]) if own.table in tables]
    others = [table for table in record.tables if table.name != ROWS]
    return record.changed(tables=[*others, comparison_table(kept)])
