"""Check the arguments of public functions against the annotations.

@checked
def patch(model: Model, pairs: PairsLike, *, seed: int = 0) -> PatchMap: ...

`patch(pairs, model)` then ends in one line: "patch takes a Model as model; got Pairs(n=4). Are
model and pairs swapped?" `checked` also decorates methods, and dataclasses, whose constructor it
checks. typeguard compares a value with an annotation; in these cases the check differs from it:

- A text is no sequence of texts, and True is no number.
- Numbers and arrays of NumPy are handed on as Python's numbers and lists, a list as a tuple, and a
  text as a Path, where the annotation allows only these.
- A text that is none of the choices of a `Literal` gives the nearest choice, see `UnknownName`.

An annotation may use names that its module imports under `if TYPE_CHECKING`. The check imports them
at the first call. A class can help who gives its objects at the wrong place, or a name in place of
an object, by attributes:

    loaded_by     the function that loads an object by its name, "load_scores"
    instead       what to give where an object of the class is refused
"""

from __future__ import annotations

import ast
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from mechassay.errors import BadUsage, one_of

CallableT = TypeVar("CallableT", bound=Callable[..., Any])
LONGEST_VALUE = 80
"""Characters of a value in a message."""
WORDS: Mapping[Any, str] = {
    Any: "anything",
    str: "a text",
    bytes: "bytes",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    types.NoneType: "None",
    Path: "a Path",
}


def checked(function: CallableT) -> CallableT:
    """Decorate a function, a method or a dataclass whose arguments are checked at each call.

    Raises:
        BadUsage, UnknownName: from the decorated function: an argument is not what its annotation
            allows.
    """
    if inspect.isclass(function):
        kind: Any = function
        kind.__init__ = _checked(kind.__init__, kind, kind.__name__)
        return kind
    return _checked(function, function, function.__name__)


def _checked(function: Any, annotated: Any, name: str) -> Any:
    signature = inspect.signature(function)
    hints: dict[str, Any] = {}

    @functools.wraps(function)
    def with_check(*args: Any, **kwargs: Any) -> Any:
        if not hints:
            hints.update(hints_of(annotated))
            hints.pop("return", None)
        bound = signature.bind(*args, **kwargs)
        given = bound.arguments
        changed = False
        for key, value in given.items():
            parameter = signature.parameters[key]
            if key not in hints or value is parameter.default:
                continue
            hint = hints[key]
            if parameter.kind is parameter.VAR_POSITIONAL:
                hint = tuple[hint, ...]
            elif parameter.kind is parameter.VAR_KEYWORD:
                hint = dict[str, hint]
            if (fitting := fitted(value, hint, key)) is not value:
                if fitting is MISFIT:
                    raise _refusal(name, key, given, hints) from None
                given[key], changed = fitting, True
        return function(*bound.args, **bound.kwargs) if changed else function(*args, **kwargs)

    return with_check


def hints_of(annotated: Any) -> dict[str, Any]:
    """Return the annotations of a function, or of a class's fields, by name.

    Raises:
        NameError: an annotation has a name that its module does not import.
    """
    modules = [kind.__module__ for kind in annotated.__mro__] if inspect.isclass(annotated) else []
    names: dict[str, Any] = {}
    for module in reversed([*modules, inspect.unwrap(annotated).__module__]):
        names |= vars(sys.modules[module]) if modules else {}
        names |= _imported_for_types(module)
    return get_type_hints(annotated, localns=names, include_extras=True)


@functools.cache
def _imported_for_types(module: str) -> dict[str, Any]:
    """Return what a module imports under `if TYPE_CHECKING`, by name."""
    file = getattr(sys.modules[module], "__file__", None)
    if file is None or "TYPE_CHECKING" not in (text := Path(file).read_text("utf-8")):
        return {}
    return {
        alias.asname or alias.name: getattr(import_module(str(node.module)), alias.name)
        for block in ast.parse(text).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


MISFIT = object()
"""What `fitted` returns for a value that an annotation does not allow."""


def fitted(value: Any, hint: Any, name: str) -> Any:
    """Return a value as an annotation allows it: itself, or a value that is handed on in its place,
    see the module; MISFIT if there is none.

    Raises:
        UnknownName: a text that is none of the choices of a `Literal`.
    """
    if _fits(value, hint, name):
        return value
    if type(value) is str:
        others: list[Any] = [Path(value)]
    else:
        plain = value.tolist() if type(value).__module__ == "numpy" else value
        others = [plain, tuple(plain)] if isinstance(plain, list) else [plain]
    return next((x for x in others if x is not value and _fits(x, hint, name)), MISFIT)


def _fits(value: Any, hint: Any, name: str) -> bool:
    kind, options = type(value), tuple(_options(hint))
    if kind in options or (kind is int and float in options):
        return True
    if kind is bool:
        options = tuple(option for option in options if option not in (int, float))
    elif kind is str:
        options = tuple(option for option in options if not _is_of_texts(option))
    if any(_is_allowed(value, option) for option in options):
        return True
    choices = [x for option in options if get_origin(option) is Literal for x in get_args(option)]
    if kind is str and choices:
        one_of(name.replace("_", " ").removesuffix("s"), value, choices)
    return False


def _is_allowed(value: Any, option: Any) -> bool:
    import typeguard  # At the first call, because the import takes a tenth of a second.

    try:
        typeguard.check_type(
            value, option, collection_check_strategy=typeguard.CollectionCheckStrategy.ALL_ITEMS
        )
    except typeguard.TypeCheckError:
        return False
    return True


def _options(hint: Any) -> Iterator[Any]:
    """Yield the members of a union, and the one member of what is no union."""
    origin = get_origin(hint)
    if origin is Annotated:
        yield from _options(get_args(hint)[0])
    elif origin in (Union, types.UnionType):
        for part in get_args(hint):
            yield from _options(part)
    else:
        yield hint


def _is_of_texts(option: Any) -> bool:
    """Return whether an annotation is of a collection. A text is one for Python."""
    kind = get_origin(option) or option
    return isinstance(kind, type) and kind not in (str, object) and issubclass(str, kind)


# Messages.


def _refusal(name: str, key: str, given: Mapping[str, Any], hints: Mapping[str, Any]) -> BadUsage:
    value, hint = given[key], hints[key]
    message = f"{name} takes {in_words(hint)} as {key}; got {shown(value)}."
    others = [
        other
        for other, own in given.items()
        if other != key and other in hints and _is_swapped(value, hints[other], own, hint)
    ]
    if others:
        return BadUsage(f"{message} Are {key} and {others[0]} swapped?")
    loaders = [
        loader for option in _options(hint) if (loader := getattr(option, "loaded_by", None))
    ]
    if isinstance(value, str | Path) and loaders:
        message += f" {loaders[0]}({str(value)!r}) loads one."
    help_of = getattr(type(value), "instead", "")
    return BadUsage(f"{message} {help_of}".strip())


def _is_swapped(value: Any, hint_of_other: Any, other: Any, hint: Any) -> bool:
    try:
        return MISFIT not in (fitted(value, hint_of_other, ""), fitted(other, hint, ""))
    except BadUsage:
        return False


def in_words(hint: Any) -> str:
    """Return what an annotation allows, in words: "a Model", "a text, a Path or None"."""
    words = list(dict.fromkeys(_one_in_words(option) for option in _options(hint)))
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _one_in_words(hint: Any) -> str:
    if hint in WORDS:
        return WORDS[hint]
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if origin is tuple and Ellipsis not in parts:
        return f"a tuple of {', '.join(map(in_words, parts))}" if parts else "an empty tuple"
    if isinstance(origin, type) and issubclass(origin, Mapping) and parts:
        return f"a mapping of {_plural(parts[0])} to {_plural(parts[1])}"
    if origin is Callable or hint is Callable:
        return "a function"
    if isinstance(origin, type) and issubclass(origin, Iterable) and parts:
        kind = {Sequence: "sequence", tuple: "sequence"}.get(origin, "collection")
        return f"a {kind} of {_plural(parts[0])}"
    dtype, shape = getattr(hint, "dtypes", None), getattr(hint, "dim_str", None)
    if dtype is not None and shape is not None:
        return f"an array of shape [{shape}] ({hint.__name__.split('[')[0]})"
    name = getattr(origin or hint, "__name__", str(hint))
    return f"a{'n' if name[:1] in 'AEIO' else ''} {name}"


def _plural(hint: Any) -> str:
    plurals = {str: "texts", int: "whole numbers", float: "numbers", Any: "anything"}
    return plurals.get(hint, in_words(hint))


def shown(value: Any) -> str:
    """Return a value for a message: itself if it is short and plain, else its class."""
    text = repr(value)
    kind = type(value).__name__
    if isinstance(value, str | int | float | bool | types.NoneType | Path):
        return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"
    if isinstance(value, list | tuple | dict) and len(text) <= LONGEST_VALUE and "\n" not in text:
        return text
    if isinstance(shape := getattr(value, "shape", None), tuple):
        return f"a{'n' if kind[:1] in 'AEIO' else ''} {kind} of shape {list(shape)}"
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    return f"a{'n' if kind[:1] in 'aeioAEIO' else ''} {kind}"
