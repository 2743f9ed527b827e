"""EX24: CV and d by hand, no noise, and two configurations that are one."""

from __future__ import annotations

import numpy as np
import pytest

from mechassay.measurement.metrics.discriminability import (
    ConfigurationPair,
    coefficient_of_variation,
    cohens_d,
    discriminability,
    hedges_g,
    null,
)
from mechassay.stats.intervals import Interval


def pair(a: list[float], b: list[float], low: float = 0.5) -> ConfigurationPair:
    x, y = np.array(a, dtype=float), np.array(b, dtype=float)
    gap = float(x.mean() - y.mean())
    return ConfigurationPair("a, b", x, y, gap, Interval(low, gap + (gap - low)))


def test_worked_by_hand() -> None:
    a, b = np.array([4.0, 5, 6]), np.array([1.0, 2, 3])
    assert coefficient_of_variation(a) == pytest.approx(0.2)
    assert cohens_d(a, b) == pytest.approx(3)
    assert hedges_g(a, b) == pytest.approx(3 * (1 - 3 / 15))
    assert coefficient_of_variation(np.array([1.0, 1, 1])) == 0


def test_no_noise_is_a_flag_and_not_infinite() -> None:
    found = discriminability([pair([1, 1, 1], [0, 0, 0])])
    assert found.page["discriminability_d"] is None and found.page.passed is None
    assert found.flagged("no_noise") and found.repaired.passed is True


def test_a_mean_of_zero_has_no_cv() -> None:
    found = discriminability([pair([-1, 0, 1], [0, 0, 1])])
    assert found.page["cv"] is None and found.repaired.passed is not True


def test_equal_configurations_often_pass_the_published_threshold() -> None:
    # d grows without bound as the noise of reseeds goes to 0: subsamples of one set of prompts.
    table = null(50, 10)
    assert table.false_alarm("page") > 0.25
    assert table.false_alarm("repaired") < 0.08 and table.power("repaired") > 0.5


def test_a_scaled_metric_keeps_d_and_cv_and_a_shifted_one_keeps_only_d() -> None:
    a, b = np.array([4.0, 5, 6]), np.array([1.0, 2, 4])
    assert cohens_d(10 * a, 10 * b) == pytest.approx(cohens_d(a, b))
    assert coefficient_of_variation(10 * a) == pytest.approx(coefficient_of_variation(a))
    assert cohens_d(a + 7, b + 7) == pytest.approx(cohens_d(a, b))
    assert coefficient_of_variation(a + 7) < coefficient_of_variation(a)


def test_rounding_is_neither_a_mean_nor_a_spread() -> None:
    cancels, still = np.array([0.1, 0.2, -0.3]), np.full(3, 0.1)
    assert cancels.mean() != 0 and np.isnan(coefficient_of_variation(cancels))
    assert still.std() != 0 and np.isnan(cohens_d(still, still + 0.2))
    assert discriminability([pair([0.1] * 3, [0.3] * 3)]).flagged("no_noise")
