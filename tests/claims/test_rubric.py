"""Scores of claims: worked by hand, published, monotone, and what nothing is worth."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mechassay.claims.rubric import (
    JUDGED,
    STATUSES,
    Status,
    attainable,
    claim_score,
    cvs,
    dimension_levels,
    gated_tier,
    lifting,
    load_rubric,
    paper_score,
    tier_of,
    without_reader,
)
from mechassay.errors import BadUsage, UnknownName

RUBRIC = load_rubric()
CODES = RUBRIC.codes
PUBLISHED = (
    *(8.3, 6.4, 5.6, 4.7, 4.4, 3.9, 3.3, 3.1, 2.5, 1.9, 1.4, 0.0),
    *(7.8, 5.3, 6.9, 7.5, 8.1, 4.2),
)
"""Every CVS that Tower (2026) prints: tables 3 to 6, appendix B, sections 3.8, 3.9 and 5.4."""
statuses = st.fixed_dictionaries({code: st.sampled_from(STATUSES) for code in CODES})


def all_of(status: Status, **others: Status) -> dict[str, Status]:
    return {**dict.fromkeys(CODES, status), **others}


def levels(*numbers: int) -> dict[str, int]:
    return dict(zip("CIMEV", numbers, strict=True))


def test_the_rubric_has_27_criteria_in_five_dimensions() -> None:
    assert [len(RUBRIC.of(code)) for code in "CIMEV"] == [5, 5, 6, 6, 5]
    assert [each.weight for each in RUBRIC.dimensions] == [1.5, 1.5, 1.0, 1.0, 1.0]
    assert sum(3 * each.weight for each in RUBRIC.dimensions) == 18
    assert [each.code for each in RUBRIC.criteria if each.leaks] == ["I2", "I3", "I5", "E2", "E5"]
    assert len(RUBRIC.pitfalls) == 10
    # A reader's alone.
    unruled = ["M6", "V3", "V5"]
    assert [each.code for each in RUBRIC.criteria if not each.rule] == unruled
    texts = [x for c in RUBRIC.criteria for x in (c.asks, c.met, c.partly, c.not_met, c.threshold)]
    assert all(text.strip() and text[-1] in ".?" for text in texts)


def test_six_criteria_never_change_a_score() -> None:
    """Counted by flips over profiles too, not by names alone."""
    assert RUBRIC.unused == ("C3", "C4", "I4", "M2", "M6", "V5")
    for base in ("NO", "YES"):
        for code in RUBRIC.unused:
            scores = {claim_score(RUBRIC, all_of(base, **{code: one})).cvs for one in JUDGED}
            assert len(scores) == 1


@pytest.mark.parametrize("name", ["mv27", "mv-28@1", "mv-27@2"])
def test_an_unknown_rubric_is_one_line(name: str) -> None:
    with pytest.raises(UnknownName, match="mv-27@1") as caught:
        load_rubric(name)
    assert "\n" not in str(caught.value)


def test_thirty_five_values_are_attainable() -> None:
    """By enumeration, in halves: raw scores 0 to 18 without 0.5 and 17.5."""
    by_hand = {3 * c + 3 * i + 2 * (m + e + v) for c, i, m, e, v in product(range(4), repeat=5)}
    assert by_hand == set(range(37)) - {1, 35}
    values = attainable(RUBRIC)
    assert len(values) == 35
    assert values == pytest.approx([10 * halves / 36 for halves in sorted(by_hand)])


def test_rounding_to_one_decimal_never_changes_a_tier() -> None:
    for value in attainable(RUBRIC):
        assert tier_of(RUBRIC, round(value, 1)) == tier_of(RUBRIC, value)


@pytest.mark.parametrize("printed", PUBLISHED)
def test_published_scores_are_attainable(printed: float) -> None:
    assert sum(round(value, 1) == printed for value in attainable(RUBRIC)) == 1


@pytest.mark.parametrize(
    ("profile", "score", "tier"),
    [
        ((3, 3, 3, 3, 3), 10.0, "Validated"),
        ((0, 0, 0, 0, 0), 0.0, "Proposed"),
        # The paper's worked example; it prints 4.2.
        ((2, 1, 1, 0, 2), 7.5 / 1.8, "Mechanistically Supported"),
        # The IOI circuit; it prints 5.6.
        ((2, 2, 1, 1, 2), 10 / 1.8, "Mechanistically Supported"),
        ((3, 3, 0, 3, 3), 15 / 1.8, "Validated"),
        ((0, 3, 3, 3, 3), 7.5, "Triangulated"),
    ],
)
def test_scores_by_hand(profile: tuple[int, ...], score: float, tier: str) -> None:
    found = cvs(RUBRIC, levels(*profile))
    assert found == pytest.approx(score)
    assert tier_of(RUBRIC, found) == tier


@pytest.mark.parametrize(
    ("given_", "strict", "lenient"),
    [
        ({}, (0, 0, 0, 0, 0), (0, 0, 0, 0, 0)),
        ({"C1": "YES"}, (1, 0, 0, 0, 0), (1, 0, 0, 0, 0)),
        ({"C1": "PARTIAL", "C5": "PARTIAL"}, (0, 0, 0, 0, 0), (2, 0, 0, 0, 0)),
        ({"C1": "YES", "C5": "YES"}, (2, 0, 0, 0, 0), (2, 0, 0, 0, 0)),
        ({"C1": "YES", "C5": "YES", "C2": "PARTIAL"}, (2, 0, 0, 0, 0), (3, 0, 0, 0, 0)),
        ({"I2": "YES"}, (0, 1, 0, 0, 0), (0, 1, 0, 0, 0)),
        ({"I1": "YES", "I2": "YES", "I3": "YES"}, (0, 2, 0, 0, 0), (0, 2, 0, 0, 0)),
        ({"I1": "YES", "I2": "YES", "I3": "YES", "I5": "YES"}, (0, 3, 0, 0, 0), (0, 3, 0, 0, 0)),
        ({"M1": "YES", "M4": "YES", "M5": "YES"}, (0, 0, 0, 0, 0), (0, 0, 0, 0, 0)),
        ({"M3": "PARTIAL", "M1": "YES"}, (0, 0, 1, 0, 0), (0, 0, 1, 0, 0)),
        ({"M3": "YES", "M1": "PARTIAL"}, (0, 0, 1, 0, 0), (0, 0, 2, 0, 0)),
        ({"E2": "PARTIAL"}, (0, 0, 0, 1, 0), (0, 0, 0, 1, 0)),
        ({"E5": "YES"}, (0, 0, 0, 2, 0), (0, 0, 0, 2, 0)),
        (
            {"E6": "YES", "E1": "YES", "E2": "YES", "E3": "PARTIAL", "E4": "PARTIAL"},
            (0, 0, 0, 3, 0),
            (0, 0, 0, 3, 0),
        ),
        (
            {"E6": "YES", "E1": "YES", "E2": "YES", "E3": "PARTIAL"},
            (0, 0, 0, 2, 0),
            (0, 0, 0, 2, 0),
        ),
        ({"V3": "YES", "V1": "YES", "V4": "YES"}, (0, 0, 0, 0, 1), (0, 0, 0, 0, 1)),
        ({"V2": "YES", "V3": "YES"}, (0, 0, 0, 0, 2), (0, 0, 0, 0, 2)),
    ],
)
def test_levels_by_hand(
    given_: dict[str, Status], strict: tuple[int, ...], lenient: tuple[int, ...]
) -> None:
    own = all_of("NO", **given_)
    assert dimension_levels(RUBRIC, own) == levels(*strict)
    assert dimension_levels(RUBRIC, own, "lenient") == levels(*lenient)


@settings(deadline=None, max_examples=20)
@given(statuses, st.lists(st.sampled_from(CODES), min_size=3, max_size=3))
def test_more_evidence_never_lowers_a_score(own: dict[str, Status], codes: list[str]) -> None:
    before = claim_score(RUBRIC, own)
    for code in codes:
        rising = [claim_score(RUBRIC, {**own, code: one}) for one in JUDGED]
        scores = [each.cvs for each in rising]
        assert scores == sorted(scores)
        if own[code] in ("NOT TESTED", "NA") and before.n_judged:
            assert scores[0] == before.cvs
    lenient = claim_score(RUBRIC, own, "lenient")
    if before.n_judged:
        assert before.cvs <= lenient.cvs
        assert before.cvs <= before.highest <= 10


@settings(deadline=None, max_examples=50)
@given(statuses)
def test_the_gated_tier_is_never_above_the_tier(own: dict[str, Status]) -> None:
    score = claim_score(RUBRIC, own)
    names = ["", *(tier.name for tier in RUBRIC.tiers)]
    assert names.index(score.gated_tier) <= names.index(score.tier)
    assert bool(score.because) == (score.gated_tier != score.tier)


@pytest.mark.parametrize(
    ("profile", "tier"),
    [
        ((3, 3, 3, 3, 3), "Validated"),
        ((0, 3, 3, 3, 3), "Proposed"),
        ((3, 0, 3, 3, 3), "Proposed"),
        ((3, 1, 3, 3, 3), "Causally Suggestive"),
        ((3, 3, 3, 1, 3), "Triangulated"),
        ((3, 3, 0, 3, 3), "Mechanistically Supported"),
        ((3, 3, 3, 0, 3), "Mechanistically Supported"),
        ((3, 3, 3, 3, 0), "Mechanistically Supported"),
        ((2, 2, 1, 1, 2), "Mechanistically Supported"),
    ],
)
def test_caps_by_hand(profile: tuple[int, ...], tier: str) -> None:
    assert gated_tier(RUBRIC, levels(*profile))[0] == tier


def test_what_was_not_judged_has_no_score() -> None:
    for status in ("NOT TESTED", "NA"):
        score = claim_score(RUBRIC, all_of(status))
        assert math.isnan(score.cvs) and math.isnan(score.highest)
        assert score.tier == score.gated_tier == "" and score.n_judged == 0


def test_not_tested_is_open_and_no_is_not() -> None:
    score = claim_score(RUBRIC, all_of("NOT TESTED", C1="YES"))
    assert score.cvs == pytest.approx(1.5 / 1.8) and score.highest == 10
    assert claim_score(RUBRIC, all_of("NO", C1="YES")).highest == score.cvs
    assert claim_score(RUBRIC, all_of("NO")).cvs == 0


def test_what_lifts_a_score() -> None:
    assert set(lifting(RUBRIC, all_of("NO"))) >= {"C1", "I1", "I2", "M3", "E5", "E6", "V3"}
    assert lifting(RUBRIC, all_of("YES")) == ()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"C1": None}, "C1 have none"),
        ({"C6": "YES"}, "Unknown criterion of mv-27@1 'C6'"),
        ({"C1": "yes"}, "Unknown status of C1 'yes'"),
        ({"C1": "PARTAL"}, "Did you mean 'PARTIAL'"),
    ],
)
def test_wrong_statuses_are_one_line(change: dict[str, Any], said: str) -> None:
    own = {k: v for k, v in {**all_of("YES"), **change}.items() if v is not None}
    with pytest.raises(BadUsage, match=said) as caught:
        claim_score(RUBRIC, own)
    assert "\n" not in str(caught.value)


def test_a_paper_has_the_score_of_its_system_claim() -> None:
    scores = {
        "system": claim_score(RUBRIC, all_of("NO", C1="YES")),
        "part": claim_score(RUBRIC, all_of("YES")),
        "other": claim_score(RUBRIC, all_of("NO")),
        "silent": claim_score(RUBRIC, all_of("NOT TESTED")),
    }
    paper = paper_score(scores, "system")
    assert paper.cvs == scores["system"].cvs < paper.highest == 10
    assert paper.median == scores["system"].cvs
    assert (paper.n, paper.n_undefined) == (4, 1)
    with pytest.raises(UnknownName, match="Did you mean 'system'"):
        paper_score(scores, "sistem")


def test_the_most_that_rules_can_give_by_hand() -> None:
    """C 2, as C5 is PARTIAL at most; I 3, M 3; E 2, as E6 is PARTIAL; V 0, as V3 is a reader's."""
    assert without_reader(load_rubric()) == pytest.approx(10 * (1.5 * 2 + 1.5 * 3 + 3 + 2) / 18)
