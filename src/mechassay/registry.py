"""Names for plug-ins: a name maps to a lazy "module:object" string, loaded at first use.

A registry holds strings, so it knows nothing of the modules above it. Other packages
add entries through entry points in the group `mechassay.<kind>s`, for example
`[project.entry-points."mechassay.methods"]`; a built-in name cannot be replaced that way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from mechassay.errors import UnknownName


@dataclass(frozen=True)
class Registry:
    """The known names of one kind of plug-in ("method", "task", ...)."""

    kind: str
    built_in: Mapping[str, str] = field(default_factory=dict)
    plural: str = ""

    def targets(self) -> dict[str, str]:
        """All names with the "module:object" they stand for, built-in ones last so that they win."""
        found = {point.name: point.value for point in entry_points(group=f"mechassay.{self.plural or self.kind + 's'}")}
        return {**found, **self.built_in}

    def names(self) -> list[str]:
        """All known names, sorted."""
        return sorted(self.targets())

    def load(self, name: str) -> Any:
        """The object that `name` stands for.

        Raises:
            UnknownName: nobody registered `name`; the message has the nearest valid one.
        """
        targets = self.targets()
        if name not in targets:
            raise UnknownName(self.kind, name, targets)
        module, _, attribute = targets[name].partition(":")
        return getattr(import_module(module), attribute)
