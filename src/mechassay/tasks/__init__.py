"""Tasks, where pairs come from, by name. Their modules are loaded at first use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from mechassay.errors import BadFile, UnknownName
from mechassay.prompts.rows import FILES
from mechassay.utils.registry import Registry, aliases
from mechassay.utils.registry import lazy_exports as _lazy_exports

if TYPE_CHECKING:
    from mechassay.tasks.load import load_task as load_task
    from mechassay.tasks.task import Task as Task


Keep = Literal["all", "base", "counterfactual", "both"]
"""Which pairs are kept: all, or those of whose prompts a model answers one side, or both, right."""
KEEP: tuple[Keep, ...] = get_args(Keep)
MOST_PAIRS = 100_000
"""Pairs of a split that are made, at most: streams of made-up prompts have no end."""
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
        "ioi-shift": "mechassay.tasks.ioi_shift:ShiftedIOI",
        "mcqa": "mechassay.tasks.multiple_choice:MCQA",
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
        "truth-text-ioi": "mechassay.truth.text_ioi:TextIOI",
        "truth-text-ioi-backup": "mechassay.truth.text_ioi:TextIOI",
        "truth-text-ioi-mixed": "mechassay.truth.text_ioi:TextIOI",
        "truth-text-ioi-negative": "mechassay.truth.text_ioi:TextIOI",
        "truth-text-ioi-parallel": "mechassay.truth.text_ioi:TextIOI",
        "truth-text-ioi-redundant": "mechassay.truth.text_ioi:TextIOI",
    },
    plural="truths",
)
"""Tasks of the models whose circuit is known, by the model."""


def registry_of(name: str) -> Registry:
    """The registry that has a task: `TASKS` or `TRUTHS`.

    Args:
        name: of the task, with settings if wanted ("mcqa:n_choices=6").

    Raises:
        UnknownName: neither has it.
        BadFile: the name is a path, and not of a file of pairs.
    """
    plain = TASKS.full_name(name).partition(":")[0]
    # Built-in names first: others are in files of all installed packages, read at every call.
    for registry in (TASKS, TRUTHS):
        if plain in registry.built_in:
            return registry
    for registry in (TASKS, TRUTHS):
        if plain in registry:
            return registry
    if "/" in plain or Path(name).exists():
        there = "a folder" if Path(name).is_dir() else "no such file"
        there = f"a file that does not end in {', '.join(FILES)}" if Path(name).is_file() else there
        raise BadFile(f"{name}: there is {there}; a task is a name, or a file of pairs.")
    note = f"A file of pairs ends in {', '.join(FILES)}."
    known = [*TASKS.names(), *TRUTHS.names()]
    raise UnknownName("task", name, known, note, meant=aliases("task"))


__all__, __getattr__, __dir__ = _lazy_exports(__name__, __file__, "Keep", "MOST_PAIRS", "TASKS")
