"""Tasks: where pairs come from."""

from __future__ import annotations

from mechassay.tasks.load import TASKS, TRUTHS, load_task
from mechassay.tasks.task import SPLITS, Task

__all__ = ["SPLITS", "TASKS", "TRUTHS", "Task", "load_task"]
