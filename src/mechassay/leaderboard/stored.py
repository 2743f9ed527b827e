"""Boards that were written as files, read again: `data/BOARD.json` and `records/SHA256.json`.

They are files of others: each cell is checked, and a record counts only if it has its hash.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mechassay.errors import BadFile
from mechassay.files import file_hash
from mechassay.leaderboard.artefacts import SHA256, artefact_file, inside
from mechassay.leaderboard.board import FORMAT, Board
from mechassay.leaderboard.cells import BoardCell
from mechassay.leaderboard.plans import plan_file
from mechassay.leaderboard.rules import board_rules, rules_of
from mechassay.records import first_mistake
from mechassay.submissions import leads_out, read_json

TRACK = "track.json"
"""Of boards that a service exported: what is evaluated."""
LARGEST_BOARD = 2 * 10**8
"""Bytes of a board from which on it is not read. A cell has about 2,000."""


@dataclass(frozen=True)
class StoredBoards:
    """The cells of boards in a folder, and its records.

    Attributes:
        cells: of all boards; those of earlier versions of a column's definition too.
    """

    folder: Path
    cells: tuple[BoardCell, ...]

    @staticmethod
    def read(folder: str | Path) -> StoredBoards:
        """The boards of a folder that `leaderboard build` or `export` wrote.

        Raises:
            BadFile: there are none, or a file is none of a board.
        """
        folder = Path(folder)
        cells = tuple(cell for name in board_rules() for cell in _cells(folder, name))
        if not cells:
            raise BadFile(f"{folder}: has no boards (data/BOARD.json); expected a static board.")
        return StoredBoards(folder, cells)

    @cached_property
    def hashes(self) -> frozenset[str]:
        """Of the records that are there, each with the content that its name says."""
        wanted = {cell.sha256 for cell in self.cells if SHA256.fullmatch(cell.sha256)}
        files = {sha256: self.record_file(sha256) for sha256 in wanted}
        return frozenset(
            sha256
            for sha256, file in files.items()
            if file.is_file() and not leads_out(file, self.folder) and file_hash(file) == sha256
        )

    @property
    def exported(self) -> bool:
        """Whether a service exported them."""
        return (self.folder / TRACK).is_file()

    def find(self, board: str, name: str) -> BoardCell:
        """A cell of a board by its name, see `Board.find`.

        Raises:
            UnknownName: no such board or cell. BadUsage: the name is that of several.
        """
        rules = rules_of(board)
        return Board.of(rules, [cell for cell in self.cells if cell.board == board]).find(name)

    def record_file(self, sha256: str) -> Path:
        """The file of a record by its hash."""
        return self.folder / "records" / f"{sha256}.json"

    def plan(self, sha256: str) -> Path | None:
        """The file of the plan by which a record is computed again, if the record is there too."""
        return self._held(plan_file(self.folder, sha256)) if sha256 in self.hashes else None

    def artefact(self, sha256: str) -> Path | None:
        """A packed file that a plan names by its hash, if it is there."""
        known = SHA256.fullmatch(sha256)
        return self._held(artefact_file(self.folder, sha256)) if known else None

    def _held(self, file: Path) -> Path | None:
        return file if file.is_file() and not leads_out(file, self.folder) else None


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
