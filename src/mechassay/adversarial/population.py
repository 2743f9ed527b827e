"""Every matched pair of a split, where a task has finitely many.

What a sample leaves open a population answers: its quantiles and its largest value are what they
are, and need no interval. A task whose examples can be counted says how many a split has
(`population`); the only one so far is greater-than.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float

from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.pools import PUBLIC_SPLITS, Pool, left_out, said, tokenized
from mechassay.circuits.scores import Circuit
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.examples import Prompt
from mechassay.progress import BAR, Progress
from mechassay.stats.bounds import check_share, decimal

if TYPE_CHECKING:
    from mechassay.models.model import Model
    from mechassay.tasks.task import Task


def enumerate_pools(
    task: Task,
    model: Model,
    *,
    split: str = "test",
    counterfactual: str | None = None,
    seed: int = 0,
) -> tuple[Pool, Pool]:
    """All prompts of a split that the tokenizer allows, and for each its own corrupted prompt.

    Args:
        seed: of their order alone.

    Raises:
        UnknownName: no such split or counterfactual.
        BadUsage: the task's examples cannot be counted.
        BadPairs: nothing is left of the split.
    """
    kind = task.counterfactual_for(model.tokenizer) if counterfactual is None else counterfactual
    if kind not in task.counterfactuals:
        raise UnknownName("counterfactual", kind, task.counterfactuals)
    if split not in PUBLIC_SPLITS:
        raise UnknownName("split", split, PUBLIC_SPLITS)
    check_finite(task)
    pairs = [
        (example.prompt, example.counterfactuals.get(kind))
        for example in task.generate(split, seed, model.tokenizer)
    ]
    there = [(clean, other) for clean, other in pairs if other is not None]
    ours, theirs = (
        tokenized(model, [pair[side].text for pair in there]) if there else [] for side in (0, 1)
    )
    if not there:
        raise BadPairs(
            f"Split {split!r} of {task.name} has no examples with {kind!r} for {model.name}."
        )
    length = Counter(map(len, ours)).most_common(1)[0][0]
    reasons = [
        left_out(model, ours[row], length) or left_out(model, theirs[row], length)
        for row in range(len(there))
    ]
    dropped = Counter({"no such counterfactual": len(pairs) - len(there)}) + Counter(
        filter(None, reasons)
    )
    kept = [row for row, reason in enumerate(reasons) if reason is None]
    if not kept:
        raise BadPairs(
            f"Split {split!r} of {task.name} has no pairs of {length} tokens for"
            f" {model.name}{said(dropped)}."
        )

    def pool(side: int, tokens: list[list[int]]) -> Pool:
        prompts: tuple[Prompt, ...] = tuple(there[row][side] for row in kept)
        return Pool(
            prompts, torch.tensor([tokens[row] for row in kept]), dict(dropped) if side == 0 else {}
        )

    return pool(0, ours), pool(1, theirs)


def enumerate_pairs(
    model: Model,
    circuit: Circuit,
    task: Task,
    *,
    split: str = "test",
    counterfactual: str | None = None,
    store: Path | None = None,
    progress: Progress = BAR,
) -> Enumeration:
    """Evaluate every example of a split with its own corrupted prompt,
    where a task has finitely many.

    Args:
        store: a folder for what is done, so that a killed job can go on.

    Raises:
        UnknownName: no such split or counterfactual.
        BadUsage: the task's examples cannot be counted.
        BadPairs: nothing is left of the split.
        GraphMismatch, NonFinite, BadFile, OutOfMemory: see `evaluate_pairs`.
    """
    clean, corrupted = enumerate_pools(task, model, split=split, counterfactual=counterfactual)
    found = evaluate_pairs(
        model, [circuit], clean, corrupted, grid=False, store=store, progress=progress
    )
    return Enumeration(clean, corrupted, found.circuits[0])


def check_finite(task: Any) -> None:
    """Refuse a task whose examples cannot be counted.

    Raises:
        BadUsage: it has no `population`.
    """
    if not hasattr(task, "population"):
        raise BadUsage(
            f"The examples of {task.name} cannot be enumerated; those of greater-than can."
        )


@dataclass(frozen=True, eq=False)
class Enumeration:
    """The divergences of a whole population of pairs, in nats: nothing about them is an estimate.

    Attributes:
        clean, corrupted: prompt i of one with prompt i of the other. `clean.dropped` counts what
        has another length.
    """

    clean: Pool
    corrupted: Pool
    values: Float[np.ndarray, "pairs"]

    @property
    def worst(self) -> int:
        """The pair with the largest divergence, the first of equals."""
        return int(np.argmax(self.values))

    @property
    def maximum(self) -> float:
        """The largest divergence that there is."""
        return float(self.values[self.worst])

    def quantile(self, p: float) -> float:
        """The smallest divergence that at least the share p of the pairs do not exceed.

        Raises:
            BadUsage: p is not between 0 and 1.
        """
        check_share("A quantile", p)
        place = math.ceil(decimal(p) * len(self.values)) - 1
        return float(np.partition(self.values, place)[place])
