"""Grids are not independent pairs: bounds that hold on them,
and a bootstrap of rows and columns.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, norm, ttest_1samp

from mechassay.errors import BadUsage, UnknownName
from mechassay.stats import bounds
from mechassay.stats import two_way as bootstrap
from mechassay.stats.design import Design
from mechassay.stats.grid_bounds import (
    GRID_KINDS,
    grid_confidence,
    grid_exceedance,
    grid_rank,
    shortfall,
)
from mechassay.stats.two_way import two_way_draws


def misses(promised: float, n: int) -> float:
    """Four standard errors of a share over n simulations."""
    return 4 * math.sqrt(promised * (1 - promised) / n)


def grids(
    rng: np.random.Generator,
    repeats: int,
    n: int,
    m: int,
    rows: float,
    columns: float,
    pairs: float,
) -> np.ndarray:
    """Normal values with effects of rows, columns and pairs of these variances."""
    effects = (rows, (n, 1)), (columns, (1, m)), (pairs, (n, m))
    return sum(
        math.sqrt(variance) * rng.normal(size=(repeats, *shape)) for variance, shape in effects
    )


# --- bounds for a grid
# --------------------------------------------------------------------------------


def test_the_shortfall_by_hand() -> None:
    # One draw that is 1 with probability 0.99: the lowest 5 % hold 1 % zeros and 4 % ones.
    assert shortfall(1, 0.99, 0.05) == pytest.approx(0.8)
    # Two of them: 0.01 % are 0, 1.98 % are 1, the rest of the lowest 5 % are 2.
    assert shortfall(2, 0.99, 0.05) == pytest.approx((0.0198 + 2 * (0.05 - 0.0199)) / 0.05)
    assert shortfall(3, 0.5, 0.1) < 0


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 99), st.sampled_from([0.01, 0.05, 0.2, 0.6]))
def test_the_shortfall_is_the_mean_of_the_lowest_part(s: int, percent: int, alpha: float) -> None:
    theta = percent / 100
    mass = np.diff(np.minimum(binom.cdf(np.arange(-1, s + 1), s, theta), alpha))
    slow = float(mass @ np.arange(s + 1)) / alpha
    if binom.pmf(0, s, theta) < alpha:
        assert shortfall(s, theta, alpha) == pytest.approx(slow, abs=1e-8)
    else:
        assert shortfall(s, theta, alpha) <= 1e-9


def test_a_grid_is_worth_its_smaller_side() -> None:
    assert [grid_rank(1000, 1000, p, 0.95, "chernoff") for p in (0.95, 0.99, 0.999)] == [
        965_936,
        996_639,
        None,
    ]
    assert [grid_rank(1000, 1000, p) for p in (0.95, 0.99, 0.999)] == [963_666, 995_840, None]
    # What the paper's ranks are worth: it takes 0.919 and 0.934 from the exact binomial, which is
    # not valid here.
    assert grid_confidence(1000, 1000, 0.95, 960_000, "chernoff") == pytest.approx(0.676, abs=5e-4)
    assert grid_confidence(1000, 1000, 0.99, 995_000, "chernoff") == pytest.approx(0.787, abs=5e-4)
    assert 0.676 < grid_confidence(1000, 1000, 0.95, 960_000) < 0.919


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 60),
    st.integers(2, 60),
    st.sampled_from([0.5, 0.8, 0.9, 0.95]),
    st.sampled_from([0.6, 0.9, 0.95]),
)
def test_the_shortfall_is_never_worse_than_chernoff(n: int, m: int, p: float, level: float) -> None:
    ranks = [grid_rank(n, m, p, level, kind) or n * m + 1 for kind in GRID_KINDS]
    assert ranks == sorted(ranks)
    assert ranks == [grid_rank(m, n, p, level, kind) or n * m + 1 for kind in GRID_KINDS]
    if ranks[0] <= n * m:
        assert grid_confidence(n, m, p, ranks[0]) >= level - 1e-9
        assert grid_confidence(n, m, p, ranks[0] - 1) < level + 1e-9
    # A bound from pairs that share inputs is never better than one from as many independent pairs.
    assert ranks[0] >= (bounds.smallest_rank(n * m, p, level) or n * m)


@pytest.mark.parametrize(
    ("rows", "columns", "pairs"),
    [(1.0, 0.0, 0.0), (0.8, 0.1, 0.1), (0.5, 0.5, 0.0), (0.0, 0.0, 1.0)],
)
def test_grid_bounds_hold_whatever_the_effects(rows: float, columns: float, pairs: float) -> None:
    """And the binomial bound, which takes pairs to be independent, does not."""
    n, m, p, level, repeats = 30, 40, 0.8, 0.9, 1500
    flat = np.sort(
        grids(np.random.default_rng(0), repeats, n, m, rows, columns, pairs).reshape(repeats, -1),
        axis=1,
    )
    truth = norm.ppf(p)
    for kind in ("shortfall", "chernoff"):
        rank = grid_rank(n, m, p, level, kind)
        assert rank is not None
        assert (flat[:, rank - 1] >= truth).mean() >= level - misses(level, repeats)
    naive = bounds.smallest_rank(n * m, p, level)
    assert naive is not None
    held = (flat[:, naive - 1] >= truth).mean()
    if pairs < 1:
        assert held < level - 0.1
    else:
        assert held >= level - misses(level, repeats)


@pytest.mark.parametrize("rows", [1.0, 0.5, 0.0])
def test_exceedance_bounds_hold_whatever_the_effects(rows: float) -> None:
    n, level, repeats = 25, 0.9, 400
    values = grids(np.random.default_rng(1), repeats, n, n, rows, (1 - rows) / 2, (1 - rows) / 2)
    design = Design("grid", (n, n))
    found = np.array([design.exceedance_bound(each, 1.0, level) for each in values])
    truth = norm.sf(1.0)
    assert (found >= truth).mean() >= level - misses(level, repeats)
    assert found.mean() < 0.5


def test_exceedance_bounds_at_the_ends() -> None:
    # No hit: the hinge at 1 refutes theta once (1 - theta)^s <= alpha, as for s independent pairs.
    assert grid_exceedance(0, 1000, 2000, 0.95) == pytest.approx(1 - 0.05 ** (1 / 1000), rel=1e-8)
    assert grid_exceedance(400, 20, 20, 0.95) == 1
    found = [grid_exceedance(hits, 20, 20, 0.95) for hits in range(0, 401, 20)]
    assert found == sorted(found) and all(
        high > hits / 400 for high, hits in zip(found[:-1], range(0, 400, 20), strict=True)
    )


# --- the bootstrap
# ------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", [3, 1024])
@pytest.mark.parametrize("undefined", [False, True])
def test_resamples_are_those_of_copied_rows_and_columns(
    block: int, undefined: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "BLOCK", block)
    n, m, percentiles, above = 9, 14, (0.3, 0.9, 0.97), (0.5, 1.5)
    values = np.random.default_rng(2).normal(size=(n, m)).astype(np.float32)
    values[0, :5] = values[1, 3]
    if undefined:
        values[4], values[2, 7] = np.nan, np.nan
    draws = two_way_draws(values, np.random.default_rng(3), percentiles, above, 60)
    rng = np.random.default_rng(3)
    rows, columns = (rng.multinomial(size, np.full(size, 1 / size), size=60) for size in (n, m))
    for i in range(60):
        copied = np.repeat(np.repeat(values, rows[i], axis=0), columns[i], axis=1)
        copied = copied[~np.isnan(copied)].astype(float)
        assert draws.mean[i] == pytest.approx(copied.mean(), abs=1e-5)
        assert draws.percentiles[i] == pytest.approx(
            np.quantile(copied, percentiles, method="inverted_cdf")
        )
        assert draws.exceedance[i] == pytest.approx([(copied > t).mean() for t in above])


def test_more_values_are_looked_at_where_the_largest_were_not_drawn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One row has the largest tenth of the values;
    resamples without it have their 99th percentile far below.
    """
    monkeypatch.setattr(bootstrap, "BLOCK", 2)
    values = np.arange(200.0).reshape(10, 20)
    draws = two_way_draws(values, np.random.default_rng(4), (0.99,), n_resamples=200)
    without = draws.percentiles[:, 0] < 180
    assert 0.25 < without.mean() < 0.45  # (1 - 1/10)^10 = 0.35


def test_infinite_and_undefined_values() -> None:
    values = np.ones((4, 5))
    values[0, 0] = np.inf
    draws = two_way_draws(values, np.random.default_rng(5), (0.5,), (2.0,), 50)
    assert (
        np.isnan(draws.mean).all()
        and (draws.percentiles == 1).all()
        and draws.exceedance.max() < 0.5
    )
    nothing = two_way_draws(np.full((2, 2), np.nan), np.random.default_rng(5), (0.5,), (2.0,), 5)
    assert (
        np.isnan(nothing.mean).all()
        and np.isnan(nothing.percentiles).all()
        and np.isnan(nothing.exceedance).all()
    )


def test_the_same_seed_gives_the_same_draws() -> None:
    values = np.random.default_rng(6).normal(size=(6, 7))
    one, two, other = (
        two_way_draws(values, np.random.default_rng(seed), (0.9,)) for seed in (0, 0, 1)
    )
    assert (one.percentiles == two.percentiles).all() and (one.mean == two.mean).all()
    assert (one.mean != other.mean).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n", "m", "rows", "columns"), [(30, 30, 0.4, 0.4), (30, 60, 1.0, 0.0), (50, 40, 0.05, 0.9)]
)
def test_no_interval_is_given_that_does_not_cover(
    n: int, m: int, rows: float, columns: float
) -> None:
    """Means, percentiles and exceedances of small grids:
    those that the bootstrap reaches cover, and of the others there are none.
    """
    repeats, level, percentiles, above = (
        90,
        0.9,
        (0.5, 0.8, 0.95, 0.98, 0.995),
        (0.0, 1.0, 2.0, 9.0),
    )
    values = grids(np.random.default_rng(10), repeats, n, m, rows, columns, 1 - rows - columns)
    design, rng = Design("grid", (n, m)), np.random.default_rng(11)
    truth = [0.0, *norm.ppf(percentiles), *norm.sf(above)]
    found = [design.intervals(each, rng, percentiles, above, level, 120) for each in values]
    ends = np.array(
        [
            [interval[:2] for interval in (each.mean, *each.percentiles, *each.exceedance)]
            for each in found
        ]
    )
    given = ~np.isnan(ends).any(axis=2)
    covered = ((ends[..., 0] <= truth) & (truth <= ends[..., 1]) & given).sum(axis=0)
    assert (np.isnan(ends).all(axis=2) == ~given).all()
    # An approximation, it covers in about 86 % instead of 90; of that four standard errors of 90
    # grids.
    assert (covered >= 0.72 * given.sum(axis=0)).all()
    assert ((ends[..., 1] > ends[..., 0]) | ~given).all()
    # In the order of `truth`: the mean, 50 and 80 %, the higher percentiles, exceedances of 0, 1, 2
    # and of 9, which no value does.
    assert (
        given[:, :3].all()
        and not given[:, 3:6].any()
        and given[:, 6].mean() > 0.9
        and not given[:, 9].any()
    )


def test_the_reach_of_the_bootstrap_by_hand() -> None:
    """Five rows and five columns on either side:
    100 x 0.05, 50 x 0.1 and 10 x 0.5 are just enough.
    """
    for side, share in ((100, 0.95), (100, 0.05), (50, 0.9), (10, 0.5), (500, 0.99), (5000, 0.999)):
        assert bootstrap.within_reach((side, 9999), share) and bootstrap.within_reach(
            (9999, side), share
        )
        assert not bootstrap.within_reach((side - 1, 9999), share) and not bootstrap.within_reach(
            (9999, side - 1), share
        )
    assert bootstrap.within_reach((5, 7)) and not bootstrap.within_reach((4, 99))
    assert not any(bootstrap.within_reach((10**6, 10**6), share) for share in (0.0, 1.0, math.nan))
    row = Design("grid", (1, 50)).intervals(
        np.arange(50.0)[None], np.random.default_rng(0), (0.5,), (25.0,)
    )
    assert all(
        math.isnan(end)
        for each in (row.mean, *row.percentiles, *row.exceedance)
        for end in each[:2]
    )
    nothing = Design("grid", (20, 20)).intervals(
        np.full((20, 20), np.nan), np.random.default_rng(0), (0.5,), (0.0,)
    )
    assert math.isnan(nothing.exceedance[0].low)


@pytest.mark.slow
def test_bootstrap_intervals_cover_where_intervals_of_pairs_do_not() -> None:
    n, repeats = 30, 150
    values = grids(np.random.default_rng(7), repeats, n, n, 0.4, 0.4, 0.2)
    rng, design, pairs = (
        np.random.default_rng(8),
        Design("grid", (n, n)),
        Design("independent", (n * n,)),
    )
    truth, kept, naive = (0.0, float(norm.ppf(0.8)), float(norm.sf(0.0))), np.zeros(3), np.zeros(3)
    for each in values:
        for counted, found in (
            (kept, design.intervals(each, rng, (0.8,), (0.0,), 0.9, 200)),
            (naive, pairs.intervals(each.reshape(-1), rng, (0.8,), (0.0,), 0.9)),
        ):
            ends = (found.mean, found.percentiles[0], found.exceedance[0])
            counted += [
                interval.contains(value) for interval, value in zip(ends, truth, strict=True)
            ]
    # The bootstrap is an approximation: with 30 rows it covers a little less than it says.
    assert (kept / repeats > 0.82).all()
    assert (naive / repeats < 0.6).all()


# --- the design
# ---------------------------------------------------------------------------------------


def test_a_design_says_what_its_pairs_are_worth() -> None:
    grid, matched = Design("grid", (20, 30)), Design("matched", (600,))
    assert (grid.n_values, grid.n_units, matched.n_units) == (600, 20, 600)
    values = np.arange(600.0)
    assert matched.upper_bound(values, 0.8).rank == bounds.smallest_rank(600, 0.8, 0.95)
    found = grid.upper_bound(values.reshape(20, 30), 0.8)
    assert found.kind == "shortfall" and found.value > matched.upper_bound(values, 0.8).value
    assert found.confidence >= 0.95
    assert grid.upper_bound(values.reshape(20, 30), 0.99).value == math.inf
    assert grid.upper_bound(values.reshape(20, 30), 0.8, kind="chernoff").value >= found.value


def test_intervals_of_independent_pairs_against_scipy() -> None:
    values = np.random.default_rng(9).exponential(size=80)
    found = Design("matched", (80,)).intervals(
        values, np.random.default_rng(0), (0.5,), (1.0,), 0.9
    )
    assert found.mean[:2] == pytest.approx(tuple(ttest_1samp(values, 0).confidence_interval(0.9)))
    hits = int((values > 1).sum())
    assert found.exceedance[0][:2] == pytest.approx(
        tuple(binomtest(hits, 80).proportion_ci(0.9, "exact")), abs=1e-9
    )
    assert found.percentiles[0] == bounds.order_interval(values, 0.5, 0.9)
    above = Design("matched", (80,)).exceedance_bound(values, 1.0, 0.95)
    assert above == pytest.approx(
        binomtest(hits, 80, alternative="less").proportion_ci(0.95, "exact").high, abs=1e-9
    )


def test_undefined_values_count_as_exceeding_in_bounds_only() -> None:
    values = np.array([0.0, 0.0, np.nan, 5.0])
    design = Design("matched", (4,))
    assert design.exceedance_bound(values, 1.0) == design.exceedance_bound(
        np.array([0.0, 0.0, 9.0, 5.0]), 1.0
    )
    assert design.intervals(values, np.random.default_rng(0), (), (1.0,)).exceedance[0].low < 1 / 3
    nothing = design.intervals(np.full(4, np.nan), np.random.default_rng(0), (0.5,), (1.0,))
    assert all(
        math.isnan(each.low) for each in (nothing.mean, *nothing.percentiles, *nothing.exceedance)
    )


def test_what_a_design_refuses() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'grid'"):
        Design("gird", (2, 2))
    for kind, shape in (
        ("grid", (4,)),
        ("matched", (2, 2)),
        ("grid", (0, 3)),
        ("independent", (0,)),
    ):
        with pytest.raises(BadUsage, match=f"the design {kind} have"):
            Design(kind, shape)
    with pytest.raises(BadUsage, match="got \\(3, 2\\)"):
        Design("grid", (2, 3)).upper_bound(np.zeros((3, 2)), 0.9)
    with pytest.raises(UnknownName, match="bound for a grid 'exact'"):
        Design("grid", (2, 3)).upper_bound(np.zeros((2, 3)), 0.9, kind="exact")
    with pytest.raises(BadUsage, match="got 7"):
        grid_confidence(2, 3, 0.5, 7)
    with pytest.raises(BadUsage, match="A percentile must be"):
        two_way_draws(np.zeros((2, 2)), np.random.default_rng(0), (1.0,))
    for n_resamples in (0, -3):
        with pytest.raises(BadUsage, match=f"at least 1 resample; got {n_resamples}"):
            Design("grid", (2, 3)).intervals(
                np.zeros((2, 3)), np.random.default_rng(0), (0.5,), n_resamples=n_resamples
            )
    for hits in (-1, 26):
        with pytest.raises(BadUsage, match=f"between 0 and the 25 pairs of the grid; got {hits}"):
            grid_exceedance(hits, 5, 5)
