"""A grid's pairs by whether both prompts are built the same way: same template, or different ones.

What ablated edges carry comes from the corrupted prompt. With another template it is other words at
other places, and a circuit may fail there for reasons that have nothing to do with what its task
varies. So a grid over several templates is two populations, and each is said by itself, of the
circuit and of the empty circuit: mean, 99th percentile, maximum, and the share of the empty
circuit's mean that is left,

    left = mean KL(M(x) || C(x, x~)) / mean KL(M(x) || M(x~)).

1 is a circuit that explains nothing. Intervals resample prompts (`bootstrap`), for both circuits
the same ones, and reach as far as the part has inputs (`partial_grid.reach`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from mechassay.stats.intervals import LEVEL
from mechassay.stats.partial_grid import outside, reach
from mechassay.stats.two_way import N_RESAMPLES, grid_interval, two_way_draws

HIGH = 0.99
SAME, DIFFERENT = "same", "different"


@dataclass(frozen=True)
class Half:
    """The pairs of one kind.

    Attributes:
        pairs: same or different.
        n: pairs.
        circuit, empty: mean, 99th percentile and maximum in nats, each with low and high, NaN where
            there is no interval.
        left: mean of the circuit over that of the empty one, low and high.
    """

    pairs: str
    n: int
    circuit: dict[str, tuple[float, float, float]]
    empty: dict[str, tuple[float, float, float]]
    left: tuple[float, float, float]


def split_by(
    values: Float[np.ndarray, "clean corrupted"],
    empty: Float[np.ndarray, "clean corrupted"],
    clean: Sequence[str],
    corrupted: Sequence[str],
    seed: int,
    n_resamples: int = N_RESAMPLES,
    level: float = LEVEL,
) -> list[Half]:
    """The pairs whose prompts have the same label, and the others;
    a kind without pairs is left out.

    Args:
        values, empty: of a circuit and of the empty one; NaN is no pair.
        clean, corrupted: a label of every prompt of each side.
        seed: of the resampling.
    """
    same = np.asarray(clean)[:, None] == np.asarray(corrupted)[None, :]
    there = ~np.isnan(values)
    kinds = ((SAME, same & there), (DIFFERENT, ~same & there))
    return [
        _half(name, mask, values, empty, seed, n_resamples, level)
        for name, mask in kinds
        if mask.any()
    ]


def _half(
    name: str,
    mask: Bool[np.ndarray, "clean corrupted"],
    values: Float[np.ndarray, "clean corrupted"],
    empty: Float[np.ndarray, "clean corrupted"],
    seed: int,
    n_resamples: int,
    level: float,
) -> Half:
    inputs = (reach(mask),)
    # The same seed draws the same prompts for both.
    parts = [outside(each, mask) for each in (values, empty)]
    draws = [
        two_way_draws(each, np.random.default_rng(seed), (HIGH,), (), n_resamples) for each in parts
    ]
    tables: list[dict[str, tuple[float, float, float]]] = []
    for part, drawn in zip(parts, draws, strict=True):
        inside = part[mask].astype(float)
        mean, high = (
            grid_interval(drawn.mean, level, inputs),
            grid_interval(drawn.percentiles[:, 0], level, inputs, HIGH),
        )
        tables.append(
            {
                "mean": (float(inside.mean()), mean.low, mean.high),
                "99%": (float(np.quantile(inside, HIGH)), high.low, high.high),
                "max": (float(inside.max()), math.nan, math.nan),
            }
        )
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = grid_interval(draws[0].mean / draws[1].mean, level, inputs)
    below = tables[1]["mean"][0]
    left = tables[0]["mean"][0] / below if below > 0 else math.nan
    return Half(name, int(mask.sum()), tables[0], tables[1], (left, ratio.low, ratio.high))
