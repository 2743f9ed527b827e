"""Settings of a training: rates, nested sizes, and what is refused."""

from __future__ import annotations

from typing import Any, cast

import pytest

from mechassay.errors import BadUsage, UnknownName
from mechassay.saes import SAESettings


def test_the_learning_rate_rises_and_falls() -> None:
    settings = SAESettings(steps=100, warmup=0.1, decay=0.2)
    assert settings.rate(0) == pytest.approx(0.1) and settings.rate(9) == pytest.approx(1.0)
    assert settings.rate(50) == 1.0 and settings.rate(90) == pytest.approx(0.5)
    assert SAESettings(steps=10, warmup=0.0, decay=0.0).rate(0) == 1.0


def test_nested_sizes() -> None:
    """The published ones of 65,536 features; of few, those that differ."""
    assert SAESettings(n_features=65536).nested == (2048, 6144, 14336, 30720, 65536)
    assert SAESettings(n_features=32, k=1).nested == (1, 3, 7, 15, 32)
    assert SAESettings(n_features=4, k=1).nested == (1, 2, 4)
    assert SAESettings(n_features=8, k=1, prefixes=(2, 8)).nested == (2, 8)


def test_mistakes_are_one_line() -> None:
    with pytest.raises(UnknownName, match="architecture to train"):
        SAESettings(architecture=cast(Any, "gated"))
    for settings, match in (
        ({"k": 0}, "got k=0"),
        ({"steps": 0}, "steps is 1 or more"),
        ({"lr": 0.0}, "learning rate is positive"),
        ({"l0": -1.0}, "l0 and revived are not negative"),
        ({"bandwidth": 0.0}, "threshold and bandwidth are positive"),
        ({"prefixes": (8, 4, 4096)}, "growing sizes, the last one all 4096"),
        ({"prefixes": (8, 16)}, "growing sizes"),
        ({"inner": "relu"}, "inside of matryoshka"),
        ({"warmup": 2.0}, "shares of the steps"),
    ):
        with pytest.raises((BadUsage, UnknownName), match=match):
            SAESettings(**cast(dict[str, Any], settings))
