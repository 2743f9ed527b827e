"""Accuracy of examples by kind of prompt, as columns of values and as measures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from mechassay.models.model import Model
from mechassay.prompts.pairs import Example
from mechassay.results.measures import measure_texts
from mechassay.results.records import Measure
from mechassay.stats.intervals import proportion_interval
from mechassay.tasks.accuracy import mib_scores, score_prompts
from mechassay.tasks.hub_datasets import PublicTask
from mechassay.tasks.scoring import NAME as MIB
from mechassay.tasks.task import Task
from mechassay.utils.display import Progress

ORIGINAL = "original"


def accuracy_columns(
    model: Model, task: Task, examples: Sequence[Example], *, lax: bool, progress: Progress
) -> dict[str, Float[np.ndarray, "n"]]:
    """Return the values of each kind of prompt for every example; NaN if it has none.

    All kinds are scored together, because the prompts of an example have much in common.

    Args:
        lax: whether to score by MIB's rules too, in the tasks that MIB has.
    """
    kinds = (ORIGINAL, *task.counterfactuals)
    rules = task.mib_scoring if lax and isinstance(task, PublicTask) else None
    there = [
        (kind, row, prompt)
        for kind in kinds
        for row, example in enumerate(examples)
        if (prompt := example.prompt if kind == ORIGINAL else example.counterfactuals.get(kind))
        and prompt.answers
    ]
    prompts = [prompt for _, _, prompt in there]
    scored = score_prompts(model, prompts, progress=progress)
    scores = {"greedy": scored.greedy, "ranked": scored.ranked, "chance": scored.chance}
    if rules is not None:
        scores[MIB] = mib_scores(model, prompts, rules, progress=progress)
    columns: dict[str, Float[np.ndarray, "n"]] = {}
    for kind in kinds:
        mine = [place for place, (other, _, _) in enumerate(there) if other == kind]
        rows = [there[place][1] for place in mine]
        for name, values in scores.items():
            column = columns[f"{name}@{kind}"] = np.full(len(examples), np.nan)
            column[rows] = values[mine]
    return columns


def accuracy_measure(name: str, values: Float[np.ndarray, "n"], groups: Sequence[str]) -> Measure:
    """Return the mean of a column with its interval over groups of examples."""
    defined = ~np.isnan(values)
    n, left_out = int(defined.sum()), int((~defined).sum())
    value = float(values[defined].mean()) if n else float("nan")
    score, _, prompts = name.partition("@")
    interval = None
    if score != "chance":
        interval = proportion_interval(
            values[defined], [group for group, there in zip(groups, defined, strict=True) if there]
        )
    return measure_texts("accuracy").measure(
        f"{score}@{{prompts}}", value, interval, n=n, n_undefined=left_out, prompts=prompts
    )
