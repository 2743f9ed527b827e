"""Sentences of regions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechassay.errors import BadUsage
from mechassay.gym.regions import joined, regions_of, spaced, spans_of


def names(template: str) -> list[str]:
    return [region.name for region in regions_of(template)]


def test_regions_of_a_template() -> None:
    template = "The {subject} that | the {object} {verb} the thing"
    assert names(template) == ["the", "subject", "that", "the_2", "object", "verb", "the_thing"]
    assert [region.text for region in regions_of(template)] == [
        "The",
        None,
        " that",
        " the",
        None,
        None,
        " the thing",
    ]
    assert names("{the} the {x}, and") == ["the", "the_2", "x", "and"]
    assert names("All of {last_one}") == ["all_of", "last_one"]
    assert names("All | {x}") == ["all_2", "x"]
    assert names("... {x}") == ["text", "x"]


def test_a_field_without_a_space_before_it_has_none() -> None:
    noun, ending = regions_of("{noun}{ending}")
    assert noun.written("cat") + ending.written("s") == "cats"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("The {subject", "has a brace that belongs to no {field}: 'The {subject'"),
        ("The } x", "has a brace"),
        ("{a} and {a}", "has the field 'a' twice; a field is one region"),
        ("{last}", "has the field 'last'; that name is taken"),
        ("  ", "has no regions"),
        ("|", "has no regions"),
    ],
)
def test_templates_that_are_refused(template: str, message: str) -> None:
    with pytest.raises(BadUsage, match=message.replace("{", r"\{")):
        regions_of(template)


def test_spaces() -> None:
    assert [spaced(text) for text in ("is", ",", ".", "", " is", "'s", "(a")] == [
        " is",
        ",",
        ".",
        "",
        " is",
        "'s",
        " (a",
    ]


def test_empty_regions_leave_nothing_behind() -> None:
    parts = ["", " The", " cat", "", " sat", ",", " down"]
    assert joined(parts) == "The cat sat, down"
    spans = spans_of(list("abcdefg"), parts)
    assert spans == {"b": (0, 3), "c": (4, 7), "e": (8, 11), "f": (11, 12), "g": (13, 17)}


words = st.text("abc,. ", max_size=4)


@given(st.lists(words, min_size=1, max_size=6))
def test_spans_are_where_their_texts_are(parts: list[str]) -> None:
    whole = joined(parts)
    spans = spans_of([str(n) for n in range(len(parts))], parts)
    for number, text in enumerate(parts):
        if text.strip():
            begin, end = spans[str(number)]
            assert whole[begin:end] == text.strip()
        else:
            assert str(number) not in spans
