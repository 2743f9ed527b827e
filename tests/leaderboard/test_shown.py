"""Cells that a board shows, beside those that their record has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mechassay.errors import BadFile, BadUsage
from mechassay.leaderboard import BoardCell, board_rules, read_cells
from mechassay.leaderboard.shown import LATER, CalledOtherwise, check_shown
from mechassay.records import Record, read_record

SUBMISSION = CalledOtherwise({"truth-ioi": "public"}, " (submission abcd)")
AS_SERVED: dict[str, Any] = {
    "row": "mine (submission abcd)",
    "place": {"model": "public", "task": "truth-ioi"},
    "source": "submission abcd",
    "warnings": ["In-sample."],
}


@pytest.fixture
def record(runs: Path) -> Record:
    return read_record(runs / cells(runs)[0].file)


def cells(runs: Path) -> list[BoardCell]:
    return read_cells(board_rules()["circuits"], runs)[0]


def test_cells_of_a_run_are_those_of_their_records(runs: Path) -> None:
    for cell in cells(runs):
        check_shown(cell, read_record(runs / cell.file), CalledOtherwise())


def test_a_submission_has_its_row_its_model_and_more_warnings(runs: Path, record: Record) -> None:
    cell = cells(runs)[0]
    about = {**AS_SERVED, "warnings": [*cell.warnings, "In-sample."]}
    served = cell.model_copy(update=about)
    check_shown(served, record, SUBMISSION)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"row": "mine (submission efgh)"}, "row"),
        ({"place": {"model": "other", "task": "truth-ioi"}}, "place"),
        ({"place": {"model": "public", "task": "ioi"}}, "place"),
        ({"n": 1000}, "n"),
        ({"column": "cmd"}, "version|value"),
    ]
    for change, said in wrong:
        with pytest.raises(BadFile, match=rf"\(.*({said})"):
            check_shown(served.model_copy(update=change), record, SUBMISSION)
    with pytest.raises(BadFile, match="row, place"):
        check_shown(served, record, CalledOtherwise())


def test_records_of_private_examples_are_refused(runs: Path, record: Record) -> None:
    data = {role: of.model_copy(update={"split": "private"}) for role, of in record.data.items()}
    with pytest.raises(BadUsage, match="private examples"):
        check_shown(cells(runs)[0], record.changed(data=data), CalledOtherwise())


def test_cells_of_earlier_boards_do_not_have_later_fields(runs: Path, record: Record) -> None:
    cell = cells(runs)[0]
    assert cell.examples == 8
    plain = cell.model_dump()
    earlier = BoardCell.model_validate({k: x for k, x in plain.items() if k not in LATER})
    check_shown(earlier, record, CalledOtherwise())
    for change in ({"examples": 9}, {"reason": "no idea"}):
        with pytest.raises(BadFile, match="shows something else"):
            check_shown(BoardCell.model_validate({**plain, **change}), record, CalledOtherwise())
