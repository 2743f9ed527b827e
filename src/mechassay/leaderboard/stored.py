"""Boards that were written as files, read again: `data/BOARD.json` and `records/SHA256.json`.

They are files of others: each cell is checked, and a record counts only if it has its hash.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mechassay.errors import BadFile
from mechassay.leaderboard.artefacts import inside
from mechassay.leaderboard.board import FORMAT, Board
from mechassay.leaderboard.cells import BoardCell
from mechassay.leaderboard.rules import board_rules, rules_of
from mechassay.records import first_mistake
from mechassay.submissions import read_json

LARGEST_BOARD = 2 * 10**8
"""Bytes of a board from which on it is not read. A cell has about 2,000."""


@dataclass(frozen=True)
class StoredBoards:
    """The cells of boards in a folder, and its records.

    Attributes:
        cells: of all boards.
    """

    folder: Path
    cells: tuple[BoardCell, ...]

    @staticmethod
    def read(folder: str | Path) -> StoredBoards:
        """The boards of a folder that `leaderboard build` wrote.

        Raises:
            BadFile: there are none, or a file is none of a board.
        """
        folder = Path(folder)
        cells = tuple(cell for name in board_rules() for cell in _cells(folder, name))
        if not cells:
            raise BadFile(f"{folder}: has no boards (data/BOARD.json); expected a static board.")
        return StoredBoards(folder, cells)

    def find(self, board: str, name: str) -> BoardCell:
        """A cell of a board by its name, see `Board.find`.

        Raises:
            UnknownName: no such board or cell. BadUsage: the name is that of several.
        """
        rules = rules_of(board)
        return Board.of(rules, [cell for cell in self.cells if cell.board == board]).find(name)


def _cells(folder: Path, name: str) -> Iterator[BoardCell]:
    file = folder / "data" / f"{name}.json"
    if not file.is_file():
        return
    told = read_json(inside(folder, file), LARGEST_BOARD)
    cells: Any = told.get("cells")
    if told.get("format") != FORMAT or not isinstance(cells, list):
        raise BadFile(f"{file}: no board of format {FORMAT}.")
    for number, told_cell in enumerate(cells):
        plain = dict(told_cell) if isinstance(told_cell, dict) else {}
        plain.pop("id", None)
        try:
            cell = BoardCell.model_validate(plain)
        except ValidationError as error:
            raise BadFile(f"{file}: cell {number} is none ({first_mistake(error)}).") from None
        if cell.board != name:
            raise BadFile(f"{file}: cell {number} is of the board {cell.board!r}.")
        yield cell
