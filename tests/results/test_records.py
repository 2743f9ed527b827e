"""Records: what is written is what is read, NaN is null, nothing unknown slips in,
and the published schema is current.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from mechassay.errors import MissingExtra, UnknownName
from mechassay.results.records import (
    FORMAT,
    Check,
    Failure,
    Measure,
    Provenance,
    Record,
    Selection,
    Spec,
    Table,
    Values,
    provenance,
)

SCHEMA = Path(__file__).parents[2] / "docs" / "record.schema.json"
NAN = float("nan")


CURVE = Table.of(
    "curve",
    ("of", "fraction"),
    [
        {"of": of, "fraction": p, "f": NAN if p == 1 else p}
        for of in ("result", "control:random")
        for p in (0.1, 1)
    ],
)


def record(**changes: Any) -> Record:
    fields: dict[str, Any] = {
        "kind": "circuits",
        "cell": {"model": "tiny", "task": "ioi", "method": "eap"},
        "specs": {
            "model": Spec(name="tiny", args={"family": "llama"}),
            "task": Spec(name="ioi", args={"split": "test"}),
            "method": Spec(name="eap", version=2),
            "metric": Spec(name="logit_diff"),
        },
        "measures": [
            Measure(name="cpr", value=0.8, low=0.7, high=0.9, n=3),
            Measure(name="cmd", value=NAN, n=3, n_undefined=10),
        ],
        "tables": [CURVE],
        "checks": [Check(name="full", must_be="0", largest=1e-7, n=3, n_wrong=0)],
        "values": Values(
            unit="pair",
            ids=["a", "b", "c"],
            groups=["a", "b", "b"],
            columns={"clean": [1, NAN, 3.5]},
        ),
        "data": {"test": Selection(hash="abc", kept=3, dropped={"too long": 2})},
        "spent": {"seconds": 1.5},
        "warnings": ["Only 3 examples: intervals are rough."],
        "provenance": provenance(device="cpu", dtype="float32", seed=7, data_hash="abc"),
    }
    return Record(**{**fields, **changes})


def test_a_record_comes_back_as_it_was_written() -> None:
    before = record()
    after = Record.model_validate_json(before.model_dump_json())
    assert after.model_dump_json() == before.model_dump_json()
    assert after.measures[0] == before.measures[0]
    assert after.provenance == before.provenance
    assert (after.format, after.method.version, after.task.name) == (FORMAT, 2, "ioi")
    assert after.values is not None and after.values.groups == ["a", "b", "b"]
    assert after.table("curve") == CURVE and after.n == 3 and after.n_groups == 2


def test_nan_is_null_in_the_file_and_nan_again_when_read() -> None:
    written = json.loads(record().model_dump_json(), parse_constant=pytest.fail)
    assert written["measures"][1]["value"] is None
    assert written["measures"][1]["low"] is None
    assert written["values"]["columns"]["clean"] == [1.0, None, 3.5]
    assert written["tables"][0]["columns"]["f"] == [0.1, None] * 2
    after = Record.model_validate(written)
    assert math.isnan(after.measures[1].value)
    assert after.values is not None and math.isnan(after.values.columns["clean"][1])
    assert math.isnan(after.table("curve").numbers("f")[1])
    assert after.measures[1].n_undefined == 10


@pytest.mark.parametrize(
    "where",
    [(), ("specs", "model"), ("measures", 0), ("tables", 0), ("data", "test"), ("provenance",)],
)
def test_an_unknown_field_is_refused(where: tuple[str | int, ...]) -> None:
    written = json.loads(record().model_dump_json())
    place: Any = written
    for step in where:
        place = place[step]
    place["surprise"] = 1
    with pytest.raises(ValidationError, match="surprise"):
        Record.model_validate(written)


@pytest.mark.parametrize("field", ["kind", "specs", "provenance"])
def test_a_missing_field_is_refused(field: str) -> None:
    written = json.loads(record().model_dump_json())
    del written[field]
    with pytest.raises(ValidationError, match=field):
        Record.model_validate(written)


def test_records_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        record().kind = "other"


def test_a_failure_is_a_row() -> None:
    row = Failure(
        cell={"method": "eap", "model": "tiny"},
        error="OutOfMemory",
        message="One example needs 9 GB.",
    )
    assert Failure.model_validate_json(row.model_dump_json()) == row


def test_provenance_says_what_ran() -> None:
    found = provenance(device="cpu", dtype="float32", seed=7)
    assert found.seed == 7
    assert found.packages["torch"].startswith("2")
    assert {"mechassay", "transformers", "numpy"} <= set(found.packages)
    assert found.threads >= 1
    assert found.commit is None or len(found.commit) == 40


def test_provenance_where_the_package_is_not_a_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from mechassay.results import records

    inside = tmp_path / "lib" / "mechassay" / "records.py"
    monkeypatch.setattr(records, "__file__", str(inside))
    records._commit.cache_clear()
    try:
        found = provenance(device="cpu", dtype="float32", seed=0)
    finally:
        records._commit.cache_clear()
    assert isinstance(found, Provenance)
    assert found.commit is None
    assert found.dirty is None


def test_the_published_schema_is_current() -> None:
    """To renew it: python tools/schema.py."""
    # Defaults that are undefined numbers are null in the file, as in records.
    now = json.loads(json.dumps(Record.model_json_schema()), parse_constant=lambda _: None)
    assert json.loads(SCHEMA.read_text("utf-8"), parse_constant=pytest.fail) == now


def test_the_schema_lets_undefined_numbers_be_null() -> None:
    parts = json.loads(SCHEMA.read_text("utf-8"))
    low = parts["$defs"]["Measure"]["properties"]["low"]
    assert low["type"] == ["number", "null"]
    assert low["default"] is None
    column = parts["$defs"]["Values"]["properties"]["columns"]["additionalProperties"]
    assert column["items"]["type"] == ["number", "null"]


def test_the_schema_has_no_open_object() -> None:
    """Every object says what it holds: its fields, or what all of its values are."""
    waiting: list[Any] = [json.loads(SCHEMA.read_text("utf-8"))]
    n_objects = 0
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        if not isinstance(part, dict):
            continue
        waiting += part.values()
        if part.get("type") == "object":
            n_objects += 1
            others = part.get("additionalProperties")
            assert others is False if "properties" in part else isinstance(others, dict) and others
        assert part.get("items", True) != {}
    assert n_objects > 10


# Tables and values


def test_rows_are_chosen_by_their_keys() -> None:
    rows = CURVE.where(of="result")
    assert len(CURVE) == 4 and len(rows) == 2
    assert rows.rows()[0] == {"of": "result", "fraction": 0.1, "f": 0.1}
    assert rows.rows()[1]["f"] is None and CURVE.where(of="nothing").rows() == []


def test_a_table_is_a_rectangle() -> None:
    with pytest.raises(ValidationError, match="different lengths"):
        Table(name="t", keys=(), columns={"a": [1], "b": [1, 2]})
    with pytest.raises(ValidationError, match="no columns"):
        Table(name="t", keys=("c",), columns={"a": [1]})
    with pytest.raises(ValidationError, match="for 1 ids"):
        Values(unit="pair", ids=["a"], groups=["a"], columns={"clean": [1.0, 2.0]})
    with pytest.raises(UnknownName, match="curve"):
        record().table("curv")


def test_a_table_as_a_data_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match="pandas"):
        CURVE.to_pandas()

    def frame(columns: dict[str, Any]) -> dict[str, Any]:
        return columns

    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=frame))
    assert list(CURVE.to_pandas()) == ["of", "fraction", "f"]


def test_arguments_are_plain() -> None:
    """What methods and tasks are set to: lists for tuples, JSON text for what is deeper."""
    spec = Spec(name="m", args={"a": (1, 2.5, None), "b": {"x": 1}, "c": True, "d": "t"})
    assert spec.args == {"a": [1, 2.5, None], "b": '{"x": 1}', "c": True, "d": "t"}
    assert Spec.model_validate_json(spec.model_dump_json()).args == spec.args
