"""Families of tiny models as parameters of a test: three by default, the others marked `slow`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from mechassay.testing.tiny import FAMILIES

QUICK = ("gpt2", "llama", "gemma2")
"""They differ in most of what a decoder can get wrong."""


def families(names: Sequence[str] = FAMILIES) -> list[Any]:
    """The names, those of other families than `QUICK` marked."""
    slow = pytest.mark.slow
    return [name if name in QUICK else pytest.param(name, marks=slow) for name in names]
