"""F05 and F07: parallel prompts, negative alpha, few circuits, shifted groups."""

from __future__ import annotations

import numpy as np
import pytest

from mechassay.errors import BadUsage
from mechassay.measurement.metrics.consistency import (
    alpha,
    equivalence,
    group_means,
    internal_consistency,
    invariance,
    split_half,
)

RNG = np.random.default_rng(0)


def test_alpha_of_parallel_prompts() -> None:
    # k r / (1 + (k - 1) r) with r = .5 and k = 4 is .8.
    x = RNG.standard_normal((20000, 1)) + RNG.standard_normal((20000, 4))
    assert alpha(x) == pytest.approx(0.8, abs=0.01)


def test_alpha_worked_by_hand() -> None:
    # Variances 1 and 4 of the prompts, 9 of the sums: 2 (1 - 5/9).
    assert alpha(np.array([[1.0, 2], [2, 4], [3, 6]])) == pytest.approx(2 * (1 - 5 / 9))
    assert alpha(np.array([[1.0, -1.1], [2, -2], [3, -2.8]])) < 0
    assert np.isnan(alpha(np.array([[1.0, 1], [1, 1]])))


def test_few_circuits_have_no_consistency() -> None:
    x = 3 * RNG.standard_normal((5, 1)) + RNG.standard_normal((5, 30))
    found = internal_consistency(x)
    assert found.page["alpha"] > 0.9 and found.page.passed is True
    assert found.repaired["alpha"] is None and found.repaired.passed is None
    assert found.flagged("few_circuits")
    with pytest.raises(BadUsage, match="two circuits"):
        internal_consistency(x[:1])


def test_circuits_that_do_not_differ_are_inconsistent() -> None:
    found = internal_consistency(RNG.standard_normal((20, 30)))
    assert found.repaired.passed is False and found.page.passed is False
    found = internal_consistency(2 * RNG.standard_normal((20, 1)) + RNG.standard_normal((20, 30)))
    assert found.repaired.passed is True
    assert found.repaired["split_half"] == pytest.approx(found.repaired["alpha"], abs=0.05)


def test_means_of_groups() -> None:
    names, means = group_means(np.array([[1.0, 2, 3, 6]]), ["b", "a", "b", "a"])
    assert names == ["b", "a"] and means.tolist() == [[2, 4]]


def test_a_shift_keeps_the_order_and_is_no_invariance() -> None:
    # The defect: ranks are the same, scores mean something else in each group.
    x = 3 * RNG.standard_normal((12, 1)) + 0.1 * RNG.standard_normal((12, 40))
    labels = ["a", "b"] * 20
    same = invariance(x, labels)
    assert same.repaired.passed is True
    x[:, ::2] += 6
    found = invariance(x, labels)
    assert found.repaired["rank_correlation"] == pytest.approx(1, abs=0.05)
    assert found.repaired["largest_shift"] > 1 and found.repaired.passed is False


def test_groups_and_labels_are_checked() -> None:
    x = RNG.standard_normal((6, 4))
    for labels in (["a"] * 4, ["a", "b"]):
        with pytest.raises(BadUsage, match="two groups"):
            invariance(x, labels)
    few = invariance(x[:3], ["a", "a", "b", "b"])
    assert few.repaired["rank_correlation"] is None and few.repaired.passed is None


def test_equivalence_is_not_the_lack_of_a_difference() -> None:
    noisy = np.array([-3.0, 3.0, 0.5, -0.5])
    assert equivalence(noisy, 0.2) > 0.3
    assert equivalence(0.01 * RNG.standard_normal(30), 0.2) < 1e-6
    assert equivalence(np.zeros(5), 0.2) == 0 and equivalence(np.ones(5), 0.2) == 1


def test_circuits_that_differ_by_rounding_do_not_vary() -> None:
    x = np.full((3, 4), 0.1)
    x[1] = np.nextafter(x[1], 1)
    assert x.sum(axis=1).std() != 0 and np.isnan(alpha(x)) and np.isnan(split_half(x, range(4)))
    assert equivalence(np.full(3, 0.1), 0.2) == 0 and equivalence(np.full(3, 0.1), 0.05) == 1
    assert np.isfinite(alpha(x + np.array([[0], [1e-9], [2e-9]])))
