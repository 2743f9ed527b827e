"""The page of measurement: every quantity has an interval or says why not, and its n."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mechassay.measurement.metrics.reproducibility import reproducibility
from mechassay.measurement.page import MeasurePage
from mechassay.results.page import TextTable
from mechassay.results.records import Measure, Record, Spec, provenance


@pytest.fixture(name="record")
def a_record() -> Record:
    rng = np.random.default_rng(0)
    items = 3 + rng.standard_normal(20) + 0.1 * rng.standard_normal((5, 20))
    runs = items.mean(axis=1)
    specs = {"model": Spec(name="m"), "task": Spec(name="t")}
    made = provenance(device="", dtype="", seed=0)
    return reproducibility(runs, items, runs, items, 0.2).record(specs, made, cell={})


def quantities(record: Record) -> list[dict[str, str]]:
    found = [
        block
        for section in MeasurePage().sections([record])
        for block in section.blocks
        if isinstance(block, TextTable) and block.title == "Quantities"
    ]
    (table,) = found
    return [dict(zip(table.headings, row.cells, strict=True)) for row in table.rows]


def test_every_quantity_has_an_interval_or_says_why_not(record: Record) -> None:
    rows = quantities(record)
    assert len(rows) == len(record.measures)
    for row in rows:
        assert row["n"] not in ("", "0", "not said")
        assert row["95 % interval"].startswith(("[", "none: "))
    told = {(row["definition"], row["quantity"]): row["95 % interval"] for row in rows}
    assert told["repaired", "value"].startswith("[") and told["repaired", "icc"].startswith("[")
    assert told["repaired", "sampling_se"] == "none: it is a spread or an error itself"
    assert told["page", "coherence_score"] == "none: the published definition has none"


def test_what_is_undefined_or_an_end_of_an_interval_says_so(record: Record) -> None:
    more = [
        Measure(name="none_at_all", value=math.nan, n=3),
        Measure(name="gain_low", value=0.5, n=3),
        Measure(name="same", value=1.0, low=1.0, high=1.0, n=3),
    ]
    rows = {row["quantity"]: row for row in quantities(record.changed(measures=more))}
    assert rows["none_at_all"]["value"] == "undefined"
    assert rows["none_at_all"]["95 % interval"] == "none: undefined"
    assert rows["gain_low"]["95 % interval"] == "none: it is an end of an interval"
    assert rows["same"]["95 % interval"] == "none: both of its ends are the value"


def test_conditions_say_their_n_and_the_interval_of_what_they_decide(record: Record) -> None:
    (_, conditions) = MeasurePage().tables([record])
    assert f"n: {record.n}." in conditions.caption
    place = [m.name for m in record.measures].index("coherence_score")
    decided = record.measures[place].model_copy(update={"low": 0.9, "high": 0.99, "value": 0.95})
    changed = record.changed(
        measures=[*record.measures[:place], decided, *record.measures[place + 1 :]]
    )
    cells = [
        row.cells for row in MeasurePage().tables([changed])[1].rows if row.cells[0] == "repaired"
    ]
    assert "0.95 [0.90, 0.99]" in {row[2] for row in cells}
