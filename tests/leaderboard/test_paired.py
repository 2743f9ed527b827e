"""Paired differences of records made by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from mechassay.errors import BadUsage
from mechassay.leaderboard import board_rules, paired_differences
from mechassay.records import Record, Values, provenance

ODDS = board_rules()["gym"].column("odds")
IIA = board_rules()["variables"].column("iia")


def made(columns: dict[str, list[float]], ids: list[str] | None = None) -> Record:
    n = len(next(iter(columns.values())))
    names = ids or [str(number) for number in range(n)]
    return Record(
        kind="gym",
        specs={},
        measures=[],
        values=Values(unit="pair", ids=names, groups=names, columns=columns),
        provenance=provenance(device="", dtype="", seed=0),
    )


def test_the_difference_is_of_means_and_what_is_common_cancels() -> None:
    hard = np.random.default_rng(0).normal(0, 100, 60)
    record = made({"a": (hard + 1).tolist(), "b": hard.tolist()})
    found = paired_differences(ODDS, {"a": record, "b": record})["a", "b"]
    assert found.value == pytest.approx(1) and found.low == pytest.approx(1)
    assert found.high == pytest.approx(1)


def test_two_worthless_rows_are_not_told_apart() -> None:
    rng = np.random.default_rng(1)
    record = made({name: rng.normal(size=80).tolist() for name in "ab"})
    found = paired_differences(ODDS, {"a": record, "b": record})["a", "b"]
    assert found.low < 0 < found.high


def test_records_may_be_others_but_not_about_other_examples() -> None:
    first, second = made({"features": [1.0, 0.0, 1.0]}), made({"features": [0.0, 0.0, 1.0]})
    found = paired_differences(IIA, {"das": first, "pca": second})["das", "pca"]
    assert found.value == pytest.approx(1 / 3)
    other = made({"features": [0.0, 0.0, 1.0]}, ids=["x", "y", "z"])
    with pytest.raises(BadUsage, match="other examples"):
        paired_differences(IIA, {"das": first, "pca": other})


def test_an_undefined_value_leaves_the_difference_undefined() -> None:
    record = made({"a": [1.0, math.nan], "b": [0.0, 0.0]})
    found = paired_differences(ODDS, {"a": record, "b": record})["a", "b"]
    assert math.isnan(found.value) and math.isnan(found.low)


def test_nothing_is_paired_where_a_column_has_no_values() -> None:
    record = made({"a": [1.0], "b": [0.0]})
    assert paired_differences(replace(ODDS, paired=""), {"a": record, "b": record}) == {}
    assert paired_differences(ODDS, {"a": record}) == {}
    with pytest.raises(BadUsage, match="no values of examples named c"):
        paired_differences(ODDS, {"a": record, "c": record})
