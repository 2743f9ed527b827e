"""Ranks of methods, as far as differences between them are resolved
(`circuits.differences`), in words and as a table.

"2–4" says that one method is better and that two of those from the second on cannot be told apart
from it.
"""

from __future__ import annotations

from collections.abc import Sequence

from mechassay.circuits.differences import AreaName, Differences, differences_of
from mechassay.records import Record

NOT_RANKED = "–"


def comparable(records: Sequence[Record]) -> bool:
    """Whether records are of one evaluation, and of circuits at sizes
    of which each example's value is stored.
    """
    keys = [
        f"{by}@{p:g}"
        for record in records
        for by in ("value", "magnitude")
        for p in record.curves.get("fractions", [])
    ]
    stored = all({"clean", "empty", *keys} <= set(record.per_example) for record in records)
    ids = {tuple(record.example_ids) for record in records}
    return len(records) > 1 and bool(keys) and stored and len(ids) == 1


def rank_text(rank: tuple[int, int] | None) -> str:
    """A range of ranks: "1", "2–4"; a dash where there is none."""
    if rank is None:
        return NOT_RANKED
    first, last = rank
    return f"{first}" if first == last else f"{first}–{last}"


def ranked(
    records: Sequence[Record], area: AreaName, names: Sequence[str] | None = None
) -> Differences | None:
    """The differences of an area between records of one evaluation;
    None where they are not comparable.
    """
    return differences_of(records, area, names=names) if comparable(records) else None


def resolved_text(found: Differences) -> str:
    """How many differences are resolved: "60 of 91"."""
    return f"{found.n_resolved:,} of {found.n_pairs:,}"
