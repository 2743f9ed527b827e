"""Tiers against labels: the published numbers, worthless judges, boundaries, undefined scores."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest

from mechassay.claims.rubric import attainable, load_rubric, tier_of
from mechassay.errors import BadUsage, UnknownName
from mechassay.judges.evaluation import (
    JudgedPaper,
    Proportion,
    boundary_distance,
    boundary_shifts,
    constants,
    errors,
    exact_score,
    random_judges,
    tier_agreement,
    tier_confusion,
)
from mechassay.judges.published import printed_scores

RUBRIC = load_rubric()
TIERS = [tier.name for tier in RUBRIC.tiers]
LABELS = [paper.expected for paper in printed_scores().voted()]


def papers(given: list[int], expected: list[int]) -> list[JudgedPaper]:
    """Papers by places of tiers; -1 is no score."""
    return [
        JudgedPaper(f"p{n}", math.nan, TIERS[a] if a >= 0 else "", TIERS[b])
        for n, (a, b) in enumerate(zip(given, expected, strict=True))
    ]


def test_the_numbers_of_table_3() -> None:
    found = tier_agreement(TIERS, printed_scores().voted())
    assert (found.exact.hits, found.exact.n) == (5, 9)
    assert found.exact.interval[:2] == pytest.approx((0.212, 0.863), abs=5e-4)
    assert found.within[1].interval[:2] == pytest.approx((0.664, 1.0), abs=5e-4)
    assert (found.over, found.under, found.sign_p) == (4, 0, 0.125)
    assert found.mae == found.signed == pytest.approx(4 / 9)
    assert (found.kappa, found.weighted) == pytest.approx((0.40, 0.839), abs=5e-3)


def test_agreement_worked_by_hand() -> None:
    found = tier_agreement(TIERS, papers([0, 1, 4, 2], [0, 2, 2, 2]))
    assert [found.within[k].hits for k in (0, 1, 2)] == [2, 3, 4]
    assert found.signed == 0.25 and found.mae == 0.75 and (found.over, found.under) == (1, 1)
    # Rows: one label of 0, three of 2. Expected agreement 1/4 · 1/4 + 3/4 · 1/4 = 1/4.
    assert found.kappa == pytest.approx((0.5 - 0.25) / 0.75)
    # Squared distances: observed (1 + 4) / 4; expected of 0 → 0, 1, 4, 2 and 2 → 0, 1, 4, 2.
    expected = (0 + 1 + 16 + 4) / 16 + 3 * (4 + 1 + 4 + 0) / 16
    assert found.weighted == pytest.approx(1 - 1.25 / expected)
    assert found.sign_p == 1


def test_a_constant_judge_has_its_known_answer() -> None:
    found = constants(TIERS, LABELS)["Causally Suggestive"]
    assert (found.exact.hits, found.within[1].hits, found.n) == (3, 8, 9)
    assert found.mae == pytest.approx(8 / 9)
    assert found.weighted == found.kappa == 0
    assert math.isnan(constants(TIERS, ["Proposed"] * 3)["Proposed"].kappa)


def test_random_judges_have_the_mean_of_all_judges_there_are() -> None:
    expected = [0, 2, 2]
    labels = [TIERS[place] for place in expected]
    found = random_judges(TIERS, labels)
    every = [papers(list(given), expected) for given in product(range(5), repeat=3)]
    alike = [tier_agreement(TIERS, each) for each in every]
    even = found["all tiers alike"]
    assert even.within[0] == pytest.approx(np.mean([each.exact.value for each in alike]))
    assert even.within[1] == pytest.approx(np.mean([each.within[1].value for each in alike]))
    assert even.mae == pytest.approx(np.mean([each.mae for each in alike]))
    assert even.signed == pytest.approx(np.mean([each.signed for each in alike]))
    shares = np.array([1 / 3, 0, 2 / 3, 0, 0])
    chances = [shares[list(given)].prod() for given in product(range(5), repeat=3)]
    own = found["as often as labels"]
    exact = sum(p * each.exact.value for p, each in zip(chances, alike, strict=True))
    assert own.within[0] == pytest.approx(exact) == pytest.approx(5 / 9)
    assert own.signed == pytest.approx(0)


def test_a_coin_agrees_by_chance() -> None:
    rng = np.random.default_rng(0)
    given, expected = rng.integers(0, 5, (2, 4000)).tolist()
    found = tier_agreement(TIERS, papers(given, expected))
    assert abs(found.kappa) < 0.05 and abs(found.weighted) < 0.05
    assert found.exact.value == pytest.approx(0.2, abs=0.03)


def test_a_paper_without_a_score_is_a_miss_and_nothing_else() -> None:
    found = tier_agreement(TIERS, papers([-1, 2], [2, 2]))
    assert (found.exact.hits, found.exact.n) == (1, 2)
    assert (found.n, found.n_undefined, found.mae) == (1, 1, 0)
    assert tier_confusion(TIERS, papers([-1, 2], [2, 2])).sum() == 1
    nothing = tier_agreement(TIERS, papers([-1], [2]))
    assert nothing.exact.value == 0
    assert all(math.isnan(x) for x in (nothing.mae, nothing.signed, nothing.kappa, nothing.sign_p))
    empty = tier_agreement(TIERS, [])
    assert math.isnan(empty.exact.value) and math.isnan(empty.exact.interval.low)


def test_the_order_of_papers_changes_nothing() -> None:
    own = printed_scores().voted()
    assert tier_agreement(TIERS, own) == tier_agreement(TIERS, own[::-1])
    assert sorted(errors(TIERS, own)) == sorted(errors(TIERS, own[::-1]))


def test_intervals_of_none_and_of_all() -> None:
    assert Proportion(0, 9).interval[:2] == pytest.approx((0.0, 0.336), abs=5e-4)
    assert Proportion(9, 9).interval[:2] == pytest.approx((0.664, 1.0), abs=5e-4)
    assert Proportion(2, 4).interval[:2] == pytest.approx((0.068, 0.932), abs=5e-4)
    assert Proportion(3, 5).interval[:2] == pytest.approx((0.147, 0.947), abs=5e-4)


def test_boundaries_of_the_published_scores() -> None:
    shifts = {
        (each.least, each.moved): each for each in boundary_shifts(RUBRIC, printed_scores().voted())
    }
    assert shifts[4, 4.5].changed == ("othello",) and shifts[4, 4.5].exact == 6
    assert set(shifts[6, 5.5].changed) == {"greater-than", "ioi", "copy-suppression"}
    assert shifts[6, 5.5].exact == 3
    assert shifts[6, 6.5].changed == ("induction",) and shifts[6, 6.5].exact == 6
    assert shifts[8, 8.5].changed == ("grokking",) and shifts[8, 8.5].exact == 4
    quiet = [shifts[key].changed for key in ((2, 1.5), (2, 2.5), (4, 3.5), (8, 7.5))]
    assert quiet == [()] * 4


def test_one_attainable_score_is_the_smallest_move_that_can_change_a_tier() -> None:
    every = [
        JudgedPaper(f"{score:.2f}", score, tier_of(RUBRIC, score), "Proposed")
        for score in attainable(RUBRIC)
    ]
    for shift in boundary_shifts(RUBRIC, every, None):
        assert len(shift.changed) == 1
    for shift in boundary_shifts(RUBRIC, every, 1e-6):
        assert len(shift.changed) <= 1


@pytest.mark.parametrize("shift", [0.0, -0.5, 2.0, math.nan])
def test_shifts_that_are_none_are_refused(shift: float) -> None:
    with pytest.raises(BadUsage, match="more than 0 and less than 2"):
        boundary_shifts(RUBRIC, [], shift)


def test_printed_scores_are_one_attainable_score_each() -> None:
    for score in attainable(RUBRIC):
        assert exact_score(RUBRIC, round(score, 1)) == score
    with pytest.raises(BadUsage, match="0 scores"):
        exact_score(RUBRIC, 9.9)
    assert boundary_distance(RUBRIC, exact_score(RUBRIC, 5.6)) == pytest.approx(4 / 9)
    assert math.isnan(boundary_distance(RUBRIC, math.nan))


def test_tiers_that_there_are_not() -> None:
    with pytest.raises(UnknownName, match="label of x"):
        errors(TIERS, [JudgedPaper("x", 1.0, "Proposed", "Proven")])
    with pytest.raises(UnknownName, match="tier of x"):
        errors(TIERS, [JudgedPaper("x", 1.0, "Proven", "Proposed")])
    with pytest.raises(BadUsage, match="no labels"):
        random_judges(TIERS, [])
