"""The metrics of measurement as a table: those of the page, with or without a gauge, and others."""

from __future__ import annotations

from typing import Any

from mechassay.display import Tabular, html_facts, html_table
from mechassay.measurement.catalogue import PageMetric, catalogue
from mechassay.measurement.gauge import GAUGES


class GaugeList(Tabular, tuple[PageMetric, ...]):
    """Metrics of the page; a row of the table for each."""

    def columns(self) -> dict[str, list[Any]]:
        """The metrics by column; `here` says whether there is a gauge for it."""
        known = GAUGES.targets()
        return {
            "metric": [each.id for each in self],
            "title": [each.title for each in self],
            "script": [each.script for each in self],
            "here": ["yes" if each.id in known else "not yet" for each in self],
            "evidence for": [f"{x.criterion} {x.criterion.name}" for x in self],
            "page's criteria": [", ".join(each.labels) for each in self],
            "needs": [", ".join(x.replace("|", " or ") for x in each.needs) for each in self],
            "page passes if": [
                " and ".join(map(str, x.conditions)) or "it only reports" for x in self
            ],
        }

    def __repr__(self) -> str:
        known = GAUGES.targets()
        return f"GaugeList(n={len(self)}, here={sum(each.id in known for each in self)})"

    def _repr_html_(self) -> str:
        columns = self.columns()
        table = html_table(tuple(columns), list(zip(*columns.values(), strict=True)))
        return html_facts(f"{len(self):,} metrics of measurement", {}, table)


def list_gauges() -> GaugeList:
    """All metrics of the page, in its order."""
    return GaugeList(catalogue().values())
