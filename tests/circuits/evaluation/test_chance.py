"""Better than random rankings: what a record's own controls say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mechassay.circuits.evaluation.chance import MANY, against_chance, most_tried, n_methods
from mechassay.results.records import Record

Make = Callable[..., Record]


def test_the_perfect_and_the_worthless_case(make_record: Make) -> None:
    assert against_chance(make_record(cpr=(1.0, 0.99, 1.01)), "cpr").verdict == "better"
    assert against_chance(make_record(cpr=(0.21, 0.2, 0.22)), "cpr").verdict == "unresolved"
    assert against_chance(make_record(cpr=(-0.4, -0.5, -0.3)), "cpr").verdict == "worse"


def test_a_random_ranking_is_not_better_however_sure_its_examples_are(make_record: Make) -> None:
    """A thousand pairs fix the area of one ranking, and say nothing of another random one."""
    lucky = make_record(cpr=(0.28, 0.279, 0.281), spread=0.04)
    result = against_chance(lucky, "cpr")
    assert result.verdict == "unresolved" and result.limits["random-paths"] > 0.3
    # One that is beyond all five may be so once in six times: they are too few.
    luckier = make_record(cpr=(0.3, 0.299, 0.301), spread=0.04)
    assert against_chance(luckier, "cpr").verdict == "few rankings"


def test_the_more_methods_the_harder(make_record: Make) -> None:
    record = make_record(cpr=(0.5, 0.48, 0.52))
    most = most_tried(record, "cpr")
    assert most is not None and 1 < most < MANY
    assert against_chance(record, "cpr", most).verdict == "better"
    assert against_chance(record, "cpr", most + 1).verdict == "few rankings"
    assert most_tried(make_record(cpr=(0.21, 0.2, 0.22)), "cpr") == 0


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"seeds": 4}, "few rankings"),
        ({"seeds": 0}, "few rankings"),
        ({"ids": [f"pair-{n}" for n in range(19)]}, "few groups"),
        ({"cpr": (float("nan"),) * 3, "gain": (float("nan"),) * 3}, "undefined"),
    ],
)
def test_what_cannot_be_said(make_record: Make, changes: dict[str, object], verdict: str) -> None:
    record = make_record(**changes)
    assert against_chance(record, "cpr").verdict == verdict
    assert most_tried(record, "cpr") is None


def test_methods_that_are_random_are_not_counted(make_record: Make) -> None:
    assert n_methods([make_record("eap"), make_record("random"), make_record("exact")]) == 2
