"""Bounds of percentiles: the paper's table, slow searches, and the confidence they promise.

Parts of a grid: what is counted by hand, the grid's own bounds as the case of one block,
and coverage by simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from mechassay.errors import BadUsage, UnknownName
from mechassay.stats.bounds import (
    KINDS,
    PartialGrid,
    confidence,
    grid_confidence,
    grid_exceedance,
    grid_rank,
    margin_rank,
    order_interval,
    outside,
    partial_confidence,
    partial_exceedance,
    partial_rank,
    rank_confidence,
    reach,
    required_n,
    smallest_rank,
    upper_bound,
)
from mechassay.stats.distribution import Design, summarise

# p, delta, epsilon; the paper's exact, Chernoff and Hoeffding; the smallest n and the n from which
# on it holds.
TABLE_1 = [
    (0.95, 0.95, 0.01, (1282, 2659, 14979), (1148, 1326)),
    (0.95, 0.99, 0.01, (2437, 4088, 23026), (2348, 2526)),
    (0.95, 0.95, 0.04, (59, 122, 937), (59, 59)),
    (0.99, 0.95, 0.005, (1049, 1937, 59915), (773, 1049)),
    (0.99, 0.99, 0.005, (1736, 2978, 92104), (1596, 2010)),
    (0.999, 0.999, 0.0005, (31236, 44987, 13815511), (29844, 32616)),
]


def misses(promised: float, n: int) -> float:
    """Four standard errors of a share over n simulations:
    below it by chance once in 30,000 times.
    """
    return 4 * math.sqrt(promised * (1 - promised) / n)


def doubled_and_bisected(p: float, level: float, epsilon: float) -> int:
    """How the paper's exact column comes about: n is doubled from 1 until it holds,
    then bisected as if it were monotone.
    """
    high = 1
    while confidence(high, p, epsilon) < level:
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if confidence(middle, p, epsilon) >= level else (middle, high)
    return high


@pytest.mark.parametrize(("p", "level", "epsilon", "paper", "own"), TABLE_1)
def test_table_1_of_the_paper(
    p: float, level: float, epsilon: float, paper: tuple[int, ...], own: tuple[int, int]
) -> None:
    exact, chernoff, hoeffding = (required_n(p, level, epsilon, kind) for kind in KINDS)
    assert doubled_and_bisected(p, level, epsilon) == paper[0]
    assert chernoff == (paper[1], paper[1]) and hoeffding == (paper[2], paper[2])
    assert exact == own
    # The paper's entry is on the saw between the two.
    assert exact.smallest <= paper[0] <= exact.always


@pytest.mark.parametrize(("p", "level", "epsilon", "own"), [(*row[:3], row[4]) for row in TABLE_1])
def test_both_columns_against_every_n(
    p: float, level: float, epsilon: float, own: tuple[int, int]
) -> None:
    n = np.arange(1, required_n(p, level, epsilon, "chernoff").always + 1)
    ranks = -(-n * int(Fraction(str(p + epsilon)).limit_denominator(10**6) * 10**6) // 10**6)
    holds = binom.cdf(ranks - 1, n, p) >= level
    assert own == (n[holds][0], n[~holds][-1] + 1)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 98),
    st.sampled_from([0.05, 0.3, 0.5, 0.51, 0.75, 0.9, 0.99, 0.9999]),
    st.integers(1, 99),
)
def test_the_search_against_every_n(percent: int, level: float, part: int) -> None:
    p, epsilon = percent / 100, round((100 - percent) / 100 * part / 100, 4)
    size = required_n(p, level, epsilon)
    last = min(
        40_000, max(required_n(p, level, epsilon, "chernoff").always, math.ceil(2 / epsilon))
    )
    n = np.arange(1, last + 1)
    a, scale = round((p + epsilon) * 10**4), 10**4
    failure = binom.cdf(n - -(-n * a // scale), n, 1 - p)
    holds = failure <= (1 - level) * (1 + 1e-10)
    if size.always <= last:
        assert size == (n[holds][0], n[~holds][-1] + 1 if (~holds).any() else 1)


def test_blocks_of_the_search_do_not_show() -> None:
    for row in ((0.999, 0.999, 0.0005), (0.9, 0.9, 0.002)):
        assert required_n(*row, block=3) == required_n(*row)


def test_rare_percentiles_and_millions_of_draws() -> None:
    """Just before and at each number, against scipy's binomial distribution."""
    p, level, epsilon = 0.9999, 0.999, 0.00001
    size = required_n(p, level, epsilon)
    assert 9e6 < size.smallest < size.always < 1e7

    def holds(n: int) -> bool:
        return bool(binom.cdf(n - math.ceil(Fraction(99991, 100000) * n), n, 1e-4) <= 1e-3)

    assert [holds(n) for n in (size.smallest - 1, size.smallest, size.always - 1, size.always)] == [
        False,
        True,
        False,
        True,
    ]


@pytest.mark.slow
def test_what_the_search_refuses_is_beyond_it() -> None:
    """Around the limit: refused at once, or found just below it."""
    exact = required_n(0.99, 0.95, 2.5e-5)
    chernoff = required_n(0.99, 0.95, 2.5e-5, "chernoff").smallest
    assert 4e7 < exact.smallest < exact.always < chernoff < 1e8
    assert required_n(0.99, 0.95, 2.4e-5, "chernoff").smallest > 1e8
    with pytest.raises(
        BadUsage, match="goes up to 1e\\+08 draws. The Chernoff bound's n is enough"
    ):
        required_n(0.99, 0.95, 2.4e-5)


def test_percentiles_of_many_digits_are_exact() -> None:
    """Products of whole numbers that 64 bits do not hold."""
    assert required_n(0.9500000000000001, 0.95, 0.0400000000000001) == (59, 59)


def test_the_numbers_in_the_papers_text() -> None:
    assert confidence(1000, 0.95, 0.01) == pytest.approx(0.9194, abs=5e-5)
    assert confidence(1000, 0.99, 0.005) == pytest.approx(0.9339, abs=5e-5)
    assert confidence(10**6, 0.95, 5e-4) == pytest.approx(0.9891, abs=5e-5)
    with pytest.raises(BadUsage, match="below 1 - p = 0.0001; got 0.0005"):
        confidence(10**6, 0.9999, 5e-4)


@pytest.mark.parametrize(
    ("n", "rank", "p"), [(2, 2, 0.5), (30, 29, 0.95), (200, 198, 0.99), (7, 1, 0.2)]
)
def test_confidence_by_exact_sums(n: int, rank: int, p: float) -> None:
    exact = Fraction(str(p))
    total = sum(math.comb(n, k) * exact**k * (1 - exact) ** (n - k) for k in range(rank))
    assert rank_confidence(n, rank, p) == pytest.approx(float(total), rel=1e-12)


def test_inequalities_by_hand() -> None:
    assert rank_confidence(10, 10, 0.5, "hoeffding") == pytest.approx(1 - math.exp(-5))
    # D(1 || 1/2) = ln 2: the Chernoff bound of the largest value is exact.
    assert (
        rank_confidence(10, 10, 0.5, "chernoff")
        == pytest.approx(1 - 2**-10)
        == rank_confidence(10, 10, 0.5)
    )
    assert rank_confidence(10, 5, 0.5, "chernoff") == 0 == rank_confidence(10, 4, 0.5, "hoeffding")
    # For small margins D(p + d || p) = d^2 / (2 p q), to first order.
    assert -math.log1p(-confidence(10**6, 0.95, 1e-6, "chernoff")) == pytest.approx(
        1e-6 / (2 * 0.95 * 0.05), rel=1e-4
    )


def test_ranks_are_rounded_up_as_decimals() -> None:
    """0.95 + 0.01 is above 0.96 in floating point, and 0.96 x 100 would be rounded up to 97."""
    assert margin_rank(100, 0.95, 0.01) == 96
    assert margin_rank(101, 0.95, 0.01) == 97


def test_ranks_for_a_level() -> None:
    assert [smallest_rank(1000, p, 0.95) for p in (0.95, 0.99, 0.999)] == [962, 996, None]
    assert [smallest_rank(10**6, p, 0.95) for p in (0.95, 0.99, 0.999, 0.9999)] == [
        950359,
        990164,
        999053,
        999917,
    ]
    assert [smallest_rank(n, 0.999, 0.95) for n in (2994, 2995)] == [None, 2995]
    assert [smallest_rank(n, 0.9999, 0.95) for n in (29955, 29956)] == [None, 29956]


def test_too_few_values_have_no_bound_rather_than_their_largest() -> None:
    values = np.arange(59.0)
    few, enough = upper_bound(values[:58], 0.95), upper_bound(values, 0.95)
    assert (
        few.value == math.inf
        and few.rank is None
        and math.isnan(few.confidence)
        and "too few" in str(few)
    )
    assert (
        enough.value == 58
        and enough.rank == 59
        and enough.confidence == pytest.approx(1 - 0.95**59)
    )
    assert "value 59 of 59" in str(enough)


def test_undefined_values_cannot_lower_a_bound() -> None:
    values = np.arange(1000.0)
    assert upper_bound(values, 0.95).value == 961
    values[:10] = np.nan
    assert upper_bound(values, 0.95).value == 971
    values[:100] = np.nan
    assert math.isnan(upper_bound(values, 0.95).value)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5000), st.integers(1, 999), st.integers(1, 999))
def test_ranks_are_the_smallest_and_ordered(n: int, thousandths: int, level: int) -> None:
    p, delta = thousandths / 1000, level / 1000
    ranks = [smallest_rank(n, p, delta, kind) or n + 1 for kind in KINDS]
    assert ranks == sorted(ranks)
    for rank, kind in zip(ranks, KINDS, strict=True):
        if rank <= n:
            assert rank_confidence(n, rank, p, kind) >= delta - 1e-9
        if rank > 1:
            assert rank_confidence(n, rank - 1, p, kind) < delta + 1e-9
    # More confidence or a higher percentile never has a lower rank.
    assert (
        (smallest_rank(n, p, (delta + 1) / 2) or n + 1)
        >= ranks[0]
        <= (smallest_rank(n, (p + 1) / 2, delta) or n + 1)
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("discrete", [False, True])
def test_bounds_hold_as_often_as_they_promise(kind: str, discrete: bool) -> None:
    rng, n, repeats = np.random.default_rng(0), 200, 4000
    draws = rng.exponential(size=(repeats, n))
    truth = -math.log(0.1)
    if discrete:
        draws, truth = (
            np.floor(draws),
            2.0,
        )  # P(X <= 1) = 0.86, P(X <= 2) = 0.95: the 90th percentile is 2.
    rank = smallest_rank(n, 0.9, 0.9, kind)
    assert rank is not None
    held = (np.sort(draws, axis=1)[:, rank - 1] >= truth).mean()
    expected = rank_confidence(n, rank, 0.9, kind)
    assert held >= expected - misses(expected, repeats)
    if kind == "exact" and not discrete:
        assert held == pytest.approx(expected, abs=misses(expected, repeats))


def test_intervals_between_order_statistics() -> None:
    """n = 10, the median, 90 %: P(Y <= 1) = 11/1024 <= 5 % < P(Y <= 2) = 56/1024,
    so the ends are the 2nd and the 9th.
    """
    assert order_interval(np.arange(1.0, 11.0), 0.5, 0.9) == (2, 9, 0.9)
    assert order_interval(np.arange(3.0), 0.5, 0.9) == (-math.inf, math.inf, 0.9)
    low, high, _ = order_interval(np.arange(10.0), 0.9, 0.9)
    assert math.isfinite(low) and high == math.inf


def test_intervals_hold_as_often_as_they_promise() -> None:
    rng, repeats = np.random.default_rng(1), 600
    held = np.mean(
        [order_interval(rng.normal(size=120), 0.8, 0.9).contains(0.8416) for _ in range(repeats)]
    )
    assert held >= 0.9 - misses(0.9, repeats)
    assert held < 0.97


def test_single_precision_is_enough() -> None:
    values = np.random.default_rng(2).normal(size=3000).astype(np.float32)
    assert upper_bound(values, 0.99).value == float(
        np.sort(values)[upper_bound(values.astype(float), 0.99).rank - 1]
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: required_n(0.0, 0.95, 0.01), "p must be between 0 and 1, both excluded; got 0"),
        (lambda: required_n(float("nan"), 0.95, 0.01), "got nan"),
        (lambda: required_n(0.9, 1.0, 0.01), "confidence must be between 0 and 1"),
        (lambda: required_n(0.99, 0.95, 0.01), "below 1 - p = 0.01; got 0.01"),
        (lambda: required_n(0.99, 0.95, 0.0), "epsilon must be above 0"),
        (lambda: required_n(0.9, 0.95, 1e-9), "too small for the exact search"),
        (
            lambda: required_n(0.99, 0.95, 1e-300),
            "epsilon = 1e-300 is too small for the exact search, which goes up to 1e\\+08 draws",
        ),
        (lambda: required_n(0.99, 0.4, 5e-324), "too small for the exact search"),
        (lambda: required_n(0.99, 0.95, 1e-12), "too small for the exact search"),
        (
            lambda: required_n(0.99, 0.95, 1e-300, "chernoff"),
            "chernoff bound would need more than 9e\\+15 draws",
        ),
        (
            lambda: required_n(0.99, 0.95, 1e-160, "hoeffding"),
            "hoeffding bound would need more than 9e\\+15 draws",
        ),
        (lambda: upper_bound(np.empty(0), 0.9), "at least 1 draw"),
        (lambda: rank_confidence(5, 6, 0.9), "between 1 and n = 5; got 6"),
    ],
)
def test_bad_arguments(call: object, message: str) -> None:
    with pytest.raises(BadUsage, match=message):
        call()  # pyright: ignore[reportCallIssue]
    with pytest.raises(UnknownName, match="Did you mean 'chernoff'"):
        required_n(0.9, 0.9, 0.01, "chernof")


SIMULATIONS = 300


def test_counts_by_hand() -> None:
    strata = PartialGrid.of(["a", "b", "a", "c"], ["b", "a", "a", "a", "d"])
    # a: 2 clean and 3 corrupted; b: 1 and 1; c and d have no partner.
    assert strata.shape == (4, 5) and strata.n_values == 7 and strata.mask.sum() == 7
    assert [(rows.tolist(), columns.tolist()) for rows, columns in strata.blocks()] == [
        ([0, 2], [1, 2, 3]),
        ([1], [0]),
    ]
    assert strata.n_draws == 2 + 1
    # A clean prompt of a is in three pairs, none in more.
    assert strata.units == pytest.approx(7 / 3)
    assert reach(strata.mask) == strata.units
    part = strata.select([1, 3, 0], [0, 1])
    assert part.mask.tolist() == [[True, False], [False, False], [False, True]]
    with pytest.raises(BadUsage, match="there are no pairs"):
        PartialGrid.of(["a"], ["b"])


@pytest.mark.parametrize(("n", "m"), [(100, 100), (60, 300), (300, 59)])
def test_one_block_is_a_grid(n: int, m: int) -> None:
    strata = PartialGrid.of([0] * n, [0] * m)
    assert strata.units == strata.n_draws == min(n, m)
    for p in (0.5, 0.9, 0.95, 0.99):
        rank = grid_rank(n, m, p)
        assert partial_rank(strata, p) == rank
        if rank is not None:
            assert partial_confidence(strata, p, rank) == pytest.approx(
                grid_confidence(n, m, p, rank), abs=1e-12
            )
    for hits in (0, n * m // 10, n * m - 1, n * m):
        assert partial_exceedance(strata, hits) == pytest.approx(
            grid_exceedance(hits, n, m), abs=1e-9
        )


def test_blocks_of_one_pair_are_independent_pairs() -> None:
    strata = PartialGrid.of(range(200), range(200))
    assert strata.units == strata.n_draws == strata.n_values == 200


def test_blocks_of_one_size_count_as_a_grid_of_as_many_disjoint_pairs() -> None:
    labels = np.repeat(range(5), 40)
    strata = PartialGrid.of(labels.tolist(), labels.tolist())
    assert strata.units == strata.n_draws == 200
    # The same share of the values is enough as in a grid of 200 x 200.
    rank, grid = partial_rank(strata, 0.95), grid_rank(200, 200, 0.95)
    assert (
        rank is not None
        and grid is not None
        and rank / 8000 == pytest.approx(grid / 40_000, abs=1e-3)
    )


def test_a_large_block_is_not_worth_more_than_its_prompts() -> None:
    # One block has nearly all values, so that the others help little.
    strata = PartialGrid.of([0] * 100 + [*range(1, 50)], [0] * 100 + [*range(1, 50)])
    assert strata.n_draws == 149 and strata.units == pytest.approx((10_000 + 49) / 100)
    assert partial_exceedance(strata, 0) >= grid_exceedance(0, 149, 149)


def test_a_rank_has_the_confidence_that_it_was_chosen_for() -> None:
    strata = PartialGrid.of([0] * 90 + [1] * 140 + [2] * 70, [0] * 60 + [1] * 200 + [2] * 40)
    for p in (0.5, 0.9, 0.95):
        rank = partial_rank(strata, p)
        assert rank is not None
        assert (
            partial_confidence(strata, p, rank)
            >= 0.95 - 1e-9
            > partial_confidence(strata, p, rank - 50)
        )


def values_of(
    strata: PartialGrid, rng: np.random.Generator, spread: tuple[float, float, float, float]
) -> np.ndarray:
    """Lognormal values with effects of the stratum,
    the clean and the corrupted prompt, and the pair.
    """
    block, row, column, noise = spread
    effects = block * np.linspace(-1, 1, int(max(strata.clean.max(), strata.corrupted.max())) + 1)
    n, m = strata.shape
    made = (
        effects[strata.clean][:, None]
        + row * rng.normal(size=(n, 1))
        + column * rng.normal(size=(1, m))
        + noise * rng.normal(size=(n, m))
    )
    return outside(np.exp(made), strata.mask)


def truth_of(weights: np.ndarray, spread: tuple[float, float, float, float], p: float) -> float:
    """The percentile of the mixture, from a fine sample of its quantiles."""
    block, row, column, noise = spread
    centres = block * np.linspace(-1, 1, len(weights))
    scale = float(np.sqrt(row**2 + column**2 + noise**2))
    rng = np.random.default_rng(99)
    drawn = rng.choice(len(weights), size=2_000_000, p=weights)
    return float(np.exp(np.quantile(centres[drawn] + scale * rng.normal(size=len(drawn)), p)))


SPREADS = {
    "rows": (0.5, 1.0, 0.1, 0.1),
    "columns": (0.5, 0.1, 1.0, 0.1),
    "pairs": (0.0, 0.1, 0.1, 1.0),
    "blocks": (2.0, 0.5, 0.5, 0.5),
}


def unequal() -> PartialGrid:
    return PartialGrid.of(
        np.repeat(range(4), [20, 40, 60, 90]).tolist(),
        np.repeat(range(4), [60, 50, 40, 30]).tolist(),
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("spread", SPREADS.values(), ids=SPREADS)
def test_bounds_hold_as_often_as_they_promise_of_partial_grid(
    spread: tuple[float, float, float, float],
) -> None:
    """For the population in which strata have the sample's shares;
    over 300 simulated samples, to within four standard errors.
    """
    strata, rng, p = unequal(), np.random.default_rng(5), 0.9
    weights = strata.sides.prod(axis=1) / strata.n_values
    truth = truth_of(weights, spread, p)
    design = Design("grid", strata.shape, strata)
    held = shares = 0
    for _ in range(SIMULATIONS):
        values = values_of(strata, rng, spread)
        held += design.upper_bound(values, p).value >= truth
        shares += design.exceedance_bound(values, truth) >= 1 - p
    least = 0.95 - 4 * np.sqrt(0.95 * 0.05 / SIMULATIONS)
    assert held / SIMULATIONS >= least and shares / SIMULATIONS >= least


@pytest.mark.slow
def test_intervals_cover_the_population_of_the_sampling() -> None:
    """Prompts, and with them strata, drawn anew:
    mean and 90th percentile of all pairs that agree.
    """
    rng, shares = np.random.default_rng(6), np.array([0.1, 0.2, 0.3, 0.4])
    spread = (0.7, 0.6, 0.4, 0.5)
    weights = shares**2 / (shares**2).sum()
    centres = spread[0] * np.linspace(-1, 1, 4)
    mean = float(
        (weights * np.exp(centres + (spread[1] ** 2 + spread[2] ** 2 + spread[3] ** 2) / 2)).sum()
    )
    high = truth_of(weights, spread, 0.9)
    covered = np.zeros(2)
    for _ in range(200):
        strata = PartialGrid(rng.choice(4, size=150, p=shares), rng.choice(4, size=120, p=shares))
        design = Design("grid", strata.shape, strata)
        found = design.intervals(values_of(strata, rng, spread), rng, (0.9,), n_resamples=200)
        for place, (truth, (low, top, _)) in enumerate(
            ((mean, found.mean), (high, found.percentiles[0]))
        ):
            covered[place] += low <= truth <= top
    # 95 % promised, of an approximation; four standard errors below 93 %.
    assert (covered / 200 >= 0.93 - 4 * np.sqrt(0.93 * 0.07 / 200)).all(), covered


def test_what_is_no_pair_is_not_undefined() -> None:
    strata = unequal()
    values = values_of(strata, np.random.default_rng(1), SPREADS["pairs"])
    table = summarise(
        values, Design("grid", strata.shape, strata), np.random.default_rng(0), n_resamples=50
    )
    inside = values[strata.mask]
    assert (table.count, table.n_undefined) == (strata.n_values, 0)
    assert table["mean"].value == pytest.approx(inside.mean()) and table[
        "95%"
    ].value == pytest.approx(np.quantile(inside, 0.95))
    assert table["mean"].low < inside.mean() < table["mean"].high
    # A pair that is undefined is counted, and makes no bound smaller.
    row, column = np.argwhere(strata.mask)[0]
    values[row, column] = np.nan
    holed = summarise(
        values, Design("grid", strata.shape, strata), np.random.default_rng(0), n_resamples=50
    )
    assert (holed.count, holed.n_undefined) == (strata.n_values - 1, 1)
    assert holed["50%"].bound >= table["50%"].bound


def test_too_few_prompts_have_no_interval() -> None:
    strata = PartialGrid.of(np.repeat(range(3), 20).tolist(), np.repeat(range(3), 20).tolist())
    found = Design("grid", strata.shape, strata).intervals(
        values_of(strata, np.random.default_rng(2), SPREADS["pairs"]),
        np.random.default_rng(0),
        (0.9, 0.99),
        n_resamples=50,
    )
    # 60 inputs: six beyond the 90th percentile, fewer than one beyond the 99th.
    assert np.isfinite(found.percentiles[0].low) and np.isnan(found.percentiles[1].low)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda strata: Design("grid", (3, 3), strata), "A part is of a grid's prompts"),
        (lambda strata: Design("matched", (7,), strata), "A part is of a grid's prompts"),
        (
            lambda strata: Design("grid", strata.shape, strata).upper_bound(
                np.zeros(strata.shape), 0.5
            ),
            "others must be NaN",
        ),
        (lambda strata: partial_rank(strata, 1.0), "p must be between 0 and 1"),
        (lambda strata: partial_confidence(strata, 0.5, 0), "between 1 and 7"),
        (lambda strata: partial_exceedance(strata, 8), "between 0 and the 7 pairs of the part"),
    ],
)
def test_refusals(wrong: Callable[[PartialGrid], object], message: str) -> None:
    with pytest.raises(BadUsage, match=message):
        wrong(PartialGrid.of(["a", "b", "a", "c"], ["b", "a", "a", "a", "d"]))


def test_strata_have_one_kind_of_bound() -> None:
    strata = unequal()
    with pytest.raises(UnknownName, match="shortfall"):
        Design("grid", strata.shape, strata).upper_bound(
            values_of(strata, np.random.default_rng(0), SPREADS["rows"]), 0.5, kind="chernoff"
        )
