"""Tasks: where pairs come from."""

from mechassay.tasks.task import SPLITS, TASKS, Task, load_task

__all__ = ["SPLITS", "TASKS", "Task", "load_task"]
