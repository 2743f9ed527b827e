"""Greater-than: counterfactuals of other years, and the prompts whose labels they give."""

from __future__ import annotations

import re

import pytest

import mechassay as ma
from mechassay.examples import Examples, Prompt
from mechassay.variables.defaults import defaults_of
from mechassay.variables.labels import expected_labels
from mechassay.variables.models.greater_than import (
    OTHER_YEAR,
    greater_than_model,
    with_other_years,
)

N = 40


@pytest.fixture(scope="module")
def examples() -> Examples:
    return ma.load_task("greater-than").examples("test", limit=N)


def year_of(prompt: Prompt) -> int:
    return int(prompt.part("year"))


def test_the_other_year_is_that_of_the_next_example_of_the_century(examples: Examples) -> None:
    found = with_other_years(examples)
    assert len(found) == N and found.dropped == examples.dropped
    for number, (before, after) in enumerate(zip(examples, found, strict=True)):
        same = [x for x in examples if x.tags["century"] == before.tags["century"]]
        later = [x for x in examples[number + 1 :] if x in same]
        years = [year_of(x.prompt) for x in (*later, *same)]
        other = next((year for year in years if year != year_of(before.prompt)), None)
        assert (OTHER_YEAR in after.counterfactuals) == (other is not None)
        if other is None:
            continue
        made = after.counterfactuals[OTHER_YEAR]
        assert year_of(made) == other
        # Nothing but the year differs, and what is right is what is later, one by one.
        begin, end = before.prompt.spans["year"]
        assert made.text[:begin] == before.prompt.text[:begin]
        assert made.text[end:] == before.prompt.text[end:]
        written = made.part("digit") if "digit" in made.spans else ""
        assert set(made.answers) == {x for x in made.choices if int(written + x) > other}
        assert {k: after.counterfactuals[k] for k in before.counterfactuals} == dict(
            before.counterfactuals
        )


def test_defaults_prepare_the_examples(examples: Examples) -> None:
    prepared = defaults_of("greater-than").prepared(examples)
    assert any(OTHER_YEAR in each.counterfactuals for each in prepared)
    assert defaults_of("mcqa").prepared(examples) is examples


@pytest.mark.parametrize("variable", ["tens", "ones"])
def test_the_prompt_with_the_values_of_the_interchange(examples: Examples, variable: str) -> None:
    """It has the base's words, and a year after which the same endings are right."""
    causal = greater_than_model()
    assert causal.prompt is not None and causal.read is not None
    labels = expected_labels(causal, variable, with_other_years(examples), [OTHER_YEAR])
    assert len(labels) > N / 2
    for pair in labels:
        base = Prompt(pair.base, spans=pair.base_spans)
        asked = causal.prompt(pair.labels, base)
        begin, end = pair.base_spans["year"]
        assert re.fullmatch(r"\d\d", asked[begin:end])
        assert (asked[:begin], asked[end:]) == (pair.base[:begin], pair.base[end:])
        old, new = pair.base[begin:end], pair.source[slice(*pair.source_spans["year"])]
        mixed = new[0] + old[1] if variable == "tens" else old[0] + new[1]
        written = base.part("digit") if "digit" in base.spans else ""
        first = min(int(written + label) for label in pair.labels)
        assert first > int(mixed) and int(asked[begin:end]) == first - 1
        if not written:
            assert asked[begin:end] == mixed
