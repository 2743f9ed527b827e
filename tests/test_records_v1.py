"""Records that the version before wrote are read, shown, and keep their numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mechassay.circuits.differences import differences_of
from mechassay.errors import BadFile
from mechassay.records import Record, Selection, read_record
from mechassay.report.heat_maps import heat_maps_of
from mechassay.report.kinds.circuits import results_table
from mechassay.report.reports import kind_of, write_page
from mechassay.report.sections import broken

STORED = Path(__file__).parent / "data" / "format1"
FILES = sorted(STORED.rglob("records/*.json"))


def named(file: Path) -> str:
    return f"{file.relative_to(STORED).parts[0]}/{file.stem}"


def old_and_new(kind: str, name: str) -> tuple[dict[str, Any], Record]:
    file = STORED / kind / "records" / f"{name}.json"
    return json.loads(file.read_text()), read_record(file)


@pytest.mark.parametrize("file", FILES, ids=named)
def test_every_number_is_what_it_was(file: Path) -> None:
    old, new = json.loads(file.read_text()), read_record(file)
    assert old["format"] == 1 and new.format == 2 and new.kind == old["kind"]
    for before in old["measures"]:
        after = next(m for m in new.measures if m.name == before["name"])
        kept = json.loads(after.model_dump_json())
        assert {key: kept[key] for key in before} == before
    for role in ("model", "task", "method", "metric"):
        args = old[role]["args"]
        kept = {key: x for key, x in new.specs[role].args.items() if key != "templates"}
        assert kept.items() <= args.items()
        assert args.keys() - new.specs[role].args.keys() <= {"cell", "cell_task"}
    assert new.warnings == old["warnings"] and new.realised == old["realised"]
    assert new.provenance.model_dump() == old["provenance"]
    assert {role: chosen.hash for role, chosen in new.data.items()}.items() <= {
        role: chosen["hash"] for role, chosen in old["data"].items()
    }.items()
    written = new.model_dump_json()
    assert Record.model_validate_json(written).model_dump_json() == written


def test_values_and_curves_of_circuits() -> None:
    old, new = old_and_new("faithfulness", "eap")
    assert new.values is not None
    assert (new.values.ids, new.values.groups) == (old["example_ids"], old["groups"])
    assert new.values.columns == old["per_example"]
    curve, seed = new.table("curve"), old["controls"]["random-paths"]["seeds"]["1"]
    for by in ("value", "magnitude"):
        line, stored = curve.where(of="result", ranking=by), old["curves"][by]
        assert line.columns["fraction"] == old["curves"]["fractions"]
        assert line.columns["f"] == stored["faithfulness"]
        assert line.columns["kept"] == stored["kept"] and line.columns["low"] == stored["low"]
    assert curve.where(of="control:random-paths", seed=1).columns["high"] == seed["high"]
    control = old["controls"]["random"]
    found = new.measure("cmd", "control:random")
    assert found and [found.value, found.low, found.high] == [
        control["cmd"],
        *control["cmd_interval"],
    ]
    less = new.measure("cpr", "difference:random")
    assert less and [less.value, less.low, less.high] == control["cpr_difference"]
    chance = new.measure("auroc", "control:random")
    assert chance and [chance.value, chance.low] == [0.5, control["auroc"]["low"]]
    assert new.data["train"] == Selection.of(old["data"]["train"])


def test_circuits_are_compared_and_shown(tmp_path: Path) -> None:
    records = [read_record(file) for file in FILES if named(file).startswith("faithfulness")]
    cmd = [record.value("cmd") for record in records]
    found = differences_of(records, "cmd").values
    np.testing.assert_allclose(found[0, 1], cmd[0] - cmd[1])
    table = results_table(records)
    assert "0.82 [0.76, 0.89]" in table.texts[0] and "AUROC" in table.headings
    assert [row.cells[0] for row in table.rows][2:] == ["random edges", "random paths"]
    page = write_page(tmp_path / "report.html", records).read_text()
    assert "0.77 <span class" in page and page.count("<svg") == 2


def test_a_suite_is_shown(tmp_path: Path) -> None:
    records = [read_record(file) for file in FILES if named(file).startswith("suite")]
    tables = {table.title: table for table in kind_of(records).tables(records)}
    assert tables["CPR (higher is better), ground truths"].texts[0] == (
        "eap",
        "0.80 [0.72, 0.88]",
        "0.965 [0.965, 0.965]",
    )
    assert write_page(tmp_path / "report.html", records).stat().st_size > 10_000


def test_accuracy_is_shown(tmp_path: Path) -> None:
    old, new = old_and_new("accuracy", "tinyword--ioi")
    written = json.loads(new.model_dump_json())
    assert written["values"]["columns"] == old["per_example"]
    page = write_page(tmp_path / "report.html", [new]).read_text()
    assert "s1 io flip" in page and "0.33" in page


def test_divergences_are_what_they_were(tmp_path: Path) -> None:
    old, new = old_and_new("adversarial", "random@0.3")
    curves, controls = old["curves"], old["controls"]
    for of, rows in (
        ("result", curves["summary"]),
        ("control:empty", controls["corrupted"]["summary"]),
        ("control:random-paths", controls["random_paths"]["summary"]),
    ):
        table = new.table("summary").where(of=of)
        for key in ("value", "z", "low", "high", "bound"):
            assert table.columns[key] == [row[key] for row in rows]
    bins = new.table("histogram").where(range="all")
    assert bins.columns["empty"] == curves["histogram_all"]["corrupted"]
    worst = new.table("worst pairs").where(list="distinct")
    assert worst.columns["again"] == [case["again"] for case in curves["worst_distinct"]]
    for group in curves["groups"]:
        labels = new.table("labels").where(field=group["name"])
        for key in ("inputs", "tested", "mean_low", "p", "worse", "99.9%"):
            assert labels.columns[key] == group[key]
    for before, after in zip(curves["heat_maps"], heat_maps_of(new), strict=True):
        assert (list(after.fields), list(after.labels)) == (before["fields"], before["labels"])
        np.testing.assert_array_equal(after.cells["max"], np.array(before["max"], dtype=float))
        assert after.empty == before["empty"]
    assert all(check.passed for check in new.checks) and len(new.checks) == 5
    assert new.values is not None and new.values.sha256 == old["data"]["values"]["hash"]
    failed = {**old, "controls": {**controls, "failures": ["The full circuit does not give KL."]}}
    failed["controls"]["checks"] = [{**controls["checks"][0], "n_wrong": 3}]
    assert broken(read_record(json.dumps(failed))) == ["The full circuit does not give KL."]
    page = write_page(tmp_path / "report.html", [new]).read_text()
    assert "8.20 nats from the model on average" in page and "<mark title=" in page


def test_a_record_that_lacks_something_is_refused() -> None:
    old, _ = old_and_new("faithfulness", "eap")
    for field in ("provenance", "curves", "measures", "model"):
        with pytest.raises(BadFile, match="not a record"):
            read_record(json.dumps({key: value for key, value in old.items() if key != field}))
