"""Settings of plug-ins: types, ranges, choices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechassay.errors import BadUsage, UnknownName
from mechassay.utils.settings import Within, check_settings


@dataclass(frozen=True)
class Plugin:
    steps: Annotated[int, Within(1)] = 3
    epochs: Annotated[int | None, Within(1)] = None
    lr: Annotated[float, Within(above=0)] = 0.1
    share: Annotated[float, Within(above=0, most=1)] = 0.5
    warmup: Annotated[float, Within(0, below=1)] = 0.0
    how: Literal["fast", "slow"] = "fast"
    name: str = ""

    def __post_init__(self) -> None:
        check_settings(self, "mine")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "mine needs steps of at least 1; got 0."),
        ({"epochs": 0}, "mine needs epochs of at least 1; got 0."),
        ({"lr": 0.0}, "mine needs lr above 0; got 0.0."),
        ({"lr": math.inf}, "mine needs lr above 0; got inf."),
        ({"lr": math.nan}, "mine needs lr above 0; got nan."),
        ({"share": 1.5}, "mine needs share above 0 and at most 1; got 1.5."),
        ({"warmup": 1}, "mine needs warmup of at least 0 and below 1; got 1."),
        ({"steps": 2.5}, "The setting steps of mine is of type int; got 2.5."),
        ({"epochs": 2.5}, "The setting epochs of mine is of type int; got 2.5."),
        ({"epochs": "many"}, "The setting epochs of mine is of type int; got 'many'."),
        ({"lr": True}, "The setting lr of mine is of type float; got True."),
    ],
)
def test_what_is_out_of_range_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadUsage) as caught:
        Plugin(**settings)
    assert str(caught.value) == message


def test_what_is_no_choice_is_refused() -> None:
    with pytest.raises(UnknownName, match="Unknown how of mine 'fats'. Did you mean 'fast'"):
        Plugin(how="fats")  # pyright: ignore[reportArgumentType]


@given(st.floats(0, 1, exclude_min=True), st.integers(1), st.none() | st.integers(1))
def test_what_is_within_is_taken(share: float, steps: int, epochs: int | None) -> None:
    plugin = Plugin(share=share, steps=steps, epochs=epochs)
    assert (plugin.share, plugin.steps, plugin.epochs) == (share, steps, epochs)
