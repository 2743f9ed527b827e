"""Heat maps: the divergences of all pairs with two labels,
as in figures 7 to 10 of Uit de Bos and Garriga-Alonso (2024).

Some maps are asked for, by the names of two fields: a part of the clean prompt ("place") or of the
corrupted one ("corrupted place"), or its template. Others are those of the fields whose labels
differ most by the test of labels. A heat map tests nothing.

A map has at most `LABELS` labels on each axis, those with the largest 99.9th percentile over all
their pairs, largest first. How many are left out, and the largest value among them, is said beside
it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from mechassay.adversarial.pools import Pool
from mechassay.adversarial.strata import TEMPLATE, skeleton
from mechassay.errors import BadUsage, UnknownName
from mechassay.stats.groups import PERCENTILES, Field, by_fields

LABELS = 30
FIELD_LABELS, MAPS = 100, 3
"""Most labels of a field that is drawn unasked, and most maps that are."""
CORRUPTED = "corrupted "
NAMES = (*(f"{100 * p:g}%" for p in PERCENTILES), "max")


def parse_map(text: str) -> tuple[str, str]:
    """The names of two fields, as they are typed: "place,object".

    Raises:
        BadUsage: not two different names.
    """
    names = [name.strip() for name in text.split(",")]
    if len(names) != 2 or not all(names) or names[0] == names[1]:
        raise BadUsage(f"A heat map is of two different fields, as in place,object; got {text!r}.")
    return names[0], names[1]


def named_field(name: str, clean: Pool, corrupted: Pool | None) -> Field:
    """The field of that name, however many labels it has.

    Raises:
        UnknownName: the prompts have no such part.
    """
    sides: list[tuple[Literal["clean", "corrupted"], str, Pool]] = [("clean", "", clean)]
    if corrupted is not None:
        sides.append(("corrupted", CORRUPTED, corrupted))
    known: list[str] = []
    for side, prefix, pool in sides:
        for own in (*pool.fields, TEMPLATE):
            if f"{prefix}{own}" == name:
                labels = tuple(map(skeleton, pool.prompts)) if own == TEMPLATE else pool.fields[own]
                return Field(name, labels, side)
            known.append(f"{prefix}{own}")
    raise UnknownName("field for a heat map", name, known)


def chosen_maps(
    fields: Sequence[Field],
    groups: Sequence[Mapping[str, Any]],
    axes: int,
    asked: Sequence[tuple[Field, Field]] = (),
) -> list[tuple[Field, Field]]:
    """Those asked for, and those of the fields whose labels differ most (the least p values).

    Of fields of the same inputs, maps drawn unasked have at least as many inputs as cells.
    """
    least = [min(group["p"]) for group in groups]
    pairs = [
        pair
        for pair in combinations(range(len(fields)), 2)
        if _fits([fields[place] for place in pair], axes)
    ]
    best = sorted(pairs, key=lambda pair: (sum(least[place] for place in pair), pair))[:MAPS]
    there = {frozenset((field.side, tuple(field.labels)) for field in pair) for pair in asked}
    found = [(fields[one], fields[two]) for one, two in best]
    return [
        *asked,
        *(
            pair
            for pair in found
            if frozenset((field.side, tuple(field.labels)) for field in pair) not in there
        ),
    ]


def _fits(two: Sequence[Field], axes: int) -> bool:
    """Whether a heat map of two fields is small enough, and has something in most cells."""
    sizes = [len(set(field.labels)) for field in two]
    same_inputs = axes == 1 or two[0].side == two[1].side
    return max(sizes) <= FIELD_LABELS and (
        not same_inputs or math.prod(sizes) <= len(two[0].labels)
    )


def heat_map(
    values: Float[np.ndarray, "*pairs"],
    empty: Float[np.ndarray, "*pairs"],
    two: tuple[Field, Field],
) -> dict[str, Any]:
    """Percentiles and maximum by two fields,
    and of the empty circuit over all pairs, as plain values.

    `left_out` and `largest_left_out` are, for each field, labels that are not shown and the largest
    value among their pairs.
    """
    tables = [by_fields(values, [field]) for field in two]
    order = [
        np.argsort(-np.nan_to_num(table.percentiles[:, 0], nan=-math.inf), kind="stable")
        for table in tables
    ]
    shown, rest = [each[:LABELS] for each in order], [each[LABELS:] for each in order]
    table = by_fields(values, two)
    place = np.ix_(*shown)
    cells = {name: table.percentiles[..., number][place] for number, name in enumerate(NAMES[:-1])}
    cells[NAMES[-1]] = table.max[place]
    of_empty = dict(zip(NAMES, np.nanquantile(empty, (*PERCENTILES, 1.0)).tolist(), strict=True))
    return {
        "fields": [field.name for field in two],
        "labels": [
            [each.labels[0][place] for place in kept]
            for each, kept in zip(tables, shown, strict=True)
        ],
        "left_out": [len(each) for each in rest],
        "largest_left_out": [
            float(np.nanmax(each.max[kept])) if len(kept) else math.nan
            for each, kept in zip(tables, rest, strict=True)
        ],
        "empty": {**of_empty, "mean": float(np.nanmean(empty))},
        **{name: found.tolist() for name, found in cells.items()},
    }
