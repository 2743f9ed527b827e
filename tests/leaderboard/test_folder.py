"""Boards that were written as files are read again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mechassay.errors import BadFile
from mechassay.leaderboard import BoardsFolder, StoredBoards
from mechassay.leaderboard import folder as stored


@pytest.fixture
def board(runs: Path, tmp_path: Path) -> Path:
    BoardsFolder.of(runs, tmp_path / "board").write()
    return tmp_path / "board"


def changed(folder: Path, **cell: object) -> None:
    file = folder / "data" / "circuits.json"
    told = json.loads(file.read_text())
    told["cells"][0] |= cell
    file.write_text(json.dumps(told))


def test_cells_and_records_are_those_that_were_written(board: Path, runs: Path) -> None:
    found, made = StoredBoards.read(board), BoardsFolder.of(runs, board)
    wanted = {cell.full_id: cell.value for each in made.boards.values() for cell in each.cells}
    assert {cell.full_id: cell.value for cell in found.cells} == pytest.approx(wanted, nan_ok=True)
    for cell in found.cells:
        assert (board / "records" / f"{cell.sha256}.json").is_file()


def test_a_board_may_be_larger_than_other_files_and_has_a_limit(
    board: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = len(StoredBoards.read(board).cells)
    changed(board, settings="x" * 10**7)
    assert len(StoredBoards.read(board).cells) == n
    monkeypatch.setattr(stored, "LARGEST_BOARD", 10**7)
    with pytest.raises(BadFile, match="more than 10 MB"):
        StoredBoards.read(board)


def test_what_is_no_board_is_refused(board: Path, tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="has no boards"):
        StoredBoards.read(tmp_path / "none")
    changed(board, board="gym")
    with pytest.raises(BadFile, match="cell 0 is of the board 'gym'"):
        StoredBoards.read(board)
    changed(board, value="many")
    with pytest.raises(BadFile, match="cell 0 is none"):
        StoredBoards.read(board)
    (board / "data" / "circuits.json").write_text('{"format": 99, "cells": []}')
    with pytest.raises(BadFile, match="no board of format"):
        StoredBoards.read(board)
