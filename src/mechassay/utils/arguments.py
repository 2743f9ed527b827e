"""Check the arguments of public functions against the annotations.

@checked
def patch(model: Model, pairs: PairsLike, *, seed: int = 0) -> PatchMap: ...

`patch(pairs, model)` then ends in one line: "patch takes a Model as model; got a Pairs. Are model
and pairs swapped?" A dataclass calls `check_fields(self)` in `__post_init__`. The rules of the
check differ from those of types:

- A text is no sequence of texts, and True is no number.
- Numbers and arrays of NumPy are handed on as Python's numbers and lists, a list as a tuple, and a
  text as a Path, where the annotation allows only these.
- A text that is none of the choices of a `Literal` gives the nearest choice, see `UnknownName`.

An annotation may use names that its module imports under `if TYPE_CHECKING`. The check imports them
at the first call. The attribute `obtained_by` of a class ends the message where an object of the
class is allowed and another value is given: "load_model(name) loads one."
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from importlib import import_module
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    runtime_checkable,
)

from mechassay.errors import BadUsage, UnknownName, one_of
from mechassay.utils.display import briefly, shortened

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])
LONGEST_VALUE = 80
"""Characters of a value in a message."""
WORDS: Mapping[Any, tuple[str, str]] = {
    Any: ("anything", "anything"),
    str: ("a text", "texts"),
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("True or False", "True or False"),
    types.NoneType: ("None", "None"),
}
"""Words for one value of a type, and for several."""


def checked(function: FunctionT) -> FunctionT:
    """Decorate a function or a method: its arguments are checked at each call.

    Raises:
        BadUsage, UnknownName: at a call, for an argument that its annotation does not allow.
    """
    signature = inspect.signature(function)
    name = function.__name__
    hints: dict[str, Any] = {}

    @functools.wraps(function)
    def with_check(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise _unbound(name, signature, kwargs, error) from None
        if not hints:
            hints.update(hints_of(function))
            for parameter in signature.parameters.values():
                if parameter.name in hints and parameter.kind is parameter.VAR_POSITIONAL:
                    hints[parameter.name] = tuple[hints[parameter.name], ...]
                elif parameter.name in hints and parameter.kind is parameter.VAR_KEYWORD:
                    hints[parameter.name] = dict[str, hints[parameter.name]]
        given = bound.arguments
        plain = {
            key: fitted(name, key, given, hints)
            for key in given
            if key in hints and given[key] is not signature.parameters[key].default
        }
        if all(plain[key] is given[key] for key in plain):
            return function(*args, **kwargs)
        given.update(plain)
        return function(*bound.args, **bound.kwargs)

    return cast("FunctionT", with_check)


def check_fields(instance: Any, name: str = "") -> None:
    """Check the fields of a dataclass's instance as `checked` checks arguments.

    Args:
        name: the subject of the message; the name of the class if it is "".

    Raises:
        BadUsage, UnknownName: for a field that its annotation does not allow.
    """
    kind = type(instance)
    for key, default, test in _fields_of(kind):
        value = getattr(instance, key)
        if value is default or test(value):
            continue
        given = {other: getattr(instance, other) for other, *_ in _fields_of(kind)}
        value = fitted(name or kind.__name__, key, given, hints_of(kind))
        object.__setattr__(instance, key, value)


@functools.cache
def _fields_of(kind: Any) -> list[tuple[str, Any, Callable[[Any], bool]]]:
    """Return the name, the default and the test of each field of a dataclass's constructor."""
    return [
        (field.name, field.default, _test_of(_bare(hints_of(kind)[field.name])))
        for field in dataclasses.fields(kind)
        if field.init
    ]


@functools.cache
def hints_of(annotated: Any) -> dict[str, Any]:
    """Return the annotations of a function's arguments, or of a class's fields, by name.

    Raises:
        NameError: an annotation has a name that its module does not import.
    """
    kinds = annotated.__mro__ if inspect.isclass(annotated) else (annotated,)
    names: dict[str, Any] = {}
    for kind in reversed(kinds):
        own = inspect.get_annotations(kind).values()
        used = {word for hint in own for word in re.findall(r"\w+", str(hint))}
        names |= {**vars(sys.modules[kind.__module__]), **_imported_for_types(kind, used)}
    hints = get_type_hints(annotated, localns=names, include_extras=True)
    return {name: hint for name, hint in hints.items() if name != "return"}


def _imported_for_types(kind: Any, used: AbstractSet[str]) -> dict[str, Any]:
    """Return those of some names that the module imports under `if TYPE_CHECKING`."""
    if kind.__module__ == "builtins" or used <= vars(sys.modules[kind.__module__]).keys():
        return {}
    nodes = _nodes_for_types(kind.__module__)
    return {
        name: getattr(import_module(str(node.module)), alias.name)
        for node in nodes
        for alias in node.names
        if (name := alias.asname or alias.name) in used
    }


@functools.cache
def _nodes_for_types(module: str) -> list[ast.ImportFrom]:
    """Return the imports under `if TYPE_CHECKING` of a module."""
    text = inspect.getsource(sys.modules[module])
    return [
        node
        for block in ast.parse(text).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
    ]


_MISFIT: Any = object()


def fitted(name: str, key: str, given: Mapping[str, Any], hints: Mapping[str, Any]) -> Any:
    """Return the value to call a function with: the given value, or the value that replaces the
    given value (see the module).

    Args:
        name: of the function, for the message.
        key: the argument.
        given, hints: all arguments and their annotations, by name.

    Raises:
        BadUsage, UnknownName: the annotation does not allow the value.
    """
    value = _fitted(given[key], hints[key], f"{key} of {name}")
    if value is _MISFIT:
        raise _refusal(name, key, given, hints)
    return value


def _fitted(value: Any, hint: Any, kind: str) -> Any:
    if is_allowed(value, hint):
        return value
    _refuse_unknown(value, hint, kind)
    if type(value) is str:
        others: list[Any] = [Path(value)]
    else:
        plain = value.tolist() if type(value).__module__ == "numpy" else value
        others = [plain, tuple(plain)] if isinstance(plain, list) else [plain]
    return next((x for x in others if x is not value and is_allowed(x, hint)), _MISFIT)


def _refuse_unknown(value: Any, hint: Any, kind: str) -> None:
    """Refuse a text, or a text of a sequence, that is not among the choices of a `Literal`."""
    for option in _options(hint):
        if get_origin(option) is Literal and isinstance(value, str):
            one_of(kind, value, get_args(option))
        if get_origin(option) in (tuple, Sequence) and isinstance(value, tuple | list):
            for own in value:
                _refuse_unknown(own, get_args(option)[0], kind)


def is_allowed(value: Any, hint: Any) -> bool:
    """Return whether an annotation allows a value as it is."""
    return _test_of(_bare(hint))(value)


def _bare(hint: Any) -> Any:
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


@functools.cache
def _test_of(hint: Any) -> Callable[[Any], bool]:
    """Return a function that says whether an annotation allows a value.

    All values of a sequence or mapping are tested. An object is of a protocol if it has all members
    of the protocol, and a function is any object that can be called.
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        tests = [_test_of(_bare(part)) for part in parts]
        return lambda value: any(test(value) for test in tests)
    if origin is Literal:
        return lambda value: isinstance(value, str | int | None) and value in parts
    if hint in (int, float):
        kinds = (int, float) if hint is float else int
        return lambda value: isinstance(value, kinds) and not isinstance(value, bool)
    if origin is tuple and parts and Ellipsis not in parts:
        tests = [_test_of(_bare(part)) for part in parts]
        return lambda value: (
            isinstance(value, tuple)
            and len(value) == len(tests)
            and all(test(own) for test, own in zip(tests, value, strict=True))
        )
    if origin in (tuple, Sequence, list) and parts:
        test = _test_of(_bare(parts[0]))
        return lambda value: (
            isinstance(value, origin) and not isinstance(value, str) and all(map(test, value))
        )
    if origin in (Mapping, dict):
        of_key, of_value = (_test_of(_bare(part)) for part in parts)
        return lambda value: (
            isinstance(value, origin)
            and all(map(of_key, value))
            and all(map(of_value, value.values()))
        )
    kind = origin or hint
    if kind is Callable:
        return callable
    if kind is Any or not isinstance(kind, type):
        return lambda value: True  # Variables of types allow all values too.
    if getattr(kind, "_is_protocol", False):
        kind = runtime_checkable(kind)
    of_texts = kind not in (str, object) and issubclass(str, kind) if origin else False
    return lambda value: isinstance(value, kind) and not (of_texts and isinstance(value, str))


def _options(hint: Any) -> Iterator[Any]:
    """Yield the members of a union; another annotation is its only member."""
    hint = _bare(hint)
    if get_origin(hint) in (Union, types.UnionType):
        for part in get_args(hint):
            yield from _options(part)
    else:
        yield hint


# Messages.


def _unbound(
    name: str, signature: inspect.Signature, kwargs: Mapping[str, Any], error: TypeError
) -> BadUsage:
    names = [key for key in signature.parameters if key not in ("self", "cls")]
    unknown = next((key for key in kwargs if key not in names), None)
    if unknown is not None:
        return UnknownName(f"argument of {name}", unknown, names)
    return BadUsage(f"{name}: {error}; its arguments are {', '.join(names)}.")


def _refusal(name: str, key: str, given: Mapping[str, Any], hints: Mapping[str, Any]) -> BadUsage:
    value, hint = given[key], hints[key]
    message = f"{name} takes {in_words(hint)} as {key}; got {_in_brief(value)}."
    others = [
        other
        for other, own in given.items()
        if other != key
        and other in hints
        and not is_allowed(own, hints[other])
        and is_allowed(value, hints[other])
        and is_allowed(own, hint)
    ]
    if others:
        return BadUsage(f"{message} Are {key} and {others[0]} swapped?")
    ways = [getattr(option, "obtained_by", "") for option in _options(hint)]
    return BadUsage(" ".join([message, *filter(None, ways)]))


def in_words(hint: Any, *, plural: bool = False) -> str:
    """Return the values that an annotation allows, in words: "a text, a Path or None"."""
    return _either([_one_in_words(option, plural) for option in _options(hint)])


def _either(words: Sequence[str]) -> str:
    *others, last = dict.fromkeys(words)
    return f"{', '.join(others)} or {last}" if others else last


def _one_in_words(hint: Any, plural: bool) -> str:
    origin, parts = get_origin(hint), get_args(hint)
    if hint in WORDS:
        return WORDS[hint][plural]
    if origin is Literal:
        return _either(list(map(repr, parts)))
    if origin is Callable or hint is Callable:
        return "functions" if plural else "a function"
    if isinstance(origin, type) and issubclass(origin, Mapping) and parts:
        key, value = (in_words(part, plural=True) for part in parts)
        return f"{'mappings' if plural else 'a mapping'} of {key} to {value}"
    if origin is tuple and Ellipsis not in parts:
        own = ", ".join(map(in_words, parts))
        return f"{'tuples' if plural else 'a tuple'} ({own})"
    if isinstance(origin, type) and issubclass(origin, Iterable) and parts:
        return f"{'sequences' if plural else 'a sequence'} of {in_words(parts[0], plural=True)}"
    if hasattr(hint, "dim_str") and hasattr(hint, "array_type"):
        name = f"{hint.array_type.__name__} {hint.__name__.partition('[')[0].lower()}"
        return _with_article(f"{name}[{hint.dim_str.replace(' ', ', ')}]")
    name = getattr(origin or hint, "__name__", str(hint))
    return f"{name}s" if plural else _with_article(name)


def _in_brief(value: Any) -> str:
    """Return a value for a message: itself if it is short, else its class."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{_with_article(type(value).__name__)} {briefly(value)}"
    text = " ".join(repr(value).split())
    if len(text) <= LONGEST_VALUE:
        return text
    if isinstance(value, str | Path):
        return shortened(text, LONGEST_VALUE)
    return _with_article(type(value).__name__)


def _with_article(noun: str) -> str:
    return f"a{'n' if noun[:1] in 'aeioAEIO' else ''} {noun}"
