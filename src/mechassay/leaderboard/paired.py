"""How much better one row of a board is than another at a place, example by example.

What makes an example hard makes it hard for both rows, so the interval of their difference
resamples whole groups of examples once for both. Areas of faithfulness are compared as
`circuits.differences` does it: the intervals of all pairs of rows hold together. Rows that were
measured on other examples are not compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations

import numpy as np

from mechassay.circuits.differences import differences_of
from mechassay.errors import BadUsage
from mechassay.leaderboard.rules import BoardColumn
from mechassay.records import Record, Values
from mechassay.stats.intervals import Estimate, Resamples, percentile_interval

AREAS = "areas"

Pairs = dict[tuple[str, str], Estimate]


def paired_differences(column: BoardColumn, records: Mapping[str, Record], seed: int = 0) -> Pairs:
    """For each two rows, the first less the second with its 95 % interval.

    Args:
        records: of one place, by row.

    Returns:
        Nothing for a column without values of examples; NaN where a value is undefined.

    Raises:
        BadUsage: records that are not about the same examples.
    """
    if not column.paired or len(records) < 2:
        return {}
    if column.paired == AREAS:
        if column.name != "cpr" and column.name != "cmd":
            raise BadUsage(f"Areas are cpr and cmd; got the column {column.name}.")
        rows = list(records)
        found = differences_of(list(records.values()), column.name, names=rows, seed=seed)
        ends = found.values, found.low, found.high
        return {
            (rows[i], rows[j]): Estimate(*(float(each[i, j]) for each in ends))
            for i, j in combinations(range(len(rows)), 2)
        }
    held = {row: _column(column, row, record) for row, record in records.items()}
    return {(a, b): _difference((a, b), (held[a], held[b]), seed) for a, b in combinations(held, 2)}


def _column(column: BoardColumn, row: str, record: Record) -> tuple[Values, np.ndarray]:
    name = column.values_in(record, row)
    if record.values is None or name not in record.values.columns:
        raise BadUsage(f"The record of {row} has no values of examples named {name}.")
    return record.values, np.array(record.values.columns[name], dtype=float)


def _difference(
    rows: tuple[str, str],
    held: tuple[tuple[Values, np.ndarray], tuple[Values, np.ndarray]],
    seed: int,
) -> Estimate:
    (first, a), (second, b) = held
    if first.ids != second.ids:
        raise BadUsage(
            f"{rows[0]} and {rows[1]} were measured on other examples ({len(first.ids)} and"
            f" {len(second.ids)}): they are not compared."
        )
    less = a - b
    if np.isnan(less).any():
        return Estimate(math.nan)
    resamples = Resamples(first.groups or first.ids, np.random.default_rng(seed))
    draws = resamples.means(less[None])[:, 0]
    interval = percentile_interval(draws, n_groups=resamples.n_groups)
    return Estimate(float(less.mean()), interval.low, interval.high)
