"""Cells recomputed from the folder of a run.

What a plan of others may name.

Cells that a board shows, beside those that their record has.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mechassay as ma
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.scores import SCORES_SHA256
from mechassay.errors import BadFile, BadUsage
from mechassay.leaderboard import Board, BoardCell, recompute
from mechassay.leaderboard.cells import cells_of, read_cells
from mechassay.leaderboard.recomputation import (
    check_plan,
    check_shown,
    compare_records,
    is_local,
    is_path,
)
from mechassay.leaderboard.rules import board_rules
from mechassay.results.reading import read_record, recomputed
from mechassay.results.records import Measure, Record, Table, Values, content_hash
from mechassay.utils.display import SILENT

pytestmark = pytest.mark.guard

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
    assert found.agrees and found.largest <= 1e-6 and found.n > 100
    assert found.again == pytest.approx(found.stored, abs=1e-6)
    assert found.anew is anew


def test_a_cell_is_computed_with_as_many_threads_as_before(runs: Path, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    stored = read_record(runs / cell_of(runs).file).provenance.threads
    torch.set_num_threads(3 - min(stored, 2))
    try:
        found = recompute(cell_of(runs), runs, tmp_path / "again", progress=SILENT)
        assert torch.get_num_threads() == 3 - min(stored, 2)
    finally:
        torch.set_num_threads(threads)
    assert found.provenance.threads == min(stored, os.cpu_count() or 1)


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


def edited(file: Path, change: Callable[[Any], None], sealed: bool) -> None:
    told = json.loads(file.read_text())
    change(told)
    if sealed:
        told["sha256"] = content_hash(told)
    file.write_text(json.dumps(told))


def test_a_record_that_was_changed_after_the_board_is_refused(copy: Path, tmp_path: Path) -> None:
    cell = cell_of(copy)
    edited(copy / cell.file, lambda told: told["measures"][0].update(value=0.99), sealed=False)
    with pytest.raises(BadFile, match="changed since"):
        recompute(cell, copy, tmp_path / "again", progress=SILENT)
    # A board that is made anew does not take it either.
    cells, unreadable = read_cells(RULES, copy)
    assert {each.row for each in cells} == {"random"}
    assert len(unreadable) == 1 and "was edited" in unreadable[0]


def forged(told: Any) -> None:
    """Every circuit gets the values of the full one, and all numbers follow from them."""
    columns = told["values"]["columns"]
    columns |= {name: columns["clean"] for name in columns if "@" in name}
    again = recomputed(Record.model_validate(told))
    measures = {(each.name, each.of): each for each in again if isinstance(each, Measure)}
    told["measures"] = [
        json.loads(measures[key].model_dump_json()) if key in measures else each
        for each in told["measures"]
        for key in [(each["name"], each["of"])]
    ]
    rows = iter(row for each in again if isinstance(each, Table) for row in each.rows())
    curve = told["tables"][0]["columns"]
    for place, of in enumerate(curve["of"]):
        if of == "result":
            for name, value in next(rows).items():
                curve[name][place] = value


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("change", "where"),
    [
        (forged, "measures[0].value"),
        (lambda told: told["specs"]["method"].update(name="best"), "specs.method.name"),
    ],
)
def test_whoever_makes_values_and_the_hash_anew_is_found_by_recomputing(
    copy: Path, tmp_path: Path, change: Callable[[Any], None], where: str
) -> None:
    edited(copy / cell_of(copy).file, change, sealed=True)
    found = recompute(cell_of(copy), copy, tmp_path / "again", progress=SILENT)
    assert not found.agrees and where in found.differs


@pytest.mark.parametrize(
    "change",
    [
        lambda told: told["measures"][0].update(value=0.99),
        lambda told: told["measures"][0].update(low=0.5),
        lambda told: told["tables"].clear(),
        lambda told: told["values"]["columns"]["clean"].__setitem__(0, 9.0),
    ],
)
def test_whoever_makes_the_hash_alone_anew_is_not_on_a_board(
    copy: Path, change: Callable[[Any], None]
) -> None:
    file = copy / cell_of(copy).file
    edited(file, change, sealed=True)
    cells, unreadable = read_cells(RULES, copy)
    assert {each.row for each in cells} == {"random"}
    [line] = unreadable
    assert line.startswith(f"{file}: ") and "value" in line and "\n" not in line


def test_a_missing_record_and_a_reported_number_are_refused(copy: Path, tmp_path: Path) -> None:
    cell = cell_of(copy)
    (copy / cell.file).unlink()
    with pytest.raises(BadFile, match="is not there"):
        recompute(cell, copy, tmp_path / "again", progress=SILENT)
    private = cell.model_copy(update={"private": True})
    with pytest.raises(BadUsage, match="private examples"):
        recompute(private, copy, tmp_path / "again", progress=SILENT)
    reported = cell.model_copy(update={"origin": "as reported", "source": "a table"})
    with pytest.raises(BadUsage, match="as reported"):
        recompute(reported, copy, tmp_path / "again", progress=SILENT)


def test_records_are_compared_number_by_number(runs: Path) -> None:
    record = read_record(runs / cell_of(runs).file)
    same = compare_records(record, record)
    assert same.n > 100 and same.largest == 0 and same.differs == ""
    near = record.measures[0].model_copy(update={"value": record.measures[0].value + 5e-7})
    found = compare_records(record, record.changed(measures=[near, *record.measures[1:]]))
    assert found.differs == "" and 0 < found.largest < 1e-6
    lost = compare_records(record, record.changed(tables=[]))
    assert lost.differs == "record.tables" and math.isinf(lost.largest)


def test_how_circuits_vary_is_not_asked_of_a_copied_ranking(runs: Path) -> None:
    record = read_record(runs / cell_of(runs).file)
    stability = Table(name="stability", keys=("size",), columns={"size": [1.0]})
    stored = record.changed(tables=[*record.tables, stability])
    assert "train" in record.data
    copied = record.changed(data={k: v for k, v in record.data.items() if k != "train"})
    assert compare_records(stored, copied).differs == ""
    # A method that was run again says it.
    assert compare_records(stored, record).differs == "record.tables"


@pytest.mark.parametrize("key", ["identity", "weights"])
def test_weights_are_compared_where_both_records_have_their_digest(key: str, runs: Path) -> None:
    record = read_record(runs / cell_of(runs).file)
    model = record.specs["model"]

    def with_weights(weights: str) -> Record:
        spec = model.model_copy(update={"args": {**model.args, key: weights}})
        return record.changed(model=spec)

    assert compare_records(record, with_weights("a")).differs == ""
    assert compare_records(with_weights("a"), record).differs == ""
    assert compare_records(with_weights("a"), with_weights("a")).differs == ""
    assert key in compare_records(with_weights("a"), with_weights("b")).differs


def test_the_bytes_of_a_file_of_values_are_not_compared_but_that_there_is_one(runs: Path) -> None:
    record = read_record(runs / cell_of(runs).file)
    one, other, elsewhere = (
        record.changed(values=Values(unit="pair", file=file, sha256=digest))
        for file, digest in (("v.parquet", "0" * 64), ("v.parquet", "1" * 64), ("w", "0" * 64))
    )
    assert compare_records(one, other).differs == ""
    assert compare_records(one, elsewhere).differs == "record.values.file"


def test_a_recomputation_without_results_does_not_agree(runs: Path, tmp_path: Path) -> None:
    found = recompute(cell_of(runs), runs, tmp_path / "again", progress=SILENT)
    assert not found.model_copy(update={"n": 0, "largest": math.nan}).agrees
    assert not found.model_copy(update={"largest": math.inf}).agrees
    assert ma.leaderboard.Recomputation.model_validate_json(found.model_dump_json()) == found


def test_two_records_have_the_same_columns_and_names(runs: Path) -> None:
    record = read_record(runs / cell_of(runs).file)
    table, *others = record.tables

    def with_columns(**more: list[Any]) -> Record:
        columns = {**table.columns, **more}
        return record.changed(tables=[table.model_copy(update={"columns": columns}), *others])

    added = with_columns(score_low=[1.0] * len(table))
    assert compare_records(record, added).differs == "record.tables[0].columns.score_low"
    assert compare_records(added, record).differs == "record.tables[0].columns.score_low"
    name = next(x for x, column in table.columns.items() if isinstance(column[-1], float))
    wrong = [*table.columns[name][:-1], 99.0]
    assert name in compare_records(record, with_columns(**{name: wrong})).differs
    assert compare_records(record.changed(tables=[]), record).differs == "record.tables"
    named = record.changed(cell={**record.cell, "circuit": "eap@0.01"})
    assert compare_records(record, named).differs == "record.cell.circuit"
    other = record.changed(cell={**record.cell, "task": "ioi"})
    assert compare_records(record, other).differs == "record.cell.task"


def test_how_long_a_method_took_is_not_compared(runs: Path) -> None:
    record = read_record(runs / cell_of(runs).file)
    spec = record.specs["method"]
    timed, other = (
        record.changed(method=spec.model_copy(update={"args": spec.args | more}))
        for more in ({"seconds": 64.1}, {"of another": 1})
    )
    assert compare_records(timed, record).differs == compare_records(record, timed).differs == ""
    assert compare_records(record, other).differs == "record.specs.method.args.of another"


def test_names_of_models_that_are_paths() -> None:
    assert not is_path("owner/other") and is_path("owner/..") and is_path("a\\b")
    assert not is_local("truth-ioi") and not is_local("nobody-knows-it")


def test_circuits_of_files_that_do_not_come_along_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = ma.load_model("truth-ioi").graph
    (tmp_path / "circ").mkdir()
    Circuit.full(graph).save(tmp_path / "circ" / "a.safetensors")
    monkeypatch.chdir(tmp_path)
    plan = {"kind": "adversarial", "model": "truth-ioi", "task": "truth-ioi"}
    for text in ("circ@0.5", "circ/a.safetensors", "a.json@5", "eap:x.pt@5", "a.pt"):
        with pytest.raises(BadFile, match="none of its files"):
            check_plan({**plan, "circuits": [text]}, (), "The plan")
    kept = ["truth", "canonical:ioi", "random@5", "eap@0.5:greedy", "eap-ig-inputs:steps=10@500"]
    assert check_plan({**plan, "circuits": kept}, (), "The plan")["circuits"] == kept


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
