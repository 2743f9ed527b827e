"""Whether a board shows of a record what the record says.

A board is data of others: a cell may have another row, place, condition or number than its record.
So the cells of the record are made again by the board's own function, and all that follows from a
record has to be equal. Two things may differ, if the caller says so: the row of a submission, of
which only the end is known, and the name of its model, which a track calls otherwise. A submission
may have warnings behind those of the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mechassay.errors import BadFile, BadUsage, first_line
from mechassay.leaderboard.cells import BoardCell, cells_of, is_private
from mechassay.leaderboard.rules import rules_of
from mechassay.records import Record

LATER = ("examples", "reason")
"""Fields that boards of earlier versions do not have: without them nothing is said otherwise."""
BESIDE = ("file", "sha256", "command", "source", "origin", "earlier")
"""Fields of a cell that do not follow from its record."""


@dataclass(frozen=True)
class CalledOtherwise:
    """What a service's board calls otherwise than the record.

    Attributes:
        models: its names of models, by those of the record.
        row_end: what its row ends with, if the record is one of a submission.
    """

    models: Mapping[str, str] = field(default_factory=dict)
    row_end: str = ""


def check_shown(cell: BoardCell, record: Record, called: CalledOtherwise) -> None:
    """Refuse a cell that is not the one that its record has on the board.

    Raises:
        BadFile: it is not; the fields that differ are named.
        BadUsage: the record is about private examples.
    """
    if is_private(record):
        raise BadUsage(f"{cell.id} is about private examples, which need the seed of their owner.")
    try:
        own = [
            each for each in cells_of(rules_of(cell.board), record) if each.column == cell.column
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise BadFile(f"{cell.id}: its record has no cells ({first_line(error)}).") from None
    if not own:
        raise BadFile(f"{cell.id}: its record has no number of the column {cell.column}.")
    differing = [_differing(cell, _called(each, cell, called)) for each in own]
    if all(differing):
        names = ", ".join(min(differing, key=len))
        raise BadFile(f"{cell.id}: the board shows something else than its record has ({names}).")


def _called(own: BoardCell, cell: BoardCell, called: CalledOtherwise) -> BoardCell:
    """The cell of a record as the board calls it."""
    place, changes = dict(own.place), dict[str, Any]()
    if "model" in place:
        place["model"] = called.models.get(place["model"], place["model"])
    if called.row_end:
        if cell.row.endswith(called.row_end):
            changes["row"] = cell.row
        if cell.warnings[: len(own.warnings)] == own.warnings:
            changes["warnings"] = cell.warnings
    return own.model_copy(update={"place": place, **changes})


def _differing(cell: BoardCell, own: BoardCell) -> list[str]:
    """The fields that differ; undefined numbers are equal."""
    left_out = {*BESIDE, *(name for name in LATER if name not in cell.model_fields_set)}
    one, other = (each.model_dump(mode="json", exclude=left_out) for each in (cell, own))
    return [name for name in one if repr(one[name]) != repr(other[name])]
