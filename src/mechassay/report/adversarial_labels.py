"""Which labels of a field are worse, in words and as a table, from the groups of a record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mechassay.adversarial.statistics import ALPHA
from mechassay.records import Record
from mechassay.report.nats import nats, plain_number, with_interval
from mechassay.report.tables import NOTHING, Grid
from mechassay.report.text import share

SHOWN_LABELS = 12


def worse_labels_text(record: Record) -> str:
    """Which labels are worse, by the test and by how much."""
    groups = record.curves["groups"]
    if not groups:
        return (
            "No part of the prompts has labels to compare: too few prompts, or too many different"
            " labels."
        )
    named = [
        (group, place)
        for group in groups
        for place, is_worse in enumerate(group["worse"])
        if is_worse
    ]
    small = sum(
        p <= ALPHA and not is_worse
        for group in groups
        for p, is_worse in zip(group["p"], group["worse"], strict=True)
    )
    least = (
        f"the least effect worth reporting ({share(record.task.args['least_effect'])} of the empty"
        " circuit's 99th percentile)"
    )
    alone = _alone(groups)
    if not named:
        below = (
            f" {small} {'has' if small == 1 else 'have'} p ≤ {ALPHA}, by less than {least}."
            if small
            else ""
        )
        return (
            f"No label of any of {len(groups)} fields is found to be worse than the rest of its"
            f" strata.{below}{alone}"
        )
    listed = "; ".join(_worse_label(group, place) for group, place in named[:SHOWN_LABELS])
    more = f"; and {len(named) - SHOWN_LABELS} more" if len(named) > SHOWN_LABELS else ""
    below = (
        f" {small} more {'has' if small == 1 else 'have'} p ≤ {ALPHA}, but by less than {least}."
        if small
        else ""
    )
    return f"Found to be worse than the rest of their strata: {listed}{more}.{below}{alone}"


def _worse_label(group: Mapping[str, Any], place: int) -> str:
    beyond, rest, effect = (nats(group[key][place]) for key in ("tested", "rest", "effect"))
    high = (
        f"99th percentile {beyond} against {rest}, {effect} more: {share(group['share'][place])} of"
        " the empty circuit's"
    )
    return (
        f"{group['name']} = {group['labels'][place]!r} ({high}; means differ by"
        f" {_mean_effect(group, place)})"
    )


def _alone(groups: Sequence[Mapping[str, Any]]) -> str:
    """How many prompts could not be compared, where a field has some."""
    found = [
        f"{group['name']}: {left:,} of {sum(group['inputs']):,} prompts in"
        f" {group['strata'] - group['strata used']} strata"
        for group in groups
        if (left := sum(group["inputs"]) - sum(group["compared"]))
    ]
    return (
        f" Not compared, as no other label is in their stratum: {'; '.join(found)}."
        if found
        else ""
    )


def group_grid(group: Mapping[str, Any]) -> Grid:
    """The labels of a field, worst first."""
    order = sorted(
        range(len(group["labels"])),
        key=lambda place: (group["p"][place], -plain_number(group["tested"][place])),
    )
    shown = order[:SHOWN_LABELS]
    rows: list[tuple[str, ...]] = [
        (
            group["labels"][place],
            _compared(group, place),
            nats(group["tested"][place]),
            nats(group["rest"][place]),
            nats(group["effect"][place]),
            NOTHING if math.isnan(part := plain_number(group["share"][place])) else share(part),
            _mean_effect(group, place),
            nats(group["99.9%"][place]),
            nats(group["max"][place]),
            f"{group['p'][place]:.2g}",
        )
        for place in shown
    ]
    if len(order) > SHOWN_LABELS:
        rows.append(
            (
                "",
                (
                    f"{len(order) - SHOWN_LABELS} more labels, none with a smaller p; the record"
                    " has them all."
                ),
            )
        )
    heads = (
        "prompts",
        "99%",
        "99% of the rest",
        "more",
        "of the empty circuit's",
        "means differ by",
        "99.9%",
        "max",
        "p, adjusted",
    )
    return Grid(group["name"], (group["name"], *heads), tuple(rows))


def _compared(group: Mapping[str, Any], place: int) -> str:
    """How many prompts were compared, of how many where some were not."""
    inputs, compared = group["inputs"][place], group["compared"][place]
    return f"{inputs:,}" if compared == inputs else f"{compared:,} of {inputs:,}"


def _mean_effect(group: Mapping[str, Any], place: int) -> str:
    return with_interval(
        {key: plain_number(group[f"mean_{key}"][place]) for key in ("effect", "low", "high")},
        "effect",
    )
