"""Results of MIB's board, read as reported."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from mechassay.errors import BadFile
from mechassay.leaderboard import Board, board_rules, read_mib_results
from mechassay.leaderboard.exchange import SIZES


def written(folder: Path, f: Any, **changes: Any) -> Path:
    curve = {"edge_counts": [0] * len(SIZES), "faithfulness": f}
    told = {
        "method_name": "method",
        "results": [{"model_id": "openai/gpt2", "scores": {"ioi": {"CPR": curve, "CMD": curve}}}],
        **changes,
    }
    path = folder / "results.json"
    path.write_text(json.dumps(told))
    return path


def values(path: Path) -> dict[str, float]:
    return {cell.column: cell.value for cell in read_mib_results(path)}


def test_a_perfect_curve(tmp_path: Path) -> None:
    found = values(written(tmp_path, [1.0] * 10))
    assert found["cpr"] == pytest.approx(0.999) and found["cmd"] == 0


def test_a_ranking_that_is_worth_nothing_has_the_area_of_the_last_step(tmp_path: Path) -> None:
    found = values(written(tmp_path, [0.0] * 9 + [1.0]))
    assert found["cpr"] == pytest.approx(0.25) and found["cmd"] == pytest.approx(0.749)


def test_reported_numbers_stand_in_a_place_of_their_own(tmp_path: Path) -> None:
    cells = read_mib_results(written(tmp_path, [1.0] * 10))
    own = cells[0].model_copy(
        update={"row": "ours", "origin": "recomputed", "conditions": {"examples": "x"}}
    )
    board = Board.of(board_rules()["circuits"], [*cells, own])
    assert len(board.places("cpr")) == 2
    assert {cell.origin for cell in cells} == {"as reported"}
    assert all("results.json, sha256" in cell.source for cell in cells)


def test_an_undefined_point_makes_the_area_undefined(tmp_path: Path) -> None:
    path = written(tmp_path, [1.0] * 10)
    path.write_text(path.read_text().replace("1.0", "NaN", 1))
    assert math.isnan(values(path)["cpr"])


@pytest.mark.parametrize(
    ("f", "changes", "says"),
    [
        ([1.0] * 9, {}, "needs 10 values"),
        ("1", {}, "needs 10 values"),
        ([True] * 10, {}, "needs 10 values"),
        ([1.0] * 10, {"results": 3}, "method_name and results"),
        ([1.0] * 10, {"results": [3]}, "model_id and scores"),
        ([1.0] * 10, {"results": []}, "no score"),
    ],
)
def test_files_that_are_refused(tmp_path: Path, f: Any, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadFile, match=says):
        read_mib_results(written(tmp_path, f, **changes))
