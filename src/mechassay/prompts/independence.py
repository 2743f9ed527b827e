"""Which pairs of prompts are independent of each other, by their tokens.

Pairs that share a prompt, as clean or as counterfactual, directly or through other pairs, are one
group, and so are pairs of one group of their task. Where counterfactuals are drawn from a pool,
that would link nearly all pairs: a group with more than a tenth of all different clean prompts is
such a pool, and its pairs are linked by the clean prompt and the task's group alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mechassay.prompts.batch import Batch

Tokens = tuple[int, ...]
POOLED, PROMPTS = "pooled", "different prompts"
"""The counts of `apart`."""
POOL = 0.1
"""The share of all different clean prompts above which a group is a pool."""


def independent(batch: Batch) -> tuple[Batch, int]:
    """Return the batch with groups that share no prompt, and the number of pooled pairs."""
    hashes = batch.token_hashes()
    names, n_pooled = linked_groups(batch.groups, hashes["clean"], hashes["counterfactual"])
    return replace(batch, groups=names), n_pooled


def linked_groups(
    names: Sequence[str], clean: Sequence[Hashable], other: Sequence[Hashable]
) -> tuple[tuple[str, ...], int]:
    """Return the group of each pair, and the number of pooled pairs.

    Args:
        names: the task's group of each pair.
        clean, other: the clean and the counterfactual prompt of each pair: tokens, a hash, a text.
    """
    keys = [(("group", g), ("prompt", c)) for g, c in zip(names, clean, strict=True)]
    by_clean = _linked(keys)
    linked = _linked([(*own, ("prompt", o)) for own, o in zip(keys, other, strict=True)])
    prompts = Counter(group for group, _ in set(zip(linked, clean, strict=True)))
    within = Counter(group for group, _ in set(zip(linked, by_clean, strict=True)))
    pools = {
        group for group, n in prompts.items() if n > POOL * len(set(clean)) and within[group] > 1
    }
    rows = [a if one in pools else one for one, a in zip(linked, by_clean, strict=True)]
    first: dict[int, str] = {}
    for row, name in zip(rows, names, strict=True):
        first.setdefault(row, name)
    return tuple(first[row] for row in rows), sum(one in pools for one in linked)


def apart(batch: Batch) -> tuple[Batch, dict[str, int]]:
    """Return the batch with independent groups, and counts for its record: of pooled pairs, and of
    different prompts once tokenized.
    """
    grouped, n_pooled = independent(batch)
    return grouped, {POOLED: n_pooled, PROMPTS: len(set(batch.token_hashes()["clean"]))}


def grouped(names: Sequence[str], prompts: Sequence[Tokens]) -> tuple[str, ...]:
    """Return the group of each prompt: prompts of one name or of the same tokens are one group."""
    keys = [(("name", name), ("prompt", own)) for name, own in zip(names, prompts, strict=True)]
    return tuple(names[row] for row in _linked(keys))


def _linked(keys: Sequence[Sequence[tuple[str, Hashable]]]) -> list[int]:
    """Return for each row the first row that it shares a key with, directly or through others."""
    parent = list(range(len(keys)))

    def root(row: int) -> int:
        while parent[row] != row:
            parent[row] = parent[parent[row]]
            row = parent[row]
        return row

    holder: dict[tuple[str, Hashable], int] = {}
    for row, own in enumerate(keys):
        for key in own:
            a, b = root(holder.setdefault(key, row)), root(row)
            parent[max(a, b)] = min(a, b)
    return [root(row) for row in range(len(keys))]


def n_shared(
    own: Mapping[str, Sequence[str]], others: Mapping[str, Sequence[str]], *, pooled: bool = False
) -> int:
    """Return how many pairs have a clean prompt that is also a prompt of other pairs.

    Args:
        own, others: hashes as `Batch.token_hashes` gives them.
        pooled: whether counterfactuals come from a pool; then only clean prompts count.
    """
    seen = set(others["clean"])
    if not pooled:
        seen |= set(others["counterfactual"])
    return sum(prompt in seen for prompt in own["clean"])
