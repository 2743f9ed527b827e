"""MIB, faithfulness curve: one number for circuits of all sizes, in three definitions.

With f(t) the faithfulness of the circuit that keeps a share t of the edges, t = .001 ... 1,

    `page`      f = m(C) / m(N) of logit differences without a corrupted baseline; edges kept in the
                order of layers, not of importance; edges become heads, other heads their means.
                CPR = int f dt and CMD = int (1 - f) dt by the trapezoidal rule from .001 to 1, so
                that CMD = .999 - CPR says nothing new, and may be negative.
    `mib`       the benchmark's: f = (m(C) - m(0)) / (m(N) - m(0)), edges by score, CMD with |1 - f|
    `repaired`  ours (`circuits.areas`, profile strict), over sizes and over their logarithm; above
                random rankings of two kinds, single edges and paths: either may be the better one

Of the page's area, 80 % belong to sizes above .2 and 5 % to those below .05: circuits that do
nothing below .2 reach .85, and f = t reaches .5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from jaxtyping import Float

from mechassay.circuits.areas import FRACTIONS
from mechassay.measurement.catalogue import thresholds
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, Drawn, NullTable, Scenario, simulate
from mechassay.measurement.variant import Condition, Flag, Quantity, quantity
from mechassay.records import Table
from mechassay.stats.intervals import trapezoid

ID = "MIB"
REPAIRED = (
    Condition("cpr_above_edges_low", ">", 0.0),
    Condition("cpr_above_paths_low", ">", 0.0),
)
SMALL, LITTLE = 0.1, 0.5
"""Sizes that count as small, and a faithfulness that counts as little."""
Faithfulness = Float[np.ndarray, "*lead sizes"]


def _area(f: Faithfulness, sizes: Sequence[float]) -> Float[np.ndarray, "*lead"]:
    areas = trapezoid(np.atleast_2d(f), np.asarray(sizes, dtype=float))
    return areas.reshape(f.shape[:-1])


def page_cpr(f: Faithfulness, sizes: Sequence[float] = FRACTIONS) -> Float[np.ndarray, "*lead"]:
    """The area under f, not normalised."""
    return _area(f, sizes)


def page_cmd(f: Faithfulness, sizes: Sequence[float] = FRACTIONS) -> Float[np.ndarray, "*lead"]:
    """The area between f and 1, with its sign."""
    return _area(1 - f, sizes)


def curve_area(
    page_f: Float[np.ndarray, "sizes"],
    repaired: Mapping[str, Quantity],
    *,
    mib: Mapping[str, Quantity],
    sizes: Sequence[float] = FRACTIONS,
    n: int = 0,
    flags: Sequence[Flag] = (),
) -> Measurement:
    """The areas of a ranking.

    Args:
        page_f: faithfulness of the page at each size; NaN where it is undefined.
        repaired: our areas, with the differences from both random rankings and their lower ends.
        mib: the benchmark's areas.
        n: prompts.
    """
    zero = "the model's logit difference is 0"
    small = page_f[np.asarray(sizes) <= SMALL]
    cpr = float(page_cpr(page_f, sizes))
    notes = list(flags)
    if cpr > 0.5 and np.all(small < LITTLE):
        notes.append(
            Flag(
                "nothing_at_small_sizes",
                f"The page's CPR is above .5, and f below {LITTLE:g} at all sizes up to"
                f" {SMALL:g}: nine tenths of its area are of larger ones.",
            )
        )
    if np.any(page_f > 1):
        notes.append(Flag("above_1", "f exceeds 1: its excess makes up for deficits elsewhere."))
    page = {
        "cpr": quantity(cpr, n=n, reason=zero),
        "cmd": quantity(float(page_cmd(page_f, sizes)), n=n, reason=zero),
    }
    rows = ({"size": size, "f": float(f)} for size, f in zip(sizes, page_f, strict=True))
    return Measurement.of(
        ID,
        page,
        {**repaired, **{f"mib_{name}": each for name, each in mib.items()}},
        REPAIRED,
        flags=notes,
        null=null(n or 40),
        tables=[Table.of("page's faithfulness", ("size",), rows)],
    )


# How often the thresholds err


@cache
def null(n: int = 40, n_simulations: int = N_SIMULATIONS, seed: int = 0) -> NullTable:
    """Rates of the conditions for `n` prompts, each with its own noise of .5 at every size."""
    sizes = np.asarray(FRACTIONS)

    def draw(rng: np.random.Generator, size: int, f: np.ndarray) -> Drawn:
        noise = 0.5 / np.sqrt(n)
        own = f + noise * rng.standard_normal((size, len(sizes)))
        own[:, -1] = 1
        # The spread of the gap of two areas whose points have this noise.
        widths = np.diff(sizes)
        weights = (np.append(widths, 0) + np.insert(widths, 0, 0)) / 2
        spread = noise * np.sqrt(2 * (weights[:-1] ** 2).sum())
        lows = {}
        for condition in REPAIRED:
            random = sizes + noise * rng.standard_normal((size, len(sizes)))
            random[:, -1] = 1
            lows[condition.quantity] = page_cpr(own) - page_cpr(random) - 1.96 * spread
        return {"page": {"cpr": page_cpr(own)}, "repaired": lows}

    scenarios = (
        Scenario(
            "a ranking like a random one, of which a share t of the edges keeps t",
            True,
            lambda rng, size: draw(rng, size, sizes),
        ),
        Scenario(
            "circuits that do all from a hundredth of the edges on",
            False,
            lambda rng, size: draw(rng, size, np.where(sizes < 0.01, 0.0, 1.0)),
        ),
    )
    limits = thresholds(ID, REPAIRED)
    return simulate(scenarios, limits, n, n_simulations=n_simulations, seed=seed)
