"""Predictions of SyntaxGym, against Python's own arithmetic and answers worked by hand."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechassay.errors import BadUsage
from mechassay.gym import Formula

VALUES = {
    ("1", "a"): np.array([1.0, 5.0]),
    ("2", "a"): np.array([2.0, 2.0]),
    ("1", "b"): np.array([3.0, 3.0]),
    ("*", "a"): np.array([3.0, 7.0]),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(1;%a%) < (1;%b%)", [True, False]),
        ("(1;%a%)>(1;%b%)", [False, True]),
        ("((1;%a%) + (2;%a%)) = (1;%b%)", [True, False]),
        ("(*;%a%) = (1;%a%) + (2;%a%)", [True, True]),
        ("(1;%a%) - (2;%a%) - 1 < 0.5", [True, False]),
        ("[(1;%a%) < (1;%b%) ] & [(2;%a%) < (1;%b%) ] ", [True, False]),
        ("((1;%a%) < (1;%b%)) | ((2;%a%) < (1;%b%))", [True, True]),
        # From the left: (true | true) & false.
        ("(1;%b%) = 3 | 1 < 2 & 2 < 1", [False, False]),
        ("(1;%b%) = 3.0009", [True, True]),
        ("(1;%b%) = 3.002", [False, False]),
        ("1e3 > (1;%a%)", [True, True]),
        ("(1;%a%) - ((2;%a%) - 1) < 1", [True, False]),
    ],
)
def test_formulas_by_hand(text: str, expected: list[bool]) -> None:
    formula = Formula.read(text)
    assert formula.holds(VALUES).tolist() == expected


def test_regions_of_a_formula() -> None:
    formula = Formula.read(" (1;%a-b_c%) < (*;%d%) + (1;%a-b_c%) ")
    assert formula.regions == (("1", "a-b_c"), ("*", "d"))
    assert formula.text == "(1;%a-b_c%) < (*;%d%) + (1;%a-b_c%)"


numbers = st.integers(0, 9).map(str)
sums = st.recursive(
    numbers,
    lambda inner: st.tuples(inner, st.sampled_from("+-"), inner).map(
        lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"
    ),
    max_leaves=6,
)


@given(st.lists(sums, min_size=1, max_size=4), sums, st.sampled_from("<>"))
def test_arithmetic_is_pythons(parts: list[str], other: str, sign: str) -> None:
    text = f"{' - '.join(parts)} {sign} {other}"
    assert bool(Formula.read(text).holds({})) == eval(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it ends too soon"),
        ("(1;%a%)", "it compares nothing"),
        ("(1;%a%) <", "it ends too soon"),
        ("((1;%a%) < 2", "'(' is not closed"),
        ("[(1;%a%) < 2)", "'[' is not closed"),
        ("(1;%a%) < 2)", "')' comes after its end"),
        ("(1;%a%) < 2 < 3", "'<' comes after its end"),
        ("(1 < 2) < 3", "'<' compares numbers"),
        ("(1 < 2) + 3 < 4", "'+' adds numbers"),
        ("1 & 2", "'&' joins comparisons"),
        ("+ 1 < 2", "'+' stands where a region or a number should"),
        ("__import__('os')", '"__import__(\'" cannot be read'),
        ("(1;a) < 2", "';a) < 2' cannot be read"),
        ("(" * 60 + "1", "it has more than 50 brackets within each other"),
    ],
)
def test_what_is_no_formula(text: str, message: str) -> None:
    with pytest.raises(BadUsage, match=re.escape(f"is not a formula: {message}.")) as caught:
        Formula.read(text)
    assert "\n" not in str(caught.value)


def test_a_region_without_values() -> None:
    with pytest.raises(BadUsage, match="needs region 9 of condition 'a'; there are no values"):
        Formula.read("(9;%a%) < 1").holds(VALUES)
