"""What gym tasks there are, as a table."""

from __future__ import annotations

from typing import Any

from mechassay.display import Tabular, html_facts, html_table
from mechassay.gym.gym_task import GymTask
from mechassay.gym.published import GYM_TASKS, load_gym_task


class GymTaskList(Tabular, tuple[GymTask, ...]):
    """Gym tasks; a row of the table for each."""

    def columns(self) -> dict[str, list[Any]]:
        """The tasks by column."""
        return {
            "task": [task.name for task in self],
            "family": [task.family for task in self],
            "types": [" | ".join(task.types) for task in self],
            "labels": [
                " | ".join(",".join(text.strip() for text in said) for said in task.labels.values())
                for task in self
            ],
            "regions": [len(task.tested) for task in self],
            "lengths": [task.lengths for task in self],
            "sentences": [task.n_sentences for task in self],
            "about": [task.about for task in self],
        }

    def __repr__(self) -> str:
        return f"GymTaskList(n={len(self)}, families={len({task.family for task in self})})"

    def _repr_html_(self) -> str:
        columns = self.columns()
        table = html_table(tuple(columns), list(zip(*columns.values(), strict=True)))
        return html_facts(f"{len(self):,} gym tasks", {}, table)


def list_gym_tasks() -> GymTaskList:
    """All gym tasks, those of other packages last; the published ones in the order of the paper."""
    published = list(GYM_TASKS.built_in)
    others = [name for name in GYM_TASKS.names() if name not in GYM_TASKS.built_in]
    return GymTaskList(load_gym_task(name) for name in [*published, *others])
