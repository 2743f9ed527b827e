"""The table: rounding, undefined values, control and failures as rows, hostile text."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Sequence

import pytest
from rich.console import Console

from mechassay.curves import labels
from mechassay.records import Failure, Measure, Record, Spec
from mechassay.report.kinds.circuits import results_table
from mechassay.report.reports import print_report
from mechassay.report.text import CHANCE_DECIMALS, chance_text, kept_at, seconds, settings
from mechassay.text import interval, number

Make = Callable[..., Record]
FAILURE = Failure(
    cell={"method": "exact", "task": "ioi"},
    error="OutOfMemory",
    message="One example [bold]needs[/bold] 20 GB.",
)


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (1.9671, 1.7122, 2.2049, "1.97 [1.71, 2.20]"),
        (0.5, 0.44, 0.56, "0.50 [0.44, 0.56]"),
        (0.50049, 0.4991, 0.5019, "0.500 [0.499, 0.502]"),
        (-2.1, -17.3, 21.2, "-2 [-17, 21]"),
        (-0.001, -0.4, 0.4, "0.0 [-0.4, 0.4]"),
        (1.234, math.nan, math.nan, "1.23"),
        (1.234, 1.234, 1.234, "1.23 [1.23, 1.23]"),
        (math.nan, math.nan, math.nan, "undefined"),
        (math.nan, 0.0, 1.0, "undefined"),
        (math.inf, math.nan, math.nan, "inf"),
    ],
)
def test_numbers_are_rounded_to_their_interval(
    value: float, low: float, high: float, expected: str
) -> None:
    assert interval(value, low, high) == expected
    assert number(value, low, high) == expected.split(" [")[0]


def test_a_share_is_never_rounded_to_fewer_digits_than_the_chance_beside_it() -> None:
    """One of four right is 0.25, not 0.2 beside a chance of 0.25;
    its interval alone supports one digit.
    """
    assert interval(0.25, 0.01, 0.8) == "0.2 [0.0, 0.8]"
    assert interval(0.25, 0.01, 0.8, least=CHANCE_DECIMALS) == "0.25 [0.01, 0.80]"
    assert len(chance_text(0.25).partition(".")[2]) == CHANCE_DECIMALS
    assert (
        interval(1.0, 0.964, 1.0, least=CHANCE_DECIMALS)
        == interval(1.0, 0.964, 1.0)
        == "1.000 [0.964, 1.000]"
    ), "more stay"
    assert interval(math.nan, 0.0, 1.0, least=CHANCE_DECIMALS) == "undefined"


def cells(records: Sequence[Record], failures: Sequence[Failure] = ()) -> list[dict[str, str]]:
    """The rows of the table by their headings."""
    table = results_table(records, failures)
    return [dict(zip(table.headings, row.cells, strict=False)) for row in table.rows]


def test_rows(make_record: Make) -> None:
    records = [make_record("eap"), make_record("exact")]
    table = results_table(records, [FAILURE])
    assert [(row.kind, row.cells[0]) for row in table.rows] == [
        ("method", "eap"),
        ("method", "exact"),
        ("control", "random edges"),
        ("control", "random paths"),
        ("failure", "exact"),
    ]
    rows = cells(records)
    assert rows[0]["CPR"] == "0.90 [0.80, 1.00]"
    assert rows[0]["kept at 1 %"] == "8 of 10" and rows[0]["seconds"] == "3.5"
    assert rows[0]["n"] == "5"
    assert rows[2]["CPR"] == "0.210 [0.200, 0.220]" and rows[2]["notes"] == "mean of 3 seeds"
    assert table.rows[4].cells[1] == f"failed (ioi): OutOfMemory: {FAILURE.message}"


def test_undefined_is_said(undefined: Record) -> None:
    row = cells([undefined])[0]
    assert row["CPR"] == row["CMD"] == "undefined"
    assert "undefined at 4 sizes" in row["notes"]


def test_a_metric_is_a_column_because_it_is_a_measure(make_record: Make) -> None:
    """Its heading, unit and direction are its own; nobody else knows its name."""
    new = Measure(name="new", title="Newness", unit="nats", better="down", value=2.0, low=1, high=3)
    chance = new.model_copy(update={"of": "control:random", "value": 5.0, "low": 4.0, "high": 6.0})
    table = results_table([make_record("eap", measures=[new, chance])])
    rows = [dict(zip(table.headings, row.cells, strict=False)) for row in table.rows]
    assert (
        rows[0]["Newness, nats"] == "2.0 [1.0, 3.0]"
        and rows[1]["Newness, nats"] == "5.0 [4.0, 6.0]"
    )
    assert "CMD, Newness: lower is better" in table.caption


def test_each_setting_has_its_control(make_record: Make) -> None:
    records = [make_record("eap"), make_record("eap", model="other")]
    assert len(settings(records)) == 2
    rows = results_table(records).rows
    assert [row.kind for row in rows] == ["method", "control", "control"] * 2
    assert rows[0].cells[0] != rows[3].cells[0]


def test_labels_tell_records_apart(make_record: Make) -> None:
    assert labels([make_record("eap"), make_record("exact")]) == ["eap", "exact"]
    steps = [make_record().changed(method=Spec(name="ig", args={"steps": n})) for n in (5, 10)]
    assert all(f"steps={n}" in label for n, label in zip((5, 10), labels(steps), strict=True))
    assert len(set(labels([make_record("eap"), make_record("eap")]))) == 2
    sites = [make_record().changed(cell={"site": site}) for site in ("resid.4", "resid.15")]
    assert labels(sites) == ["eap, resid.4", "eap, resid.15"]


def test_missing_parts_are_blank(make_record: Make) -> None:
    record = make_record(realised={"peak_memory_gb": 1.0})
    assert math.isnan(seconds(record)) and "seconds" not in cells([record])[0]
    assert kept_at(record, 0.33) == ""


@pytest.mark.parametrize("width", [80, 200])
def test_printing(make_record: Make, undefined: Record, width: int) -> None:
    """Markup in messages is text; failures and the control are there at any width."""
    console = Console(width=width, file=io.StringIO(), record=True)
    print_report(
        [make_record("eap"), undefined.changed(method=Spec(name="[red]x"))],
        [FAILURE],
        console,
    )
    text = console.export_text()
    for part in (
        "eap",
        "undefined",
        "random edges",
        "random paths",
        "[red]x",
        "0.90",
        "[0.80, 1.00]",
        "[bold]",
    ):
        assert part in text


def test_nothing_to_print() -> None:
    assert results_table([]).rows == ()
    print_report([], [], Console(quiet=True), "faithfulness")
