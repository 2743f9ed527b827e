"""Ranks of methods, as far as differences between them are resolved (`circuits.differences`).

"2–4" says that one method is better and that two of those from the second on cannot be told apart
from it.
"""

from __future__ import annotations

from collections.abc import Sequence

from mechassay.circuits.differences import AreaName, Differences, differences_of
from mechassay.records import Record

NOT_RANKED = "–"


def comparable(records: Sequence[Record]) -> bool:
    """Whether records are of one evaluation and hold each example's value at every size."""
    if len(records) < 2 or not all(map(_held, records)):
        return False
    return len({tuple(record.values.ids) for record in records if record.values}) == 1


def _held(record: Record) -> bool:
    """Whether the values of all circuits of a record are in it."""
    if record.values is None or not record.has_table("curve"):
        return False
    points = record.table("curve").where(of="result").rows()
    keys = [f"{row['ranking']}@{float(str(row['fraction'])):g}" for row in points]
    return bool(keys) and {"clean", "empty", *keys} <= set(record.values.columns)


def rank_text(rank: tuple[int, int] | None) -> str:
    """A range of ranks: "1", "2–4"; a dash where there is none."""
    if rank is None:
        return NOT_RANKED
    first, last = rank
    return f"{first}" if first == last else f"{first}–{last}"


def ranked(
    records: Sequence[Record], area: AreaName, names: Sequence[str] | None = None
) -> Differences | None:
    """The differences of an area between records; None where they are not comparable."""
    return differences_of(records, area, names=names) if comparable(records) else None


def resolved_text(found: Differences) -> str:
    """How many differences are resolved: "60 of 91"."""
    return f"{found.n_resolved:,} of {found.n_pairs:,}"
