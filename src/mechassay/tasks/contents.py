"""What the rows of a file have in common: splits, groups, repetitions and contradictions.

Refused, with the places of rows: splits of another name, ids that come twice, prompts in two
splits, and rows with the same clean prompt and answer and foil exchanged. Rows with the same clean
prompt are one group, whatever the file says, as intervals would else count one prompt as many.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import UInt64

from mechassay.errors import BadFile, BadPairs, UnknownName
from mechassay.rows import where
from mechassay.tasks.pair_rows import PairRow
from mechassay.tasks.splits import (
    NO_HASH,
    SHARES,
    hash_columns,
    least_hash,
    split_named,
    text_hash,
    uniform,
)
from mechassay.tasks.task import SPLITS

SPLIT = "split"

Said = tuple[str, tuple[str, ...], tuple[str, ...]]


@dataclass(frozen=True)
class Contents:
    """The rows of a file.

    Attributes:
        splits, groups: of each row.
        notes: what a reader should know, by what it is about.
    """

    rows: list[PairRow]
    splits: list[str]
    groups: list[str | None]
    notes: dict[str, str]


def contents_of(rows: list[PairRow], path: str, name: str, split_column: str) -> Contents:
    """The rows with their splits and groups.

    Args:
        path: of the file, for messages.
        name: begins ids and groups that are made.

    Raises:
        BadFile, BadPairs, UnknownName: rows that do not go together.
    """
    hashes = hash_columns(
        [text_hash(row.clean) for row in rows],
        [text_hash(row.counterfactual) for row in rows],
        [NO_HASH if row.group is None else text_hash(row.group, b"group") for row in rows],
    )
    _check_ids(rows, path, name)
    splits = _splits(rows, hashes, path, split_column)
    said = [_said(row) for row in rows]
    _check_contradictions(rows, said, path)
    groups = _groups(rows, hashes, name)
    repeated = [rows[row].place for row, _ in _repeats([row.clean for row in rows])]
    if not repeated:
        return Contents(rows, splits, groups, {})
    whole = len(_repeats([(row.counterfactual, *_said(row)) for row in rows]))
    has = "has" if len(repeated) == 1 else "have"
    note = f"{where(repeated)} {has} the clean prompt of a row before"
    note += f" ({whole:,} of them repeat{'s' * (whole == 1)} a whole row)" if whole else ""
    if groups != [row.group for row in rows]:
        note += "; rows with one prompt are one group"
    return Contents(rows, splits, groups, {"repeated prompts": note})


def own_id(name: str, row: PairRow) -> str:
    """The id of a row, its place if the file gives it none."""
    return f"{name}-{row.place:06d}" if row.id is None else row.id


def _said(row: PairRow) -> Said:
    """The clean prompt, and its answers and foils in one order."""
    answers = row.answers or map(str, row.answer_ids)
    foils = row.foils or map(str, row.foil_ids)
    return row.clean, tuple(sorted(answers)), tuple(sorted(foils))


def _splits(
    rows: Sequence[PairRow], hashes: UInt64[np.ndarray, "rows 3"], path: str, split_column: str
) -> list[str]:
    given = [split_named(row.split) if row.split else None for row in rows]
    unknown = [row for row, split in zip(rows, given, strict=True) if row.split and split is None]
    if unknown:
        places = where([row.place for row in unknown])
        raise UnknownName(f"split ({path}, {places})", str(unknown[0].split), SPLITS)
    without = [row.place for row, split in zip(rows, given, strict=True) if split is None]
    if len(without) == len(rows):
        if split_column != SPLIT:
            said = f"no row has the column {split_column!r}, which split_column names"
            raise BadFile(f"{path}: {said}.")
        ends = np.cumsum(list(SHARES.values()))[:-1]
        allotted = np.searchsorted(ends, uniform(least_hash(hashes)), side="right").tolist()
        return [SPLITS[place] for place in allotted]
    if without:
        raise BadFile(f"{path}: {where(without)}: no {split_column!r}, which other rows have.")
    splits = [split for split in given if split is not None]
    _check_shared_prompts(rows, splits, path)
    return splits


def _check_ids(rows: Sequence[PairRow], path: str, name: str) -> None:
    again = _repeats([own_id(name, row) for row in rows])
    if again:
        row, before = (rows[index].place for index in again[0])
        raise BadPairs(
            f"{path}: row {row} has the id of row {before}; ids must differ"
            f"{_so_do(len(again) - 1)}."
        )


def _check_shared_prompts(rows: Sequence[PairRow], splits: Sequence[str], path: str) -> None:
    prompts = [text for row in rows for text in (row.clean, row.counterfactual)]
    again = [(now // 2, before // 2) for now, before in reversed(_repeats(prompts))]
    shared = {now: before for now, before in again if splits[now] != splits[before]}
    if shared:
        first = min(shared)
        a, b = (f"row {rows[row].place} ({splits[row]})" for row in (first, shared[first]))
        raise BadPairs(
            f"{path}: {a} has a prompt of {b}; splits must not share prompts"
            f"{_so_do(len(shared) - 1)}."
        )


def _check_contradictions(rows: Sequence[PairRow], said: Sequence[Said], path: str) -> None:
    first = {what: row for row, what in reversed(list(enumerate(said)))}
    against = [
        (row, first[clean, foils, answers])
        for row, (clean, answers, foils) in enumerate(said)
        if (clean, foils, answers) in first
    ]
    if against:
        a, b = (rows[row].place for row in against[0])
        raise BadPairs(
            f"{path}: rows {a} and {b} have the same clean prompt, with answer and foil exchanged;"
            f" one of them is wrong{_so_do(len(against) - 2)}."
        )


def _so_do(more: int) -> str:
    return f" ({more} more such row{'s' if more > 1 else ''})" if more else ""


def _repeats(keys: Sequence[Hashable]) -> list[tuple[int, int]]:
    """Where keys come again, each with the place of the first."""
    first: dict[Hashable, int] = {}
    places = [(index, first.setdefault(key, index)) for index, key in enumerate(keys)]
    return [(index, before) for index, before in places if index != before]


def _groups(
    rows: Sequence[PairRow], hashes: UInt64[np.ndarray, "rows 3"], name: str
) -> list[str | None]:
    """The group of each row. Connected rows that are not one group, or one row, are joined."""
    components: list[int] = least_hash(hashes[:, [0, 2]]).tolist()
    # For each component, the units that the file gives, groups or single rows, with their places.
    units: dict[int, dict[str | int, int]] = {}
    for row, component in zip(rows, components, strict=True):
        unit = row.place if row.group is None else row.group
        units.setdefault(component, {}).setdefault(unit, row.place)
    joined = {
        component: f"{name}, rows like {min(places.values())}"
        for component, places in units.items()
        if len(places) > 1
    }
    placed = zip(rows, components, strict=True)
    return [joined.get(component, row.group) for row, component in placed]
