"""Cells recomputed from the folder of a run."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

import mechassay as ma
from mechassay.errors import BadFile, BadUsage
from mechassay.leaderboard import Board, BoardCell, board_rules, read_cells, recompute
from mechassay.leaderboard.recomputation import only
from mechassay.progress import SILENT
from mechassay.runs.circuits import CircuitsJob

RULES = board_rules()["circuits"]
CELL = "eap/truth-ioi/truth-ioi/cpr"


def cell_of(runs: Path, name: str = CELL) -> BoardCell:
    return Board.of(RULES, read_cells(RULES, runs)[0]).find(name)


@pytest.fixture
def copy(runs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(runs, tmp_path / "runs"))


@pytest.mark.parametrize("anew", [False, True])
def test_a_cell_is_the_same_again(runs: Path, tmp_path: Path, anew: bool) -> None:
    found = recompute(cell_of(runs), runs, tmp_path / "again", anew=anew, progress=SILENT)
    assert found.agrees and found.largest <= 1e-6 and found.n > 3
    assert found.again == pytest.approx(found.stored, abs=1e-6)
    assert found.anew is anew


def test_only_the_cell_itself_is_run(runs: Path, tmp_path: Path) -> None:
    recompute(cell_of(runs), runs, tmp_path / "again", progress=SILENT)
    records = list((tmp_path / "again" / "records").rglob("*.json"))
    assert [file.name for file in records] == ["eap.json"]


def test_scores_of_another_artefact_are_noticed(copy: Path, tmp_path: Path) -> None:
    scores = copy / "own" / "scores"
    eap, random = (next(scores.rglob(f"{name}*.safetensors")) for name in ("eap", "random"))
    shutil.copyfile(random, eap)
    found = recompute(cell_of(copy), copy, tmp_path / "again", progress=SILENT)
    assert not found.agrees and found.largest > 1e-3


def test_a_record_that_was_changed_after_the_board_is_refused(copy: Path, tmp_path: Path) -> None:
    cell = cell_of(copy)
    file = copy / cell.file
    told = json.loads(file.read_text())
    told["measures"][0]["value"] = 0.99
    file.write_text(json.dumps(told))
    with pytest.raises(BadFile, match="changed since"):
        recompute(cell, copy, tmp_path / "again", progress=SILENT)
    # A board that is made of the changed record shows its number, and this does not hold again.
    found = recompute(cell_of(copy), copy, tmp_path / "again", progress=SILENT)
    assert not found.agrees


def test_a_missing_record_and_a_reported_number_are_refused(copy: Path, tmp_path: Path) -> None:
    cell = cell_of(copy)
    (copy / cell.file).unlink()
    with pytest.raises(BadFile, match="is not there"):
        recompute(cell, copy, tmp_path / "again", progress=SILENT)
    reported = cell.model_copy(update={"origin": "as reported", "source": "a table"})
    with pytest.raises(BadUsage, match="as reported"):
        recompute(reported, copy, tmp_path / "again", progress=SILENT)


def test_a_job_is_cut_down_to_a_cell() -> None:
    job = CircuitsJob(models=("truth-ioi", "truth-induction"), methods=("eap", "random", "nap"))
    less = only(job, "truth-ioi--truth-ioi/nap")
    assert (less.models, less.methods) == (("truth-ioi",), ("nap",))
    assert {cell.name for cell in less.cells()} == {"truth-ioi--truth-ioi/nap"}
    with pytest.raises(BadUsage, match="no cell"):
        only(job, "truth-ioi--truth-ioi/acdc")


def test_a_recomputation_without_results_does_not_agree(runs: Path, tmp_path: Path) -> None:
    found = recompute(cell_of(runs), runs, tmp_path / "again", progress=SILENT)
    assert not found.model_copy(update={"n": 0, "largest": math.nan}).agrees
    assert not found.model_copy(update={"largest": math.inf}).agrees
    assert ma.leaderboard.Recomputation.model_validate_json(found.model_dump_json()) == found
