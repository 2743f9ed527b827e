"""The checker behind the import hook of the tests:
beartype, on what it can check of every annotation.

jaxtyping hands in each function (and each dataclass's constructor) of the package. Plain
`beartype.beartype` does not do, for three kinds of annotation that the package uses on purpose:

- names imported only for type checkers (transformers' classes, so that importing mechassay stays
  light) and protocols cannot be checked at run time, and are left to pyright;
- of a sequence or mapping it checks an element that it draws from the global generator, which a
  test that looks at that generator would see: here only the container itself is checked.

Arrays with their shapes, also in tuples and unions, are checked on every call.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from beartype import beartype


def checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its checkable annotations enforced."""
    module = vars(sys.modules[function.__module__]) if function.__module__ in sys.modules else {}
    hints = {
        name: _shallow(_evaluated(hint, module)) for name, hint in function.__annotations__.items()
    }
    function.__annotations__ = {name: hint for name, hint in hints.items() if hint is not Any}
    return beartype(function)


def _evaluated(hint: Any, names: dict[str, Any]) -> Any:
    if not isinstance(hint, str):
        return hint
    try:
        return eval(hint, names)
    except NameError:
        return Any


def _shallow(hint: Any) -> Any:
    """The hint without what cannot be checked; `Any` where nothing is left."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (
        Annotated,
        Literal,
    ):  # options, which typer checks; names, which the package refuses itself
        return Any
    if origin in (Union, types.UnionType):
        kept = [_shallow(part) for part in parts]
        return Any if Any in kept else Union[tuple(kept)]  # noqa: UP007 - made of values
    if origin is tuple and Ellipsis not in parts:
        return tuple[tuple(_shallow(part) for part in parts)]
    if hint is None:
        return hint
    if isinstance(origin, type):
        return origin
    if any(get_origin(base) in (tuple, list) for base in getattr(hint, "__orig_bases__", ())):
        return Any  # beartype would draw an element from the global generator to look at its type
    return hint if isinstance(hint, type) and not getattr(hint, "_is_protocol", False) else Any
