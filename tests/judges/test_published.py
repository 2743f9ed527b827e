"""The published evaluation: every number that follows from its tables, and those that do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mechassay.judges import published
from mechassay.judges.evaluation import PublishedCheck
from mechassay.judges.published import printed_scores, published_checks
from mechassay.judges.reference_labels import published_data, published_labels

CHECKS = published_checks()


def one(where: str, about: str) -> PublishedCheck:
    (found,) = (each for each in CHECKS if each.where == where and about in each.about)
    return found


def test_what_holds() -> None:
    for where, about in (
        ("5.1", "interval of papers with their label's tier"),
        ("5.1", "interval of papers within one tier"),
        ("5.1", "papers with their label's tier"),
        ("5.1", "labels by Registry"),
        ("5.1", "labels by Expert"),
        ("Tables 3 to 6", "tiers"),
        ("Tables 2 to 4", "labels"),
        ("Tables 3, 4", "errors"),
        ("Table 5, B", "ranges"),
        ("Figure 3", "IOI"),
        ("3.9", "worked example"),
    ):
        holds = [each.holds for each in CHECKS if each.where == where and about in each.about]
        assert holds[0] is True, (where, about)
    assert one("5.1", "interval of papers with their").recomputed == "[21 %, 86 %]"
    assert one("5.1", "interval of papers within one").recomputed == "[66 %, 100 %]"


@pytest.mark.parametrize(
    ("where", "about", "recomputed"),
    [
        ("4.2", "tiers among the labels", "4"),
        ("Abstract, table 6", "models compared", "7"),
        ("5.2", "largest range", "2.2"),
        ("5.2", "over-scored papers", "greater-than, othello"),
        ("Table 5", "not their highest", "successor-heads"),
        ("5.5", "not above the mean", "probing, successor-heads"),
        ("Figure 2", "extremes", "gender-bias"),
        ("5.3", "claims behind", "only 5 fits all four shares"),
        ("5.3", "put right", "9"),
        ("6.3", "at 2 is at 1.5", "none"),
        (
            "6.3",
            "within 0.5",
            "copy-suppression, greater-than, grokking, induction, ioi, othello",
        ),
        ("6.3", "change most papers", "6 (changes 4)"),
        ("3.9", "after further", "not attainable by lowering its levels; the nearest is 3.6"),
    ],
)
def test_what_does_not_hold(where: str, about: str, recomputed: str) -> None:
    found = one(where, about)
    assert found.holds is False and found.recomputed == recomputed


def test_how_many() -> None:
    assert [each.holds for each in CHECKS].count(None) == 2
    assert [each.holds for each in CHECKS].count(False) == 15


def test_labels_of_table_2_are_reference_labels() -> None:
    labels = published_labels()
    assert len(labels.papers) == 9 and labels.tier("grokking") == "Validated"
    assert labels.papers[0].identifier == "arXiv:2211.00593"


def changed(data: Any, path: str, value: Any) -> Any:
    head, _, rest = path.partition("/")
    return {**data, head: changed(data[head], rest, value) if rest else value}


@pytest.mark.parametrize(
    ("path", "value", "where", "about"),
    [
        ("voted/ioi/cvs", 6.4, "Tables 3 to 6", "tiers"),
        ("voted/ioi/off_by", 1, "Tables 3, 4", "errors"),
        ("single/ioi/expected", "Proposed", "Tables 2 to 4", "labels"),
        ("summary/ioi/others", [3.1, 3.9], "Table 5, B", "ranges"),
        ("text/exact", {"hits": 6, "n": 9, "low": 0.3, "high": 0.93}, "5.1", "papers with"),
        ("text/others_mean", {"paper": "ioi", "mean": 3.6}, "Figure 3", "IOI"),
    ],
)
def test_a_changed_number_is_found(path: str, value: Any, where: str, about: str) -> None:
    own = replace(printed_scores(), plain=changed(published_data(), path, value))
    found = [each for make in published.CHECKS for each in make(own)]
    holds = [each.holds for each in found if each.where == where and about in each.about]
    assert False in holds
