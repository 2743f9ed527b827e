"""EX25: runs that agree, that differ, and that only differ by their prompts."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from mechassay.errors import UnknownName
from mechassay.measurement.metrics import reproducibility as formula
from mechassay.measurement.metrics.reproducibility import (
    Reproducibility,
    coherence,
    deviation_rate,
    icc,
    max_deviation,
    null,
    reproducibility,
)
from mechassay.stats.intervals import example_weights


@pytest.fixture(autouse=True)
def few_simulations(monkeypatch: pytest.MonkeyPatch) -> None:
    """How often thresholds err is asked for by name below."""
    monkeypatch.setattr(formula, "null", lambda n, k: null(n, k, 4))


def test_constant_runs() -> None:
    values = np.full(5, 2.0)
    assert deviation_rate(values) == max_deviation(values) == 0


def test_one_outlier_of_five() -> None:
    # Four runs of 1 and one of 2, mean 1.2: four of ten pairs differ by 1/1.2.
    values = np.array([1.0, 1, 1, 1, 2])
    assert deviation_rate(values) == pytest.approx(0.4)
    assert max_deviation(values) == pytest.approx(0.8 / 1.2)


def test_a_mean_of_zero_is_undefined() -> None:
    assert np.isnan(deviation_rate(np.array([1.0, -1.0])))
    assert np.isnan(max_deviation(np.array([1.0, -1.0])))


def test_coherence_is_over_shared_prompts() -> None:
    own = np.arange(10.0)
    items = np.stack((own, own))
    items[0, :3], items[1, 7:] = np.nan, np.nan
    assert coherence(items) == pytest.approx(1)
    rng = np.random.default_rng(0)
    free = rng.standard_normal((2, 12))
    assert coherence(free) == pytest.approx(spearmanr(*free).statistic)
    items[:, :8] = np.nan
    assert np.isnan(coherence(items)), "two shared prompts say nothing"
    assert np.isnan(coherence(np.ones((2, 5)))), "prompts that all tie have no order"


def test_icc_worked_by_hand() -> None:
    # Shrout and Fleiss 1979, table 2: six targets, four judges; ICC(2,1) is .29.
    table = [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]]
    assert icc(np.array(table, dtype=float).T) == pytest.approx(0.29, abs=0.005)
    assert icc(np.tile(np.arange(5.0), (3, 1))) == pytest.approx(1)


def deterministic(n: int = 50, runs: int = 10, seed: int = 0) -> tuple:
    rng = np.random.default_rng(seed)
    own = 3 + 1.5 * rng.standard_normal(n)
    some = np.full((runs, n), np.nan)
    for row in some:
        kept = rng.permutation(n)[: n * 3 // 4]
        row[kept] = own[kept]
    return np.nanmean(some, axis=1), some, np.full(runs, own.mean()), np.tile(own, (runs, 1))


@pytest.mark.slow
def test_a_deterministic_metric_fails_on_the_page_and_passes_here() -> None:
    # The defect: subsamples differ though nothing is irreproducible.
    failed = 0
    for seed in range(20):
        found = reproducibility(*deterministic(seed=seed), sampling_se=0.2)
        failed += found.page.passed is False
        assert found.repaired.passed is True and found.repaired["icc"] == pytest.approx(1)
        assert found.repaired["measurement_sd"] == pytest.approx(0, abs=1e-12)
        assert found.flagged("sampling_not_reproducibility")
    assert failed > 8
    assert null(50, 10).power("page") < 0.5 and null(50, 10).power("repaired") == 1


def test_noise_from_run_to_run_fails() -> None:
    rng = np.random.default_rng(0)
    items = 3 + 1.5 * rng.standard_normal((10, 50))
    found = reproducibility(items.mean(axis=1), items, items.mean(axis=1), items, 0.2)
    assert found.repaired.passed is False
    assert abs(found.repaired["icc"]) < 0.2
    assert found.repaired["minimum_difference"] == pytest.approx(
        1.96 * np.sqrt(2) * items.mean(axis=1).std(ddof=1)
    )


def test_a_value_within_its_error_of_zero_has_no_relative_deviation() -> None:
    values, some, again, items = deterministic()
    found = reproducibility(values - 3, some - 3, again - again, items - 3, 0.2)
    assert found.repaired["deviation_rate"] is None and found.repaired.passed is None
    assert found.flagged("mean_near_zero")


def test_base_metrics_are_named() -> None:
    with pytest.raises(UnknownName, match="logit-diff"):
        Reproducibility(metric="logit_diff")


def test_the_value_and_the_correlation_have_intervals_over_prompts() -> None:
    rng = np.random.default_rng(0)
    own = rng.standard_normal(40)
    items = own + 0.5 * rng.standard_normal((6, 40))
    groups = [str(row // 2) for row in range(40)]
    runs = items.mean(axis=1)
    found = reproducibility(runs, items, runs, items, 0.2, groups=groups).repaired.quantities
    value, correlation = found["value"], found["icc"]
    assert value.value is not None and correlation.value is not None
    assert value.high - value.low == pytest.approx(2 * 1.96 * 0.2)
    assert value.low < value.value < value.high
    assert correlation.low < correlation.value < correlation.high < 1
    # Drawn by hand with the same weights: whole groups, whose prompts all come.
    weights, n_groups = example_weights(groups, np.random.default_rng(0))
    drawn = [icc(np.concatenate([items[:, [i]] for i in range(40) for _ in range(int(w[i]))], 1))
             for w in weights[:20]]  # fmt: skip
    assert n_groups == 20 and min(drawn) > correlation.low - 0.1
    again = reproducibility(runs, items, runs, items, 0.2, groups=groups, seed=1)
    assert again.repaired.quantities["icc"].low != correlation.low
    one = reproducibility(runs, items, runs, items, 0.2, groups=["a"] * 40).repaired.quantities
    assert np.isnan(one["icc"].low), "one group has no interval"


def test_rounding_is_no_mean_and_no_variance() -> None:
    cancels = np.array([0.1, 0.2, -0.3])
    assert np.isnan(deviation_rate(cancels)) and np.isnan(max_deviation(cancels))
    items = np.full((3, 4), 0.1)
    items[1] = np.nextafter(items[1], 1)
    items[:, 2] = np.nextafter(items[:, 2], 0)
    assert np.isnan(icc(items))
