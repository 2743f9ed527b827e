"""Forms of a text that can be compared, by hand."""

from __future__ import annotations

import pytest

from mechassay.claims.normal_text import BREAK, cut_words, marks, normalised, pattern_of, skeleton


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("the  ﬁrst\n two", "the first two"),
        ("dif-\n ference", f"dif{BREAK}ference"),
        ("dif\ufffeference", f"dif{BREAK}ference"),
        ("10² and x₁", "10^2 and x_1"),
        ("−0.5 to 3–5", "-0.5 to 3-5"),
        ("", ""),
    ],
)
def test_normalised(text: str, normal: str) -> None:
    assert normalised(text) == normal and normalised(normal) == normal


def test_skeleton() -> None:
    assert skeleton("The S-inhibition heads, 9.9!") == "thesinhibitionheads99"


@pytest.mark.parametrize(
    ("text", "negations", "numbers"),
    [
        ("It doesn’t, and never will not.", ["doesn't", "never", "not"], []),
        ("note, another, known", [], []),
        ("1,000 of -0.5 and GPT-2 at (3-5)", [], ["1,000", "-0.5", "2", "3", "5"]),
        ("10^2", [], ["10", "2"]),
    ],
)
def test_marks(text: str, negations: list[str], numbers: list[str]) -> None:
    assert marks(text) == (negations, numbers)


@pytest.mark.parametrize(
    ("text", "part", "cut"),
    [
        ("recovers 87 %", "7 %", ("8", "")),
        ("Heads cannot copy", "Heads can", ("", "not")),
        ("they don't", "don", ("", "'t")),
        ("at 1.5 now", "5 now", ("1.", "")),
        ("at -0.5 now", "0.5 now", ("-", "")),
        ("can-\nnot copy", "can", ("", "not")),
        ("the model.2 Then", "the model.", ("", "")),
        ("models1 of it", "models", ("", "")),
        ("whole words", "whole", ("", "")),
    ],
)
def test_words_that_a_passage_cuts(text: str, part: str, cut: tuple[str, str]) -> None:
    begin = text.index(part)
    assert cut_words(text, begin, begin + len(part)) == cut


def test_a_line_may_end_between_letters_and_not_within_a_number() -> None:
    assert pattern_of("difference").search(f"dif{BREAK}ference")
    assert pattern_of("well-known").search(f"well{BREAK}known")
    assert not pattern_of("2019").search(f"20{BREAK}19")
