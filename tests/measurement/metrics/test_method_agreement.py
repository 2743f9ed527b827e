"""F03, F04 and F06: hand-made tables, monotone scores, missing heads, chance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mechassay.errors import BadUsage
from mechassay.measurement.metrics.method_agreement import (
    chance_jaccard,
    convergence,
    discrimination,
    jaccard,
    kappa,
    overlap_probability,
    pabak,
    rater_agreement,
)

HEADS = np.random.default_rng(0).standard_normal(60)


def mask(*chosen: int, n: int = 10) -> np.ndarray:
    return np.isin(np.arange(n), chosen)


def test_kappa_worked_by_hand() -> None:
    # Cohen's example: 20 yes-yes, 5 and 10 that differ, 15 no-no of 50: kappa is .4.
    a = np.array([True] * 25 + [False] * 25)
    b = np.array([True] * 20 + [False] * 5 + [True] * 10 + [False] * 15)
    assert kappa(a, b) == pytest.approx(0.4)
    assert pabak(a, b) == pytest.approx(2 * 0.7 - 1)


def test_disjoint_and_empty_choices() -> None:
    a, b, empty = mask(0, 1), mask(2, 3), mask()
    assert jaccard(a, b) == 0 and kappa(a, b) < 0
    assert math.isnan(jaccard(empty, empty)) and math.isnan(kappa(empty, empty))
    assert jaccard(a, a) == kappa(a, a) == 1
    assert chance_jaccard(a, b) == pytest.approx(0.4 / 3.6)
    # Both of two are shared: 1 / (10 choose 2).
    assert overlap_probability(a, a) == pytest.approx(1 / 45)
    assert overlap_probability(a, b) == pytest.approx(1)


def test_a_monotone_transform_agrees() -> None:
    found = convergence(np.stack((HEADS, np.exp(HEADS))), ["a", "b"])
    assert found.page["spearman"] == pytest.approx(1)
    assert found.repaired.passed is True and found.page.passed is True


def test_heads_without_a_score_agree_on_the_page_only() -> None:
    # The defect: two methods with nothing in common, which both leave the same heads out.
    rng = np.random.default_rng(1)
    scores = np.full((2, 200), np.nan)
    scores[:, :30] = np.abs(rng.standard_normal((2, 30)))
    found = convergence(scores, ["a", "b"])
    assert found.page["spearman"] > 0.8 and abs(found.repaired["spearman"]) < 0.5
    assert found.flagged("heads_without_score") and found.repaired.passed is not True


def test_random_rankings_do_not_converge() -> None:
    found = convergence(np.random.default_rng(2).standard_normal((3, 100)), ["a", "b", "c"])
    assert found.repaired.passed is False and len(found.tables[0]) == 3
    with pytest.raises(BadUsage, match="two methods"):
        convergence(HEADS[None], ["a"])


def test_equal_behaviours_are_not_told_apart() -> None:
    rng = np.random.default_rng(3)
    own = HEADS + 0.1 * rng.standard_normal((2, 60))
    same = discrimination(own, own)
    assert same.page["discriminant"] < 0.1 and same.repaired.passed is False
    other = discrimination(own, rng.standard_normal((2, 60)))
    assert other.repaired.passed is True and other.page.passed is True
    with pytest.raises(BadUsage, match="same methods"):
        discrimination(own, own[:, :10])


def test_discrimination_without_convergence_divides_by_little() -> None:
    # Rankings that share nothing with each other, and are opposite for the other behaviour.
    own = np.random.default_rng(8).standard_normal((2, 400))
    found = discrimination(own, -own)
    assert found.flagged("no_convergence")


def test_equal_convergence_gives_zero() -> None:
    own = np.stack((HEADS, HEADS))
    assert discrimination(own, own).page["discriminant"] == pytest.approx(0)


def test_raters_by_the_sweep_and_against_chance() -> None:
    rng = np.random.default_rng(4)
    same = np.abs(rng.standard_normal(1000))
    found = rater_agreement(np.stack((same, 2 * same)), ["a", "b"])
    assert found.repaired["jaccard_corrected"] == pytest.approx(1) and found.repaired.passed
    free = rater_agreement(np.abs(rng.standard_normal((2, 1000))), ["a", "b"])
    assert free.repaired.passed is False
    # The defect of a rare choice: random methods have a PABAK near 1.
    assert free.repaired["pabak"] > 0.9 and free.repaired["kappa"] < 0.2
    assert len(found.tables[0]) == 5
