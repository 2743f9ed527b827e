"""Dictionaries of features: sparse autoencoders of others, our own, and how good they are."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mechassay.saes.formats import load_sae, provenance_of, save_sae

__all__ = ["load_sae", "provenance_of", "save_sae"]

_NAMES = {
    "formats": "load_sae provenance_of save_sae",
}
_LAZY = {name: f"{__name__}.{part}" for part, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'mechassay.saes' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__
