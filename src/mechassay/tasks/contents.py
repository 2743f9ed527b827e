"""What the rows of a file have in common: splits, groups,
what comes again and what contradicts itself.

The first pass over a file keeps some numbers of fixed size for each row: its place, its split, and
64-bit hashes of its prompts, its group, its id and its continuations. From them follow

- what is refused, with row numbers: mistakes of rows, ids that come twice, prompts in two splits,
  and two rows with the same clean prompt of which the one's answers are the other's foils, and the
  other way round;
- the split of each row;
- groups: rows with the same clean prompt are one group, also where the file gives them several, as
  intervals would else count one prompt as many. Rows that nothing joins keep what the file says.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int64, UInt8, UInt64

from mechassay.errors import BadFile, BadPairs, UnknownName
from mechassay.pairs import EMPTY
from mechassay.tasks.columns import Mistake
from mechassay.tasks.rows import Row
from mechassay.tasks.splits import (
    HASH_BYTES,
    NONE,
    SHARES,
    least_hash,
    split_named,
    text_hash,
    uniform,
)
from mechassay.tasks.task import SPLITS

SPLIT = "split"
NO_SPLIT = 255
# Row numbers that a message names, and kinds of mistake that it tells.
NAMED_ROWS = 3
NAMED_MISTAKES = 4
# An odd number that mixes two hashes into one; uint64 arithmetic wraps around.
MIXER = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Contents:
    """What the first pass found.

    Attributes:
        splits: the index of each row's split.
        joined: for each row, the number of the first row whose group it shares for its prompt's
            sake; 0 where it keeps its own. Empty where no prompt comes again.
        notes: what a reader should know, by what it is about.
        years: whether all answers are years.
    """

    splits: bytes
    joined: Int64[np.ndarray, "n"]
    notes: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    years: bool = False


def own_id(name: str, number: int) -> str:
    """The id of a row that has none."""
    return f"{name}-{number:06d}"


@dataclass
class _Tally:
    """How often a mistake was made, and where first."""

    mistake: Mistake
    rows: list[int] = field(default_factory=list)
    count: int = 0

    def add(self, number: int) -> None:
        self.count += 1
        if self.count <= NAMED_ROWS:
            self.rows.append(number)

    def where(self) -> str:
        listed = ", ".join(map(str, self.rows))
        if self.count == 1:
            return f"row {listed}"
        more = self.count - len(self.rows)
        return (
            f"rows {listed} and {more} more"
            if more
            else f"rows {' and '.join(listed.rsplit(', ', 1))}"
        )

    def __str__(self) -> str:
        detail = self.mistake.detail
        if detail and self.count > 1:
            detail = f"row {self.rows[0]}: {detail}"
        return f"{self.where()}: {self.mistake.what}" + (f" ({detail})" if detail else "")


class Seen:
    """What the first pass keeps: numbers of fixed size for each row, and what is wrong."""

    def __init__(self, path: str, name: str) -> None:
        self.path, self.name = path, name
        self.tallies: dict[str, _Tally] = {}
        self.unknown: _Tally | None = None
        self.numbers, self.given = array("Q"), bytearray()
        # Of each row: clean, counterfactual and group; the id; answers with foils, and foils with
        # answers.
        self.hashes, self.ids, self.said = bytearray(), bytearray(), bytearray()
        self.others_than_years = 0

    def add(self, number: int, row: Row | Mistake) -> None:
        if isinstance(row, Mistake):
            self.tallies.setdefault(row.what, _Tally(row)).add(number)
            return
        split = None if row.split is None else split_named(row.split)
        if row.split is not None and split is None:
            self.unknown = self.unknown or _Tally(Mistake(row.split))
            self.unknown.add(number)
            return
        self.numbers.append(number)
        self.given.append(NO_SPLIT if split is None else SPLITS.index(split))
        self.others_than_years += not row.years
        self.ids += bytes(HASH_BYTES) if row.id is None else text_hash(row.id)
        self.hashes += text_hash(row.clean) + text_hash(row.counterfactual)
        self.hashes += bytes(HASH_BYTES) if row.group is None else text_hash(row.group, b"group")
        answers, foils = ("\0".join(map(str, sorted(each))) for each in (row.answers, row.foils))
        self.said += text_hash(f"{answers}\n{foils}") + text_hash(f"{foils}\n{answers}")

    def contents(self, split_column: str) -> Contents:
        """What follows from all rows.

        Raises:
            BadFile, BadPairs, UnknownName: what was wrong with any of the rows.
        """
        splits = self._splits(split_column)
        hashes, said = _numbers(self.hashes, 3), _numbers(self.said, 2)
        self._raise_contradictions(hashes[:, 0], said)
        joined = _joined(hashes[:, 0], hashes[:, 2], self.numbers)
        return Contents(
            splits, joined, self._notes(hashes, said, joined), years=not self.others_than_years
        )

    def _notes(
        self,
        hashes: UInt64[np.ndarray, "rows 3"],
        said: UInt64[np.ndarray, "rows 2"],
        joined: Int64[np.ndarray, "n"],
    ) -> dict[str, str]:
        """What is said of prompts that come again."""
        if len(np.unique(hashes[:, 0])) == len(hashes):
            return {}
        first = _first_alike(hashes[:, 0])
        again = _Tally(Mistake("the clean prompt of a row before"))
        for row in np.flatnonzero(first != np.arange(len(first))).tolist():
            again.add(self.numbers[row])
        whole = (hashes[:, 0] * MIXER + hashes[:, 1]) * MIXER + said[:, 0]
        n_whole = len(whole) - len(np.unique(whole))
        repeats = (
            f" ({n_whole:,} of them repeat{'s' * (n_whole == 1)} a whole row)" if n_whole else ""
        )
        has = "has" if again.count == 1 else "have"
        note = f"{again.where()} {has} the clean prompt of a row before{repeats}"
        return {
            "repeated prompts": (
                f"{note}; rows with one prompt are one group" if joined.any() else note
            )
        }

    def _raise_contradictions(
        self, clean: UInt64[np.ndarray, "n"], said: UInt64[np.ndarray, "n 2"]
    ) -> None:
        ours, theirs = clean * MIXER + said[:, 0], clean * MIXER + said[:, 1]
        against = np.flatnonzero(np.isin(theirs, ours))
        if len(against):
            other = int(against[0])
            row = int(np.flatnonzero(ours == theirs[other])[0])
            more = _so_do(len(against) - 2)
            raise BadPairs(
                f"{self.path}: rows {self.numbers[other]} and {self.numbers[row]} have the same"
                f" clean prompt, with answer and foil exchanged; one of them is wrong{more}."
            )

    def _splits(self, split_column: str) -> bytes:
        """The index of each row's split."""
        # Mistakes of the format first, as they may be why there are others.
        self._raise_mistakes(BadFile)
        if self.unknown is not None:
            raise UnknownName(
                f"split ({self.path}, {self.unknown.where()})", self.unknown.mistake.what, SPLITS
            )
        self._raise_mistakes(BadPairs)
        if not self.numbers:
            raise BadFile(f"{self.path}: there are no rows.")
        self._raise_repeated_ids()
        given, hashes = np.frombuffer(self.given, np.uint8), _numbers(self.hashes, 3)
        if not hashes[:, 2].any():
            hashes = hashes[:, :2]
        without = np.flatnonzero(given == NO_SPLIT)
        if len(without) == len(given):
            if split_column != SPLIT:
                raise BadFile(
                    f"{self.path}: no row has the column {split_column!r}, which split_column"
                    " names."
                )
            places = np.searchsorted(
                np.cumsum(list(SHARES.values()))[:-1], uniform(least_hash(hashes)), side="right"
            )
            return places.astype(np.uint8).tobytes()
        if len(without):
            tally = _Tally(Mistake(f"no {split_column!r}, which other rows have"))
            for row in without.tolist():
                tally.add(self.numbers[row])
            raise BadFile(f"{self.path}: {tally}.")
        self._raise_shared_prompts(given, hashes[:, :2])
        return bytes(self.given)

    def _raise_mistakes(self, error: type[BadFile | BadPairs]) -> None:
        found = [tally for tally in self.tallies.values() if tally.mistake.error is error]
        if found:
            more = (
                [f"and {len(found) - NAMED_MISTAKES} other kinds of mistakes"]
                if len(found) > NAMED_MISTAKES
                else []
            )
            raise error(f"{self.path}: {'; '.join([*map(str, found[:NAMED_MISTAKES]), *more])}.")

    def _raise_repeated_ids(self) -> None:
        ids = _numbers(self.ids, 1)[:, 0]
        if not ids.any():
            return
        without = np.flatnonzero(ids == NONE)
        made = b"".join(text_hash(own_id(self.name, self.numbers[row])) for row in without.tolist())
        ids[without] = np.frombuffer(made, "<u8")
        first = _first_alike(ids)
        again = np.flatnonzero(first != np.arange(len(first)))
        if len(again):
            row, before = self.numbers[again[0]], self.numbers[first[again[0]]]
            raise BadPairs(
                f"{self.path}: row {row} has the id of row {before}; ids must"
                f" differ{_so_do(len(again) - 1)}."
            )

    def _raise_shared_prompts(
        self, given: UInt8[np.ndarray, "rows"], hashes: UInt64[np.ndarray, "rows 2"]
    ) -> None:
        first = _first_alike(hashes.reshape(-1)) // 2
        rows = np.arange(len(first)) // 2
        shared = np.flatnonzero(given[rows] != given[first])
        if len(shared):
            row, before = rows[shared[0]], first[shared[0]]
            a, b = (f"row {self.numbers[each]} ({SPLITS[given[each]]})" for each in (row, before))
            more = len(np.unique(rows[shared])) - 1
            raise BadPairs(
                f"{self.path}: {a} has a prompt of {b}; splits must not share"
                f" prompts{_so_do(more)}."
            )


def _so_do(more: int) -> str:
    return f" ({more} more such row{'s' if more > 1 else ''})" if more else ""


def _numbers(data: bytearray, columns: int) -> UInt64[np.ndarray, "rows columns"]:
    return np.frombuffer(data, "<u8").astype(np.uint64).reshape(-1, columns)


def _first_alike(hashes: UInt64[np.ndarray, "n"]) -> Int64[np.ndarray, "n"]:
    """For each hash, where it comes first."""
    _, first, inverse = np.unique(hashes, return_index=True, return_inverse=True)
    return first[inverse]


def _joined(
    clean: UInt64[np.ndarray, "n"], group: UInt64[np.ndarray, "n"], numbers: array[int]
) -> Int64[np.ndarray, "m"]:
    """For each row, the number of the first one that it is joined with for its prompt's sake;
    0 where it is with none.

    Prompts and groups connect rows. A connected component is as it should be if it is one group
    already, or one row; any other is joined, also where it has several groups.
    """
    rows = np.arange(len(clean))
    if len(np.unique(clean)) == len(clean):
        return np.zeros(0, np.int64)
    _, component = np.unique(least_hash(np.stack([clean, group], axis=1)), return_inverse=True)
    # The unit that the file gives: a group, or the row itself. Group codes are below, rows above.
    _, code = np.unique(group, return_inverse=True)
    unit = np.where(group != NONE, code, len(clean) + rows)
    pairs = np.unique(np.stack([component, unit], axis=1), axis=0)
    several = np.bincount(pairs[:, 0]) > 1
    _, first = np.unique(component, return_index=True)
    return np.where(several[component], np.array(numbers, dtype=np.int64)[first[component]], 0)
