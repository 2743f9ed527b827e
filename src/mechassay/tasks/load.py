"""Tasks by name, which may carry settings ("mcqa:n_choices=6"), or from a file of pairs.

The name of a ground truth ("truth-ioi") stands for its model, and where a task is named for its
task.
"""

from __future__ import annotations

from os import PathLike, fspath
from typing import Any

from mechassay.errors import BadUsage, UnknownName
from mechassay.registry import Registry
from mechassay.rows import FILES
from mechassay.tasks.files import FileTask
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
TRUTHS = Registry(
    "ground truth",
    {
        "truth-addition-trained": "mechassay.truth.tasks:AddedTens",
        "truth-fraction-trained": "mechassay.truth.tasks:Fraction",
        "truth-greater-than-trained": "mechassay.truth.tasks:Larger",
        "truth-induction": "mechassay.truth.tasks:Induction",
        "truth-induction-trained": "mechassay.truth.tasks:Induction",
        "truth-ioi": "mechassay.truth.tasks:CompiledIOI",
        "truth-ioi-trained": "mechassay.truth.tasks:CompiledIOI",
        "truth-mcqa-trained": "mechassay.truth.tasks:Choices",
        "truth-previous-token": "mechassay.truth.tasks:PreviousToken",
        "truth-previous-token-trained": "mechassay.truth.tasks:PreviousToken",
    },
    plural="truths",
)
"""Tasks of the models whose circuit is known, by the model."""


def load_task(name: str | PathLike[str], **settings: Any) -> Task:
    """The task registered as `name`, or the pairs of a file.

    Args:
        name: a registered name, one with settings ("mcqa:n_choices=6"), a ground truth's, or the
            path of a .jsonl, .json, .csv or .tsv file.
        settings: the task's settings by keyword, over those in the name.

    Raises:
        UnknownName: nobody registered `name`, or the task has no such setting.
        BadFile: there is no such file. What is wrong inside it is said when its pairs are asked
            for.
    """
    # Users' Python may give anything.
    is_name = isinstance(name, str | PathLike)  # pyright: ignore[reportUnnecessaryIsInstance]
    if not is_name:
        raise BadUsage(f"load_task takes a name or a path; got {name!r}.")
    text = fspath(name)
    if text.lower().endswith(FILES):
        return FileTask(text, **settings)
    plain = text.partition(":")[0]
    for known in (TASKS, TRUTHS):
        if plain in known.names():
            return known.make(text, **settings)
    raise UnknownName("task", text, [*TASKS.names(), *TRUTHS.names()])
