"""Settings of plug-ins: types, ranges, choices."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mechassay.errors import BadUsage, UnknownName
from mechassay.utils.settings import Within, checked_settings


@dataclass(frozen=True)
@checked_settings("mine")
class Plugin:
    steps: Annotated[int, Within(1)] = 3
    epochs: Annotated[int | None, Within(1)] = None
    lr: Annotated[float, Within(above=0)] = 0.1
    share: Annotated[float, Within(above=0, most=1)] = 0.5
    warmup: Annotated[float, Within(0, below=1)] = 0.0
    how: Literal["fast", "slow"] = "fast"
    name: str = ""


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
        ({"steps": 2.5}, "mine takes a whole number as steps; got 2.5."),
        ({"epochs": 2.5}, "mine takes a whole number or None as epochs; got 2.5."),
        ({"epochs": "many"}, "mine takes a whole number or None as epochs; got 'many'."),
        ({"lr": True}, "mine takes a number as lr; got True."),
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


CHECKED: list[str] = []
"""Names of the classes whose own post-init ran, in order."""


@dataclass(frozen=True, kw_only=True)
@checked_settings
class Parent:
    name: ClassVar[str] = "parent"
    steps: Annotated[int, Within(1)] = 3

    def __post_init__(self) -> None:
        CHECKED.append("parent")


@dataclass(frozen=True)
class Child(Parent):
    name: ClassVar[str] = "child"
    samples: Annotated[int, Within(2)] = 8


@dataclass(frozen=True)
@checked_settings
class DecoratedChild(Parent):
    name: ClassVar[str] = "decorated-child"
    samples: Annotated[int, Within(2)] = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        CHECKED.append("decorated child")


@dataclass(frozen=True)
class ChildWithPostInit(Parent):
    name: ClassVar[str] = "child-with-post-init"
    samples: Annotated[int, Within(2)] = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        CHECKED.append("child with post-init")


@dataclass(frozen=True)
@checked_settings
class Gauge:
    id: ClassVar[str] = "EX01"
    rows: Annotated[int, Within(1)] = field(default=1, repr=False)


@pytest.mark.parametrize("kind", [Child, DecoratedChild, ChildWithPostInit])
@pytest.mark.parametrize("setting", ["steps", "samples"])
def test_settings_of_a_child_and_its_parent_are_checked(kind: Any, setting: str) -> None:
    with pytest.raises(BadUsage, match=f"{kind.name} needs {setting} of at least"):
        kind(**{setting: 0})


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (Parent, ["parent"]),
        (Child, ["parent"]),
        (DecoratedChild, ["parent", "decorated child"]),
        (ChildWithPostInit, ["parent", "child with post-init"]),
    ],
)
def test_settings_are_checked_once_before_each_post_init(
    monkeypatch: pytest.MonkeyPatch, kind: Any, expected: list[str]
) -> None:
    def record_check(plugin: Any, name: str) -> None:
        CHECKED.append(f"settings of {name}")

    monkeypatch.setattr("mechassay.utils.settings.check_settings", record_check)
    CHECKED.clear()
    kind()
    assert [f"settings of {kind.name}", *expected] == CHECKED


def test_a_class_without_a_name_is_named_by_its_id() -> None:
    with pytest.raises(BadUsage, match="EX01 needs rows of at least 1; got 0"):
        Gauge(rows=0)


def test_a_changed_copy_is_checked() -> None:
    with pytest.raises(BadUsage, match="child needs samples of at least 2; got 1"):
        replace(Child(steps=5), samples=1)


@pytest.mark.parametrize("kind", [Plugin, Parent, Child, DecoratedChild, ChildWithPostInit])
def test_checked_instances_are_pickled_and_copied(kind: Any) -> None:
    plugin = kind(steps=7)
    assert pickle.loads(pickle.dumps(plugin)) == copy.deepcopy(plugin) == plugin
    assert replace(plugin) == plugin
    assert repr(plugin).startswith(f"{kind.__name__}(steps=7")
