"""Averages and scores of numbers made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mechassay.errors import BadUsage
from mechassay.leaderboard.averages import mean_of, sigmoid, summarised
from mechassay.stats.intervals import Estimate


def made(value: float, half: float) -> Estimate:
    return Estimate(value, value - half, value + half)


def test_half_widths_of_two_tasks_add_by_their_squares() -> None:
    found = mean_of([made(1.0, 0.3), made(2.0, 0.4)], ["x", "y"])
    assert (found.value, found.low, found.high) == pytest.approx((1.5, 1.25, 1.75))


def test_half_widths_of_one_task_add_up() -> None:
    found = mean_of([made(1.0, 0.3), made(2.0, 0.4)], ["x", "x"])
    assert (found.value, found.low, found.high) == pytest.approx((1.5, 1.15, 1.85))


def test_each_end_is_made_of_the_ends_on_its_side() -> None:
    found = mean_of([Estimate(1.0, 0.0, 1.0), Estimate(1.0, 1.0, 3.0)], ["x", "y"])
    assert (found.low, found.high) == (0.5, 2.0)


def test_the_score_of_one_number_has_the_interval_of_the_number() -> None:
    given = Estimate(0.3, -0.2, 0.9)
    up = summarised([given], ["x"], "up").score
    assert (up.value, up.low, up.high) == tuple(map(sigmoid, (0.3, -0.2, 0.9)))
    down = summarised([given], ["x"], "down").score
    assert (down.value, down.low, down.high) == pytest.approx(
        tuple(map(sigmoid, (-0.3, -0.9, 0.2)))
    )


def test_where_higher_is_better_both_formulas_are_one() -> None:
    numbers, tasks = [made(0.3, 0.1), made(1.2, 0.2)], ["x", "y"]
    assert summarised(numbers, tasks, "up") == summarised(numbers, tasks, "up", "mib-2025")
    assert summarised(numbers, tasks, "down") != summarised(numbers, tasks, "down", "mib-2025")


def test_what_is_lacking_is_said() -> None:
    nothing, no_ends = Estimate(math.nan), Estimate(1.0)
    found = summarised([made(1.0, 0.1), nothing], ["x", "y"], "up")
    assert math.isnan(found.average.value) and math.isnan(found.average.low)
    assert found.lacks == "lacks 1 of 2 places"
    found = summarised([made(1.0, 0.1), no_ends], ["x", "y"], "up")
    assert found.average.value == 1.0 and math.isnan(found.average.low + found.score.high)
    assert found.lacks == "no interval: 1 of 2 numbers have none"
    assert summarised([], [], "up").lacks == "no place is shown"
    with pytest.raises(BadUsage, match="a task"):
        summarised([no_ends], [], "up")


@pytest.mark.parametrize(("equal", "least", "most"), [(False, 0.935, 0.965), (True, 0.935, 0.965)])
def test_intervals_hold_the_truth_as_often_as_they_say(
    equal: bool, least: float, most: float
) -> None:
    """Errors of tasks are independent; those of one task may be the same."""
    rng, truth, errors = np.random.default_rng(1), 0.4, np.array([0.05, 0.2, 0.1, 0.1])
    tasks = ["x", "x", "y", "y"] if equal else ["w", "x", "y", "z"]
    hits = np.zeros(2)
    for _ in range(3000):
        z = rng.standard_normal(4)
        z = z[[0, 0, 2, 2]] if equal else z
        numbers = [made(x, 1.96 * e) for x, e in zip(truth + errors * z, errors, strict=True)]
        found = summarised(numbers, tasks, "down")
        hits += [
            found.average.low <= truth <= found.average.high,
            found.score.low <= sigmoid(-truth) <= found.score.high,
        ]
    assert (least <= hits / 3000).all() and (hits / 3000 <= most).all()


def test_sigmoid_of_large_numbers_is_finite() -> None:
    assert sigmoid(0.0) == 0.5 and sigmoid(1e6) == 1 and sigmoid(-1e6) == 0
    assert math.isnan(sigmoid(math.nan))


def test_errors_of_one_task_that_are_opposite_make_it_too_wide_and_never_too_narrow() -> None:
    rng, hits = np.random.default_rng(0), 0
    for _ in range(500):
        z = rng.standard_normal(2) @ np.array([[1.0, -0.5], [0.0, 0.5**0.5]])
        found = mean_of([made(x, 1.96) for x in z], ["x", "x"])
        hits += found.low <= 0 <= found.high
    assert hits / 500 > 0.97
