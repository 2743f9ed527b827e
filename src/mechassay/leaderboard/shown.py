"""Whether a board shows of a record what the record says.

A board is data of others: a cell may have another row, place, condition or number than its record.
So the cells of the record are made again by the board's own function, and all that follows from a
record has to be equal. Of a submission the row is its name, with the size of an adversarial record,
and a warning may stand behind those of the record.
"""

from __future__ import annotations

from mechassay.errors import BadFile, BadUsage, first_line
from mechassay.leaderboard.cells import BoardCell, cells_of, given_hash, is_private
from mechassay.leaderboard.declaration import row_of
from mechassay.leaderboard.rules import rules_of
from mechassay.records import Record

BESIDE = ("file", "sha256", "command", "source", "origin", "earlier")
"""Fields of a cell that do not follow from its record."""


def check_shown(cell: BoardCell, record: Record) -> None:
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
    differing = [_differing(cell, _of_submission(each, cell, record)) for each in own]
    if all(differing):
        names = ", ".join(min(differing, key=len))
        raise BadFile(f"{cell.id}: the board shows something else than its record has ({names}).")


def _of_submission(own: BoardCell, cell: BoardCell, record: Record) -> BoardCell:
    """The cell of a record as the board calls it where the board says that it is a submission's."""
    if not (cell.submission and given_hash(record)):
        return own  # A submission's record measures files.
    warned = cell.warnings[: len(own.warnings)] == own.warnings
    return own.model_copy(
        update={
            "row": row_of(cell.submission, record),
            "warnings": cell.warnings if warned else own.warnings,
        }
    )


def _differing(cell: BoardCell, own: BoardCell) -> list[str]:
    """The fields that differ; undefined numbers are equal."""
    one, other = (each.model_dump(mode="json", exclude=set(BESIDE)) for each in (cell, own))
    return [name for name in one if repr(one[name]) != repr(other[name])]
