"""M12: fixed numbers of features, proportional ones, planted outliers, and a line by hand."""

from __future__ import annotations

import numpy as np
import pytest

from mechassay.measurement.measurement import Measurement
from mechassay.saes.metrics.adaptive_sparsity import (
    adaptive_sparsity,
    adaptivity,
    expected_k,
    mismatch,
    null,
    page_deviation,
)

N = 200
RNG = np.random.default_rng(0)
NORMS = np.exp(0.5 * RNG.standard_normal(N))
NEED = RNG.integers(8, 80, N).astype(float)
GROUPS = [f"d{i % 20}" for i in range(N)]


def measured(k: np.ndarray, need: np.ndarray = NEED, **settings: object) -> Measurement:
    return adaptive_sparsity(k, NORMS[: len(k)], need, GROUPS[: len(k)], **settings)  # type: ignore[arg-type]


def test_a_fixed_number_passes_the_page_perfectly() -> None:
    # The defect: it is what the metric is meant to condemn.
    found = measured(np.full(N, 32.0))
    assert found.page["k_mismatch_rate"] == 0 and found.page.passed is True
    assert found.page["complexity_k_correlation"] is None and found.flagged("fixed_k")
    assert found.repaired["adaptivity"] == 0 and found.repaired.passed is False
    assert found.repaired["need_k_correlation"] is None
    # Even where no value is out of bounds.
    near = measured(np.full(N, 32.0), np.where(NEED > 40, 40.0, 30.0))
    assert near.repaired["k_mismatch_rate"] == 0 and near.repaired.passed is False


def test_as_many_features_as_needed() -> None:
    found = measured(NEED)
    assert found.repaired["k_mismatch_rate"] == 0 and found.repaired.passed is True
    assert found.repaired["adaptivity"] == pytest.approx(1)
    assert found.repaired["need_k_correlation"] == pytest.approx(1)
    # In proportion, but three times as many: adaptive, and too many.
    thrice = measured(3 * NEED)
    assert thrice.repaired["adaptivity"] == pytest.approx(1)
    assert thrice.repaired["over_activation_rate"] == 1 and thrice.repaired.passed is False


def test_planted_outliers_are_counted() -> None:
    k = NEED.copy()
    k[:20] *= 5
    k[20:30] /= 5
    found = measured(k)
    assert found.repaired["k_mismatch_rate"] == pytest.approx(0.15)
    assert found.repaired["over_activation_rate"] == pytest.approx(0.1)
    assert found.repaired["under_activation_rate"] == pytest.approx(0.05)


def test_the_published_threshold_flags_no_value_for_too_few_features() -> None:
    # The defect: (k - expected) / expected is at least -1.
    k = np.where(np.arange(N) < 40, 0.0, 100.0)
    found = measured(k, np.full(N, 100.0))
    assert found.page["under_activation_rate"] == 0 and found.page.passed is True
    assert found.flagged("under_unreachable") and found.flagged("none_active")
    assert found.repaired["under_activation_rate"] == pytest.approx(0.2)


def test_the_published_line_by_hand() -> None:
    k, x = np.array([1.0, 3.0, 5.0, 7.0]), np.array([1.0, 2.0, 3.0, 4.0])
    assert expected_k(k, x) == pytest.approx(k)
    assert expected_k(k, np.ones(4)) == pytest.approx([4] * 4), "no line: the mean"
    one = np.array([10.0] * 9 + [1000.0])
    assert page_deviation(one, np.ones(10))[-1] == pytest.approx((1000 - 109) / 109)
    assert adaptive_sparsity(one, np.ones(10), one, ["a"] * 10).page["k_mismatch_rate"] == 0.1


def test_what_is_expected_can_be_below_zero() -> None:
    x = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    k = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 60.0])
    found = adaptive_sparsity(k, x, k + 1, list("abcdef"))
    assert expected_k(k, x).min() < 0 and found.flagged("nothing_expected")


def test_ratios_are_symmetric() -> None:
    over, under = mismatch(np.array([1.0, 2.0, 4.0, 0.0]), np.array([2.0, 2.0, 2.0, 1.0]), 1.9)
    assert over.tolist() == [False, False, True, False]
    assert under.tolist() == [True, False, False, True]


def test_undefined_where_every_value_needs_as_much() -> None:
    found = measured(NEED, np.full(N, 40.0))
    assert found.repaired["adaptivity"] is None
    assert found.repaired["adaptivity_low"] is None and found.repaired.passed is not True
    slope, _, n = adaptivity(np.zeros(5), np.ones(5), list("abcde"), np.random.default_rng(0))
    assert np.isnan(slope) and n == 0


def test_without_values_nothing_passes() -> None:
    nothing = adaptive_sparsity(np.empty(0), np.empty(0), np.empty(0), [])
    assert nothing.page["k_mismatch_rate"] is None and nothing.page.passed is None
    assert nothing.repaired.passed is None


def test_values_that_no_number_of_features_reaches_are_told() -> None:
    assert measured(NEED, most=79).flagged("need_not_reached") is False
    found = measured(NEED, most=60)
    assert found.flagged("need_not_reached")


def test_how_often_thresholds_err() -> None:
    rates = null()
    assert rates.false_alarm("page") == 1, "the page cannot fail"
    assert rates.false_alarm("repaired") == 0 and rates.power("repaired") == 1
