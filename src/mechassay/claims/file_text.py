"""What a file says: its pages of text, and what reads it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from mechassay.claims.hidden_text import HiddenText
from mechassay.errors import MissingExtra

NO_TEXT = "has no text"


@dataclass(frozen=True)
class FileText:
    """What a file says.

    Attributes:
        n_pages: of the file, also of those that were not read.
        title: the one that can be seen; "" if none can be told.
        extractor: what read it, with its version.
        hidden: what was cut, as a reader cannot see it.
    """

    pages: tuple[str, ...]
    n_pages: int
    title: str = ""
    extractor: str = "text"
    hidden: tuple[HiddenText, ...] = ()


def needed(module: str, name: str, extra: str) -> Any:
    """A module that reads a file of this name.

    Raises:
        MissingExtra: it is not installed.
    """
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtra(f"Reading {name}", module.partition(".")[0], extra) from None
