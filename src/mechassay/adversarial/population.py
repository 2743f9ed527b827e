"""Every matched pair of a split, where a task has finitely many.

What a sample leaves open a population answers: its quantiles and its largest value are what they are, and need no interval.
A task whose examples can be counted says how many a split has (`population`); the only one so far is greater-than.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from mechassay.adversarial.pools import PUBLIC_SPLITS, Pool, tokenized
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.examples import Prompt

if TYPE_CHECKING:
    from mechassay.models.model import Model
    from mechassay.tasks.task import Task


def enumerate_pools(
    task: Task, model: Model, *, split: str = "test", counterfactual: str | None = None, seed: int = 0
) -> tuple[Pool, Pool]:
    """All prompts of a split that the tokenizer allows, and for each its own corrupted prompt.

    Args:
        seed: of their order alone.

    Raises:
        UnknownName: no such split or counterfactual.
        BadUsage: the task's examples cannot be counted.
        BadPairs: nothing is left of the split.
    """
    kind = task.default_counterfactual if counterfactual is None else counterfactual
    if kind not in task.counterfactuals:
        raise UnknownName("counterfactual", kind, task.counterfactuals)
    if split not in PUBLIC_SPLITS:
        raise UnknownName("split", split, PUBLIC_SPLITS)
    check_finite(task)
    pairs = [(example.prompt, example.counterfactuals.get(kind)) for example in task.generate(split, seed, model.tokenizer)]
    there = [(clean, other) for clean, other in pairs if other is not None]
    ours, theirs = (tokenized(model, [pair[side].text for pair in there]) if there else [] for side in (0, 1))
    if not there:
        raise BadPairs(f"Split {split!r} of {task.name} has no examples with {kind!r} for {model.name}.")
    length = Counter(map(len, ours)).most_common(1)[0][0]
    kept = [row for row in range(len(there)) if len(ours[row]) == len(theirs[row]) == length]
    if not kept:
        raise BadPairs(f"Split {split!r} of {task.name} has no pairs of {length} tokens for {model.name}.")
    dropped = {"no such counterfactual": len(pairs) - len(there), f"not {length} tokens": len(there) - len(kept)}
    counted = {reason: count for reason, count in dropped.items() if count}

    def pool(side: int, tokens: list[list[int]]) -> Pool:
        prompts: tuple[Prompt, ...] = tuple(there[row][side] for row in kept)
        return Pool(prompts, torch.tensor([tokens[row] for row in kept]), counted if side == 0 else {})

    return pool(0, ours), pool(1, theirs)


def check_finite(task: Any) -> None:
    """Refuse a task whose examples cannot be counted.

    Raises:
        BadUsage: it has no `population`.
    """
    if not hasattr(task, "population"):
        raise BadUsage(f"The examples of {task.name} cannot be enumerated; those of greater-than can.")
