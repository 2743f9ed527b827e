"""The table of a distribution: the paper's z-scores,
numpy's percentiles, and intervals by design.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechassay.errors import BadUsage, UnknownName
from mechassay.stats import summary
from mechassay.stats.design import Design
from mechassay.stats.summary import (
    PERCENTILES,
    expected_maximum,
    moments,
    run_percentiles,
    summarise,
    z_score,
)

# Table 3: value and z-score of min, quartiles, 95, 99, 99.9 and 99.99 % and max, below their mean
# and deviation.
TABLE_3 = {
    (
        3.91,
        1.45,
    ): (
        "0.10 -2.63 2.85 -0.73 3.66 -0.17 4.75 0.58 6.66 1.90 8.03 2.85 9.46 3.84 10.58 4.61 12.07"
        " 5.64"
    ),
    (
        2.09,
        1.04,
    ): (
        "0.08 -1.92 1.23 -0.82 2.07 -0.01 2.91 0.79 3.77 1.61 4.23 2.05 4.63 2.44 4.91 2.71 5.31"
        " 3.09"
    ),
    (
        5.15,
        1.70,
    ): (
        "0.03 -3.01 4.01 -0.67 5.12 -0.02 6.27 0.66 7.99 1.67 9.25 2.41 10.81 3.33 12.25 4.17 14.64"
        " 5.57"
    ),
}


@pytest.mark.parametrize(("mean", "std"), TABLE_3)
def test_the_z_scores_of_table_3(mean: float, std: float) -> None:
    numbers = list(map(float, TABLE_3[mean, std].split()))
    for value, z in zip(numbers[::2], numbers[1::2], strict=True):
        # All of them are rounded to two decimals.
        assert z_score(value, mean, std) == pytest.approx(
            z, abs=0.005 + (0.01 + 0.005 * abs(z)) / std
        )


def test_a_small_table_by_hand() -> None:
    """1 to 5: mean 3, deviation sqrt(10 / 4)."""
    table = summarise(
        np.array([2.0, np.nan, 5.0, 1.0, 4.0, 3.0]),
        "matched",
        np.random.default_rng(0),
        (0.25, 0.5, 0.9),
    )
    assert (table.count, table.n_undefined) == (5, 1)
    assert [row.name for row in table.rows] == ["mean", "std", "min", "25%", "50%", "90%", "max"]
    assert [row.value for row in table.rows] == pytest.approx([3, math.sqrt(2.5), 1, 2, 3, 4.6, 5])
    assert [row.z for row in table.rows[2:]] == pytest.approx(
        [(v - 3) / math.sqrt(2.5) for v in (1, 2, 3, 4.6, 5)]
    )
    assert math.isnan(table["max"].bound) and math.isnan(table["min"].low)
    assert (
        table["25%"].bound == 4.0
    )  # The largest that 6 values allow: P(Bin(6, 1/4) <= 3) = 0.962, of which NaN is the last.
    assert table["90%"].bound == math.inf
    with pytest.raises(KeyError):
        table["75%"]


def test_a_million_values() -> None:
    rng = np.random.default_rng(1)
    values = rng.gamma(2.0, 1.0, size=1_200_000).astype(np.float32)
    table = summarise(values, "independent", rng)
    wide = values.astype(float)
    assert table.count == len(values)
    assert (table["mean"].value, table["std"].value) == pytest.approx(
        (wide.mean(), wide.std(ddof=1)), rel=1e-12
    )
    for p in PERCENTILES:
        row = table[f"{100 * p:g}%"]
        assert row.value == pytest.approx(np.quantile(wide, p), rel=1e-6)
        assert row.low <= row.value <= row.bound <= row.high
    assert (table["min"].value, table["max"].value) == (wide.min(), wide.max())


def test_a_grid_has_wider_intervals_than_its_pairs() -> None:
    rng = np.random.default_rng(2)
    values = rng.normal(size=(60, 1)) + rng.normal(size=(1, 60)) + rng.normal(size=(60, 60))
    grid = summarise(values, "grid", np.random.default_rng(3), (0.5, 0.9), n_resamples=300)
    pairs = summarise(values.reshape(-1), "independent", np.random.default_rng(3), (0.5, 0.9))
    assert grid.design == Design("grid", (60, 60))
    for name in ("mean", "50%", "90%"):
        wide, narrow = grid[name], pairs[name]
        assert wide.value == narrow.value
        assert wide.high - wide.low > 3 * (narrow.high - narrow.low)
        assert name == "mean" or wide.bound > narrow.bound > narrow.value
    again = summarise(values, "grid", np.random.default_rng(3), (0.5, 0.9), n_resamples=300)
    assert repr(again) == repr(grid)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40), st.integers(1, 7))
def test_moments_do_not_depend_on_blocks(numbers: list[float], step: int) -> None:
    values = np.array(numbers)
    before, summary.STEP = summary.STEP, step
    try:
        count, mean, std = moments(np.concatenate([values, [np.nan] * 3]))
    finally:
        summary.STEP = before
    assert count == len(values) and mean == pytest.approx(values.mean(), abs=1e-6)
    assert math.isnan(std) if count == 1 else std == pytest.approx(values.std(ddof=1), abs=1e-6)


def test_infinite_values_stay_infinite() -> None:
    values = np.array([1.0, 2.0, np.inf, 3.0])
    table = summarise(values, "matched", np.random.default_rng(0), (0.5,))
    assert table["mean"].value == math.inf == table["max"].value
    assert (
        math.isnan(table["std"].value)
        and math.isnan(table["50%"].z)
        and math.isnan(table["mean"].low)
    )
    assert table["50%"].value == 2.5


def test_all_undefined() -> None:
    table = summarise(np.full(5, np.nan), "matched", np.random.default_rng(0), (0.5,))
    assert (table.count, table.n_undefined) == (0, 5)
    assert all(math.isnan(row.value) for row in table.rows)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.floats(-10, 10), max_size=6), min_size=1, max_size=5), st.floats(0, 1))
def test_percentiles_of_runs_are_numpys(runs: list[list[float]], p: float) -> None:
    count = np.array([len(run) for run in runs])
    rising = np.concatenate([np.sort(np.array(run, dtype=float)) for run in runs])
    found = run_percentiles(rising, np.cumsum(count) - count, count, p)
    for run, value in zip(runs, found, strict=True):
        assert np.isnan(value) if not run else value == pytest.approx(np.quantile(run, p), abs=1e-9)


def test_bad_arguments() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(BadUsage, match="2 axes"):
        summarise(np.zeros(4), "grid", rng)
    with pytest.raises(BadUsage, match="got 99"):
        summarise(np.zeros(4), "matched", rng, (99.0,))
    with pytest.raises(UnknownName, match="Did you mean 'matched'"):
        summarise(np.zeros(4), "match", rng)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=7), st.integers(1, 9))
def test_the_expected_maximum_of_draws(values: list[int], draws: int) -> None:
    every = [max(chosen) for chosen in combinations(values, min(draws, len(values)))]
    assert expected_maximum(np.array(values, dtype=float), draws) == pytest.approx(
        sum(every) / len(every), abs=1e-9
    )


@pytest.mark.parametrize(("n", "draws"), [(4, 0), (4, -1), (0, 1)])
def test_an_expected_maximum_of_nothing_is_refused(n: int, draws: int) -> None:
    with pytest.raises(BadUsage, match=f"at least 1 draw of at least 1 value; got {draws} of {n}"):
        expected_maximum(np.zeros(n), draws)


def test_a_deviation_of_rounding_is_no_unit() -> None:
    values = np.full(30, 0.1)
    values[0] = np.nextafter(0.1, 1)
    _, mean, std = moments(values)
    assert std > 0 and math.isnan(z_score(float(values[0]), mean, std))
    assert z_score(1.0, 0.1, 1e-9) == pytest.approx(0.9e9)
