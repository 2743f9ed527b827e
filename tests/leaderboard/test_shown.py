"""Cells that a board shows, beside those that their record has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mechassay.circuits.scores import SCORES_SHA256
from mechassay.errors import BadFile, BadUsage
from mechassay.leaderboard import BoardCell, board_rules, read_cells
from mechassay.leaderboard.cells import cells_of
from mechassay.leaderboard.shown import check_shown
from mechassay.records import Record, read_record

AS_SUBMITTED: dict[str, Any] = {"row": "mine", "source": "submission mine"}


@pytest.fixture
def record(runs: Path) -> Record:
    return read_record(runs / cells(runs)[0].file)


@pytest.fixture
def given(record: Record) -> Record:
    """The record as it would be had its scores been read from a file."""
    args = {**record.method.args, SCORES_SHA256: "0" * 64}
    return record.changed(method=record.method.model_copy(update={"args": args}))


def cells(runs: Path) -> list[BoardCell]:
    return read_cells(board_rules()["circuits"], runs)[0]


def test_cells_of_a_run_are_those_of_their_records(runs: Path) -> None:
    for cell in cells(runs):
        check_shown(cell, read_record(runs / cell.file))


def test_a_submission_has_its_name_and_more_warnings(given: Record) -> None:
    (cell, *_) = cells_of(board_rules()["circuits"], given)
    warned = {"warnings": [*cell.warnings, "In-sample."]}
    submitted = cell.model_copy(update={**AS_SUBMITTED, **warned})
    check_shown(submitted, given)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"row": "other"}, "row"),
        ({"row": "mine@0.1"}, "row"),
        ({"place": {"model": "other", "task": "truth-ioi"}}, "place"),
        ({"n": 1000}, "n"),
        ({"warnings": ["In-sample."] if cell.warnings else None}, "warnings"),
        ({"column": "cmd"}, "version|value"),
    ]
    for change, field in wrong:
        if change.get("warnings", ()) is None:
            continue
        with pytest.raises(BadFile, match=rf"\(.*({field})"):
            check_shown(submitted.model_copy(update=change), given)


def test_a_record_of_no_files_is_nobodys_submission(runs: Path, record: Record) -> None:
    with pytest.raises(BadFile, match=r"\(row\)"):
        check_shown(cells(runs)[0].model_copy(update=AS_SUBMITTED), record)


def test_records_of_private_examples_are_refused(runs: Path, record: Record) -> None:
    data = {role: of.model_copy(update={"split": "private"}) for role, of in record.data.items()}
    with pytest.raises(BadUsage, match="private examples"):
        check_shown(cells(runs)[0], record.changed(data=data))
