"""What makes two numbers of records comparable, on runs of ground truths."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import mechassay as ma
from mechassay.leaderboard import Board, BoardCell, board_rules, read_cells
from mechassay.leaderboard.cells import PrivateSets, numbered
from mechassay.progress import SILENT
from mechassay.records import Record, read_record
from small_jobs import SMALL_JOBS

RULES = board_rules()["circuits"]


def run(folder: Path, name: str, **changes: Any) -> list[BoardCell]:
    given: dict[str, Any] = {"methods": ("eap",), "train_limit": 6, "test_limit": 8, **changes}
    ma.run(ma.CircuitsJob(models=("truth-ioi",), **given), folder / name, progress=SILENT)
    return [cell for cell in read_cells(RULES, folder / name)[0] if cell.column == "cpr"]


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> BoardCell:
    [cell] = run(tmp_path_factory.mktemp("cells"), "one")
    return cell


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "changes",
    [
        {"ablation": "mean"},
        {"dtype": "bfloat16"},
        {"profile": "mib-2025"},
        {"test_limit": 6},
        {"seed": 1},
    ],
)
def test_other_conditions_are_another_place(
    one: BoardCell, tmp_path: Path, changes: dict[str, Any]
) -> None:
    [other] = run(tmp_path, "other", **changes)
    assert one.id == other.id and one.under != other.under
    board = Board.of(RULES, [one, other])
    assert len(board.places("cpr")) == 2 and len(board.comparable("cpr")) == 1


@pytest.mark.slow
def test_constants_of_other_train_examples_are_other_conditions(tmp_path: Path) -> None:
    [few] = run(tmp_path, "few", ablation="mean")
    [many] = run(tmp_path, "many", ablation="mean", train_limit=12)
    assert few.under != many.under
    # Counterfactuals come with the test pairs: what a method was given is its own affair.
    [few], [many] = run(tmp_path, "a"), run(tmp_path, "b", train_limit=12)
    assert few.under == many.under and few.settings != many.settings


@pytest.mark.slow
def test_two_models_in_folders_of_one_name_are_two(tmp_path: Path) -> None:
    """The name of a folder does not say which weights are in it; that of a known model does."""
    truth = ma.load_model("truth-ioi")
    cells = {}
    for number, name in enumerate(("a", "b")):
        folder = tmp_path / name / "truth-ioi"
        with torch.no_grad():
            next(truth.hf.parameters()).view(-1)[0] += number
        truth.hf.save_pretrained(folder)
        assert truth.tokenizer is not None
        truth.tokenizer.save_pretrained(folder)
        job = ma.CircuitsJob((str(folder),), ("truth-ioi",), ("eap",), train_limit=6, test_limit=8)
        ma.run(job, tmp_path / "runs" / name, progress=SILENT)
        found = read_cells(RULES, tmp_path / "runs" / name)[0]
        cells[name] = next(cell for cell in found if cell.column == "cpr")
    known = run(tmp_path / "runs", "known")[0]
    assert len({cells["a"].id, cells["b"].id, known.id}) == 1
    assert len({cells["a"].under, cells["b"].under, known.under}) == 3
    assert "weights" in cells["a"].conditions and "weights" not in known.conditions


@pytest.mark.slow
def test_a_file_does_not_take_the_row_of_a_method(tmp_path: Path) -> None:
    [own] = run(tmp_path, "own", methods=("eap",))
    run(tmp_path, "drawn", methods=("random",))
    [scores] = (tmp_path / "drawn" / "scores").rglob("*.safetensors")
    (tmp_path / "files").mkdir()
    file = shutil.copyfile(scores, tmp_path / "files" / "eap.safetensors")
    [other] = run(tmp_path, "evaluated", methods=(), scores=(str(file),))
    assert own.row == "eap" and other.row.startswith("eap (file ") and other.under == own.under
    assert other.row_in_record == "eap"
    assert set(Board.of(RULES, [own, other]).rows()) == {own.row, other.row}


@pytest.mark.parametrize(
    ("board", "columns", "row"),
    [
        ("gym", {"odds", "selectivity"}, "mean"),
        ("adversarial", {"mean", "p99"}, "truth"),
        # The error of IOI in heads is of runs on that task alone.
        pytest.param("variables", {"iia", "gain"}, "das", marks=pytest.mark.slow),
    ],
)
def test_what_a_board_names_is_in_the_records_of_its_runs(
    tmp_path: Path, board: str, columns: set[str], row: str
) -> None:
    ma.run(SMALL_JOBS[board], tmp_path / "run", progress=SILENT)
    cells, unreadable = read_cells(board_rules()[board], tmp_path)
    assert unreadable == [] and {cell.column for cell in cells} >= columns
    assert row in {cell.row for cell in cells}
    assert all(set(cell.place) == set(board_rules()[board].place) for cell in cells)
    folder = ma.leaderboard.BoardsFolder.of(tmp_path, tmp_path / "board")
    assert board in folder.boards and folder.write().is_file()


@pytest.mark.slow
def test_a_private_cell_says_nothing_of_single_examples(tmp_path: Path) -> None:
    [public] = run(tmp_path, "public")
    [private] = run(tmp_path, "private", test_split="private", private_seed=7)
    assert public.warnings and private.private and private.warnings == []
    assert private.conditions["examples"] == "8 private examples"


@pytest.mark.slow
def test_private_examples_are_named_by_their_epoch(tmp_path: Path) -> None:
    run(tmp_path, "private", test_split="private", private_seed=7)
    [file] = (tmp_path / "private" / "records").rglob("eap.json")
    record = read_record(file)

    def of(epoch: str, digest: str) -> Record:
        args = {**record.task.args, "epoch": epoch}
        about = record.provenance.model_copy(update={"data_hash": digest})
        return record.changed(task=record.task.model_copy(update={"args": args}), provenance=about)

    first, second, again = of("2026-11", "a"), of("2026-12", "b"), of("2026-12", "b")
    changed = of("2026-12", "c")
    for order in ((first, second, again, changed), (second, again, changed)):
        sets: PrivateSets = {}
        names = [numbered(each, sets).provenance.data_hash for each in order]
        # Without the first, the others keep their names.
        later = "8 private examples of 2026-12"
        assert names[-3:] == [later, later, f"{later}, set 2"]
