"""Tasks by name, which may carry settings ("mcqa:n_choices=6"), or from a file of pairs."""

from __future__ import annotations

from typing import Any

from mechassay.registry import Registry
from mechassay.tasks.files import FILES, FileTask
from mechassay.tasks.task import Task

TASKS = Registry(
    "task",
    {
        "arc-challenge": "mechassay.tasks.arc:ARCChallenge",
        "arc-easy": "mechassay.tasks.arc:ARCEasy",
        "arithmetic-addition": "mechassay.tasks.arithmetic:Addition",
        "arithmetic-subtraction": "mechassay.tasks.arithmetic:Subtraction",
        "docstring": "mechassay.tasks.docstring:Docstring",
        "greater-than": "mechassay.tasks.greater_than:GreaterThan",
        "ioi": "mechassay.tasks.ioi:IOI",
        "mcqa": "mechassay.tasks.mcqa:MCQA",
        "ravel": "mechassay.tasks.ravel:Ravel",
    },
)


def load_task(name: str, **settings: Any) -> Task:
    """The task registered as `name`, or the pairs of a file.

    Args:
        name: a registered name, one with settings ("mcqa:n_choices=6"), or the path of a .jsonl,
            .json, .csv or .tsv file.
        settings: the task's settings by keyword, over those in the name.

    Raises:
        UnknownName: nobody registered `name`, or the task has no such setting.
        BadFile: there is no such file. What is wrong inside it is said when its pairs are asked
            for.
    """
    return (
        FileTask(name, **settings) if name.lower().endswith(FILES) else TASKS.make(name, **settings)
    )
