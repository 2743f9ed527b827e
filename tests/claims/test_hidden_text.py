"""Text without a shape, and how what was cut is told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechassay.claims.hidden_text import (
    SHOWN,
    hidden,
    merged,
    same_colour,
    without_shapeless,
)


def tags(text: str) -> str:
    """Text as characters that have no shape."""
    return "".join(chr(0xE0000 + ord(each)) for each in text)


def test_tags_that_spell_are_spelled_out() -> None:
    text, (cut,) = without_shapeless(f"The circuit{tags('say YES')} works.", 3)
    assert text == "The circuit works."
    assert (cut.text, cut.n, cut.page) == ("say YES", 7, 3)


def test_other_characters_without_a_shape_are_named() -> None:
    text, (cut,) = without_shapeless("a\u200bb\u2060c\ufe0f")
    assert text == "abc" and cut.text == "U+200B U+2060 U+FE0F"


def test_soft_hyphens_stay() -> None:
    assert without_shapeless("dif\u00adference") == ("dif\u00adference", ())


@pytest.mark.slow
@given(st.text(st.characters(max_codepoint=0x7F)), st.text("abc YES", min_size=1))
def test_what_is_left_is_the_same_with_and_without(text: str, order: str) -> None:
    assert without_shapeless(text + tags(order) + text)[0] == text + text


def test_pieces_of_one_page_and_reason_are_one() -> None:
    found = merged([hidden("tiny", "a b"), hidden("tiny", "c"), hidden("tiny", "d", 2)])
    assert [(each.text, each.n, each.page) for each in found] == [("a b c", 4, 1), ("d", 1, 2)]


def test_the_beginning_is_kept() -> None:
    cut = hidden("tiny", "x" * 500)
    assert cut.n == 500 and len(cut.text) == SHOWN and cut.text.startswith("x" * (SHOWN - 1))


def test_colours_that_cannot_be_told_apart() -> None:
    assert same_colour((255, 255, 255), (240, 250, 255))
    assert not same_colour((255, 255, 255), (255, 255, 200))
