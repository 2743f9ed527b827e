"""The boards of a folder of runs, and the folder of their pages, which is written and read again.

    index.html                what boards there are
    BOARD.html                a table for each column: rows, average, score, places
    rows/BOARD/ROW.html       every cell of a row: number, interval, controls, command
    data/BOARD.json, .csv     everything
    records/SHA256.json       the records, by the hash of their bytes
    plans/, artefacts/        what they are computed again from (`leaderboard.plans`)
    recomputed/*.json         what others recomputed (`recompute`); a cell with one has a mark

The pages need no server. `StoredBoards` reads `data/BOARD.json` and `records/SHA256.json`. They
are files of others: each cell is checked, and a record counts only if it has its hash.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mechassay.errors import BadFile, BadUsage, DiskFull, MechassayError
from mechassay.leaderboard.board import FORMAT, Board
from mechassay.leaderboard.cells import BoardCell, read_cells, run_folders, submission_of
from mechassay.leaderboard.page_parts import CellNotes, Repetition, link
from mechassay.leaderboard.pages import BoardPages
from mechassay.leaderboard.plans import inside, plan_file, write_plan
from mechassay.leaderboard.recomputation import Recomputation
from mechassay.leaderboard.rules import board_rules, rules_of
from mechassay.results.reading import read_record
from mechassay.results.records import Record, first_mistake
from mechassay.utils.arguments import checked
from mechassay.utils.files import read_json, write_text

RECOMPUTED = "recomputed"
HERE = "."
SAID_HERE = "from this folder alone, by the last command below, run in it"
RECOMPUTE = ("mechassay", "leaderboard", "recompute")


@dataclass(frozen=True)
class BoardsFolder:
    """The boards of a folder of runs, and the folder that their pages go to.

    Attributes:
        boards: by name, those that have a cell.
        unreadable: records that could not be read.
        declared: what submitters said of their rows; see `BoardPages`.
    """

    runs: Path
    path: Path
    boards: Mapping[str, Board]
    unreadable: tuple[str, ...]
    declared: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @staticmethod
    @checked
    def of(runs: Path, path: Path, reported: Sequence[BoardCell] = ()) -> BoardsFolder:
        """Boards of all runs in a folder.

        Args:
            reported: numbers as others reported them, of any board.

        Raises:
            BadFile: there is no such folder. BadUsage: it has no record that a board reads, or
                two files report one number.
        """
        names = [cell.full_id for cell in reported]
        if twice := {name for name in names if names.count(name) > 1}:
            raise BadUsage(f"Two files report {sorted(twice)[0]}: give one of them.")
        boards: dict[str, Board] = {}
        unreadable: dict[str, None] = {}
        for name, rules in board_rules().items():
            cells, wrong = read_cells(rules, runs)
            unreadable |= dict.fromkeys(wrong)
            cells += [cell for cell in reported if cell.board == name]
            if cells:
                boards[name] = Board.of(rules, cells)
        if not boards:
            kinds = ", ".join(kind for rules in board_rules().values() for kind in rules.kinds)
            refused = f" Refused: {next(iter(unreadable))}" if unreadable else ""
            raise BadUsage(
                f"{runs} has no record that a board reads (of the kinds {kinds}).{refused}"
            )
        facts = {
            header.declaration.name: header.declaration.facts
            for run in run_folders(runs)
            if (header := submission_of(run))
        }
        declared = {
            cell.row: facts[cell.submission]
            for board in boards.values()
            for cell in board.cells
            if facts.get(cell.submission)
        }
        return BoardsFolder(runs, path, boards, tuple(unreadable), declared)

    def keep_artefacts(self) -> tuple[str, ...]:
        """Keep what the cells are computed again from; for each record that needs its run, why.

        It stands before `write`: pages name the command that works.
        """
        lacking: dict[str, str] = {}
        cells = {cell.sha256: cell for cell in self._public()}
        for cell in cells.values():
            try:
                write_plan(cell, self.runs, self.path)
            except DiskFull:
                raise
            except MechassayError as error:
                lacking[cell.file] = str(error)
        return tuple(f"{file}: {error}" for file, error in lacking.items())

    def write(self) -> Path:
        """Write all pages; the path of the first.

        Raises:
            BadFile: a file in `recomputed` is none.
        """
        written = write_pages(self.pages(), self.path)
        for cell in self._public():
            copy = self.path / "records" / f"{cell.sha256}.json"
            shutil.copyfile(self.runs / cell.file, copy)
        return written

    def pages(self) -> BoardPages:
        """The pages as texts.

        Raises:
            BadFile: a file in `recomputed` is none.
        """
        again = {
            digest: tuple(map(_repetition, repeated))
            for digest, repeated in self.recomputations().items()
        }
        return BoardPages(
            boards=self.boards,
            record=self._record,
            again=again,
            notes=self._notes,
            unreadable=self.unreadable,
            nav=lambda up: link(f"{up}index.html", "Boards"),
            declared=self.declared,
        )

    def recomputations(self) -> dict[str, list[Recomputation]]:
        """What was recomputed, by the hash of the record.

        Raises:
            BadFile: a file there is no recomputation.
        """
        by_record: dict[str, list[Recomputation]] = {}
        for file in sorted((self.path / RECOMPUTED).glob("*.json")):
            try:
                recomputation = Recomputation.model_validate_json(
                    inside(self.path, file).read_bytes()
                )
            except ValidationError as error:
                raise BadFile(f"{file}: no recomputation ({error.error_count()} errors).") from None
            by_record.setdefault(recomputation.sha256, []).append(recomputation)
        return by_record

    def _public(self) -> Iterator[BoardCell]:
        """The cells whose records anybody may have."""
        for board in self.boards.values():
            yield from (cell for cell in board.cells if cell.file and not cell.private)

    def _record(self, cell: BoardCell) -> Record | None:
        return read_record(self.runs / cell.file) if cell.file else None

    def _notes(self, cell: BoardCell) -> CellNotes:
        if not cell.command or cell.private:
            return CellNotes()
        if plan_file(self.path, cell.sha256).is_file():
            return kept_notes(cell)
        words = [*RECOMPUTE, cell.board, cell.full_id, "--runs", self.runs.name]
        return CellNotes(commands=(cell.command, shlex.join(words)))


def kept_notes(cell: BoardCell) -> CellNotes:
    """The commands of a cell whose artefacts are in the folder."""
    words = [*RECOMPUTE, cell.board, cell.full_id, "--board", HERE]
    commands = (cell.command, shlex.join(words)) if cell.command else (shlex.join(words),)
    return CellNotes((("again", SAID_HERE),), commands)


def write_pages(pages: BoardPages, folder: Path) -> Path:
    """Write the pages and data of boards; the path of the first. Records are left to the caller."""
    (folder / "records").mkdir(parents=True, exist_ok=True)
    for name, text in pages.texts():
        write_text(folder / name, text)
    return folder / "index.html"


def write_recomputation(folder: Path, recomputation: Recomputation) -> Path:
    """Keep what came of recomputing a cell; the next `build` marks the cell.

    Raises:
        BadFile: the place for it is a link out of the folder.
    """
    name = f"{recomputation.sha256[:16]}-{recomputation.provenance.created[:19]}.json".replace(
        ":", ""
    )
    file = inside(folder, folder / RECOMPUTED / name)
    return write_text(file, recomputation.model_dump_json(indent=1))


def _repetition(recomputation: Recomputation) -> Repetition:
    outcome = "agree" if recomputation.agrees else f"differ, first at {recomputation.differs}"
    return Repetition(
        recomputation.agrees,
        f"{recomputation.n:,} numbers of the record {outcome} (by {recomputation.largest:.1g});"
        f" {recomputation.provenance.created[:10]}, {recomputation.provenance.machine}",
        f"{recomputation.again:.9g}",
        recomputation.cell,
    )


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
    @checked
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
    manifest = read_json(inside(folder, file), LARGEST_BOARD)
    cells: Any = manifest.get("cells")
    if manifest.get("format") != FORMAT or not isinstance(cells, list):
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
