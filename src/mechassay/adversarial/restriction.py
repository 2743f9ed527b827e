"""Which pairs of a grid are looked at: those whose prompts agree in some fields,
of prompts that have some values.

    where    all prompts have a value: "template = ..."; what is left is a grid of fewer prompts
    same     both prompts of a pair agree in some fields, whatever the value; one grid for each
             value (`partial_grid`)

A field is a part of the prompt, or "template", how a prompt is built, where the task says so.
Prompts that agree with none of the other side are left out and counted: nothing is run that is in
no pair.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mechassay.adversarial.pools import Pool
from mechassay.errors import BadPairs, BadUsage, UnknownName
from mechassay.stats.partial_grid import PartialGrid


def parse_where(texts: Sequence[str]) -> dict[str, str]:
    """Fields and the values that all prompts must have, from texts like "object=ring".

    Raises:
        BadUsage: a text without "=", or without a field before it; a field that comes twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or name in found:
            raise BadUsage(f"--where takes FIELD=VALUE, each field once; got {', '.join(texts)}.")
        found[name] = value
    return found


def parse_same(text: str) -> tuple[str, ...]:
    """Fields from a text like "template,object".

    Raises:
        BadUsage: an empty field, or one that comes twice.
    """
    names = tuple(name.strip() for name in text.split(",")) if text else ()
    if not all(names) or len(set(names)) < len(names):
        raise BadUsage(f"--same takes FIELD or FIELD,FIELD, each once; got {text!r}.")
    return names


def agreeing(clean: Pool, corrupted: Pool, same: Sequence[str]) -> tuple[Pool, Pool, PartialGrid]:
    """The prompts that agree with one of the other side in all of some fields, and which pairs do.

    Raises:
        UnknownName: a field that a prompt of either side lacks.
        BadPairs: no two prompts agree.
    """
    labels = [
        list(zip(*(_labels(pools, name) for name in same), strict=True))
        for pools in ((clean, corrupted), (corrupted, clean))
    ]
    rows = [
        [row for row, label in enumerate(side) if label in others]
        for side, others in zip(labels, map(set, labels[::-1]), strict=True)
    ]
    if not rows[0]:
        raise BadPairs(
            f"No clean prompt agrees with a corrupted one in {', '.join(same)}: there are no pairs."
        )
    reason = f"agrees with none of the other side in {', '.join(same)}"
    pools: list[Pool] = []
    for pool, kept in zip((clean, corrupted), rows, strict=True):
        left = {reason: len(pool) - len(kept)} if len(kept) < len(pool) else {}
        chosen = pool.select(kept)
        pools.append(Pool(chosen.prompts, chosen.tokens, {**pool.dropped, **left}, chosen.columns))
    return (
        pools[0],
        pools[1],
        PartialGrid.of(
            *([side[row] for row in kept] for side, kept in zip(labels, rows, strict=True))
        ),
    )


def _labels(pools: tuple[Pool, Pool], name: str) -> tuple[str, ...]:
    """The values of a field for the first of two pools, where both have it."""
    found = [pool.labels(name) for pool in pools]
    if found[0] is None or found[1] is None:
        raise UnknownName("field of all prompts", name, common_fields(*pools))
    return found[0]


def common_fields(clean: Pool, corrupted: Pool) -> tuple[str, ...]:
    """The fields that every prompt of both sides has."""
    names = dict.fromkeys((*clean.columns, *clean.fields))
    return tuple(
        name
        for name in names
        if clean.labels(name) is not None and corrupted.labels(name) is not None
    )


def first_part(
    part: PartialGrid | None, shape: tuple[int, ...], side: int
) -> tuple[np.ndarray, ...]:
    """Places of the prompts, on each axis, of a part of the pairs that has the first of them:
    `side` a side, `side`^2 of single pairs.

    Of a restricted grid the corrupted prompts are the first that agree with one of the clean ones.
    """
    if part is None or len(shape) == 1:
        return tuple(np.arange(min(n, side if len(shape) == 2 else side**2)) for n in shape)
    rows = np.arange(min(shape[0], side))
    return rows, np.flatnonzero(np.isin(part.corrupted, part.clean[rows]))[:side]
