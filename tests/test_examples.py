"""Examples: filled templates know where their parts are,
and pairs have the foils that the rule says.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechassay.examples import Example, Prompt, filled

letters = st.text("abc xyz", max_size=5)


@given(
    st.dictionaries(st.sampled_from(["a", "b", "c"]), letters, min_size=3, max_size=3),
    st.lists(letters, min_size=4, max_size=4),
)
def test_spans_cut_out_their_fields(fields: dict[str, str], between: list[str]) -> None:
    template = f"{between[0]}{{a}}{between[1]}{{b}}{between[2]}{{a}}{between[3]}{{c}}"
    prompt = filled(template, fields)
    assert prompt.text == template.format(**fields)
    assert {name: prompt.part(name) for name in prompt.spans} == {**fields, "a_2": fields["a"]}
    assert (
        prompt.spans["a"][0]
        <= prompt.spans["b"][0]
        <= prompt.spans["a_2"][0]
        <= prompt.spans["c"][0]
    )


def example(**options: object) -> Example:
    prompt = Prompt("Pick:", (" A",), (" A", " B", " C"))
    others = {
        "moved": Prompt("Pick?", (" B",), (" A", " B", " C")),
        "same": Prompt("Choose:", (" A",)),
        "none": Prompt("Sing:"),
    }
    return Example("x", prompt, others, **options)  # pyright: ignore[reportArgumentType]


def test_foils_are_what_the_counterfactual_says() -> None:
    assert example().pair("moved").foils == (" B",)
    assert example().pair("same").foils == example().pair("none").foils == (" B", " C")
    assert example(foils=(" Z",)).pair("moved").foils == (" Z",)
    assert example().pair("moved").counterfactual_answers == (" B",)
    with pytest.raises(KeyError):
        example().pair("nothing")
