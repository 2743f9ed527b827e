"""What makes two numbers of records comparable, on runs of ground truths.

Why there is no number, or no interval.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mechassay as ma
from helpers.experiments import SMALL_EXPERIMENTS
from mechassay.leaderboard import Board, BoardCell
from mechassay.leaderboard.cells import (
    NO_VALUES,
    PrivateSets,
    cells_of,
    grid_for_bound,
    grid_for_interval,
    numbered,
    pairs_for,
    read_cells,
    why_lacking,
)
from mechassay.leaderboard.rules import board_rules
from mechassay.results.reading import read_record
from mechassay.results.records import Measure, Record, Spec, Table, provenance
from mechassay.stats.distribution import Design
from mechassay.utils.display import SILENT

RULES = board_rules()["circuits"]


LIMITS: dict[str, Any] = {"train_limit": 6, "limit": 8, "random_rankings": 5}


def run(folder: Path, name: str, **changes: Any) -> list[BoardCell]:
    given: dict[str, Any] = {"methods": ("eap",), **LIMITS, **changes}
    ma.run(ma.CircuitsExperiment(models=("truth-ioi",), **given), folder / name, progress=SILENT)
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
        {"limit": 6},
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
        experiment = ma.CircuitsExperiment((str(folder),), ("truth-ioi",), ("eap",), **LIMITS)
        ma.run(experiment, tmp_path / "runs" / name, progress=SILENT)
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
    ma.run(SMALL_EXPERIMENTS[board], tmp_path / "run", progress=SILENT)
    cells, unreadable = read_cells(board_rules()[board], tmp_path)
    assert unreadable == [] and {cell.column for cell in cells} >= columns
    assert row in {cell.row for cell in cells}
    assert all(set(cell.place) == set(board_rules()[board].place) for cell in cells)
    folder = ma.leaderboard.BoardsFolder.of(tmp_path, tmp_path / "board")
    assert board in folder.boards and folder.write().is_file()


def test_a_record_without_values_is_said_to_have_none(one: BoardCell) -> None:
    assert NO_VALUES not in one.warnings
    record = made(Measure(name="mean", value=0.5, n=4))
    bare = next(iter(cells_of(board_rules()["adversarial"], record)))
    assert bare.warnings == [NO_VALUES, *record.warnings]


@pytest.mark.slow
def test_a_private_cell_says_nothing_of_single_examples(tmp_path: Path) -> None:
    [public] = run(tmp_path, "public")
    [private] = run(tmp_path, "private", split="private", private_seed=7)
    assert public.warnings and private.private and private.warnings == []
    assert private.conditions["examples"] == "8 private examples"


@pytest.mark.slow
def test_private_examples_are_named_by_their_epoch(tmp_path: Path) -> None:
    run(tmp_path, "private", split="private", private_seed=7)
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


NAN = math.nan


def made(*measures: Measure, kind: str = "adversarial", **args: object) -> Record:
    columns = {
        "of": ["result", "control:empty", "control:empty"],
        "statistic": ["99%", "mean", "99%"],
        "value": [7.0, 5.0, 10.0],
        "bound": [NAN, NAN, 12.0],
    }
    return Record(
        kind=kind,
        specs={
            "model": Spec(name="m"),
            "task": Spec(name="t", args=args),  # pyright: ignore
            "method": Spec(name="eap@0.01"),
        },
        measures=list(measures),
        tables=[Table(name="summary", keys=("of", "statistic"), columns=columns)],
        provenance=provenance(device="", dtype="", seed=0),
    )


GRID = {"design": "grid", "n_clean": 10, "n_corrupted": 10}


@pytest.mark.parametrize(
    ("measure", "args", "wanted"),
    [
        (
            Measure(name="bound 99%", value=NAN),
            GRID,
            "a bound needs 299 × 299 prompts, here 10 × 10",
        ),
        (Measure(name="99%", value=1.0), GRID, "an interval needs 500 × 500 prompts, here 10 × 10"),
        (Measure(name="bound 99%", value=NAN), {"design": "matched"}, "a bound needs 299 pairs"),
        (Measure(name="99%", value=1.0), {"design": "matched"}, "an interval needs 368 pairs"),
        (
            Measure(name="99%", value=1.0),
            {**GRID, "population": True},
            "no interval: these are all pairs that exist",
        ),
        (
            Measure(name="bound 99%", value=NAN),
            {**GRID, "same": "place"},
            "too few pairs of one stratum for a bound",
        ),
        (Measure(name="bound 99%", value=1.0), GRID, ""),
        (Measure(name="99%", value=1.0, low=0.5, high=2.0), GRID, ""),
        (
            Measure(name="mean", value=NAN, n=40, n_undefined=3),
            GRID,
            "3 of 40 examples are undefined",
        ),
    ],
)
def test_what_is_lacking_is_said_with_what_is_needed(
    measure: Measure, args: dict[str, object], wanted: str
) -> None:
    assert why_lacking(made(measure, **args), measure) == wanted


def test_the_numbers_that_are_said_are_those_that_are_enough() -> None:
    assert 0.99**299 <= 0.05 < 0.99**298 and 0.99**368 <= 0.025 < 0.99**367
    assert grid_for_bound(0.99) == 299 and grid_for_interval(0.99) == 500
    assert grid_for_interval(0.9) == 50  # 1 - 0.9 is below 0.1 in floating point.
    rng = np.random.default_rng(0)
    for n, design, enough in (
        (298, "grid", False),
        (299, "grid", True),
        (298, "matched", False),
        (299, "matched", True),
    ):
        shape = (n, n) if design == "grid" else (n,)
        bound = Design(design, shape).upper_bound(rng.random(shape), 0.99)
        assert math.isfinite(bound.value) is enough
    for n, enough in ((367, False), (pairs_for(0.99, 0.975), True)):
        [found] = Design("matched", (n,)).intervals(rng.random(n), rng, [0.99]).percentiles
        assert math.isfinite(found.high) is enough


@pytest.mark.parametrize(("n", "enough"), [(49, False), (50, True)])
def test_an_interval_on_a_grid_needs_as_many_as_are_said(n: int, enough: bool) -> None:
    rng = np.random.default_rng(0)
    [found] = Design("grid", (n, n)).intervals(rng.random((n, n)), rng, [0.9]).percentiles
    assert math.isfinite(found.high) is enough is (n >= grid_for_interval(0.9))


def test_cells_of_the_worst_case_have_reasons_and_the_empty_circuit() -> None:
    measures = [
        Measure(name="mean", value=3.0, low=2.0, high=4.0, n=100),
        Measure(name="99%", value=7.0, n=100),
        Measure(name="bound 99%", value=NAN, n=100),
    ]
    found = {
        cell.column: cell
        for cell in cells_of(board_rules()["adversarial"], made(*measures, **GRID))
    }
    assert [cell.reason.split(" needs")[0] for cell in found.values()] == [
        "",
        "an interval",
        "a bound",
    ]
    assert found["mean"].controls == {"empty": 5.0} and found["p99"].controls == {"empty": 10.0}
    assert found["bound"].controls == {"empty": 12.0}
    assert {cell.examples for cell in found.values()} == {100}


def test_a_record_without_a_verdict_says_so_and_beats_no_random_ranking(runs: Path) -> None:
    """The run has 8 test pairs. With enough of them the same numbers may be better than chance."""
    cells = [cell for cell in read_cells(board_rules()["circuits"], runs)[0] if cell.row == "eap"]
    assert cells
    for cell in cells:
        assert cell.warnings[0].startswith("No verdict: only 8 independent test pairs")
        if cell.column in ("cma", "cmd", "cpr"):
            assert cell.beats_random == 0
