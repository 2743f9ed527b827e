"""Prompts with one field changed: what may change, to what, and what stays."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mechassay.adversarial.edits import field_values, single_field_edits
from mechassay.examples import Prompt, filled


def ioi(a: str, b: str, c: str) -> Prompt:
    plain = filled(
        "Then {name_A} and {name_B} met. {name_C} gave it to",
        {"name_A": a, "name_B": b, "name_C": c},
    )
    meaning = {
        "subject": plain.spans["name_A" if c == a else "name_B"],
        "subject_2": plain.spans["name_C"],
    }
    return Prompt(plain.text, (f" {b if c == a else a}",), (), {**plain.spans, **meaning})


def test_a_name_is_changed_wherever_it_stands() -> None:
    values = field_values(
        [ioi("Ann", "Bob", "Ann"), ioi("Christina", "Ann", "Ann"), ioi("Bob", "Christina", "Bob")]
    )
    assert values["name_A"] == ("Ann", "Christina", "Bob") and values["name_C"] == ("Ann", "Bob")
    found = single_field_edits(
        ioi("Ann", "Bob", "Ann"),
        {
            **values,
            "name_C": values["name_A"],
            "subject": values["name_A"],
            "subject_2": values["name_A"],
        },
    )
    # Ann cannot become Bob, who is there; Bob can become Christina, whom name_B has been.
    assert [each.prompt.text for each in found] == [
        ioi("Christina", "Bob", "Christina").text,
        ioi("Ann", "Christina", "Ann").text,
    ]
    assert found[0].change == "name_A, name_C, subject, subject_2: Ann -> Christina"
    for each, wanted in zip(
        found, (ioi("Christina", "Bob", "Christina"), ioi("Ann", "Christina", "Ann")), strict=True
    ):
        assert each.prompt.spans == wanted.spans and each.prompt.answers == ()


def test_a_value_must_be_one_of_every_part_that_changes() -> None:
    prompt = filled("In {century}{year} to {century}", {"century": "17", "year": "33"})
    values = {"century": ("11", "17"), "century_2": ("11", "12"), "year": ("17", "33", "50", "")}
    assert [each.prompt.text for each in single_field_edits(prompt, values)] == [
        "In 1133 to 11",
        "In 1750 to 17",
    ]
    # Where year and century happen to be the same they are one field, for which no value is common
    # to all three.
    same = filled("In {century}{year} to {century}", {"century": "17", "year": "17"})
    assert single_field_edits(same, values) == []


def test_parts_inside_others() -> None:
    text = "pick red or blue now"
    prompt = Prompt(
        text, spans={"choices": (5, 16), "first": (5, 8), "second": (12, 16), "crossing": (14, 20)}
    )
    values = {"choices": ("a or b",), "first": ("green",), "second": ("black",), "crossing": ("x",)}
    (found,) = single_field_edits(prompt, values)
    assert found.prompt.text == "pick green or blue now"
    assert (
        found.prompt.part("choices") == "green or blue"
        and found.prompt.part("second") == "blue"
        and found.prompt.part("crossing") == "ue now"
    )


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from("abcdefgh"), min_size=3, max_size=3, unique=True), st.integers(1, 5)
)
def test_templates_stay_intact(words: list[str], times: int) -> None:
    """Every variant is the template with other words, one of them new,
    and its parts are those of a prompt made so.
    """
    template, names = "{x}-{y} {x}/{z}:{y}{x}", "xyz"
    first = dict(zip(names, words, strict=True))
    values = {
        f"{name}{end}": [each * times for each in "abcdefgh"]
        for name in names
        for end in ("", "_2", "_3")
    }
    found = single_field_edits(filled(template, first), values)
    made = [{**first, name: new} for name in names for new in values[name] if new not in words]
    assert {(each.prompt.text, tuple(each.prompt.spans.items())) for each in found} == {
        (prompt.text, tuple(prompt.spans.items()))
        for prompt in (filled(template, each) for each in made)
    }
    assert len(found) == len(made)
