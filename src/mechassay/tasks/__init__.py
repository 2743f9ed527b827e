"""Tasks: where pairs come from."""

from mechassay.tasks.load import TASKS, load_task
from mechassay.tasks.task import SPLITS, Task

__all__ = ["SPLITS", "TASKS", "Task", "load_task"]
