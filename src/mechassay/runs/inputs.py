"""What cells are measured on: a model, a task and pairs. Nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mechassay.utils.display import Progress

if TYPE_CHECKING:
    from mechassay.models.model import Model
    from mechassay.prompts.pairs import Pairs
    from mechassay.results.records import Selection, Spec
    from mechassay.tasks.task import Task


@dataclass(frozen=True)
class Inputs:
    """What the cells of one model and task are measured on.

    Attributes:
        pairs: by role, such as train and test.
        asked: what was asked of the task, such as the split; it is stored beside the task.
    """

    model: Model
    task: Task
    pairs: Mapping[str, Pairs]
    asked: Mapping[str, Any]
    progress: Progress

    def data(self) -> dict[str, Selection]:
        """Return what was chosen for each role, with the hash of its content."""
        from mechassay.results.records import Selection

        return {role: Selection.of(pairs.selection()) for role, pairs in self.pairs.items()}

    def specs(self) -> dict[str, Spec]:
        """Return the model and the task as records have them."""
        return specs_of(self.model, self.task, self.asked)


def specs_of(model: Model, task: Task, asked: Mapping[str, Any]) -> dict[str, Spec]:
    """Return a model and a task as records have them, with what was asked of the task."""
    from mechassay.results.records import Spec
    from mechassay.tasks.task import settings_of

    about = {**asked, **settings_of(task)}
    return {"model": model.spec(), "task": Spec(name=task.name, version=task.version, args=about)}
