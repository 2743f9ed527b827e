"""Statistics of circuits on one grid: resampled together, differences, halves and repeats."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mechassay.errors import BadUsage
from mechassay.stats.bootstrap import Resampled, split_by, two_way_draws, two_way_worst


def test_the_split_by_hand() -> None:
    values = np.array([[1.0, 2.0, 9.0], [3.0, 4.0, 8.0]])
    empty = np.array([[2.0, 4.0, 9.0], [4.0, 6.0, 16.0]])
    same, different = split_by(values, empty, ["a", "b"], ["a", "a", "b"], 0, n_resamples=20)
    # Same: 1, 2 and 8; of the empty circuit 2, 4 and 16.
    assert (same.pairs, same.n, different.n) == ("same", 3, 3)
    assert same.circuit["mean"][0] == pytest.approx(11 / 3) and same.circuit["max"][0] == 8
    assert same.left[0] == 0.5 and different.left[0] == pytest.approx(16 / 19)
    assert same.circuit["99%"][0] == pytest.approx(np.quantile([1, 2, 8], 0.99))
    assert all(math.isnan(end) for end in same.left[1:]), "two prompts allow no interval"
    assert [
        half.pairs for half in split_by(values, empty, ["a", "a"], ["a"] * 3, 0, n_resamples=20)
    ] == ["same"]
    for size, defined in ((1e-7, False), (1e-3, True)):
        # In float32, divergences of 1e-7 nats are rounding.
        small = np.full(empty.shape, size, dtype=np.float32)
        half = split_by(values, small, ["a", "b"], ["a", "a", "b"], 0, n_resamples=20)[0]
        assert math.isfinite(half.left[0]) == defined
    holes = np.where([[True, True, False], [False, False, True]], values, np.nan)
    assert [
        half.n for half in split_by(holes, empty, ["a", "b"], ["a", "a", "b"], 0, n_resamples=20)
    ] == [3]


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [0, pytest.param(1, marks=pytest.mark.slow)], ids=["same", "different"]
)
def test_intervals_of_the_halves_cover(kind: int) -> None:
    """Means and shares left, of grids over four templates with effects of rows and columns:
    at least 93 %, to within four errors.
    """
    rng, n_grids = np.random.default_rng(kind), 100
    shift = np.array([0.0, 0.5, 1.0, 1.5])
    # Given the templates s and t: exp(shift + row + column) and twice that times another row
    # effect.
    cells = np.exp(0.5 * (shift[:, None] + shift[None, :]) + (0.5**2 + 0.4**2) / 2)
    mask = np.eye(4, dtype=bool) if kind == 0 else ~np.eye(4, dtype=bool)
    mean, left = (
        cells[mask].mean(),
        cells[mask].mean() / (2 * np.exp(0.3**2 / 2) * cells[mask].mean()),
    )
    covered = np.zeros(2)
    for _ in range(n_grids):
        s, t = rng.integers(4, size=120), rng.integers(4, size=100)
        row, column = rng.normal(scale=0.5, size=(120, 1)), rng.normal(scale=0.4, size=(1, 100))
        values = np.exp(0.5 * (shift[s][:, None] + shift[t][None, :]) + row + column)
        empty = 2 * values * np.exp(rng.normal(scale=0.3, size=(120, 1)))
        half = split_by(values, empty, list(map(str, s)), list(map(str, t)), 1, n_resamples=100)[
            kind
        ]
        covered += [
            low <= truth <= high
            for truth, (_, low, high) in ((mean, half.circuit["mean"]), (left, half.left))
        ]
    assert (covered / n_grids >= 0.93 - 4 * np.sqrt(0.93 * 0.07 / n_grids)).all(), covered


def grid(seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (
        rng.gamma(1.0, size=(120, 1))
        + rng.gamma(1.0, size=(1, 101))
        + 0.1 * rng.gamma(1.0, size=(120, 101))
    )


@pytest.mark.slow
def test_differences_are_of_the_same_resamples() -> None:
    values = grid(0)
    ours = Resampled.of(values, 1)
    same = ours.minus(ours).estimates()
    assert all(each.value == 0 for each in same.values())
    assert (
        same["mean"].low
        == same["mean"].high
        == same["worst 10%"].low
        == same["worst 10%"].high
        == 0
    )
    shifted = Resampled.of(values + 2, 1).minus(ours).estimates()
    assert [each.value for each in shifted.values()] == pytest.approx([2, 2, 2, 2])
    assert [shifted["worst 10%"].low, shifted["worst 10%"].high] == pytest.approx([2, 2], abs=1e-5)
    assert [shifted["mean"].low, shifted["mean"].high] == pytest.approx([2, 2], abs=1e-5)
    # A mean is linear: the resampled difference is that of the grid of differences.
    other = values + 0.3 * grid(5)
    paired, direct = (
        Resampled.of(other, 1).minus(ours).estimates()["mean"],
        Resampled.of(other - values, 1).estimates()["mean"],
    )
    assert [paired.value, paired.low, paired.high] == pytest.approx(
        [direct.value, direct.low, direct.high], abs=1e-5
    )
    alone = Resampled.of(other, 1).estimates()["mean"]
    assert paired.high - paired.low < 0.5 * (alone.high - alone.low)
    for wrong in (
        Resampled.of(values[:3], 1),
        Resampled.of(values, 2),
        Resampled.of(values, 1, (0.5, 0.9)),
    ):
        with pytest.raises(BadUsage, match="same resamples"):
            ours.minus(wrong)


def test_statistics_of_a_grid() -> None:
    values = grid(2)
    found = Resampled.of(values, 0, (0.5, 0.9), 0.25).estimates()
    assert list(found) == ["mean", "worst 25%", "50%", "90%", "max"]
    # A quarter of 120 x 101 values are 3,030.
    expected = [
        values.mean(),
        np.sort(values, axis=None)[-3030:].mean(),
        *np.quantile(values, (0.5, 0.9)),
        values.max(),
    ]
    assert [each.value for each in found.values()] == pytest.approx(expected)
    assert found["mean"].low < values.mean() < found["mean"].high and np.isnan(found["max"].low)


def test_percentiles_that_few_inputs_lie_beyond_have_no_interval() -> None:
    """101 columns: 5 lie beyond the 95th percentile, 1 beyond the 99th.
    Of 99 not even 5, of 4 nothing is known.
    """
    one, other = (Resampled.of(grid(seed), 0, (0.95, 0.99)) for seed in (3, 4))
    for found in (one.estimates(), one.minus(other).estimates()):
        assert np.isfinite([each.value for each in found.values()]).all()
        assert [bool(np.isfinite([each.low, each.high]).all()) for each in found.values()] == [
            True,
            True,
            True,
            False,
            False,
        ]
        assert np.isnan([found["99%"].low, found["99%"].high]).all()
    less, few = (
        Resampled.of(grid(3)[:, :n], 0, (0.95, 0.99), n_resamples=50).estimates() for n in (99, 4)
    )
    assert (
        np.isnan(less["95%"].low)
        and np.isfinite(less["mean"].low)
        and np.isfinite(less["worst 10%"].low)
    )
    assert all(np.isnan(each.low) and np.isnan(each.high) for each in few.values())
    with pytest.raises(BadUsage, match="at least 1 resample"):
        Resampled.of(grid(3), 0, n_resamples=0)
    with pytest.raises(BadUsage, match="worst share"):
        Resampled.of(grid(3), 0, worst=1.0)


def test_one_resample_is_enough() -> None:
    draws = two_way_draws(grid(3), np.random.default_rng(0), n_resamples=1)
    assert draws.mean.shape == (1,) and np.isfinite(draws.mean).all()


def test_the_worst_share_of_each_resample_slowly() -> None:
    """Every pair as often as its row and column were drawn, sorted, with the last one in part."""
    values = grid(6)[:7, :9].astype(np.float32)
    values[2:5, 3:6] = np.nan
    found = two_way_worst(values, np.random.default_rng(8), 0.3, 20)
    rng = np.random.default_rng(8)
    rows, columns = (rng.multinomial(n, np.full(n, 1 / n), size=20) for n in values.shape)
    for draw in range(20):
        drawn = np.repeat(np.repeat(values, rows[draw], axis=0), columns[draw], axis=1).ravel()
        drawn = np.sort(drawn[~np.isnan(drawn)].astype(float))[::-1]
        whole = int(0.3 * len(drawn))
        total = drawn[:whole].sum() + (0.3 * len(drawn) - whole) * drawn[whole]
        assert found[draw] == pytest.approx(total / (0.3 * len(drawn)))
    # What is alike everywhere has no tail.
    assert two_way_worst(
        np.full((5, 6), 2.0), np.random.default_rng(0), 0.1, 3
    ).tolist() == pytest.approx([2, 2, 2])


def test_values_that_are_not_there_are_left_out_of_everything() -> None:
    """Two templates: blocks of 60 x 40 and 60 x 61 in a grid of 120 x 101.
    No prompt is in more than 61 of 6,060 pairs.
    """
    values = grid(7)
    values[:60, 40:] = values[60:, :40] = np.nan
    known = values[~np.isnan(values)]
    found = Resampled.of(values, 0).estimates()
    expected = [known.mean(), np.sort(known)[-606:].mean(), np.quantile(known, 0.99), known.max()]
    assert [each.value for each in found.values()] == pytest.approx(expected)
    assert found["mean"].low < known.mean() < found["mean"].high
    # 6,060 / 61 = 99 prompts, of which one lies beyond the 99th percentile.
    assert np.isfinite(found["worst 10%"].low) and np.isnan(found["99%"].low)
    # Of one pair a prompt there are ten.
    sparse = np.where(np.eye(10, dtype=bool), grid(7)[:10, :10], np.nan)
    assert np.isfinite(Resampled.of(sparse, 0).estimates()["mean"].low) and np.isnan(
        Resampled.of(sparse, 0).estimates()["worst 10%"].low
    )
    with pytest.raises(BadUsage, match="all are NaN"):
        Resampled.of(np.full((3, 3), np.nan), 0)
