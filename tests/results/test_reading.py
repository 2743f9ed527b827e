"""Records that were edited are refused where they are read: by their hash, by their values."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.edits import sealed, unnoticed
from mechassay.circuits.evaluation.curve import Controls, FaithfulnessCurve
from mechassay.errors import BadFile
from mechassay.results.reading import means, read_record, recomputed
from mechassay.results.records import Measure, Record, Spec, Values, provenance


def record(kind: str = "other", **changes: Any) -> Record:
    """A record of two measures and their values."""
    names = ["a", "b", "c", "d"]
    fields: dict[str, Any] = {
        "kind": kind,
        "specs": {name: Spec(name="x") for name in ("model", "task", "method", "metric")},
        "measures": [
            Measure(name="iia", value=0.75, n=4),
            Measure(name="iia", of="control:random", value=0.25, n=4),
            Measure(name="iia", of="difference:random", value=0.5, n=4),
            Measure(name="iia", of="control:untrained model", value=0.1, n=4),
            Measure(name="gain", value=0.6, n=4),
        ],
        "values": Values(
            unit="pair",
            ids=names,
            groups=names,
            columns={"features": [1, 1, 1, 0], "random": [1, 0, 0, 0]},
        ),
        "provenance": provenance(device="cpu", dtype="float32", seed=0),
    }
    return Record(**(fields | changes))


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", "no json", '{"format": 3, "kind": "x"}'])
def test_what_is_no_record_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text(text)
    with pytest.raises(BadFile, match=r"record\.json: not a record"):
        read_record(file)


def test_a_record_is_read_from_its_file_and_its_text(tmp_path: Path) -> None:
    own = record()
    file, text = own.save(tmp_path / "record.json"), own.model_dump_json()
    assert read_record(file).model_dump_json() == read_record(text).model_dump_json() == text
    assert read_record(str(file)).sha256 == read_record(file.read_bytes()).sha256 == ""
    with pytest.raises(BadFile, match="none.json: cannot be read"):
        read_record(tmp_path / "none.json")


def test_a_stored_record_knows_that_it_was_edited(tmp_path: Path) -> None:
    file = record().save(tmp_path / "record.json")
    assert read_record(file).sha256 == "" and read_record(file).save(file) == file
    plain = json.loads(file.read_text("utf-8"))
    # Its order and spaces are no content.
    file.write_text(json.dumps(dict(reversed(plain.items()))))
    read_record(file)
    for changed, message in (
        ({"kind": "another"}, "was edited after it was written"),
        ({"measures": []}, "was edited after it was written"),
        ({"sha256": "0" * 64}, "was edited after it was written"),
        ({"sha256": ""}, "has no hash of its content"),
    ):
        file.write_text(json.dumps({**plain, **changed}))
        with pytest.raises(BadFile, match=message) as refused:
            read_record(file)
        assert str(file) in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(BadFile, match="text: was edited"):
        read_record(json.dumps({**plain, "kind": "another"}))
    file.write_text(json.dumps(plain)[:300])
    with pytest.raises(BadFile, match="not a record"):
        read_record(file)


# Numbers that follow from values


def test_means_follow_from_columns(tmp_path: Path) -> None:
    """The accuracy, a control's, and the difference; not what has no column, nor a share."""
    own = record("variables")
    read_record(own.save(tmp_path / "own.json"))
    assert unnoticed(own, tmp_path) == {("iia", "control:untrained model"), ("gain", "result")}
    # The page of a kind that no page knows says nothing.
    assert len(unnoticed(record(), tmp_path)) == len(own.measures)
    none = own.changed(values=None)
    assert not recomputed(none) and len(unnoticed(none, tmp_path)) == len(own.measures)


def test_means_of_undefined_values_are_not_taken() -> None:
    """Infinite values are undefined in a file: their mean is not that of the others."""
    values = record().values
    assert values is not None
    columns = {"features": [1.0, math.nan, 1.0, 0.0], "random": [1.0, 0.0, 0.0, 0.0]}
    part = record(values=values.model_copy(update={"columns": columns}))
    assert [(x.of, x.value) for x in means(part, {"iia": "features"})] == [("control:random", 0.25)]


def test_how_many_examples_there_are_is_a_number_too(tmp_path: Path) -> None:
    plain = json.loads(record("variables").model_dump_json())
    plain["measures"][0]["n"] = 4000
    with pytest.raises(BadFile, match="n of iia is 4000, its values give 4; the record was edited"):
        read_record(sealed(tmp_path / "r.json", plain))


@pytest.fixture
def wide(curve: FaithfulnessCurve) -> FaithfulnessCurve:
    """A curve of ten examples, two of a group, that differ."""
    rng, n = np.random.default_rng(0), 10
    empty, full = rng.normal(0, 0.1, n), rng.normal(2, 0.3, n)
    ids = tuple(f"pair {i}" for i in range(n))
    groups = tuple(f"group {i // 2}" for i in range(n))
    shares = np.array([0.05, 0.4, 0.8, 1.0])[:, None]
    values = empty + shares * (full - empty) + rng.normal(0, 0.2, (4, n))
    values[-1] = full
    kept = (8, 90, 200, 1000)
    drawn = {seed: (kept, rng.permutation(values, axis=1)) for seed in (0, 1)}
    return FaithfulnessCurve(
        label="eap",
        profile="strict",
        n_edges=curve.n_edges,
        groups=groups,
        controls=Controls("logit_diff", ids, curve.fractions, empty, full, drawn, drawn),
        kept={"value": kept, "magnitude": kept},
        values={"value": values, "magnitude": values[:, ::-1]},
        seed=7,
    )


def of_result(name: str, **numbers: float | None) -> Callable[[dict[str, Any]], None]:
    """An edit of a measure of the result."""
    return lambda plain: next(x for x in plain["measures"] if x["name"] == name).update(numbers)


def in_table(number: int, column: str) -> Callable[[dict[str, Any]], None]:
    return lambda plain: plain["tables"][number]["columns"][column].__setitem__(1, 0.123)


def in_values(name: str, column: str) -> Callable[[dict[str, Any]], None]:
    return lambda plain: plain[name]["columns"][column].__setitem__(0, 5.0)


def again(plain: dict[str, Any]) -> None:
    """An edited measure before the true one."""
    plain["measures"].insert(0, {**plain["measures"][0], "value": 0.93})


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (of_result("cpr", value=0.93), "cpr is 0.93, its values give 0."),
        (of_result("cpr", value=None), "cpr is nan, its values give 0."),
        (of_result("cmd", low=0.01), "low of cmd is 0.01, its values give"),
        (of_result("cpr", high=0.99), "high of cpr is 0.99, its values give"),
        (of_result("log_cpr", value=0.9), "log_cpr is 0.9"),
        (of_result("cpr", n=200), "n of cpr is 200"),
        (of_result("denominator", low=0.9), "low of denominator of control:full is 0.9"),
        (in_table(0, "f"), "f of curve (value, result, None, 0.1) is 0.123"),
        (in_table(0, "metric"), "metric of curve (value, result, None, 0.1) is 0.123"),
        (in_table(0, "kept"), "its values give"),
        (in_values("values", "value@0.1"), "its values give"),
        (in_values("values", "clean"), "its values give"),
        (again, "cpr is 0.93"),
        (lambda plain: plain["tables"].clear(), "no numbers follow from its values"),
        (lambda plain: plain["values"]["columns"].pop("empty"), "no numbers follow"),
        (lambda plain: plain["specs"]["model"]["args"].pop("n_edges"), "no numbers follow"),
    ],
)
def test_areas_follow_from_values(
    edit: Callable[[dict[str, Any]], Any], says: str, wide: FaithfulnessCurve, tmp_path: Path
) -> None:
    plain = json.loads(wide.record().model_dump_json())
    file = sealed(tmp_path / "r.json", plain)
    read_record(file)
    edit(plain)
    with pytest.raises(BadFile) as refused:
        read_record(sealed(file, plain))
    line = str(refused.value)
    assert line.startswith(f"{file}: ") and says in line and "\n" not in line


def test_every_number_of_a_curve_follows(wide: FaithfulnessCurve, tmp_path: Path) -> None:
    """Of random rankings the means of their table: ends of their intervals may be edited."""
    own = wide.record()
    assert own.measure("cpr", "difference:random") is not None
    assert unnoticed(own, tmp_path) == set()
    plain = json.loads(own.model_dump_json())
    place = [(x["name"], x["of"]) for x in plain["measures"]].index(("cpr", "difference:random"))
    plain["measures"][place]["low"] = 0.5
    read_record(sealed(tmp_path / "r.json", plain))


def test_a_curve_of_another_seed_is_itself(wide: FaithfulnessCurve, tmp_path: Path) -> None:
    read_record(wide.save(tmp_path / "curve.json"))
    assert wide.seed == wide.record().provenance.seed == 7


def test_ends_of_another_numpy_may_differ_by_what_draws_do(
    wide: FaithfulnessCurve, tmp_path: Path
) -> None:
    own = wide.record()
    low, high = own.measures[0].low, own.measures[0].high
    packages = {**own.provenance.packages, "numpy": "0.1"}
    elsewhere = own.changed(provenance=own.provenance.model_copy(update={"packages": packages}))

    def moved(of: Record, share: float) -> Path:
        plain = json.loads(of.model_dump_json())
        plain["measures"][0]["low"] = low + share * (high - low)
        return sealed(tmp_path / "r.json", plain)

    read_record(moved(elsewhere, 0.05))
    for edited in ((elsewhere, 0.2), (own, 0.05)):
        with pytest.raises(BadFile, match="low of cpr is"):
            read_record(moved(*edited))


def test_a_curve_of_another_definition_is_not_computed_again(
    wide: FaithfulnessCurve, tmp_path: Path
) -> None:
    own = wide.record()
    older = own.changed(metric=own.metric.model_copy(update={"version": 1}))
    assert recomputed(own) and not recomputed(older)
    read_record(older.save(tmp_path / "r.json"))
