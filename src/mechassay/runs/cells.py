"""Cells, the pieces of work of an experiment, and the names that their files and tables have."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from mechassay.models.sources import AT, UNTRAINED, split_revision

LONGEST = 80
"""Largest number of characters of a file's name, from its end; a hash of the whole name follows."""


@dataclass(frozen=True)
class Cell:
    """One piece of work as plain values, so that any worker can do it.

    `cell["model"]` is a coordinate as it was typed: a model and a task are loaded by it.

    Attributes:
        name: of its files, unique in the experiment; "group/name" is in a folder.
        labels: its coordinates as records and tables have them: model, task, method.
        inputs: the name of its inputs. Cells of one name share their inputs, and one worker
            measures them in order.
        typed: the coordinates that were typed in another way than their labels, such as the path of
            a model.
    """

    name: str
    labels: Mapping[str, str]
    inputs: str = ""
    typed: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, axis: str) -> str:
        """Return a coordinate as it was typed.

        Raises:
            KeyError: the cell has no such coordinate.
        """
        return self.typed[axis] if axis in self.typed else self.labels[axis]


def by_inputs(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Return neighbouring cells with the same inputs as one list each."""
    return [list(own) for _, own in groupby(cells, key=lambda cell: cell.inputs)]


def contents_of(cell: Cell, specs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the model and the task of a cell by their typed names, each with a digest of its
    content: weights and files by their hashes, tasks of the package by their versions.

    Args:
        specs: of a record, or of inputs, by role.
    """
    for role, key in (("model", "weights"), ("task", "sha256")):
        if role in specs and role in cell.labels:
            yield f"The {role} {cell[role]}", str(specs[role].args.get(key, specs[role].version))


def cell_name(*parts: str) -> str:
    """Return a name for files, of names that may be paths; a changed name ends in a hash."""
    name = "--".join(parts)
    plain = re.sub(r"[^\w.=,@ -]+", "_", name).lstrip(".")
    if plain == name and len(plain) <= 2 * LONGEST:
        return name
    return f"{plain[-LONGEST:]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def shown_model(name: str) -> str:
    """Return what tables call a model: folders and files by their own names, with revisions."""
    if name.startswith(UNTRAINED):
        return UNTRAINED + shown_model(name.removeprefix(UNTRAINED))
    model, revision = split_revision(name)
    path = Path(model)
    label = path.name if path.exists() else model
    return f"{label}{AT}{revision}" if revision else label
