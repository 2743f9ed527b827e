"""Intervals that cover, groups that count, areas worked by hand.

Differences above and below the rounding of their terms.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, binomtest

from mechassay.stats import intervals
from mechassay.stats.intervals import (
    FEW_GROUPS,
    BootstrapEstimate,
    Estimate,
    Interval,
    folded_sum,
    independent_mean,
    mean_estimate,
    percentile_interval,
    proportion_interval,
    resampled_means,
    resolved_difference,
    trapezoid,
)


def mean_interval(values: np.ndarray, groups: Sequence[str], rng: np.random.Generator) -> Interval:
    return percentile_interval(resampled_means(values[None], groups, rng)[:, 0])


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """300 samples of 40: a right 95 % percentile bootstrap covers about 93 %,
    give or take 1.5 (one standard error).
    """
    rng = np.random.default_rng(0)
    own = [str(i) for i in range(40)]
    covered = [mean_interval(rng.normal(3.0, 2.0, 40), own, rng).contains(3.0) for _ in range(300)]
    assert 0.86 < np.mean(covered) < 0.995


def test_an_interval_is_as_wide_as_theory_says() -> None:
    values = np.random.default_rng(1).normal(size=400)
    low, high, level = mean_interval(values, [str(i) for i in range(400)], np.random.default_rng(2))
    assert level == 0.95
    assert low < values.mean() < high
    assert (high - low) / (2 * 1.96 * values.std() / math.sqrt(400)) == pytest.approx(1, abs=0.1)


def test_resampling_groups_widens_the_interval_of_clustered_values() -> None:
    """Ten copies of each of 30 values are worth 30 values, not 300:
    the interval is sqrt(10) = 3.2 times as wide.
    """
    values = np.repeat(np.random.default_rng(3).normal(size=30), 10)
    each = mean_interval(values, [str(i) for i in range(300)], np.random.default_rng(4))
    grouped = mean_interval(values, [str(i // 10) for i in range(300)], np.random.default_rng(4))
    assert 2.6 < (grouped.high - grouped.low) / (each.high - each.low) < 3.8


def test_a_mean_divides_by_the_examples_it_drew() -> None:
    """Groups a (one value, 4) and b (0, 0, 0): two draws give aa: 4, ab: 4 of 4 = 1, bb: 0."""
    means = resampled_means(
        np.array([[4.0, 0.0, 0.0, 0.0]]), ["a", "b", "b", "b"], np.random.default_rng(5), 4000
    )[:, 0]
    assert set(means.tolist()) == {0.0, 1.0, 4.0}
    shares = [float((means == value).mean()) for value in (0.0, 1.0, 4.0)]
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.05)


def test_rows_are_resampled_together() -> None:
    values = np.random.default_rng(6).normal(size=50)
    means = resampled_means(
        np.stack((values, 2 * values + 1)),
        [str(i) for i in range(50)],
        np.random.default_rng(7),
        100,
    )
    np.testing.assert_allclose(means[:, 1], 2 * means[:, 0] + 1)


def test_one_group_has_no_spread() -> None:
    assert mean_interval(np.array([1.0, 2.0, 6.0]), ["g"] * 3, np.random.default_rng(8))[
        :2
    ] == pytest.approx((3.0, 3.0))


def test_the_order_of_examples_and_the_names_of_groups_are_irrelevant() -> None:
    values, groups = np.arange(12.0), [str(i % 5) for i in range(12)]
    turned = resampled_means(values[None, ::-1], groups[::-1], np.random.default_rng(9), 50)
    np.testing.assert_allclose(
        turned, resampled_means(values[None], groups, np.random.default_rng(9), 50)
    )
    renamed = resampled_means(
        values[None], [f"group {name}" for name in groups], np.random.default_rng(9), 50
    )
    np.testing.assert_allclose(renamed, turned)


def test_blocks_of_resamples_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    values, own = np.random.default_rng(10).normal(size=(2, 9)), [str(i) for i in range(9)]
    whole = resampled_means(values, own, np.random.default_rng(11), 100)
    monkeypatch.setattr(intervals, "BLOCK", 9 * 7)
    np.testing.assert_allclose(resampled_means(values, own, np.random.default_rng(11), 100), whole)


def test_percentiles_by_hand() -> None:
    assert percentile_interval(np.arange(101.0), 0.9) == pytest.approx((5.0, 95.0, 0.9))
    assert percentile_interval(np.array([7.0])) == (7.0, 7.0, 0.95)


@pytest.mark.parametrize("value", [0.0, 0.3, -1e6])
def test_few_groups_that_agree_have_no_interval(value: float) -> None:
    for n in (2, FEW_GROUPS - 1, FEW_GROUPS, 50):
        groups = [str(i) for i in range(n)]
        # Their means differ by rounding.
        draws = resampled_means(np.full((1, n), value), groups, np.random.default_rng(0))[:, 0]
        low, high, _ = percentile_interval(draws, n_groups=n)
        if n < FEW_GROUPS:
            assert math.isnan(low) and math.isnan(high)
        else:
            assert (low, high) == pytest.approx((value, value))
    # Groups that do not agree have one.
    draws = resampled_means(np.array([[0.0, 1.0]]), ["a", "b"], np.random.default_rng(0))[:, 0]
    assert percentile_interval(draws, n_groups=2)[:2] == (0.0, 1.0)


def sampled(means: Sequence[float], n: int, rng: np.random.Generator) -> BootstrapEstimate:
    """The mean of |x| over these means, each known from n values of deviation 1."""
    weights, groups = np.full(len(means), 1 / len(means)), [str(i) for i in range(n)]
    values = np.array(means)[:, None] + rng.normal(size=(len(means), n))
    return folded_sum(values.mean(axis=1), resampled_means(values, groups, rng), weights, n)


@pytest.mark.few(1)
@pytest.mark.parametrize("means", [[0.0] * 5, [0.15] * 5, [0.0, 0.0, 0.0, 0.3, -3.0], [2.0, -2.0]])
def test_intervals_of_folded_sums_cover_as_often_as_they_say(means: list[float]) -> None:
    """250 samples of 50: 95 % is 237.5, with a standard error of 3.4."""
    rng, truth = np.random.default_rng(0), float(np.mean(np.abs(means)))
    covered = 0
    for _ in range(250):
        estimate = sampled(means, 50, rng)
        assert estimate.interval.contains(estimate.value)
        covered += estimate.interval.low - 1e-12 <= truth <= estimate.interval.high
    assert 227 <= covered <= 248


def test_an_interval_of_a_folded_sum_is_as_wide_as_theory_says() -> None:
    estimate = sampled([3.0, -4.0], 200, np.random.default_rng(0))
    low, high, _ = estimate.interval
    assert high - low == pytest.approx(2 * 1.97 * math.sqrt(2 / 200) / 2, rel=0.1)
    assert estimate.bias == pytest.approx((0.0, 0.0), abs=5e-3)


def test_the_bias_of_a_folded_sum_is_bounded() -> None:
    """|x| of a mean at 0 is too large by sqrt(2 / pi) standard errors, and of one that is known not
    to be at 0 by none. What is at hand may be either.
    """
    expected = math.sqrt(2 / math.pi) / 10
    for seed in range(5):
        low, high = sampled([0.0] * 5, 100, np.random.default_rng(seed)).bias
        assert -0.005 < low < 0.2 * expected and high == pytest.approx(expected, rel=0.15)


def test_parts_without_spread_keep_their_place_in_a_folded_sum() -> None:
    """The empty circuit's 1 - f is 1 in every resample: a sum is never below its weight."""
    rng = np.random.default_rng(0)
    draws = np.stack((np.ones(2000), 0.01 * rng.normal(size=2000)), axis=1)
    estimate = folded_sum(np.array([1.0, 0.0]), draws, np.array([0.25, 0.75]), 50)
    assert estimate.interval.low == 0.25 < estimate.interval.high < 0.27
    for n in (2, 50):
        fixed = folded_sum(np.array([1.0]), np.ones((2000, 1)), np.array([0.25]), n)
        expected = (math.nan, math.nan) if n == 2 else (0.25, 0.25)
        assert fixed.interval[:2] == pytest.approx(expected, nan_ok=True)


def test_a_difference_of_folded_sums_bounds_the_bias_of_both() -> None:
    errors = np.random.default_rng(0).normal(size=2000)
    a = BootstrapEstimate(1.0, errors, 50, (0.1, 0.4))
    b = BootstrapEstimate(2.0, errors, 50, (0.0, 0.3))
    assert (a - b).bias == pytest.approx((-0.2, 0.4))
    # Their errors are the same, so that only what the bias may be is left.
    assert (a - b).interval[:2] == pytest.approx((-1.4, -0.8))
    assert mean_estimate([a, b]).bias == pytest.approx((0.05, 0.35))


def test_an_undefined_draw_makes_the_interval_undefined() -> None:
    low, high, _ = percentile_interval(np.array([1.0, float("nan"), 2.0]))
    assert math.isnan(low)
    assert math.isnan(high)


def test_an_interval_contains_its_ends() -> None:
    interval = Interval(-1.0, 2.0)
    assert interval.contains(-1.0)
    assert interval.contains(2.0)
    assert not interval.contains(2.1)
    assert not Interval(float("nan"), float("nan")).contains(0.0)


def test_the_trapezoid_by_hand() -> None:
    # Over [0, 1] the mean height is 1/2, over [1, 3] it is 2.
    np.testing.assert_allclose(
        trapezoid(np.array([[0.0, 1.0, 3.0]]), np.array([0.0, 1.0, 3.0])), [0.5 + 4.0]
    )
    np.testing.assert_allclose(
        trapezoid(np.array([[1.0, 1.0, 1.0], [0.0, 2.0, 0.0]]), np.array([0.0, 0.5, 1.0])),
        [1.0, 1.0],
    )
    assert trapezoid(np.array([[5.0, 5.0]]), np.array([0.3, 0.3])).tolist() == [0.0]
    assert np.isnan(trapezoid(np.array([[1.0, float("nan")]]), np.array([0.0, 1.0]))).all()


# --- proportions
# --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hits", "n"), [(0, 10), (3, 10), (50, 50), (37, 200)])
def test_without_groups_a_proportion_has_the_interval_of_clopper_and_pearson(
    hits: int, n: int
) -> None:
    """Against scipy's exact binomial test. The variance over n single examples is p(1-p)/(n-1),
    so n* is n - 1 where p is not 0 or 1.
    """
    right = np.array([1.0] * hits + [0.0] * (n - hits))
    found = proportion_interval(right, [str(i) for i in range(n)])
    size = n if hits in (0, n) else n - 1
    exact = (
        beta.ppf(0.025, hits / n * size, size - hits / n * size + 1),
        beta.ppf(0.975, hits / n * size + 1, size - hits / n * size),
    )
    assert found[:2] == pytest.approx(np.nan_to_num(exact, nan=hits / n), abs=1e-12)
    if hits in (0, n):
        assert found[:2] == pytest.approx(
            tuple(binomtest(hits, n).proportion_ci(method="exact")), abs=1e-9
        )


def test_groups_that_agree_count_once() -> None:
    """Ten groups of twenty equal examples are worth ten examples, not two hundred."""
    groups = [str(i // 20) for i in range(200)]
    right = np.array([float(i // 20 < 6) for i in range(200)])
    few = proportion_interval(right[::20], groups[::20])
    assert proportion_interval(right, groups)[:2] == pytest.approx(few[:2], abs=1e-12)
    assert proportion_interval(np.ones(200), groups)[:2] == pytest.approx(
        proportion_interval(np.ones(10), groups[::20])[:2]
    )


def test_the_interval_of_a_proportion_covers_it() -> None:
    rng, covered = np.random.default_rng(0), 0
    groups = [str(i // 5) for i in range(100)]
    for _ in range(300):
        # Groups share half of their luck.
        luck = np.repeat(rng.random(20), 5)
        right = np.where(rng.random(100) < 0.5, luck, rng.random(100)) < 0.7
        covered += proportion_interval(right.astype(float), groups).contains(0.7)
    assert covered >= 0.93 * 300


def test_no_examples_no_interval() -> None:
    assert np.isnan(proportion_interval(np.array([]), [])[:2]).all()


PRECISIONS = [(np.float64, 1e-15, 1e-12), (np.float32, 1e-7, 1e-4)]
"""A type, one part in how many is rounding in it, and a small part that is not."""


@pytest.mark.parametrize(("dtype", "rounding", "small"), PRECISIONS)
def test_one_part_in_all_digits_is_nothing(dtype: type, rounding: float, small: float) -> None:
    values = np.random.default_rng(0).normal(3, 1, 50).astype(dtype)
    for part, resolved in ((rounding, False), (-rounding, False), (small, True), (-small, True)):
        # Stored in float64, as all objectives are: the type is seen in the digits.
        both = np.stack((values, values * dtype(1 + part))).astype(float)
        b, a = both.mean(axis=1)
        assert float(resolved_difference(a, b, both)) == (a - b if resolved else 0.0)


def test_the_size_is_that_of_the_values_not_of_their_mean() -> None:
    values = np.array([[1e3 + 1 / 3, -1e3]])
    mean = float(values.mean())
    assert resolved_difference(mean + 1e-12, mean, values) == 0
    assert resolved_difference(mean + 1e-12, mean, np.array([mean])) != 0
    # A mean that cancels is a difference from 0.
    thirds = np.array([0.1, 0.2, -0.3])
    assert thirds.mean() != 0 and resolved_difference(thirds.mean(), 0.0, thirds) == 0


def test_the_type_may_be_given_and_decides() -> None:
    values = np.array([1.0 + 1e-6 / 3, 1.0])
    a, b = values
    assert float(resolved_difference(a, b, values)) == a - b
    assert resolved_difference(a, b, values, dtype=np.float32) == 0


def test_divergences_near_0_have_terms_that_are_not() -> None:
    values = np.array([[3e-17, -1e-16], [2e-16, 1e-16]])
    a, b = values.mean(axis=1)
    assert resolved_difference(a, b, values) != 0
    assert resolved_difference(a, b, values, least=1.0) == 0


def test_shapes_broadcast_and_undefined_stays_undefined() -> None:
    values = np.array([1 / 3, 2 / 3])
    draws = np.array([0.5, 0.5 + 1e-16, 0.25, np.nan])
    np.testing.assert_array_equal(resolved_difference(draws, 0.5, values), [0, 0, -0.25, np.nan])
    assert resolved_difference(draws[:, None], draws, values).shape == (4, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Too large for float32, and infinite.
        assert resolved_difference(1e300, 0.0, np.array([1e300])) == 1e300
        assert np.isnan(resolved_difference(np.nan, 0.0, np.array([np.nan])))


def test_nothing_differs_from_nothing() -> None:
    assert resolved_difference(0.0, 0.0, np.zeros((2, 3))) == 0
    assert resolved_difference(1e-30, 0.0, np.array([1e-30])) == 1e-30


def estimate(value: float, half: float) -> Estimate:
    return Estimate(value, value - half, value + half)


def test_half_widths_of_independent_estimates_add_by_their_squares() -> None:
    # By hand: (.2 + .6) / 2; (.3^2 + .4^2)^.5 / 2 = .25 below, (.12^2 + .16^2)^.5 / 2 = .1 above.
    mean = independent_mean([Estimate(0.2, -0.1, 0.32), Estimate(0.6, 0.2, 0.76)])
    assert (mean.value, mean.low, mean.high) == pytest.approx((0.4, 0.15, 0.5))


def test_half_widths_of_one_group_add_up() -> None:
    both = [estimate(1.0, 0.3), estimate(2.0, 0.4)]
    mean = independent_mean(both, ["x", "x"])
    assert (mean.value, mean.low, mean.high) == pytest.approx((1.5, 1.15, 1.85))
    assert independent_mean(both, ["x", "y"]) == independent_mean(both)


def test_an_undefined_estimate_makes_the_mean_undefined() -> None:
    whole = estimate(1.0, 0.1)
    assert math.isnan(independent_mean([]).value)
    undefined = independent_mean([whole, Estimate(math.nan)])
    assert np.isnan([undefined.value, undefined.low, undefined.high]).all()
    no_bounds = independent_mean([whole, Estimate(3.0)])
    assert no_bounds.value == 2.0 and np.isnan([no_bounds.low, no_bounds.high]).all()


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.floats(-9, 9), st.floats(0, 9), st.floats(0, 9)), min_size=1, max_size=9),
    st.randoms(use_true_random=False),
    st.floats(-4, 4),
)
def test_the_mean_depends_on_neither_order_nor_origin(
    drawn: list[tuple[float, float, float]], random: Random, shift: float
) -> None:
    """Estimates in another order have the same mean, and the mean moves with its estimates."""
    parts = [(Estimate(x, x - low, x + high), f"{x:.0f}") for x, low, high in drawn]
    mixed = random.sample(parts, len(parts))
    moved = [
        (Estimate(own.value + shift, own.low + shift, own.high + shift), group)
        for own, group in mixed
    ]
    mean, other = (independent_mean(*zip(*some, strict=True)) for some in (parts, moved))
    np.testing.assert_allclose(
        [mean.value + shift, mean.low + shift, mean.high + shift],
        [other.value, other.low, other.high],
        atol=1e-9,
    )


def test_opposite_errors_of_one_group_make_the_interval_too_wide_and_never_too_narrow() -> None:
    rng, hits = np.random.default_rng(0), 0
    for _ in range(500):
        z = rng.standard_normal(2) @ np.array([[1.0, -0.5], [0.0, 0.5**0.5]])
        mean = independent_mean([estimate(x, 1.96) for x in z], ["x", "x"])
        hits += mean.low <= 0 <= mean.high
    assert hits / 500 > 0.97
