"""Numbers that sum up how good the circuits of a ranking are; of all of them higher is better.

A circuit of a batch of n pairs is an array [4, n]: the objective, KL(model, circuit), whether the
answer beats the foils, and whether the best token is the model's. With m(C), m(N) and m(0) the
objective of circuit, model and empty circuit, d = m(N) - m(0) and e = m(C) - m(N),

    f           mean (m(C) - m(0)) / mean d              (Mueller et al. 2025, eq. 1)
    closeness   1 - |1 - f|
    tent        closeness, at least 0
    agreement   sum max(0, |d| - |e|) / sum |d|          (`mechassay.circuits.series.agreement`)
    rms         1 - root mean square e / root mean square d, at least 0
    accuracy    (accuracy - accuracy(0)) / (accuracy(N) - accuracy(0)), in [0, 1]
    same token  the share of pairs with the model's best token
    kl          1 - mean KL / mean KL(0), at least 0

A measure is a weighted sum of one of these over sizes (`Area`), or one less the smallest size from
which it stays high (`Smallest`). The weights are those of the profiles `strict`, also in log size,
and `mib-2025`. What is divided by 0 is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float

from mechassay.circuits.scores import By
from mechassay.circuits.series import agreement, step_weights, trapezoid_weights

OBJECTIVE, DIVERGENCE, RIGHT, SAME = range(4)
"""What is known of a circuit on a pair."""
HIGH = 0.9
"""What is kept of a behaviour that counts as whole."""
Values = Float[np.ndarray, "circuits 4 n"]
Cut = Literal["strict", "mib-2025", "dense"]


class Ends(NamedTuple):
    """The empty circuit and the model [4, n], and m(N) - m(0), NaN where it may be 0."""

    empty: Float[np.ndarray, "4 n"]
    full: Float[np.ndarray, "4 n"]
    gap: float


class CutCircuits(NamedTuple):
    """The circuits of one ranking: nominal sizes, sizes after pruning, as shares, and values."""

    nominal: Float[np.ndarray, "circuits"]
    kept: Float[np.ndarray, "circuits"]
    values: Values


Cuts = Mapping[tuple[By, Cut], CutCircuits]


def _over(values: np.ndarray, whole: float) -> np.ndarray:
    return values / (whole if whole != 0 else math.nan)


def quantities(values: Values, ends: Ends) -> dict[str, Float[np.ndarray, "circuits"]]:
    """All quantities of the table above, of each circuit."""
    empty, full = ends.empty, ends.full
    effect, error = full[OBJECTIVE] - empty[OBJECTIVE], values[:, OBJECTIVE] - full[OBJECTIVE]
    f = (values[:, OBJECTIVE].mean(axis=1) - empty[OBJECTIVE].mean()) / ends.gap
    closeness = 1 - np.abs(1 - f)
    right, none, whole = (x[..., RIGHT, :].mean(axis=-1) for x in (values, empty, full))
    missed = _over((error**2).mean(axis=1), float((effect**2).mean()))
    lost = _over(values[:, DIVERGENCE].mean(axis=1), float(empty[DIVERGENCE].mean()))
    return {
        "f": f,
        "closeness": closeness,
        "clipped": np.clip(f, 0, 1),
        "tent": np.maximum(closeness, 0),
        "agreement": agreement(
            full=full[OBJECTIVE], empty=empty[OBJECTIVE], circuit=values[:, OBJECTIVE]
        ),
        "rms": np.maximum(1 - np.sqrt(missed), 0),
        "accuracy": np.clip(_over(right - none, float(whole - none)), 0, 1),
        "same token": values[:, SAME].mean(axis=1),
        "kl": np.maximum(1 - lost, 0),
    }


Heights = Mapping[str, Float[np.ndarray, "circuits"]]
"""Quantities of one ranking's circuits, the empty circuit before them."""


@dataclass(frozen=True)
class Area:
    """A weighted sum over sizes; the empty circuit has a weight of its own in `strict`."""

    quantity: str
    by: By = "magnitude"
    cut: Cut = "strict"
    log: bool = False

    def value(self, circuits: CutCircuits, heights: Heights) -> float:
        if self.cut == "mib-2025":
            weights = np.insert(trapezoid_weights(circuits.nominal.tolist()), 0, 0.0)
        else:
            first = float(circuits.nominal[0])
            weights = step_weights(circuits.kept.tolist(), first, log=self.log)
        return float(weights @ heights[self.quantity])


@dataclass(frozen=True)
class Smallest:
    """1 - the smallest size from which a quantity stays at `HIGH` or more."""

    quantity: str
    by: By = "magnitude"
    cut: Cut = "dense"

    def value(self, circuits: CutCircuits, heights: Heights) -> float:
        line = heights[self.quantity]
        if np.isnan(line).any():
            return math.nan
        low = np.flatnonzero(line < HIGH)
        sizes = np.concatenate(([0.0], circuits.kept, [1.0]))
        return 1 - float(sizes[low[-1] + 1 if len(low) else 0])


REFERENCE = "CMA"
MEASURES: Mapping[str, Area | Smallest] = {
    REFERENCE: Area("agreement"),
    "CMA by value": Area("agreement", "value"),
    "CMA, log size": Area("agreement", log=True),
    "CMA, 24 sizes": Area("agreement", cut="dense"),
    "CPR, mib-2025": Area("f", "value", "mib-2025"),
    "CPR": Area("f", "value"),
    "CMD, mib-2025": Area("closeness", cut="mib-2025"),
    "CMD": Area("closeness"),
    "f by magnitude": Area("f"),
    "clipped": Area("clipped"),
    "clipped by value": Area("clipped", "value"),
    "tent": Area("tent"),
    "tent by value": Area("tent", "value"),
    "1 - RMS": Area("rms"),
    "accuracy": Area("accuracy"),
    "same best token": Area("same token"),
    "KL faithfulness": Area("kl"),
    "S90": Smallest("tent"),
    "S90 of A": Smallest("agreement"),
}
"""By the name in the tables. Those called CMD are 1 - CMD, but for a constant in `mib-2025`."""


def all_measures(cuts: Cuts, ends: Ends) -> dict[str, float]:
    """Every measure of one scoring, from its circuits by ranking and cut."""
    heights = {
        key: quantities(np.insert(circuits.values, 0, ends.empty, axis=0), ends)
        for key, circuits in cuts.items()
    }
    worked: dict[str, float] = {}
    for name, measure in MEASURES.items():
        key: tuple[By, Cut] = (measure.by, measure.cut)
        worked[name] = measure.value(cuts[key], heights[key])
    return worked
