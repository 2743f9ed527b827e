"""What a page of circuits says of how they depend on the pairs (`circuits.methods.stability`).

A sentence on the edges of the smallest circuit, which the field reads one by one, and a table of
all sizes by magnitude. Circuits by value are in the record.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mechassay.circuits.methods.stability import RESAMPLES, STABILITY, STABLE, two_peaks
from mechassay.results.curves import labels
from mechassay.results.page import NOTHING, Section, TextTable
from mechassay.results.records import Record
from mechassay.utils.display import interval, number, share

READING = {
    "Jaccard": (
        "The pairs (under --over templates, the templates) are dealt into two halves, many times,"
        " and each half finds its own circuit of as many edges: the edges that both circuits have,"
        " over those that one of them has. In brackets are the middle 90 % of the splits. Random"
        " signs: the same after the scores of each part of the pairs (a twentieth, where there are"
        " enough) were multiplied by +1 or -1, so that edges scatter as they do and none has an"
        " effect. Chance: two random circuits of this size."
    ),
    "Stable edges": (
        "Those that at least 95 % of the halves have. A half has half of the pairs, so as many"
        " fresh ones would agree at least as much."
    ),
    "Rank agreement": (
        "Spearman's correlation of the scores of two halves, over the edges of the circuit."
    ),
}


def stability_text(record: Record, fraction: float) -> str:
    """One sentence on which edges of a circuit of this size depend on the pairs; empty where that
    was not measured.
    """
    rows = _rows(record, fraction=fraction)
    if not rows or not rows[0]["size"]:
        return ""
    row = rows[0]
    n_stable, size = int(row["n_stable"]), int(row["size"])
    edges = f"{size:,} edge{'s' * (size != 1)} of this size, before pruning"
    drawn = _number(row, "stable_random_signs")
    by_scatter = f", where random signs leave {share(drawn)}" if not math.isnan(drawn) else ""
    jaccard, signs, chance = (
        number(_number(row, name)) for name in ("jaccard", "jaccard_random_signs", "jaccard_chance")
    )
    stable = n_stable / size
    no_more = ", no more than edges without an effect" if stable <= drawn else ""
    return (
        f"Of the {edges}, {n_stable:,} ({share(stable)}) are in at least {share(STABLE)} of the"
        f" circuits that halves of the {_drawn(record)}{row['n_pairs']:,} training pairs find"
        f"{by_scatter}{no_more}; two halves have a Jaccard of {jaccard} ({signs} with random signs,"
        f" {chance} by chance). Do not read the other edges one by one."
    )


def stability_sections(records: Sequence[Record]) -> list[Section]:
    """A table of how circuits of all sizes depend on the pairs, of the records that say it."""
    names = dict(zip(map(id, records), labels(records), strict=True))
    rows = [
        (
            names[id(record)],
            share(_number(row, "fraction")),
            f"{row['size']:,}",
            _with_range(row),
            *(_text(row, name) for name in ("jaccard_random_signs", "jaccard_chance", "rank")),
            *(_share(row, name) for name in ("stable", "stable_random_signs")),
        )
        for record in records
        for row in _rows(record)
        if row["size"]
    ]
    if not rows:
        return []
    columns = (
        "method", "size", "edges", "Jaccard of halves", "Jaccard, random signs",
        "Jaccard, chance", "rank agreement", "stable edges", "stable, random signs",
    )  # fmt: skip
    caption = (
        f"Circuits by magnitude of two halves of the {_drawn(records[0])}pairs. An edge that ties"
        " with the first one left out is in no circuit."
    )
    return [
        Section(
            "How circuits vary with the pairs",
            (TextTable.of("", columns, rows, caption=caption),),
        )
    ]


def resamples_sections(records: Sequence[Record]) -> list[Section]:
    """What the methods reach on resamples of the training pairs, of the records that have them."""
    names = dict(zip(map(id, records), labels(records), strict=True))
    rows: list[tuple[str, ...]] = []
    for record in records:
        if not record.has_table(RESAMPLES):
            continue
        table = record.table(RESAMPLES)
        for name in (column for column in table.columns if column != "resample"):
            own, method = record.measure(name), record.measure(name, "method")
            draws = table.numbers(name)
            ends = (own.low, own.high) if own else (math.nan, math.nan)
            rows.append(
                (
                    names[id(record)],
                    own.heading if own else name.upper(),
                    interval(own.value, own.low, own.high) if own else NOTHING,
                    interval(method.value, method.low, method.high) if method else NOTHING,
                    " ".join(number(value, *ends) for value in np.sort(draws)),
                    "two peaks" if two_peaks(draws, np.nan_to_num(ends[1] - ends[0])) else "",
                )
            )
    if not rows:
        return []
    columns = ("method", "measure", "these circuits", "the method", "resamples, sorted", "notes")
    caption = (
        f"Each resample draws the {_drawn(records[0])}training pairs anew, finds circuits and"
        " measures them on the same test pairs. The interval of these circuits is over test pairs;"
        " that of the method over training pairs too. It has none with fewer than eight resamples,"
        " nor where they have two peaks: no interval around one value holds both."
    )
    resamples = TextTable.of("", columns, rows, caption=caption)
    return [Section("The method on other training pairs", (resamples,))]


def _drawn(record: Record) -> str:
    """What is drawn, where that is not the pairs."""
    return "templates of the " if record.task.args.get("over") == "templates" else ""


def _rows(record: Record, **values: Any) -> list[dict[str, Any]]:
    if not record.has_table(STABILITY):
        return []
    return record.table(STABILITY).where(ranking="magnitude", **values).rows()


def _number(row: Mapping[str, Any], name: str) -> float:
    return math.nan if row[name] is None else float(row[name])


def _text(row: Mapping[str, Any], name: str) -> str:
    value = _number(row, name)
    return NOTHING if math.isnan(value) else number(value)


def _share(row: Mapping[str, Any], name: str) -> str:
    value = _number(row, name)
    return NOTHING if math.isnan(value) else share(value)


def _with_range(row: Mapping[str, Any]) -> str:
    low, high = (number(_number(row, f"jaccard_{end}")) for end in ("low", "high"))
    value = _text(row, "jaccard")
    return value if value == NOTHING else f"{value} [{low}, {high}]"
