"""What the best of several tries has to exceed to be better than random draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechassay.stats.chance import DRAWS_PER_TRY, FEW_DRAWS, chance_limit


def test_few_draws_by_hand() -> None:
    """Draws 0, 1, 2, 3, 4: mean 2, variance 2.5; t of 3 degrees at .98 is 3.4819."""
    expected = 2 + 3.48191 * math.sqrt(2.5 * 1.2)
    assert chance_limit(np.arange(5.0)) == pytest.approx(expected, abs=1e-4)
    # Noise .5 of the examples is joined; of two methods the quantile is .99: 4.5407.
    expected = 2 + 4.54070 * math.sqrt(2.5 * 1.2 + 0.25)
    assert chance_limit(np.arange(5.0), n_tried=2, noise=0.5) == pytest.approx(expected, abs=1e-4)


def test_of_many_draws_the_largest() -> None:
    draws = np.linspace(0, 1, DRAWS_PER_TRY)
    assert chance_limit(draws) == 1
    assert chance_limit(draws, n_tried=2) > 1, "twenty are too few for the best of two"
    assert chance_limit(np.linspace(0, 1, 2 * DRAWS_PER_TRY), n_tried=2) == 1


@pytest.mark.parametrize("draws", [np.zeros(FEW_DRAWS - 1), np.array([0, 0, 0, 0, np.nan])])
def test_too_few_or_undefined_draws_set_no_limit(draws: np.ndarray) -> None:
    assert math.isnan(chance_limit(draws))


def test_unknown_noise_sets_no_limit_of_few_draws() -> None:
    assert math.isnan(chance_limit(np.arange(5.0), noise=math.nan))


@given(
    st.lists(st.floats(-10, 10), min_size=5, max_size=40),
    st.integers(1, 30),
    st.floats(-5, 5),
    st.floats(0.1, 10),
)
def test_it_moves_with_the_draws_and_never_lies_below_them(
    numbers: list[float], n_tried: int, by: float, scale: float
) -> None:
    draws = np.array(numbers)
    limit = chance_limit(draws, n_tried=n_tried)
    assert limit >= draws.max()
    assert chance_limit(draws, n_tried=n_tried + 1) >= limit
    moved = chance_limit(scale * draws + by, n_tried=n_tried)
    assert moved == pytest.approx(scale * limit + by, abs=1e-6)


def test_random_draws_seldom_beat_it() -> None:
    """The best of four draws with a long tail, against five others and against eighty."""
    rng = np.random.default_rng(0)
    for k in (FEW_DRAWS, 4 * DRAWS_PER_TRY):
        better = [
            rng.exponential(size=4).max() > chance_limit(rng.exponential(size=k), n_tried=4)
            for _ in range(2000)
        ]
        assert np.mean(better) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)
