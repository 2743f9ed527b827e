"""Directions that others found for gym tasks: beside the whole vector and random directions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mechassay.gym.given_odds import best_draw
from mechassay.gym.method_odds import ORIGINAL, SELECTIVITY
from mechassay.gym.task_odds import RANDOM_DIRECTIONS, WHOLE_VECTOR
from mechassay.records import Failure, Record
from mechassay.report.kinds.gym import READING as OF_GYM
from mechassay.report.kinds.gym import figures_of
from mechassay.report.page import Page, Section, Terms, Text
from mechassay.report.sections import (
    all_numbers,
    facts_section,
    failures_table,
    measured,
    opening,
    values_section,
)
from mechassay.report.tables import Column, Row, TextTable

READING = {
    "Odds": (
        f"{OF_GYM['Odds']} Of a layer with directions at some regions alone, these are chosen from;"
        " a layer without directions counts 0."
    ),
    "Whole vector": "All numbers exchanged at the same sites, and so all directions there.",
    "Random directions": "As many random directions at the same sites, the mean of three draws.",
    "Selectivity": (
        "The odds less those of control labels, which have nothing to do with the sentences."
        " Directions for control labels are taken as they were given; without them it is undefined."
    ),
    "Accuracy": OF_GYM["Accuracy"],
}


class DirectionsPage(Page):
    """Directions of others on gym tasks."""

    def title(self, records: Sequence[Record], failures: Sequence[Failure] = ()) -> str:
        """What the page is called."""
        tasks = ", ".join(dict.fromkeys(record.task.name for record in records))
        return f"Directions for {tasks}" if tasks else "Directions"

    def tables(
        self, records: Sequence[Record], failures: Sequence[Failure] = ()
    ) -> list[TextTable]:
        """A row a method: its odds beside those of controls, and its selectivity."""
        rows = [Row(_cells(record)) for record in records]
        texts = (Column(name, False) for name in ("method", "task", "model"))
        names = ("k", "accuracy", "odds", WHOLE_VECTOR, "random", "less random", SELECTIVITY)
        caption = (
            "Log odds-ratios of test items in nats, the mean over layers, regions chosen on"
            " validation items. k: the most directions of a site. Brackets are 95 % intervals."
        )
        columns = (*texts, *map(Column, names))
        made = [TextTable("Directions as given", columns, tuple(rows), caption)] if rows else []
        return [*made, *failures_table(failures, "method")]

    def sections(
        self,
        records: Sequence[Record],
        failures: Sequence[Failure] = (),
        drawings: Sequence[object] = (),
    ) -> list[Section]:
        """What was found in words; the table; figures of every record; facts; values."""
        said = [Text(_verdict(record), "verdict") for record in records]
        return [
            opening(records, said, failures),
            Section("Odds beside controls", tuple(self.tables(records, failures))),
            *map(figures_of, records),
            Section("How to read this", (Terms(READING),)),
            *facts_section(records),
            *values_section(records),
            *all_numbers(records),
        ]


def _cells(record: Record) -> tuple[str, ...]:
    method = record.method.name
    odds, selectivity = f"{ORIGINAL}_{method}", f"{SELECTIVITY}_{method}"
    found = (
        record.measure("accuracy"),
        record.measure(odds),
        record.measure(odds, f"control:{WHOLE_VECTOR}"),
        record.measure(odds, f"control:{RANDOM_DIRECTIONS}"),
        record.measure(odds, f"difference:{RANDOM_DIRECTIONS}"),
        record.measure(selectivity),
    )
    k = str(record.method.args.get("k", ""))
    return (method, record.task.name, record.model.name, k, *map(measured, found))


def _verdict(record: Record) -> str:
    """Whether the directions do more than random ones, in words."""
    method = record.method.name
    own = record.measure(f"{ORIGINAL}_{method}")
    whole = record.measure(f"{ORIGINAL}_{method}", f"control:{WHOLE_VECTOR}")
    drawn = best_draw(record)
    if own is None or whole is None or math.isnan(drawn):
        return f"{method} in {record.model.name}, {record.task.name}: it has no odds."
    above = "more than" if own.low > drawn else "not told apart from"
    return (
        f"{method} in {record.model.name}, {record.task.name}: odds of {own.value:.2f},"
        f" {above} random directions, the best of which have {drawn:.2f}; the whole vector has"
        f" {whole.value:.2f}."
    )
