"""Cells, the pieces of work of an experiment, their inputs, and the names of their files.

Nothing heavy is imported.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from mechassay.runs.names import stored_name
from mechassay.utils.display import Progress

if TYPE_CHECKING:
    from mechassay.models.model import Model
    from mechassay.prompts.pairs import Pairs
    from mechassay.results.records import Selection, Spec
    from mechassay.tasks.task import Task

LONGEST = 80
"""Largest number of characters of a file's name, from its end; a hash of the whole name follows."""


@dataclass(frozen=True)
class Cell:
    """One piece of work as plain values, which any process can read.

    `cell["model"]` is the name of a coordinate. Models and tasks are loaded by it.

    Attributes:
        name: of its files, unique in the experiment; "group/name" is in a folder.
        labels: the coordinates as tables have them: model, task, method. The labels of models and
            tasks are unique in the experiment.
        inputs: the name of the inputs. Cells with the same name share their inputs, and one worker
            measures them in order.
        typed: the names of the coordinates whose label differs, such as the path of a model.
    """

    name: str
    labels: Mapping[str, str]
    inputs: str = ""
    typed: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, axis: str) -> str:
        """Return the name of a coordinate.

        Raises:
            KeyError: the cell has no such coordinate.
        """
        return self.typed[axis] if axis in self.typed else self.labels[axis]

    @property
    def stored(self) -> dict[str, str]:
        """The coordinates as records have them. The names of models and tasks do not depend on the
        other models and tasks of the experiment.
        """
        own = {axis: stored_name(self[axis]) for axis in ("model", "task") if axis in self.labels}
        return {**self.labels, **own}

    @property
    def digest(self) -> str:
        """The digest of the name, which the record of the cell holds."""
        return hashlib.sha256(self.name.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Inputs:
    """A model, a task and pairs, which the cells of one model and task share.

    Attributes:
        pairs: by role, such as train and test.
        asked: the settings of the choice, such as the split; records store them with the task.
    """

    model: Model
    task: Task
    pairs: Mapping[str, Pairs]
    asked: Mapping[str, Any]
    progress: Progress

    def data(self) -> dict[str, Selection]:
        """Return the choice of pairs for each role, with the hash of the pairs' content."""
        from mechassay.results.records import Selection

        return {role: Selection.of(pairs.selection()) for role, pairs in self.pairs.items()}

    def specs(self) -> dict[str, Spec]:
        """Return the model and the task as records have them."""
        return specs_of(self.model, self.task, self.asked)


def specs_of(model: Model, task: Task, asked: Mapping[str, Any]) -> dict[str, Spec]:
    """Return a model and a task as records have them; `asked` are settings of the choice."""
    from mechassay.results.records import Spec
    from mechassay.tasks.task import settings_of

    about = {**asked, **settings_of(task)}
    return {"model": model.spec(), "task": Spec(name=task.name, version=task.version, args=about)}


def by_inputs(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Return lists of neighbouring cells with the same inputs."""
    return [list(own) for _, own in groupby(cells, key=lambda cell: cell.inputs)]


def cell_name(*parts: str) -> str:
    """Return a name for files, of names that may be paths; a changed name ends in a hash."""
    name = "--".join(parts)
    plain = re.sub(r"[^\w.=,@ -]+", "_", name).lstrip(".")
    if plain == name and len(plain) <= 2 * LONGEST:
        return name
    return f"{plain[-LONGEST:]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
