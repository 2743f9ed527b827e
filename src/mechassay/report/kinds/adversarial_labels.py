"""Which labels of a field are worse, in words and as a table, from the tables of a record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mechassay.adversarial.statistics import ALPHA
from mechassay.records import Record
from mechassay.report.nats import nats, plain_number, with_interval
from mechassay.report.tables import NOTHING, Row, TextTable
from mechassay.text import share

SHOWN_LABELS = 12


@dataclass(frozen=True)
class Group:
    """A field and what was found of its labels.

    Attributes:
        strata, used: strata of prompts, and those in which labels could be compared.
    """

    name: str
    labels: list[dict[str, Any]]
    strata: int
    used: int

    @property
    def has_worse(self) -> bool:
        return any(label["worse"] for label in self.labels)


def groups_of(record: Record) -> list[Group]:
    """The fields of a record, those with worse labels first."""
    labels = record.table("labels").rows()
    groups = [
        Group(
            str(row["field"]),
            [label for label in labels if label["field"] == row["field"]],
            int(plain_number(row["strata"])),
            int(plain_number(row["strata used"])),
        )
        for row in record.table("fields").rows()
    ]
    return sorted(
        groups, key=lambda group: (not group.has_worse, min(label["p"] for label in group.labels))
    )


def worse_labels_text(record: Record) -> str:
    """Which labels are worse, by the test and by how much."""
    names = [row["field"] for row in record.table("fields").rows()]
    groups = sorted(groups_of(record), key=lambda group: names.index(group.name))
    if not groups:
        why = "too few prompts, or too many different labels"
        return f"No part of the prompts has labels to compare: {why}."
    labels = [label for group in groups for label in group.labels]
    worse = [label for label in labels if label["worse"]]
    small = sum(label["p"] <= ALPHA and not label["worse"] for label in labels)
    least = share(float(str(record.task.args["least_effect"])))
    least = f"the least effect worth reporting ({least} of the empty circuit's 99th percentile)"
    has = "has" if small == 1 else "have"
    alone = _alone(groups)
    if not worse:
        below = f" {small} {has} p ≤ {ALPHA}, by less than {least}." if small else ""
        said = f"No label of any of {len(groups)} fields is found to be worse than the rest"
        return f"{said} of its strata.{below}{alone}"
    listed = "; ".join(map(_worse_label, worse[:SHOWN_LABELS]))
    more = f"; and {len(worse) - SHOWN_LABELS} more" if len(worse) > SHOWN_LABELS else ""
    below = f" {small} more {has} p ≤ {ALPHA}, but by less than {least}." if small else ""
    return f"Found to be worse than the rest of their strata: {listed}{more}.{below}{alone}"


def _worse_label(label: Mapping[str, Any]) -> str:
    beyond, rest, effect = (nats(label[key]) for key in ("tested", "rest", "effect"))
    high = (
        f"99th percentile {beyond} against {rest}, {effect} more: {share(label['share'])} of"
        " the empty circuit's"
    )
    return f"{label['field']} = {label['label']!r} ({high}; means differ by {_mean_effect(label)})"


def _alone(groups: Sequence[Group]) -> str:
    """How many prompts could not be compared, where a field has some."""
    told: list[str] = []
    for group in groups:
        inputs = sum(label["inputs"] for label in group.labels)
        left_out = inputs - sum(label["compared"] for label in group.labels)
        if left_out:
            strata = group.strata - group.used
            told.append(f"{group.name}: {left_out:,} of {inputs:,} prompts in {strata} strata")
    said = "Not compared, as no other label is in their stratum"
    return f" {said}: {'; '.join(told)}." if told else ""


def label_table(group: Group) -> TextTable:
    """The labels of a field, worst first."""
    order = sorted(group.labels, key=lambda label: (label["p"], -plain_number(label["tested"])))
    rows = [
        Row(
            (
                label["label"],
                _compared(label),
                *(nats(label[key]) for key in ("tested", "rest", "effect")),
                NOTHING if math.isnan(part := plain_number(label["share"])) else share(part),
                _mean_effect(label),
                nats(label["99.9%"]),
                nats(label["max"]),
                f"{label['p']:.2g}",
            )
        )
        for label in order[:SHOWN_LABELS]
    ]
    if len(order) > SHOWN_LABELS:
        n = len(order) - SHOWN_LABELS
        said = f"{n} more labels, none with a smaller p; the record has them all."
        rows.append(Row(("", said), "more"))
    heads = (group.name, "prompts", "99%", "99% of the rest", "more", "of the empty circuit's")
    heads += ("means differ by", "99.9%", "max", "p, adjusted")
    return TextTable.of(group.name, heads, rows)


def _compared(label: Mapping[str, Any]) -> str:
    """How many prompts were compared, of how many where some were not."""
    inputs, compared = label["inputs"], label["compared"]
    return f"{inputs:,}" if compared == inputs else f"{compared:,} of {inputs:,}"


def _mean_effect(label: Mapping[str, Any]) -> str:
    keys = ("effect", "low", "high")
    return with_interval({key: plain_number(label[f"mean_{key}"]) for key in keys}, "effect")
