"""Records: what is written is what is read, NaN is null, nothing unknown slips in,
and the published schema is current.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from mechassay.records import FORMAT, Failure, Measure, Provenance, Record, Spec, provenance

SCHEMA = Path(__file__).parents[1] / "docs" / "record.schema.json"
NAN = float("nan")


def record(**changes: Any) -> Record:
    fields: dict[str, Any] = {
        "kind": "faithfulness",
        "model": Spec(name="tiny", args={"family": "llama"}),
        "task": Spec(name="ioi", args={"split": "test"}),
        "method": Spec(name="eap", version=2),
        "metric": Spec(name="logit_diff"),
        "measures": [
            Measure(name="cpr", value=0.8, low=0.7, high=0.9, n=3),
            Measure(name="cmd", value=NAN, n=3, n_undefined=10),
        ],
        "per_example": {"clean": [1.0, NAN, 3.5]},
        "example_ids": ["a", "b", "c"],
        "groups": ["a", "b", "b"],
        "curves": {"value": {"kept": [0, 5]}},
        "controls": {"random": {"cpr": 0.1}},
        "realised": {"seconds": 1.5},
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
    assert (after.format, after.method.version, after.groups) == (FORMAT, 2, ["a", "b", "b"])


def test_nan_is_null_in_the_file_and_nan_again_when_read() -> None:
    written = json.loads(record().model_dump_json(), parse_constant=pytest.fail)
    assert written["measures"][1]["value"] is None
    assert written["measures"][1]["low"] is None
    assert written["per_example"]["clean"] == [1.0, None, 3.5]
    after = Record.model_validate(written)
    assert math.isnan(after.measures[1].value)
    assert math.isnan(after.per_example["clean"][1])
    assert after.measures[1].n_undefined == 10


@pytest.mark.parametrize("where", [(), ("model",), ("measures", 0), ("provenance",)])
def test_an_unknown_field_is_refused(where: tuple[str | int, ...]) -> None:
    written = json.loads(record().model_dump_json())
    place: Any = written
    for step in where:
        place = place[step]
    place["surprise"] = 1
    with pytest.raises(ValidationError, match="surprise"):
        Record.model_validate(written)


@pytest.mark.parametrize("field", ["kind", "per_example", "provenance"])
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
    from mechassay import records

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
    """To renew it: python docs/schema.py."""
    # Defaults that are undefined numbers are null in the file, as in records.
    now = json.loads(json.dumps(Record.model_json_schema()), parse_constant=lambda _: None)
    assert json.loads(SCHEMA.read_text("utf-8"), parse_constant=pytest.fail) == now


def test_the_schema_lets_undefined_numbers_be_null() -> None:
    parts = json.loads(SCHEMA.read_text("utf-8"))
    low = parts["$defs"]["Measure"]["properties"]["low"]
    assert low["type"] == ["number", "null"]
    assert low["default"] is None
    assert parts["properties"]["per_example"]["additionalProperties"]["items"]["type"] == [
        "number",
        "null",
    ]
