"""The checker behind the import hook of the tests:
beartype, on what it can check of every annotation.

jaxtyping hands in each function (and each dataclass's constructor) of the package. Plain
`beartype.beartype` does not do, for three kinds of annotation that the package uses on purpose:

- names imported only for type checkers (transformers' classes, so that importing mechassay stays
  light) and protocols cannot be checked at run time, and are left to pyright;
- of a sequence or mapping it checks an element that it draws from the global generator, which a
  test that looks at that generator would see: here only the container itself is checked.

Arrays with their shapes, also in tuples and unions, are checked in the first 16 calls of a function
in each test and in every 16th after these, by a shorter way than jaxtyping's own. Checking every
call would take a fifth of the time of the tests. Functions and
classes without an array in their annotations are left to pyright: checks of all of them would more
than double the time of the tests.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import re
import sys
import types
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import jaxtyping
import torch
from beartype import beartype
from jaxtyping import _array_types, _import_hook
from jaxtyping._storage import get_shape_memo, pop_shape_memo, push_shape_memo

PACKAGE = Path(__file__).parents[2] / "src" / "mechassay"
_ALIAS = re.compile(
    r"^(\w+)(?:: TypeAlias)? = .*\b(?:Float|Int|Bool|Shaped|Num|Real)\[", re.MULTILINE
)


def _aliases() -> frozenset[str]:
    """Names of types of arrays that modules of the package lend to others."""
    texts = (file.read_text("utf-8") for file in PACKAGE.rglob("*.py"))
    return frozenset(name for text in texts for name in _ALIAS.findall(text))


ALIASES = _aliases()


class OfArrays(_import_hook.JaxtypingTransformer):
    """Decorates what has arrays in its annotations alone."""

    def visit_Module(self, node: ast.Module) -> ast.Module:
        self._names = ALIASES | {
            alias.asname or alias.name
            for each in ast.walk(node)
            if isinstance(each, ast.ImportFrom) and each.module == "jaxtyping"
            for alias in each.names
        }
        return super().visit_Module(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        given = node.args
        every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        hints = [each.annotation for each in every if each is not None] + [node.returns]
        return self._visited(node, hints, super().visit_FunctionDef)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        hints = [each.annotation for each in node.body if isinstance(each, ast.AnnAssign)]
        return self._visited(node, hints, super().visit_ClassDef)

    def _visited(self, node: Any, hints: list[ast.expr | None], visit: Callable[..., Any]) -> Any:
        visit(node)
        if not any(hint is not None and self._has_array(hint) for hint in hints):
            node.decorator_list = [each for each in node.decorator_list if not _is_check(each)]
        return node

    def _has_array(self, expression: ast.expr) -> bool:
        parts = list(ast.walk(expression))
        names = {part.id for part in parts if isinstance(part, ast.Name)}
        names |= {part.attr for part in parts if isinstance(part, ast.Attribute)}
        return not names.isdisjoint(self._names)


def _is_check(decorator: ast.expr) -> bool:
    """Whether a decorator is the one that jaxtyping adds."""
    return ast.unparse(decorator).startswith(
        "jaxtyping.jaxtyped(typechecker=jaxtyping._import_hook"
    )


def check_arrays_alone() -> None:
    """From now on, modules are imported with checks of arrays alone.

    What was compiled by another version of this file is compiled anew.
    """
    own = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:12]
    plain = _import_hook._optimized_cache_from_source

    def of_this_version(checker: str, /, path: str, debug_override: bool | None = None) -> str:
        return plain(checker + own, path, debug_override)

    _import_hook._optimized_cache_from_source = of_this_version
    _import_hook.JaxtypingTransformer = OfArrays
    jaxtyping.jaxtyped = _jaxtyped
    _array_types._MetaAbstractArray.__instancecheck__ = _is_array


_own_jaxtyped, _own_check = jaxtyping.jaxtyped, _array_types._MetaAbstractArray.__instancecheck__
CHECKED = 16
"""So many calls of a function are checked in each test, and then one of so many."""
_calls: Counter[object] = Counter()
_names: dict[tuple[Any, ...], tuple[str, ...]] = {}
"""Names of the dimensions of an annotation, by what of an array passed it: type, dtype, rank."""


def check_again() -> None:
    """The next calls of every function are checked: another test begins."""
    _calls.clear()


def _is_array(annotation: Any, value: Any) -> bool:
    """jaxtyping's check; of what passed before only the sizes are looked at again."""
    try:
        key = annotation, type(value), value.dtype, value.ndim
        names = _names[key]
    except (AttributeError, KeyError):
        passed = _own_check(annotation, value)
        if passed and (known := _plain_names(annotation)):
            _names[annotation, type(value), value.dtype, value.ndim] = known
        return passed
    sizes = get_shape_memo()[0]
    given = dict(zip(names, value.shape, strict=True))
    if any(sizes.get(name, size) != size for name, size in given.items()):
        return _own_check(annotation, value)
    sizes.update(given)
    return True


def _plain_names(annotation: Any) -> tuple[str, ...]:
    """The dimensions' names if each has one of its own; else nothing."""
    dims = annotation.dims
    if annotation._skip_instancecheck or annotation.index_variadic is not None:
        return ()
    plain = (type(d) is _array_types._NamedDim and not d.broadcastable for d in dims)
    if not all(plain) or any(d.treepath for d in dims):
        return ()
    names = tuple(d.name for d in dims)
    return names if len(set(names)) == len(names) else ()


def _jaxtyped(*context: Any, typechecker: Any = None) -> Any:
    """jaxtyping's decorator; functions bind their arguments to names only when a check fails."""

    def decorate(target: Any) -> Any:
        made = _own_jaxtyped(typechecker=typechecker)(target)
        if not inspect.isfunction(target):
            return made
        inside = dict(zip(made.__code__.co_freevars, made.__closure__, strict=True))
        check, signature = (
            inside[name].cell_contents for name in ("wrapped_fn_impl", "param_signature")
        )

        @functools.wraps(made)
        def checked(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return target(*args, **kwargs)  # Code is made of the function alone.
            _calls[target] += 1
            n = _calls[target]
            if jaxtyping.config.jaxtyping_disable or (n > CHECKED and n % CHECKED):
                return target(*args, **kwargs)
            memos = push_shape_memo({})
            try:
                return check(args, kwargs, _Bound(signature, args, dict(kwargs)), memos)
            finally:
                pop_shape_memo()

        return checked

    return _own_jaxtyped(*context) if context else decorate


@dataclass(slots=True)
class _Bound:
    signature: inspect.Signature
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def arguments(self) -> dict[str, Any]:
        """By name, for messages."""
        bound = self.signature.bind(*self.args, **self.kwargs)
        bound.apply_defaults()
        return dict(bound.arguments)


def checked_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its checkable annotations enforced."""
    module = vars(sys.modules[function.__module__]) if function.__module__ in sys.modules else {}
    hints = {
        name: _shallow(_evaluated(hint, module)) for name, hint in function.__annotations__.items()
    }
    if _takes_result(function):
        # jaxtyping checks parameters before the call, and would check them with the result again.
        hints = {"return": hints.get("return", Any)}
    function.__annotations__ = {name: hint for name, hint in hints.items() if hint is not Any}
    return beartype(function) if function.__annotations__ else function


def _takes_result(function: Callable[..., Any]) -> bool:
    """Whether this is the function that jaxtyping makes to check a result: it is handed in last."""
    code = function.__code__
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return code.co_kwonlyargcount > 0 and re.fullmatch(r"ret\d+", named[-1]) is not None


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
