"""Tables of the divergences by a field of the prompts, or by two fields together.

Appendix D of Uit de Bos and Garriga-Alonso (2024) shows the maximum and high percentiles by
template field (which object, which place) and by pairs of fields. The largest of many groups is
large by chance too, and a larger group has a larger maximum: `label_tests` says which labels are
worse than that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from mechassay.display import OneLine
from mechassay.errors import BadUsage, one_of
from mechassay.stats.bounds import check_share
from mechassay.stats.summary import run_percentiles

PERCENTILES = (0.999, 0.9999)
SIDES = ("clean", "corrupted")


@dataclass(frozen=True, repr=False)
class Field(OneLine):
    """A template field of the clean or of the corrupted inputs.

    Attributes:
        name: what the field is called.
        labels: one for every input of that side, in the order of the values.
        side: which axis of a grid; of single pairs both sides have one label a pair.
        strata: how each input is built; labels are compared within a stratum. None: all the same.
    """

    name: str
    labels: Sequence[str]
    side: Literal["clean", "corrupted"] = "clean"
    strata: Sequence[str] | None = None

    def __post_init__(self) -> None:
        one_of("side of a pair", self.side, SIDES)
        if self.strata is not None and len(self.strata) != len(self.labels):
            raise BadUsage(
                f"The field {self.name} has {len(self.labels)} labels and {len(self.strata)}"
                " strata; give one for each input."
            )

    def axis(self, values: np.ndarray) -> int:
        """The axis of the values that the labels belong to.

        Raises:
            BadUsage: the labels are not as many as inputs on that axis, or the values have more
                than two axes.
        """
        if values.ndim not in (1, 2):
            raise BadUsage(
                f"Values have the axes (pairs) or (clean, corrupted); got the shape {values.shape}."
            )
        axis = SIDES.index(self.side) if values.ndim == 2 else 0
        if len(self.labels) != values.shape[axis]:
            raise BadUsage(
                f"The field {self.name} has {len(self.labels)} labels for {values.shape[axis]}"
                " inputs."
            )
        return axis


@dataclass(frozen=True, repr=False)
class GroupTable(OneLine):
    """Statistics by the labels of one or more fields; a cell without defined values is NaN.

    Attributes:
        labels: of each field, sorted.
        count: defined values in each cell; an axis for each field.
        max: largest value in each cell.
        percentiles: interpolated, with a last axis for the percentiles asked for.
    """

    fields: tuple[str, ...]
    labels: tuple[tuple[str, ...], ...]
    percents: tuple[float, ...]
    count: Int[np.ndarray, "*cells"]
    max: Float[np.ndarray, "*cells"]
    percentiles: Float[np.ndarray, "*cells p"]


def by_fields(
    values: Float[np.ndarray, "*shape"],
    fields: Sequence[Field],
    percentiles: Sequence[float] = PERCENTILES,
) -> GroupTable:
    """Maximum and percentiles of the values by one field, or by several (two make a heat map).

    Args:
        values: [clean, corrupted] of a grid, or [pairs]; NaN is left out.

    Raises:
        BadUsage: no fields, labels that do not fit the values, or percentiles not between 0 and 1.
    """
    if not fields:
        raise BadUsage("A table by fields needs at least 1 field; got none.")
    for p in percentiles:
        check_share("A percentile", p)
    labels: list[tuple[str, ...]] = []
    # The number of each value's cell, row by row of the table.
    code = np.zeros((1,) * values.ndim, dtype=np.int32)
    for field in fields:
        names, own = np.unique(np.asarray(field.labels), return_inverse=True)
        shape = [1] * values.ndim
        shape[field.axis(values)] = -1
        code = code * len(names) + own.astype(np.int32).reshape(shape)
        labels.append(tuple(map(str, names)))
    sizes = tuple(map(len, labels))
    flat, cell = values.reshape(-1), np.broadcast_to(code, values.shape).reshape(-1)
    defined = ~np.isnan(flat)
    flat, cell = flat[defined], cell[defined]
    count = np.bincount(cell, minlength=math.prod(sizes))
    rising = flat[np.lexsort((flat, cell))]
    begin = np.cumsum(count) - count
    largest, *columns = (
        run_percentiles(rising, begin, count, p).reshape(sizes) for p in (1.0, *percentiles)
    )
    table = np.stack(columns, axis=-1) if columns else np.empty((*sizes, 0))
    names = tuple(field.name for field in fields)
    count = count.reshape(sizes)
    return GroupTable(names, tuple(labels), tuple(percentiles), count, largest, table)
