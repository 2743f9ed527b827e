"""Conditions of places in words."""

from __future__ import annotations

import pytest

from mechassay.leaderboard.rules import PlaceConditions, in_words

A, B = "a" * 64, "b" * 64


def made(under: str, n: int = 40, *, reported: bool = False, **conditions: str) -> PlaceConditions:
    named = {name.replace("_", " "): value for name, value in conditions.items()}
    return PlaceConditions(under, named, n, reported)


def short(*places: PlaceConditions) -> list[str]:
    return [words for words, _ in in_words(places)]


def test_a_single_place_needs_no_words() -> None:
    assert in_words([made("1", examples=A)]) == [("", "")]


def test_examples_are_told_by_their_number() -> None:
    found = in_words([made("1", 40, examples=A), made("2", 1000, examples=B)])
    assert found == [("40 examples", f"examples {A}"), ("1,000 examples", f"examples {B}")]


def test_what_words_leave_equal_has_a_hash() -> None:
    assert short(made("1", examples=A), made("2", examples=B)) == ["#1", "#2"]
    given = [made("1", dtype="float32", weights=A), made("2", dtype="float32", weights=B)]
    assert short(*given) == ["#1", "#2"]
    mixed = [*given, made("3", dtype="bfloat16", weights=A)]
    assert short(*mixed) == ["fp32 #1", "fp32 #2", "bf16"]


@pytest.mark.parametrize(
    ("name", "values", "wanted"),
    [
        ("dtype", ("float32", "bfloat16"), ["fp32", "bf16"]),
        ("definition", ("cpr@1", "cpr@2"), ["cpr@1", "cpr@2"]),
        ("split", ("test", "validation"), ["split test", "split validation"]),
        ("chosen_of", ("6 sites, 12ab", "12 sites, 34cd"), ["6 sites", "12 sites"]),
        ("chosen_of", ("6 sites, 12ab", "6 sites, 34cd"), ["#1", "#2"]),
        ("examples", ("8 private examples of x", A), ["8 private examples of x", "#2"]),
    ],
)
def test_each_condition_has_its_words(
    name: str, values: tuple[str, str], wanted: list[str]
) -> None:
    assert short(*(made(str(n), **{name: x}) for n, x in enumerate(values, 1))) == wanted


def test_controls_are_told_by_those_that_are_lacking() -> None:
    every = "control:labels, control:random, difference:labels"
    found = short(made("1", controls=every), made("2", controls="control:random"))
    assert found == ["all controls", "without labels"]


def test_numbers_as_reported_do_not_name_what_they_do_not_say() -> None:
    own = [made("1", 40, examples=A, split="test"), made("2", 80, examples=B, split="test")]
    found = short(*own, made("3", 0, reported=True, definition="mib"))
    assert found == ["40 examples", "80 examples", "as reported"]
    assert short(own[0], made("3", 0, reported=True, definition="mib")) == ["#1", "as reported"]


def test_what_most_places_have_is_said_of_the_plain_one_alone() -> None:
    plain = {"dtype": "float32", "examples": A, "ablation": "counterfactual"}
    found = short(
        made("1", 40, **plain),
        made("2", 100, **{**plain, "examples": B}),
        made("3", 40, **{**plain, "dtype": "bfloat16"}),
        made("4", 40, **{**plain, "ablation": "mean", "constants_from": A}),
    )
    wanted = ["fp32, 40 examples, ablation counterfactual", "100 examples", "bf16", "ablation mean"]
    assert found == wanted
