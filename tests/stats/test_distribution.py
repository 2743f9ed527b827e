"""Grids are not independent pairs: bounds that hold on them,
and a bootstrap of rows and columns.

Tables by template field, and a test of labels that finds what was planted and little else.

The table of a distribution: the paper's z-scores,
numpy's percentiles, and intervals by design.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest, fisher_exact, norm, ttest_1samp

from mechassay.errors import BadUsage, NonFinite, UnknownName
from mechassay.stats import bootstrap, bounds
from mechassay.stats import distribution as summary
from mechassay.stats import permutation_tests as label_tests
from mechassay.stats.bootstrap import two_way_draws
from mechassay.stats.bounds import (
    GRID_KINDS,
    grid_confidence,
    grid_exceedance,
    grid_rank,
    shortfall,
)
from mechassay.stats.distribution import (
    PERCENTILES,
    Design,
    Field,
    by_fields,
    expected_maximum,
    moments,
    run_percentiles,
    summarise,
    z_score,
)
from mechassay.stats.permutation_tests import Exceedance, HighPercentile, worse_labels


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


def grid(rng: np.random.Generator, n: int = 40, m: int = 25) -> np.ndarray:
    return 2 * rng.normal(size=(n, 1)) + rng.normal(size=(1, m)) + rng.normal(size=(n, m))


# --- tables
# -------------------------------------------------------------------------------------------


def test_a_heat_map_by_hand() -> None:
    values = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, np.nan], [7.0, 8.0, 9.0]])
    table = by_fields(
        values,
        [Field("object", ["kiss", "ring", "kiss"]), Field("place", ["a", "b", "a"], "corrupted")],
        (0.5,),
    )
    assert table.fields == ("object", "place") and table.labels == (("kiss", "ring"), ("a", "b"))
    assert table.count.tolist() == [[4, 2], [1, 1]]
    assert table.max.tolist() == [[9, 8], [4, 5]]
    assert table.percentiles[..., 0].tolist() == [[5, 5], [4, 5]]  # 1 3 7 9; 2 8; 4; 5


def test_empty_cells_are_undefined() -> None:
    table = by_fields(
        np.array([1.0, 2.0]), [Field("a", ["x", "y"]), Field("b", ["u", "v"])], (0.9,)
    )
    assert table.count.tolist() == [[1, 0], [0, 1]]
    assert np.isnan(table.max[0, 1]) and np.isnan(table.percentiles[1, 0, 0])


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 2**32 - 1))
def test_tables_against_one_group_at_a_time(n: int, m: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(n, m)).astype(np.float32)
    values[rng.random((n, m)) < 0.2] = np.nan
    clean, corrupted = rng.integers(0, 3, n).astype(str), rng.integers(0, 3, m).astype(str)
    table = by_fields(
        values,
        [Field("c", clean.tolist()), Field("d", corrupted.tolist(), "corrupted")],
        (0.3, 0.9),
    )
    for i, one in enumerate(table.labels[0]):
        for j, two in enumerate(table.labels[1]):
            cell = values[np.ix_(clean == one, corrupted == two)]
            cell = cell[~np.isnan(cell)].astype(float)
            assert table.count[i, j] == cell.size
            if cell.size:
                assert table.max[i, j] == cell.max()
                assert table.percentiles[i, j] == pytest.approx(
                    np.quantile(cell, (0.3, 0.9)), abs=1e-6
                )
    assert table.count.sum() == (~np.isnan(values)).sum()


# --- the test of labels
# -------------------------------------------------------------------------------


@pytest.mark.parametrize("statistic", [Exceedance(2.0), HighPercentile(0.95)])
@pytest.mark.parametrize("side", ["clean", "corrupted"])
def test_a_planted_label_is_found(statistic: Exceedance | HighPercentile, side: str) -> None:
    rng = np.random.default_rng(0)
    labels = [str(i % 5) for i in range(60)]
    values = grid(rng, 60, 60)
    rows = values if side == "clean" else values.T
    rows[np.array(labels) == "3"] += 4.0
    found = worse_labels(values, Field("object", labels, side), statistic, rng, 400)  # pyright: ignore[reportArgumentType]
    assert found.worse() == ("3",)
    assert found.adjusted[3] == pytest.approx(1 / 401) and found.value[3] > found.rest[3]
    assert (found.adjusted >= found.p).all() and found.inputs.tolist() == [12] * 5


@pytest.mark.parametrize("statistic", [Exceedance(1.5), HighPercentile(0.95)])
def test_labels_that_mean_nothing_are_seldom_called_worse(
    statistic: Exceedance | HighPercentile,
) -> None:
    """Rows differ a great deal, but not by label.
    Labels are of unequal size, so that their statistics are too.
    """
    rng, alpha, repeats = np.random.default_rng(1), 0.1, 250
    labels = [str(label) for label in np.repeat(np.arange(5), [2, 4, 6, 8, 20])]
    false = [
        bool(worse_labels(grid(rng), Field("f", labels), statistic, rng, 99).worse(alpha))
        for _ in range(repeats)
    ]
    assert np.mean(false) <= alpha + 4 * math.sqrt(alpha * (1 - alpha) / repeats)
    # It is not that nothing is ever found.
    assert np.mean(false) > alpha / 3


def test_permuting_single_pairs_would_find_labels_that_mean_nothing() -> None:
    """What the permutation of whole inputs is for:
    the same values with every pair as an input of its own.
    """
    rng, repeats = np.random.default_rng(2), 40
    labels = [str(i % 4) for i in range(40)]
    false = []
    for _ in range(repeats):
        values = grid(rng)
        pairs = Field("f", np.repeat(labels, values.shape[1]).tolist())
        false.append(
            bool(worse_labels(values.reshape(-1), pairs, Exceedance(1.5), rng, 99).worse(0.1))
        )
    assert np.mean(false) > 0.6


def test_two_labels_of_single_pairs_are_fishers_exact_test() -> None:
    values = np.array([1.0] * 9 + [0.0] * 5 + [1.0] * 3 + [0.0] * 12)
    labels = ["a"] * 14 + ["b"] * 15
    found = worse_labels(
        values, Field("f", labels), Exceedance(0.5), np.random.default_rng(3), 20_000
    )
    exact = fisher_exact([[9, 5], [3, 12]], alternative="greater").pvalue
    assert found.p[0] == pytest.approx(exact, abs=4 * math.sqrt(exact / 20_000))
    assert found.value.tolist() == pytest.approx(
        [9 / 14, 3 / 15]
    ) and found.rest.tolist() == pytest.approx([3 / 15, 9 / 14])


@pytest.mark.parametrize("statistic", [Exceedance(0.5), HighPercentile(0.8)])
def test_drawn_tables_are_permutations(statistic: Exceedance | HighPercentile) -> None:
    """One value an input, once as pairs, once as a grid whose second column is undefined:
    the same test by two ways.
    """
    rng = np.random.default_rng(4)
    values = rng.normal(size=60)
    values[:4] = np.nan
    field = Field("f", [str(i % 3) for i in range(60)])
    drawn = worse_labels(values, field, statistic, np.random.default_rng(5), 4000)
    columns = np.stack([values, np.full(60, np.nan)], axis=1)
    permuted = worse_labels(columns, field, statistic, np.random.default_rng(6), 4000)
    assert drawn.value.tolist() == permuted.value.tolist()
    assert drawn.p == pytest.approx(permuted.p, abs=4 * math.sqrt(0.5 / 4000))
    assert drawn.adjusted == pytest.approx(permuted.adjusted, abs=4 * math.sqrt(0.5 / 4000))


def test_the_statistics_are_those_of_the_pairs() -> None:
    rng = np.random.default_rng(7)
    values, labels = grid(rng, 50, 40), np.array([str(i % 3) for i in range(50)])
    share = worse_labels(values, Field("f", labels.tolist()), Exceedance(1.0), rng, 5)
    high = worse_labels(values, Field("f", labels.tolist()), HighPercentile(0.9), rng, 5)
    for i in range(3):
        own, rest = values[labels == str(i)], values[labels != str(i)]
        assert share.value[i] == pytest.approx((own > 1).mean()) and share.rest[i] == pytest.approx(
            (rest > 1).mean()
        )
        # Interpolated between pooled values a few percent of the tail apart.
        assert high.value[i] == pytest.approx(np.quantile(own, 0.9), abs=0.1)
        assert high.rest[i] == pytest.approx(np.quantile(rest, 0.9), abs=0.1)


def test_blocks_names_and_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    values = grid(np.random.default_rng(8))
    labels = [str(i % 4) for i in range(40)]

    def test(names: list[str], seed: int = 0) -> list[float]:
        return worse_labels(
            values, Field("f", names), Exceedance(1.0), np.random.default_rng(seed), 60
        ).adjusted.tolist()

    wanted = test(labels)
    assert test([f"label {label}" for label in labels]) == wanted
    assert test(labels, 1) != wanted
    monkeypatch.setattr(label_tests, "BLOCK", 500)
    assert test(labels) == wanted


def test_undefined_values_and_no_spread() -> None:
    values = np.zeros((6, 4))
    values[:2] = np.nan
    found = worse_labels(
        values, Field("f", list("aabbcc")), Exceedance(1.0), np.random.default_rng(9), 50
    )
    assert math.isnan(found.value[0]) and found.adjusted.tolist() == [1, 1, 1]
    flat = worse_labels(
        np.ones(6), Field("f", list("aabbcc")), HighPercentile(0.9), np.random.default_rng(9), 50
    )
    assert flat.value.tolist() == [1, 1, 1] and flat.adjusted.tolist() == [1, 1, 1]


def test_bad_arguments() -> None:
    rng, values = np.random.default_rng(10), np.zeros((4, 3))
    with pytest.raises(BadUsage, match="3 labels for 4 inputs"):
        by_fields(values, [Field("f", ["a", "b", "c"])])
    with pytest.raises(BadUsage, match="at least 1 field"):
        by_fields(values, [])
    with pytest.raises(UnknownName, match="Did you mean 'corrupted'"):
        Field("f", ["a"], "corrupt")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadUsage, match="at least 2 of them; the field f has 1"):
        worse_labels(values, Field("f", ["a"] * 4), Exceedance(0.0), rng)
    with pytest.raises(BadUsage, match="at least 1 permutation"):
        worse_labels(values, Field("f", list("abab")), Exceedance(0.0), rng, 0)
    with pytest.raises(BadUsage, match="all are NaN"):
        worse_labels(values * np.nan, Field("f", list("abab")), Exceedance(0.0), rng)
    with pytest.raises(NonFinite, match="exceedance"):
        worse_labels(values + np.inf, Field("f", list("abab")), HighPercentile(0.9), rng)
    with pytest.raises(BadUsage, match="got 99"):
        worse_labels(values, Field("f", list("abab")), HighPercentile(99.0), rng)


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


def test_bad_arguments_of_summary() -> None:
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
