"""What a comparison is worth: each status by hand, and what must never be called reproduced."""

from __future__ import annotations

import math

import pytest

from mechassay.reproduction.status import (
    Ours,
    Status,
    printed_value,
    rounding,
    verdict,
)

GOOD = Ours(0.51, 0.49, 0.53, n=1000)
"""Of a published .52 on 1,000 examples, of a measure from 0 to 1."""


def status(ours: Ours, printed: str = "0.52", n: int | None = 1000, span: float = 1.0) -> Status:
    return verdict(printed, ours, n=n, span=span).status


def test_a_number_like_the_published_one_is_reproduced() -> None:
    assert verdict("0.52", GOOD, n=1000, span=1.0).status == "reproduced"
    assert verdict("0.52", GOOD, n=1000, span=1.0).reason == ""


@pytest.mark.parametrize("printed", ["0.54", "0.48"])
def test_rounding_of_the_print_counts_for_it(printed: str) -> None:
    edge = Ours(0.51, 0.485, 0.535, n=1000)
    assert status(edge, printed) == "reproduced"
    assert status(Ours(0.51, 0.4851, 0.5349, n=1000), printed) == "differs"


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (Ours(0.7, 0.68, 0.72, n=1000), "differs"),
        (Ours(0.52, 0.4, 0.64, n=1000), "too few to tell"),
        (Ours(0.52, -math.inf, math.inf, n=1000), "too few to tell"),
        (Ours(0.52, math.nan, math.nan, n=1000), "too few to tell"),
        (Ours(math.nan, 0.4, 0.6, n=1000), "too few to tell"),
        (Ours(math.nan, math.nan, math.nan, n=1000), "too few to tell"),
        (Ours(0.52, 0.53, 0.51, n=1000), "too few to tell"),
        (Ours(0.52, 0.51, 0.53, n=2), "too few to tell"),
        (Ours(0.52, 0.51, 0.53, n=1001), "differs"),
        (Ours(0.52, 0.51, 0.53, n=1000, deviations=("another split",)), "differs"),
        (Ours(0.52, 0.51, 0.53, n=1000, stand_in="a folder"), "other model"),
        (Ours(why_not="no weights"), "not run"),
    ],
)
def test_what_is_not_as_published_is_not_reproduced(ours: Ours, expected: Status) -> None:
    assert status(ours) == expected


def test_equal_numbers_of_another_model_reproduce_nothing() -> None:
    exact = Ours(0.52, 0.52, 0.52, n=1000, stand_in="gpt2 from a folder")
    assert status(exact) == "other model"


def test_a_paper_that_does_not_say_n_is_never_reproduced() -> None:
    assert status(GOOD, n=None) == "differs"
    assert "does not say" in verdict("0.52", GOOD, n=None, span=1.0).reason


def test_width_is_allowed_by_the_range_or_by_the_published_value() -> None:
    # CPR has no range: 20 % of 2.30 are .46.
    assert status(Ours(2.2, 2.0, 2.45, n=1000), "2.30", span=math.inf) == "reproduced"
    assert status(Ours(2.2, 2.0, 2.47, n=1000), "2.30", span=math.inf) == "too few to tell"
    # A number that is large because it is wrong earns no wider interval.
    assert status(Ours(50.0, 46.0, 54.0, n=1000), "2.30", span=math.inf) == "too few to tell"


def test_a_page_explains_what_is_no_equal_and_nothing_else() -> None:
    apart = Ours(0.7, 0.68, 0.72, n=1000)
    why = "a fault of the public code"
    assert verdict("0.52", apart, n=1000, span=1.0, explained=why).status == "explained"
    assert verdict("0.52", GOOD, n=1000, span=1.0, explained=why).status == "reproduced"
    few = Ours(0.7, 0.68, 0.72, n=2)
    assert verdict("0.52", few, n=1000, span=1.0, explained=why).status == "too few to tell"
    other = Ours(0.7, 0.68, 0.72, n=1000, stand_in="x")
    assert verdict("0.52", other, n=1000, span=1.0, explained=why).status == "other model"


def test_a_published_number_that_is_not_legible_has_no_status_of_ours() -> None:
    assert status(GOOD, "?") == "not run"


def test_a_calculation_has_no_examples() -> None:
    assert status(Ours(1282, 1282, 1282), "1282", n=0, span=math.inf) == "reproduced"
    assert status(Ours(1281, 1281, 1281), "1282", n=0, span=math.inf) == "differs"


@pytest.mark.parametrize(
    ("text", "value", "slack"),
    [("0.52", 0.52, 0.005), ("14,979", 14979, 0.5), ("1.0", 1.0, 0.05), ("-0.01", -0.01, 0.005)],
)
def test_printed_numbers(text: str, value: float, slack: float) -> None:
    assert printed_value(text) == value
    assert rounding(text) == pytest.approx(slack)


def test_what_is_no_number_is_not_legible() -> None:
    assert math.isnan(printed_value("?"))
    assert math.isnan(printed_value("1.2.3"))
