"""What a page of circuits says of how they depend on the pairs (`circuits.methods.stability`).

A table of all sizes by magnitude; `discovery.conclusion` has the sentence on the smallest circuit.
Circuits by value are in the record. Where seeds were varied (`--over seeds`), both are of seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mechassay.circuits.methods.stability import RESAMPLES, STABILITY, two_peaks
from mechassay.results.curves import labels
from mechassay.results.page import NOTHING, Section, TextTable
from mechassay.results.records import Record
from mechassay.results.text import number_or_dash, plain_number
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
        " fresh ones would agree at least as much. Under --over seeds those that at least 95 % of"
        " the circuits of other seeds have; chance is what as many random circuits would have."
    ),
    "Rank agreement": (
        "Spearman's correlation of the scores of two halves, or seeds, over the edges of the"
        " circuit."
    ),
}


HALVES = {
    "Jaccard, random signs": "jaccard_random_signs",
    "Jaccard, chance": "jaccard_chance",
    "rank agreement": "rank",
    "stable edges": "stable",
    "stable, random signs": "stable_random_signs",
}
SEEDS = {
    "Jaccard, chance": "jaccard_chance",
    "rank agreement": "rank",
    "stable edges": "stable",
    "stable, chance": "stable_chance",
}
"""Columns after the Jaccard index, and what they are of a row of the record."""


def stability_sections(records: Sequence[Record]) -> list[Section]:
    """A table of how circuits of all sizes depend on the pairs, and one on seeds, of the records
    that say it.
    """
    sections: list[Section] = []
    for over_seeds, columns in ((False, HALVES), (True, SEEDS)):
        rows = [
            (
                name,
                share(plain_number(row["fraction"])),
                f"{row['size']:,}",
                _with_range(row),
                *(
                    _share(row, column) if column.startswith("stable") else _text(row, column)
                    for column in columns.values()
                ),
            )
            for name, record in _labelled(records, over_seeds)
            for row in _rows(record)
            if row["size"]
        ]
        if not rows:
            continue
        of_what, tie = "halves", "An edge that ties with the first one left out is in no circuit."
        compared = f"of two halves of the {_drawn(records[0])}pairs"
        if over_seeds:
            of_what, compared = "seeds", "that the method finds on the same pairs with two seeds"
        heads = ("method", "size", "edges", f"Jaccard of {of_what}", *columns)
        table = TextTable.of("", heads, rows, caption=f"Circuits by magnitude {compared}. {tie}")
        varies = "the seed" if over_seeds else "the pairs"
        sections.append(Section(f"How circuits vary with {varies}", (table,)))
    return sections


def resamples_sections(records: Sequence[Record]) -> list[Section]:
    """What the methods reach on resamples of the training pairs, and with other seeds, of the
    records that have them.
    """
    sections: list[Section] = []
    for over_seeds in (False, True):
        rows: list[tuple[str, ...]] = []
        for label, record in _labelled(records, over_seeds):
            if not record.has_table(RESAMPLES):
                continue
            table = record.table(RESAMPLES)
            for name in (column for column in table.columns if column != "resample"):
                own, method = record.measure(name), record.measure(name, "method")
                draws = table.numbers(name)
                ends = (own.low, own.high) if own else (math.nan, math.nan)
                rows.append(
                    (
                        label,
                        own.heading if own else name.upper(),
                        interval(own.value, own.low, own.high) if own else NOTHING,
                        interval(method.value, method.low, method.high) if method else NOTHING,
                        " ".join(number(value, *ends) for value in np.sort(draws)),
                        "two peaks" if two_peaks(draws, np.nan_to_num(ends[1] - ends[0])) else "",
                    )
                )
        if not rows:
            continue
        again, other, title = (
            f"Each resample draws the {_drawn(records[0])}training pairs anew, finds circuits",
            "training pairs",
            "The method on other training pairs",
        )
        if over_seeds:
            again = "Each run has another seed, finds circuits on the same training pairs"
            other, title = "seeds", "The method with other seeds"
        drawn = "other seeds" if over_seeds else "resamples"
        heads = ("method", "measure", "these circuits", "the method", f"{drawn}, sorted", "notes")
        caption = (
            f"{again} and measures them on the same test pairs. The interval of these circuits is"
            f" over test pairs; that of the method over {other} too. It has none with fewer than"
            f" eight {drawn}, nor where they have two peaks: no interval around one value holds"
            " both."
        )
        sections.append(Section(title, (TextTable.of("", heads, rows, caption=caption),)))
    return sections


def _labelled(records: Sequence[Record], over_seeds: bool) -> list[tuple[str, Record]]:
    """Records whose seed was varied, or the others, with what they are called among all."""
    return [
        (name, record)
        for name, record in zip(labels(records), records, strict=True)
        if (record.task.args.get("over") == "seeds") == over_seeds
    ]


def _drawn(record: Record) -> str:
    """What is drawn, where that is not the pairs."""
    return "templates of the " if record.task.args.get("over") == "templates" else ""


def _rows(record: Record, **values: Any) -> list[dict[str, Any]]:
    if not record.has_table(STABILITY):
        return []
    return record.table(STABILITY).where(ranking="magnitude", **values).rows()


def _text(row: Mapping[str, Any], name: str) -> str:
    return number_or_dash(plain_number(row[name]))


def _share(row: Mapping[str, Any], name: str) -> str:
    value = plain_number(row[name])
    if 0 < value < 0.001:
        return f"less than {share(0.001)}"
    return NOTHING if math.isnan(value) else share(value)


def _with_range(row: Mapping[str, Any]) -> str:
    low, high = (number(plain_number(row[f"jaccard_{end}"])) for end in ("low", "high"))
    value = _text(row, "jaccard")
    return value if value == NOTHING else f"{value} [{low}, {high}]"
