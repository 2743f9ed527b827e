"""The table of verdicts: each case is complete, and each sentence takes numbers and refuses NaN."""

from __future__ import annotations

import math
import re
from itertools import product
from string import Formatter
from typing import Any

import pytest

from mechassay.results.verdict import (
    NOT_STORED,
    Case,
    Conclusion,
    Standing,
    Verdict,
    percent,
    table,
    written,
)

PRECONDITIONS = ("groups", "task", "effect", "information", "different")
PRECONDITIONS += ("cells", "average", "tokens")
EVERY = [(part, name) for part, cases in table().items() for name in cases]


def slots(text: str) -> dict[str, str]:
    """The slots of a sentence with their formats; the word that is counted may be a slot."""
    found = {name: spec or "" for _, name, spec, _ in Formatter().parse(text) if name}
    return found | ({"unit": ""} if "{unit}" in text else {})


def value(spec: str, number: float = 0.5) -> Any:
    kind = spec.partition(" ")[0]
    return (number, number, number) if kind == "interval" else number


@pytest.mark.parametrize(("part", "name"), EVERY)
def test_each_case_is_complete_and_its_sentence_is_a_sentence(part: str, name: str) -> None:
    row = table()[part][name]
    is_precondition = part in PRECONDITIONS
    assert set(row) == {"text", "verdict", *(["standing"] if is_precondition else [])}
    Verdict(row["verdict"])
    if is_precondition:
        standing = Standing(row["standing"])
        excluded = (Verdict.NO_VERDICT, Verdict.NOTHING)
        assert (Verdict(row["verdict"]) in excluded) == (standing is Standing.NOT_MET)
        assert bool(row["text"]) == (standing is not Standing.MET)
    text = row["text"]
    if not text:
        return
    assert "  " not in text and "\n" not in text and text == text.strip()
    assert name == NOT_STORED or text[-1] in ".}?", "a sentence ends"
    made = written(text, {slot: value(spec) for slot, spec in slots(text).items()})
    assert "{" not in made and "nan" not in made


@pytest.mark.parametrize(("part", "name"), EVERY)
def test_no_sentence_has_an_undefined_number(part: str, name: str) -> None:
    text = table()[part][name]["text"]
    found = slots(text)
    for slot, spec in found.items():
        if not spec or spec.startswith("count {"):
            continue
        numbers = {other: value(own) for other, own in found.items()}
        with pytest.raises(ValueError, match="undefined"):
            written(text, {**numbers, slot: value(spec, math.nan)})
        with pytest.raises(KeyError):
            written(text, {other: x for other, x in numbers.items() if other != slot})


def case_of(part: str, standing: Standing) -> Case:
    """A case of a precondition with this standing, with numbers for its sentence."""
    rows = table()[part]
    name = next(name for name, row in rows.items() if row["standing"] == standing)
    return Case(part, name, {s: value(f) for s, f in slots(rows[name]["text"]).items()})


def test_the_first_precondition_that_is_not_met_is_the_headline() -> None:
    """Of all combinations of standings, whatever the answer is."""
    answer = Case("small", "not tested")
    for standings in product(Standing, repeat=3):
        parts = ("groups", "effect", "information")
        cases = tuple(map(case_of, parts, standings))
        conclusion = Conclusion(cases, (answer,), {"model": "m"})
        broken = [case for case in cases if case.standing is Standing.NOT_MET]
        if broken:
            assert conclusion.broken is broken[0]
            assert re.match("No verdict: |Nothing to explain: ", conclusion.headline)
            assert conclusion.lines == [conclusion.headline]
            assert conclusion.verdict in (Verdict.NO_VERDICT, Verdict.NOTHING)
        else:
            assert "No circuit was measured." in conclusion.headline
            assert conclusion.verdict is Verdict.NOT_TESTED
            missing = standings.count(Standing.NOT_KNOWN)
            assert ("This record does not say" in conclusion.headline) == bool(missing)
            assert conclusion.headline.count(", nor ") == max(0, missing - 1)


def test_a_precondition_of_one_method_stands_below() -> None:
    own = case_of("information", Standing.NOT_MET)
    of_one = Case(own.part, own.name, own.numbers, of="zero")
    conclusion = Conclusion((of_one,), (Case("small", "not tested"),))
    assert conclusion.broken is None and len(conclusion.lines) == 2


@pytest.mark.parametrize(
    ("part", "text"), [(0.0, "0"), (0.001, "less than 1"), (0.034, "3"), (0.999, "100")]
)
def test_whole_per_cent(part: float, text: str) -> None:
    assert percent(part) == f"{text}\u00a0%"
