"""Names of a package that are loaded at first use: importing the package imports nothing heavy.

    __getattr__, __dir__ = lazy_names(__name__, {"sae": "SAE", "fit": "Fit fit_all"})

A package lists its names once more under TYPE_CHECKING, for type checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a package.

    Args:
        names: by module of the package, what is there, with spaces between; a module of another
            package by its whole name.
    """
    where = {name: part for part, found in names.items() for name in found.split()}

    def getattribute(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = where[name] if where[name].startswith("mechassay.") else f"{package}.{where[name]}"
        return getattr(import_module(module), name)

    return getattribute, lambda: sorted(where)
