"""Results of MIB's board: read as reported, and written from a board."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mechassay.circuits.series import FRACTIONS
from mechassay.cli.leaderboard import build
from mechassay.errors import BadFile, UnknownName
from mechassay.leaderboard import Board, BoardsFolder
from mechassay.leaderboard.mib_results import read_mib_results, write_mib_results
from mechassay.leaderboard.rules import board_rules
from mechassay.results.reading import read_record


def written(folder: Path, f: Any, **changes: Any) -> Path:
    curve = {"edge_counts": [0] * len(FRACTIONS), "faithfulness": f}
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


def test_curves_for_mib_have_its_areas(runs: Path, tmp_path: Path) -> None:
    """The reader computes the areas of the written curves, and the curves are the records'."""
    board = BoardsFolder.of(runs, tmp_path).boards["circuits"]
    written = write_mib_results(board, runs, tmp_path / "mib")
    assert {path.stem for path in written} == set(board.rows())
    [file] = [path for path in written if path.name == "eap.json"]
    cells = {cell.column: cell for cell in read_mib_results(file)}
    [model] = json.loads(file.read_text())["results"]
    for name, by in (("cpr", "value"), ("cmd", "magnitude")):
        record = read_record(runs / board.find(f"eap/truth-ioi/truth-ioi/{name}").file)
        curve = record.table("curve").columns
        f = [
            value
            for value, of, ranking in zip(curve["f"], curve["of"], curve["ranking"], strict=True)
            if (of, ranking) == ("result", by)
        ]
        assert model["scores"]["truth-ioi"][name.upper()]["faithfulness"] == f
        height = np.array(f) if name == "cpr" else np.abs(1 - np.array(f))
        wanted = sum((height[1:] + height[:-1]) / 2 * np.diff(FRACTIONS))
        assert cells[name].value == pytest.approx(wanted)


def test_a_board_without_areas_of_circuits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="cpr"):
        write_mib_results(Board.of(board_rules()["gym"], []), tmp_path, tmp_path / "mib")


def test_the_command_writes_results_that_it_reads_as_reported(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "board"
    build(runs, output)
    assert "MIB" not in capsys.readouterr().out and not (output / "mib").exists()
    build(runs, output, mib_results=True)
    n = len(list((output / "mib").glob("*.json")))
    assert n and f"MIB results: {n} file" in capsys.readouterr().out
    build(runs, tmp_path / "again", reported=[output / "mib" / "eap.json"])
    assert "eap (as reported)" in (tmp_path / "again" / "circuits.html").read_text()
