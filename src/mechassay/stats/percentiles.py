"""Interpolated sample percentiles of sorted runs.

The percentile p of c sorted values lies at the place (c - 1) p, counted from 0, on the line between
its two neighbours (the usual definition of numpy and pandas, and of the tables of the paper on
adversarial circuit evaluation). It estimates the population's percentile; it is no bound of it.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int


def run_percentiles(
    rising: Float[np.ndarray, "n"],
    begin: Int[np.ndarray, "*cells"],
    count: Int[np.ndarray, "*cells"],
    p: float,
) -> Float[np.ndarray, "*cells"]:
    """The percentile p, 0 <= p <= 1, of each run rising[begin : begin + count]; NaN of empty runs.

    Args:
        rising: values, sorted within each run.
    """
    place = np.maximum(count - 1, 0) * p
    low = place.astype(np.int64)
    share = place - low
    full = count > 0
    first = np.where(full, begin, 0)
    left = rising[first + low].astype(float) if rising.size else np.zeros(np.shape(begin))
    right = (
        rising[first + np.minimum(low + 1, np.maximum(count - 1, 0))].astype(float)
        if rising.size
        else left
    )
    # Between equal values nothing is interpolated, so that infinite ones stay what they are.
    with np.errstate(invalid="ignore"):
        between = np.where((share == 0) | (left == right), left, left + (right - left) * share)
    return np.where(full, between, np.nan)
