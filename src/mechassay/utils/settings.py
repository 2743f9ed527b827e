"""Types, ranges and choices of a plug-in's settings, written on its fields.

@dataclass(frozen=True)
@checked_settings
class Method:
    name: ClassVar[str] = "my-method"
    steps: Annotated[int, Within(1)] = 300
    share: Annotated[float, Within(above=0, most=1)] = 0.5
    optimizer: Literal["adam", "sgd"] = "adam"

`checked_settings` refuses other values when an instance is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeVar, overload

from mechassay.errors import BadUsage
from mechassay.utils.arguments import check_fields, hints_of

ClassT = TypeVar("ClassT", bound=type[Any])


@dataclass(frozen=True)
class Within:
    """The finite numbers that a setting may be: `least` and `most` are allowed, `above` and
    `below` are not. None, where a setting may be that, is in every range.
    """

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def __contains__(self, value: float) -> bool:
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        words = {"of at least": self.least, "above": self.above}
        words |= {"at most": self.most, "below": self.below}
        return " and ".join(f"{word} {end:g}" for word, end in words.items() if end is not None)


@overload
def checked_settings(kind: ClassT, /) -> ClassT: ...


@overload
def checked_settings(kind: str, /) -> Callable[[ClassT], ClassT]: ...


def checked_settings(kind: Any, /) -> Any:
    """Decorate a dataclass whose settings are checked when an instance is made.

    The decorator stands directly below `@dataclass`. The check runs before the class's own
    `__post_init__`. Settings of a child are checked once, by the decorator of the child or of its
    parent; a child that is not decorated calls `super().__post_init__()` in its `__post_init__`.

    Args:
        kind: the class; or the plug-in's name in messages, if the class has no `name` or `id`.
    """
    return partial(_checked, kind) if isinstance(kind, str) else _checked(None, kind)


def _checked(name: str | None, kind: Any) -> Any:
    own: Callable[[Any], None] | None = getattr(kind, "__post_init__", None)

    def __post_init__(self: Any) -> None:
        # The post-init of a decorated parent runs too, for an instance that is checked already.
        if type(self)._checks_settings is kind:
            check_settings(self, name or getattr(self, "name", None) or self.id)
        if own is not None:
            own(self)

    kind.__post_init__ = __post_init__
    kind._checks_settings = kind
    return kind


def check_settings(plugin: Any, name: str) -> None:
    """Refuse a setting whose annotation does not allow the value, or whose value is out of range.

    Args:
        name: of the plug-in, for the message.

    Raises:
        BadUsage, UnknownName: there is one.
    """
    check_fields(plugin, name)
    for key, allowed in _ranges(type(plugin)).items():
        value = getattr(plugin, key)
        if value is not None and value not in allowed:
            raise BadUsage(f"{name} needs {key} {allowed}; got {value}.")


@cache
def _ranges(kind: type) -> dict[str, Within]:
    """Return the range of each setting that has one."""
    return {
        key: part
        for key, hint in hints_of(kind).items()
        for part in getattr(hint, "__metadata__", ())
        if isinstance(part, Within)
    }
