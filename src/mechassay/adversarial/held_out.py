"""Pairs of a split of one length, in strata that may meet in a grid: those of one template, or all.

Robust discovery is compared on them (`runs.robust`): on the task's own pairs, and on the grid of
some pairs' clean prompts with the corrupted prompts of others, stratum by stratum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from mechassay.adversarial.evaluation import evaluate_pairs
from mechassay.adversarial.pools import Pool
from mechassay.adversarial.robust import labels_of
from mechassay.circuits.scores import Circuit
from mechassay.display import OneLine
from mechassay.errors import BadPairs, BadUsage
from mechassay.examples import Prompt
from mechassay.models.model import Model
from mechassay.pairs import Batch
from mechassay.progress import BAR, Progress
from mechassay.tasks.task import Task


@dataclass(frozen=True, eq=False, repr=False)
class Stratified(OneLine):
    """Pairs of one length, each with its template, its group and its stratum."""

    batch: Batch
    templates: tuple[str | None, ...]
    groups: tuple[str, ...]
    strata: tuple[str, ...]

    def select(self, rows: Sequence[int]) -> Stratified:
        """The pairs at `rows`, in that order."""
        groups, strata = (tuple(each[row] for row in rows) for each in (self.groups, self.strata))
        templates = tuple(self.templates[row] for row in rows)
        return Stratified(self.batch.select(rows), templates, groups, strata)


def draw_stratified(
    task: Task,
    model: Model,
    split: str,
    n: int,
    *,
    pairing: str,
    group: str = "",
    counterfactual: str | None = None,
    seed: int = 0,
) -> Stratified:
    """The first pairs of a split that have as many tokens as most.

    Args:
        pairing: with "random" all pairs are of one stratum, else those of one template.
        group: a field of the clean prompts whose values are the groups; the templates if empty.

    Raises:
        BadUsage: the task has no templates, and the pairing needs them.
        UnknownName: a pair has no such field.
    """
    asked, rows, pairs, batch = n, list[int](), (), None
    while batch is None or len(rows) < n:
        pairs = task.pairs(split, model, limit=asked, counterfactual=counterfactual, seed=seed)
        batch = model.batch(pairs)
        rows = (batch.lengths == batch.lengths.mode().values).nonzero()[:n, 0].tolist()
        asked *= 2
    chosen = [pairs[row] for row in rows]
    templates = tuple(task.template(pair.tags) for pair in chosen)
    if pairing != "random" and None in templates:
        raise BadUsage(
            f"{task.name} does not say which template its prompts have: take the pairing random."
        )
    names = tuple(template or "" for template in templates)
    groups = tuple(labels_of(chosen, group)) if group else names
    strata = names if pairing != "random" else ("",) * n
    return Stratified(batch.select(rows), templates, groups, strata)


def strata_grid(
    model: Model,
    circuits: Sequence[Circuit],
    clean: Batch,
    corrupted: Batch,
    strata: tuple[Sequence[str], Sequence[str]],
    progress: Progress = BAR,
) -> Float[np.ndarray, "circuits_and_empty clean corrupted"]:
    """KL of each circuit, and last of no edges, for every pair of prompts of one stratum, else NaN.

    Args:
        clean, corrupted: batches whose clean, and whose corrupted, prompts are taken.
        strata: of each, in their order.

    Raises:
        BadPairs: no two prompts are of one stratum.
    """
    grid = np.full((len(circuits) + 1, len(clean), len(corrupted)), np.nan, dtype=np.float32)
    for shared in sorted(set(strata[0]) & set(strata[1])):
        rows, columns = (
            [place for place, stratum in enumerate(side) if stratum == shared] for side in strata
        )
        pools = [
            Pool((Prompt(""),) * len(tokens), tokens)
            for tokens in (clean.select(rows).clean, corrupted.select(columns).counterfactual)
        ]
        values = evaluate_pairs(model, circuits, *pools, progress=progress)
        grid[(slice(None), *np.ix_(rows, columns))] = np.concatenate(
            (values.circuits, values.corrupted[None])
        )
    if np.isnan(grid).all():
        raise BadPairs(
            "No held-out clean prompt has the template of a corrupted one: there is no grid."
        )
    return grid


def check_apart(first: str, some: Batch, second: str, others: Batch) -> None:
    """Refuse two sets of pairs that have a prompt, clean or corrupted, in common.

    Raises:
        BadPairs: they do; the message has their names and how many.
    """
    shared = _prompts(some) & _prompts(others)
    if shared:
        raise BadPairs(
            f"The {first} and the {second} share {len(shared)} prompts; take them from different"
            " splits."
        )


def _prompts(batch: Batch) -> set[tuple[int, ...]]:
    """Prompts without their padding."""
    mask = batch.mask.cpu()
    return {
        tuple(row[kept].tolist())
        for tokens in (batch.clean, batch.counterfactual)
        for row, kept in zip(tokens.cpu(), mask, strict=True)
    }
