"""What the settings of a plug-in may be: types, ranges and choices stand on its fields.

@dataclass(frozen=True)
class Method:
steps: Annotated[int, Within(1)] = 300
share: Annotated[float, Within(above=0, most=1)] = 0.5
optimizer: Literal["adam", "sgd"] = "adam"

def __post_init__(self) -> None:
check_settings(self, "my-method")
"""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from mechassay.errors import BadUsage, one_of


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


def check_settings(plugin: Any, name: str) -> None:
    """Refuse a setting of another type than its default, out of its range, or none of its choices.

    Args:
        name: of the plug-in, for the message.

    Raises:
        BadUsage, UnknownName: there is one.
    """
    for option in fields(plugin):
        if not option.init:
            continue
        value = getattr(plugin, option.name)
        check_type(name, option.name, value, option.default)
        wanted, allowed = _allowed(type(plugin)).get(option.name, (None, None))
        if isinstance(allowed, tuple):
            one_of(f"{option.name} of {name}", value, allowed)
        elif isinstance(allowed, Within) and value is not None:
            check_type(name, option.name, value, wanted)
            if value not in allowed:
                raise BadUsage(f"{name} needs {option.name} {allowed}; got {value}.")


@cache
def _allowed(kind: type) -> dict[str, tuple[Any, Within | tuple[Any, ...]]]:
    """Of each setting that has them, a value of its type, and its range or its choices."""
    allowed: dict[str, tuple[Any, Within | tuple[Any, ...]]] = {}
    for name, hint in get_type_hints(kind, include_extras=True).items():
        for part in getattr(hint, "__metadata__", ()):
            if isinstance(part, Within):
                known = get_args(hint)[0]
                is_float = known is float or float in get_args(known)
                allowed[name] = (0.0 if is_float else 0, part)
        if get_origin(hint) is Literal:
            allowed[name] = (None, get_args(hint))
    return allowed


def check_type(name: str, key: str, value: Any, default: Any) -> None:
    """Refuse a value of another type than the setting's default; whole numbers are floats too.

    Raises:
        BadUsage: it is. None and no default say nothing.
    """
    if default is None or default is MISSING:
        return
    wanted = type(default)
    fits = isinstance(value, int | float) if wanted is float else isinstance(value, wanted)
    if not fits or (isinstance(value, bool) and wanted is not bool):
        raise BadUsage(f"The setting {key} of {name} is of type {wanted.__name__}; got {value!r}.")
