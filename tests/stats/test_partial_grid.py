"""Parts of a grid: what is counted by hand, the grid's own bounds as the case of one block,
and coverage by simulation.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mechassay.errors import BadUsage, UnknownName
from mechassay.stats.design import Design
from mechassay.stats.grid_bounds import grid_confidence, grid_exceedance, grid_rank
from mechassay.stats.partial_grid import (
    PartialGrid,
    outside,
    partial_confidence,
    partial_exceedance,
    partial_rank,
    reach,
)
from mechassay.stats.summary import summarise

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


@pytest.mark.few(2)
@pytest.mark.parametrize("spread", SPREADS.values(), ids=SPREADS)
def test_bounds_hold_as_often_as_they_promise(spread: tuple[float, float, float, float]) -> None:
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
