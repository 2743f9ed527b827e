"""Predictions against records, by hand."""

from __future__ import annotations

import math

import pytest

from mechassay.claims.claim import Claim, Prediction
from mechassay.claims.predictions import outcome_table, outcomes
from mechassay.claims.stored import StoredRecord
from mechassay.records import Measure, Record, Spec, provenance

NAN = math.nan


def stored(
    value: float, low: float = NAN, high: float = NAN, kind: str = "one-size"
) -> StoredRecord:
    specs = {"model": Spec(name="m"), "task": Spec(name="t"), "method": Spec(name="eap")}
    record = Record(
        kind=kind,
        cell={"method": "eap"},
        specs=specs,
        measures=[Measure(name="circuit@9", value=value, low=low, high=high)],
        provenance=provenance(device="cpu", dtype="float32", seed=0),
    )
    return StoredRecord("x.json", "0", record)


@pytest.mark.parametrize(
    ("records", "above", "below"),
    [
        ([], "not measured", "not measured"),
        ([stored(NAN)], "not measured", "not measured"),
        ([stored(0.8, 0.71, 0.9)], "holds", "fails"),
        ([stored(0.8, 0.7, 0.9)], "open", "fails"),
        ([stored(0.7, 0.6, 0.8)], "open", "open"),
        ([stored(0.6, 0.5, 0.7)], "fails", "open"),
        ([stored(0.8)], "holds", "fails"),
        ([stored(0.7)], "fails", "fails"),
        ([stored(0.8, 0.71, 0.9), stored(0.6, 0.5, 0.65)], "fails", "fails"),
        ([stored(0.8, 0.71, 0.9, kind="faithfulness")], "holds", "fails"),
    ],
)
def test_outcomes(records: list[StoredRecord], above: str, below: str) -> None:
    predictions = (
        Prediction(measure="circuit", direction="above", threshold=0.7),
        Prediction(measure="circuit", direction="below", threshold=0.7),
    )
    about = {"model": "m", "task": "t", "circuit": "eap@9", "predictions": predictions}
    found = outcomes(Claim(id="a", statement="x", **about), records)
    assert [each.outcome for each in found] == [above, below]
    assert outcome_table(found).columns["prediction"] == ["circuit above 0.7", "circuit below 0.7"]
