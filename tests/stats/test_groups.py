"""Tables by template field, and a test of labels that finds what was planted and little else."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import fisher_exact

from mechassay.errors import BadUsage, NonFinite, UnknownName
from mechassay.stats import label_tests
from mechassay.stats.groups import Field, by_fields
from mechassay.stats.label_tests import Exceedance, HighPercentile, worse_labels


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
