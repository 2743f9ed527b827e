"""F01 and F02: theory of the mean, constant values, and subsets that overlap."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mechassay.errors import BadUsage
from mechassay.measurement.metrics.prompt_sampling import prompt_bootstrap, ratio, seed_variance

NORMAL = 3 + np.random.default_rng(0).standard_normal(200)


def test_the_standard_error_of_a_mean() -> None:
    found = prompt_bootstrap(NORMAL)
    theory = NORMAL.std(ddof=1) / math.sqrt(200)
    assert found.page["standard_error"] == pytest.approx(theory, rel=0.1)
    assert found.repaired["standard_error"] == pytest.approx(theory, rel=0.1)
    assert found.page["relative_error"] == pytest.approx(theory / NORMAL.mean(), rel=0.1)
    assert found.page["ci_low"] < NORMAL.mean() < found.page["ci_high"]


def test_constant_values_have_no_error() -> None:
    found = prompt_bootstrap(np.full(30, 2.0))
    assert found.page["standard_error"] == found.repaired["relative_error"] == 0


def test_a_ratio_of_two_means() -> None:
    found = prompt_bootstrap(2 * NORMAL, NORMAL)
    assert found.repaired["value"] == pytest.approx(2)
    assert found.repaired["standard_error"] == pytest.approx(0, abs=1e-9)


def test_groups_widen_the_error() -> None:
    values = np.repeat(np.random.default_rng(1).standard_normal(25), 8) + 3
    groups = [str(i // 8) for i in range(200)]
    found = prompt_bootstrap(values, groups=groups)
    assert found.repaired["standard_error"] > 2 * found.page["standard_error"]


def test_noise_around_zero_is_undefined() -> None:
    found = prompt_bootstrap(np.random.default_rng(2).standard_normal(40))
    assert found.repaired["relative_error"] is None and found.repaired.passed is None
    assert found.flagged("mean_near_zero")
    assert prompt_bootstrap(NORMAL[:10]).flagged("few_prompts")
    with pytest.raises(BadUsage, match="two prompts"):
        prompt_bootstrap(np.array([1.0]))


@pytest.mark.slow
def test_variance_of_subsets_without_replacement() -> None:
    # Var of a mean of m of n: s^2 / m (1 - m / n).
    found = seed_variance(NORMAL, n_subsets=4000)
    s2 = NORMAL.var(ddof=1)
    assert found.page["variance"] == pytest.approx(s2 / 150 * (1 - 150 / 200), rel=0.1)
    # The page's number is half of what separate samples would show.
    assert found.repaired["standard_error"] == pytest.approx(math.sqrt(s2 / 200), rel=0.1)
    assert found.flagged("subsets_overlap")


def test_signs_against_a_control() -> None:
    above = seed_variance(NORMAL, control=NORMAL - 1)
    assert above.page["sign_consistency"] == above.repaired["sign_consistency"] == 1
    noise = np.random.default_rng(3).standard_normal((2, 100))
    even = seed_variance(noise[0] + 3, control=noise[1] + 3)
    assert 0 < even.repaired["sign_consistency"] < 1
    assert seed_variance(NORMAL).page["sign_consistency"] is None
    with pytest.raises(BadUsage, match="not all"):
        seed_variance(NORMAL, share=1.0)


def test_a_mean_that_cancels_up_to_rounding_is_no_denominator() -> None:
    cancels = np.array([0.1, 0.2, -0.3])
    assert cancels.mean() != 0 and np.isnan(ratio(np.ones(3), cancels))
    assert ratio(cancels, np.ones(3)) == 0
    rows = ratio(np.ones((2, 3)), np.stack((cancels, cancels + 1e-9)))
    assert np.isnan(rows[0]) and rows[1] == pytest.approx(1e9, rel=1e-6)
