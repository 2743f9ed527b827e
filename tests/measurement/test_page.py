"""The page of measurement: every quantity has an interval or says why not, and its n."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mechassay.measurement.measurement import ALL
from mechassay.measurement.metrics.reproducibility import reproducibility
from mechassay.measurement.page import MeasurePage
from mechassay.results.page import Fold, Report, Text, TextTable
from mechassay.results.records import Measure, Record, Spec, Table, provenance
from mechassay.stats.intervals import clopper_pearson


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
        for fold in MeasurePage().sections(Report([record]))[-1].blocks
        if isinstance(fold, Fold)
        for block in fold.blocks
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
    assert told["as published", "coherence_score"] == "none: the published definition has none"


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
    _, conditions, about = MeasurePage().tables(Report([record]))
    assert about.title == "What metrics establish"
    assert f"n: {record.n}." in conditions.caption
    place = [m.name for m in record.measures].index("coherence_score")
    decided = record.measures[place].model_copy(update={"low": 0.9, "high": 0.99, "value": 0.95})
    changed = record.changed(
        measures=[*record.measures[:place], decided, *record.measures[place + 1 :]]
    )
    cells = [
        row.cells
        for row in MeasurePage().tables(Report([changed]))[1].rows
        if row.cells[0] == "repaired"
    ]
    assert "0.95 [0.90, 0.99]" in {row[2] for row in cells}


def with_rates(record: Record, verdict: str, false_alarm: float, power: float) -> Record:
    """The record of a metric that says so, and errs so often in 400 simulations."""
    rows = [
        {
            "variant": "repaired",
            "condition": ALL,
            "scenario": kind,
            "rate": kind,
            "share": rate,
            "low": clopper_pearson(400 * rate, 400)[0],
            "high": clopper_pearson(400 * rate, 400)[1],
            "n": 20,
            "simulations": 400,
        }
        for kind, rate in (("false alarm", false_alarm), ("power", power))
    ]
    verdicts = [{**row, "verdict": verdict} for row in record.table("verdicts").rows()]
    made = {
        "rates": Table.of("rates", ("variant", "condition", "scenario"), rows),
        "verdicts": Table.of("verdicts", ("variant",), verdicts),
    }
    others = [table for table in record.tables if table.name not in made]
    return record.changed(tables=[*others, *made.values()])


@pytest.mark.parametrize(
    ("verdict", "false_alarm", "power", "says"),
    [
        ("passes", 0.0, 1.0, ", which can be trusted: of 400 simulated inputs"),
        # What passes nothing, and what passes all, tells nothing apart.
        ("passes", 0.0, 0.0, ", which says little, as few sound inputs pass: "),
        ("passes", 0.09, 1.0, ", which cannot be trusted: "),
        ("passes", 0.0, 0.49, ", which says little, as few sound inputs pass: "),
        ("passes", 0.0, 0.6, ", which can be trusted: "),
        ("passes", 1.0, 1.0, ", which cannot be trusted: "),
        ("fails", 0.0, 1.0, ", which can be trusted: "),
        ("fails", 1.0, 1.0, ", which says little: "),
        ("fails", 0.0, 0.82, ", which says little: "),
        ("no verdict", 0.0, 1.0, "gives no verdict on m, t. "),
    ],
)
def test_the_first_sentence_says_whether_to_trust_the_metric(
    record: Record, verdict: str, false_alarm: float, power: float, says: str
) -> None:
    run = Report([with_rates(record, verdict, false_alarm, power)])
    first = MeasurePage().sections(run)[0]
    (text,) = [each.text for each in first.blocks if isinstance(each, Text)]
    assert says in text and "By the published definition it" in text


def test_a_metric_without_simulations_is_not_trusted(record: Record) -> None:
    tables = [table for table in with_rates(record, "passes", 0, 1).tables if table.name != "rates"]
    first = MeasurePage().sections(Report([record.changed(tables=tables)]))[0]
    assert "how often it errs was not simulated" in str(first.blocks)
