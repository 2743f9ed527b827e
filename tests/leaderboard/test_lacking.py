"""Why there is no number, or no interval."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mechassay.leaderboard import board_rules
from mechassay.leaderboard.cells import cells_of
from mechassay.leaderboard.lacking import (
    grid_for_bound,
    grid_for_interval,
    pairs_for,
    why_lacking,
)
from mechassay.records import Measure, Record, Spec, Table, provenance
from mechassay.stats.design import Design

NAN = math.nan


def made(*measures: Measure, kind: str = "adversarial", **args: object) -> Record:
    columns = {
        "of": ["result", "control:empty", "control:empty"],
        "statistic": ["99%", "mean", "99%"],
        "value": [7.0, 5.0, 10.0],
        "bound": [NAN, NAN, 12.0],
    }
    return Record(
        kind=kind,
        specs={
            "model": Spec(name="m"),
            "task": Spec(name="t", args=args),  # pyright: ignore
            "method": Spec(name="eap@0.01"),
        },
        measures=list(measures),
        tables=[Table(name="summary", keys=("of", "statistic"), columns=columns)],
        provenance=provenance(device="", dtype="", seed=0),
    )


GRID = {"design": "grid", "n_clean": 10, "n_corrupted": 10}


@pytest.mark.parametrize(
    ("measure", "args", "wanted"),
    [
        (
            Measure(name="bound 99%", value=NAN),
            GRID,
            "a bound needs 299 × 299 prompts, here 10 × 10",
        ),
        (Measure(name="99%", value=1.0), GRID, "an interval needs 500 × 500 prompts, here 10 × 10"),
        (Measure(name="bound 99%", value=NAN), {"design": "matched"}, "a bound needs 299 pairs"),
        (Measure(name="99%", value=1.0), {"design": "matched"}, "an interval needs 368 pairs"),
        (
            Measure(name="99%", value=1.0),
            {**GRID, "population": True},
            "no interval: these are all pairs that exist",
        ),
        (
            Measure(name="bound 99%", value=NAN),
            {**GRID, "same": "place"},
            "too few pairs of one stratum for a bound",
        ),
        (Measure(name="bound 99%", value=1.0), GRID, ""),
        (Measure(name="99%", value=1.0, low=0.5, high=2.0), GRID, ""),
        (
            Measure(name="mean", value=NAN, n=40, n_undefined=3),
            GRID,
            "3 of 40 examples are undefined",
        ),
    ],
)
def test_what_is_lacking_is_said_with_what_is_needed(
    measure: Measure, args: dict[str, object], wanted: str
) -> None:
    assert why_lacking(made(measure, **args), measure) == wanted


def test_the_numbers_that_are_said_are_those_that_are_enough() -> None:
    assert 0.99**299 <= 0.05 < 0.99**298 and 0.99**368 <= 0.025 < 0.99**367
    assert grid_for_bound(0.99) == 299 and grid_for_interval(0.99) == 500
    assert grid_for_interval(0.9) == 50  # 1 - 0.9 is below 0.1 in floating point.
    rng = np.random.default_rng(0)
    for n, design, enough in (
        (298, "grid", False),
        (299, "grid", True),
        (298, "matched", False),
        (299, "matched", True),
    ):
        shape = (n, n) if design == "grid" else (n,)
        bound = Design(design, shape).upper_bound(rng.random(shape), 0.99)
        assert math.isfinite(bound.value) is enough
    for n, enough in ((367, False), (pairs_for(0.99, 0.975), True)):
        [found] = Design("matched", (n,)).intervals(rng.random(n), rng, [0.99]).percentiles
        assert math.isfinite(found.high) is enough


@pytest.mark.parametrize(("n", "enough"), [(49, False), (50, True)])
def test_an_interval_on_a_grid_needs_as_many_as_are_said(n: int, enough: bool) -> None:
    rng = np.random.default_rng(0)
    [found] = Design("grid", (n, n)).intervals(rng.random((n, n)), rng, [0.9]).percentiles
    assert math.isfinite(found.high) is enough is (n >= grid_for_interval(0.9))


def test_cells_of_the_worst_case_have_reasons_and_the_empty_circuit() -> None:
    measures = [
        Measure(name="mean", value=3.0, low=2.0, high=4.0, n=100),
        Measure(name="99%", value=7.0, n=100),
        Measure(name="bound 99%", value=NAN, n=100),
    ]
    found = {
        cell.column: cell
        for cell in cells_of(board_rules()["adversarial"], made(*measures, **GRID))
    }
    assert [cell.reason.split(" needs")[0] for cell in found.values()] == [
        "",
        "an interval",
        "a bound",
    ]
    assert found["mean"].controls == {"empty": 5.0} and found["p99"].controls == {"empty": 10.0}
    assert found["bound"].controls == {"empty": 12.0}
    assert {cell.examples for cell in found.values()} == {100}
