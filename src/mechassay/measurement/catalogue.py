"""The metrics of the measurement page as data: `data/page.yaml`, checked when it is read.

Every metric has its identifier and the name of its published script, which are both names of it,
what it needs, the keys of its output, defaults, pass conditions and reading tables. A metric may
stand here and have no gauge yet (`gauge.GAUGES`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from mechassay.errors import BadUsage, UnknownName, one_of
from mechassay.measurement.bands import BandScale
from mechassay.measurement.variant import Condition, MetricCriterion, VariantName

RUBRIC = "mv-27@1"
CRITERIA: Mapping[str, str] = {
    "C2": "Structural plausibility",
    "C3": "Task specificity",
    "C5": "Convergent validity",
    "E2": "Graded response",
    "I2": "Sufficiency",
    "M1": "Reliability",
    "M2": "Invariance",
    "M3": "Baseline separation",
    "M4": "Sensitivity",
    "M6": "Construct coverage",
}
"""Criteria of the rubric that the metrics are evidence for. Another rubric may use a code for
something else, so a code never stands without its rubric."""
_CONDITION = re.compile(r"(?P<key>\w+)\s*(?P<sign>[<>=])\s*(?P<threshold>-?[\d.]+)$")


@dataclass(frozen=True)
class PageMetric:
    """What the page says of a metric.

    Attributes:
        id, script: its names.
        needs: inputs; "a|b" is either.
        labels: the criteria that the page names, in its own words.
        criterion: that of the rubric.
        keys: names of its output.
        defaults: of its usage lines.
        conditions: all of them have to hold for it to pass; none: it only reports.
    """

    id: str
    title: str
    script: str
    needs: tuple[str, ...]
    labels: tuple[str, ...]
    criterion: MetricCriterion
    keys: tuple[str, ...]
    defaults: Mapping[str, float]
    conditions: tuple[Condition, ...]
    scales: tuple[BandScale, ...]


def parse_condition(text: str) -> Condition:
    """A condition from its text, "dprime > 1.0".

    Raises:
        BadUsage: it is none.
    """
    match = _CONDITION.match(text.strip())
    if match is None:
        raise BadUsage(
            f"A condition is written key > number, key < number or key = number; got {text!r}."
        )
    sign = one_of("sign of a condition", match["sign"], ("<", ">", "="))
    return Condition(match["key"], sign, float(match["threshold"]))


def _metric(id: str, row: Mapping[str, Any]) -> PageMetric:
    scales = tuple(
        BandScale.parse(
            each["of"],
            each["bands"],
            remark=bool(each.get("remark", False)),
            loose=bool(each.get("loose", False)),
        )
        for each in row["scales"]
    )
    code = row["criterion"]
    return PageMetric(
        id,
        row["title"],
        row["script"],
        tuple(row["needs"]),
        tuple(row["labels"]),
        MetricCriterion(code, CRITERIA[code], RUBRIC),
        tuple(row["keys"]),
        dict(row["defaults"]),
        tuple(map(parse_condition, row["pass"])),
        scales,
    )


@cache
def catalogue() -> Mapping[str, PageMetric]:
    """All metrics of the page by identifier, in its order."""
    text = files("mechassay.measurement").joinpath("data", "page.yaml").read_text("utf-8")
    rows: Mapping[str, Mapping[str, Any]] = yaml.safe_load(text)
    return {id: _metric(id, row) for id, row in rows.items()}


def page_metric(name: str) -> PageMetric:
    """A metric by its identifier in any case, or by the name of its script.

    Raises:
        UnknownName: there is none.
    """
    metrics = catalogue()
    plain = name.removesuffix(".py")
    names = {each.id.lower(): each for each in metrics.values()}
    names |= {each.script.lower(): each for each in metrics.values() if each.script}
    if plain.lower() not in names:
        scripts = [each.script for each in metrics.values() if each.script]
        raise UnknownName("metric of measurement", name, [*metrics, *scripts])
    return names[plain.lower()]


def thresholds(id: str, repaired: Sequence[Condition]) -> Mapping[VariantName, Sequence[Condition]]:
    """The conditions of both variants: those of the page, and the repaired ones that are given."""
    return {"page": page_metric(id).conditions, "repaired": tuple(repaired)}
