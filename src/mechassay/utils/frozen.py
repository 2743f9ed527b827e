"""Read-only mappings that can be copied and sent to other processes.

Python neither copies nor pickles a `MappingProxyType`. Here it is registered to be made again of a
dictionary, for every object that holds one.
"""

from __future__ import annotations

import copyreg
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def frozen(mapping: Mapping[Any, Any]) -> MappingProxyType[Any, Any]:
    """Return a read-only copy of a mapping."""
    return MappingProxyType(dict(mapping))


def _reduced(mapping: MappingProxyType[Any, Any]) -> tuple[Any, tuple[dict[Any, Any]]]:
    return frozen, (dict(mapping),)


copyreg.pickle(MappingProxyType, _reduced)
