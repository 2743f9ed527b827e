"""EX1: known answers, symmetry, and what infinite rates do to the published definition."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mechassay.measurement.metrics.dprime import auc, ceiling, dprime, log_linear, null, z


def arm(right: int, n: int) -> np.ndarray:
    return np.where(np.arange(n) < right, 1.0, -1.0)


def test_worked_by_hand() -> None:
    # 84 and 16 of 100: Z is +-.9945, so d' is 1.989 and the criterion 0.
    found = dprime(arm(84, 100), arm(16, 100))
    assert found.page["dprime"] == pytest.approx(1.9889, abs=1e-4)
    assert found.page["beta"] == pytest.approx(0, abs=1e-12)
    assert found.page["auc"] == pytest.approx(0.84)
    assert found.page.passed is True
    # Log-linear: 84.5 and 16.5 of 101.
    assert found.repaired["dprime"] == pytest.approx(z(84.5 / 101) - z(16.5 / 101))
    assert found.repaired["likelihood_ratio_beta"] == pytest.approx(1.0)


def test_ties_of_the_auc_count_half() -> None:
    assert auc(np.array([1.0, 1.0]), np.array([1.0, 0.0])) == 0.75
    rng = np.random.default_rng(0)
    x, y = rng.integers(4, size=30) * 1.0, rng.integers(4, size=20) * 1.0
    slow = np.mean([(a > b) + 0.5 * (a == b) for a in x for b in y])
    assert auc(x, y) == pytest.approx(slow)
    assert auc(x, y) + auc(y, x) == pytest.approx(1)


def test_swapped_arms_swap_the_sign() -> None:
    one, other = dprime(arm(30, 40), arm(12, 40)), dprime(arm(12, 40), arm(30, 40))
    assert one.repaired["dprime"] == pytest.approx(-other.repaired["dprime"])
    assert one.repaired["criterion_c"] == pytest.approx(other.repaired["criterion_c"])


def test_a_perfect_rate_is_undefined_on_the_page_and_a_ceiling_here() -> None:
    found = dprime(arm(40, 40), arm(0, 40))
    assert found.page["dprime"] is None and found.page.passed is None
    assert found.page.quantities["dprime"].reason
    assert found.flagged("rate_of_0_or_1")
    assert found.repaired["dprime"] == pytest.approx(found.repaired["ceiling"])
    assert 4.48 < ceiling(40) < 4.51 and 0 < log_linear(0, 40) < log_linear(40, 40) < 1


def test_a_circuit_that_does_nothing_has_no_dprime() -> None:
    values = np.random.default_rng(1).standard_normal(60) + 1
    found = dprime(values, values)
    assert found.repaired["dprime"] == 0 and found.repaired.passed is False
    assert found.repaired["auc"] == 0.5 and found.flagged("arms_equal")


def test_backup_hides_a_circuit_from_ablation_and_not_from_its_own_run() -> None:
    full, empty = arm(38, 40), arm(2, 40)
    found = dprime(full, full.copy(), circuit_only=full, empty=empty)
    assert found.repaired["dprime"] == 0
    assert found.repaired["dprime_circuit_only"] > 3


def test_prompts_of_one_group_are_resampled_together() -> None:
    full, ablated = arm(30, 40), arm(12, 40)
    order = np.random.default_rng(0).permutation(40)
    single = dprime(full[order], ablated[order]).repaired.quantities["dprime"]
    groups = [str(i // 10) for i in range(40)]
    grouped = dprime(full, ablated, groups=groups).repaired.quantities["dprime"]
    assert grouped.high - grouped.low > 1.5 * (single.high - single.low)
    alone = dprime(full, ablated, groups=["one"] * 40)
    assert alone.repaired["dprime_low"] is None and alone.repaired.passed is None


def test_how_often_the_thresholds_err() -> None:
    table = null(40, 1000)
    assert table.false_alarm("repaired") < 0.05
    # A true fall from .95 to .75 is missed by the published threshold more often than seen.
    assert table.power("page") < 0.45 < 0.7 < table.power("repaired")


def test_a_model_that_cannot_do_the_task_is_flagged() -> None:
    values = np.random.default_rng(0).standard_normal(80)
    found = dprime(values, np.random.default_rng(1).standard_normal(80))
    assert found.flagged("model_near_chance")
    assert not math.isnan(found.repaired["dprime_low"]) and found.repaired.passed is False
