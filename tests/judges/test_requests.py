"""Answers of judges: what is of the form, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mechassay.claims.rubric import load_rubric
from mechassay.errors import InvalidAnswer
from mechassay.judges.requests import answer_form, claims_in, judgments_in, read_answer

RUBRIC = load_rubric()
CODES = ("C1", "I2")
GOOD = {"reason": "It runs alone.", "quotes": ["recovers 87 %"], "status": "YES"}
CLAIM = {
    "id": "names",
    "statement": "Heads copy.",
    "system": True,
    "description_mode": "unclear",
    "families": ["causal", "causal"],
    "components": ["9.9 (Name Mover)", "L9H6", "MLP 3"],
}


def criteria(**changed: Any) -> str:
    return json.dumps({"criteria": {"C1": GOOD, "I2": {**GOOD, **changed}}})


def read(text: str, step: Any = "criteria") -> dict[str, Any]:
    return read_answer(answer_form(step, RUBRIC, CODES, 40), text)


def test_a_good_answer_is_read_as_judgments_with_quotes() -> None:
    found = judgments_in(read(criteria(quotes=["a b", "a b", "c"]))["criteria"], "f" * 64)
    assert found["I2"].status == "YES" and found["I2"].reason == "It runs alone."
    quotes = [each.quote for each in found["I2"].evidence]
    assert [(each.exact, each.document) for each in quotes if each] == [
        ("a b", "f" * 64),
        ("c", "f" * 64),
    ]


@pytest.mark.parametrize("status", ["yes", "Y", "NA", "NOT TESTED", "", True, None, 1])
def test_a_status_is_one_of_three_words(status: Any) -> None:
    with pytest.raises(InvalidAnswer, match=r"criteria\.I2\.status"):
        read(criteria(status=status))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (criteria()[:-5], "not JSON"),
        ("", "not JSON"),
        (f"```json\n{criteria()}\n```", "not JSON"),
        (f"{criteria()} I hope this helps!", "not JSON"),
        (json.dumps({"criteria": {"C1": GOOD}}), r"criteria\.I2: Field required"),
        (json.dumps({"criteria": {"C1": GOOD, "I2": GOOD, "I3": GOOD}}), r"criteria\.I3: Extra"),
        (json.dumps({"criteria": []}), "valid dictionary|object"),
        (criteria(reason=""), "at least 1"),
        (criteria(reason="x" * 41), "at most 40"),
        (criteria(quotes=["a", "b", "c", "d"]), "at most 3"),
        (criteria(score=3), r"score: Extra"),
        ('{"criteria": {"C1": 1, "C1": 2}}', "a key stands twice"),
    ],
)
def test_what_is_not_of_the_form_is_refused_and_not_repaired(text: str, match: str) -> None:
    with pytest.raises(InvalidAnswer, match=match):
        read(text)


def test_claims_are_read_with_our_names_of_components() -> None:
    [claim] = claims_in(read(json.dumps({"claims": [CLAIM]}), "claims"), RUBRIC)
    assert claim.components == ("a9.h9", "a9.h6", "MLP 3")
    assert claim.description_mode == "" and claim.families == ("causal",) and claim.system
    assert claims_in(read('{"claims": []}', "claims"), RUBRIC) == ()


@pytest.mark.parametrize(
    ("other", "match"),
    [({"system": False}, "Two claims have the id"), ({"id": "b"}, "Two claims are marked")],
)
def test_claims_that_cannot_be_told_apart_are_refused(other: dict[str, Any], match: str) -> None:
    answer = read(json.dumps({"claims": [CLAIM, {**CLAIM, **other}]}), "claims")
    with pytest.raises(InvalidAnswer, match=match):
        claims_in(answer, RUBRIC)


def test_a_form_names_every_criterion_and_nothing_else() -> None:
    form = answer_form("one", RUBRIC, RUBRIC.codes, 99).model_json_schema()
    own = form["$defs"]["CriteriaAnswer"]
    assert own["required"] == list(RUBRIC.codes) and own["additionalProperties"] is False
    judgment = form["$defs"]["JudgmentAnswer"]
    assert judgment["required"] == ["reason", "quotes", "status"], "reasons stand before statuses"
