"""The project's own board: an archive of runs, and the CSVs of its cells."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import pytest

from helpers.web import ROOT, pages, tool
from mechassay.leaderboard import BoardsFolder
from mechassay.leaderboard.rules import board_rules

BOARD = ROOT / "docs" / "board"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    with ZipFile(pages.RUNS) as archive:
        archive.extractall(folder)
    return folder


def test_the_folder_has_the_archive_and_the_csvs_alone() -> None:
    assert {file.name for file in BOARD.iterdir()} == {
        "runs.zip",
        *(f"{name}.csv" for name in board_rules()),
    }


@pytest.mark.guard
def test_the_csvs_are_those_of_the_runs(runs: Path, tmp_path: Path) -> None:
    boards = BoardsFolder.of(runs, tmp_path)
    assert not boards.unreadable
    for name, board in boards.boards.items():
        assert (BOARD / f"{name}.csv").read_text("utf-8") == board.to_csv(), name


@pytest.mark.slow
def test_every_cell_is_computed_again_from_the_board_alone(runs: Path, tmp_path: Path) -> None:
    assert BoardsFolder.of(runs, tmp_path).keep_artefacts() == ()


@pytest.mark.slow
def test_the_same_runs_are_packed_to_the_same_bytes(runs: Path, tmp_path: Path) -> None:
    pack = tool("board").pack
    pack(runs, tmp_path / "one")
    for file in runs.rglob("*.json"):
        file.touch()
    (runs / "report.html").write_text("not packed")
    pack(runs, tmp_path / "two")
    one, two = ((tmp_path / name / "runs.zip").read_bytes() for name in ("one", "two"))
    assert one == two
    with ZipFile(tmp_path / "two" / "runs.zip") as made, ZipFile(pages.RUNS) as stored:
        assert made.namelist() == stored.namelist() == sorted(made.namelist())
        assert all(made.read(name) == stored.read(name) for name in made.namelist())
