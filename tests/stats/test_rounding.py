"""Differences above and below the rounding of their terms."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from mechassay.stats.rounding import resolved_difference

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
