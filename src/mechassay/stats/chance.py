"""What chance alone may reach: a limit from random draws, for the best of several tries.

A method's number is compared with those of k random draws, such as rankings of edges. Resampling
examples says nothing of how far one draw lies from another, so the draws themselves set the limit.
With m methods tried, noise e of the examples, and mean a and standard deviation s of the draws,

    k >= 20 m        the largest of the draws: a random ranking beats all k with probability
                     1 / (k + 1), so that one of m does in at most 5 % of runs
    5 <= k < 20 m    the larger of that and  a + t sqrt(s^2 (1 + 1/k) + e^2),  t the quantile
                     1 - .02 / m of Student's distribution with 3 degrees of freedom
    k < 5            none: nothing can be said

The second line is for a new draw from the same distribution (s sqrt(1 + 1/k)), with Bonferroni's
correction. Areas of random rankings have long tails to the good side, so the usual k - 1 degrees
and .05 / m let chance pass too often: of sixteen random rankings one looks good in up to 14 % of
runs. Three degrees and .02 / m keep within 5 % in every case that was simulated (docs/areas.md).
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

FEW_DRAWS = 5
"""Fewer draws than this set no limit."""
DRAWS_PER_TRY = 20
"""So many draws for each try, and the largest of them is the limit."""
DEGREES, ERROR = 3, 0.02


def chance_limit(
    draws: Float[np.ndarray, "draws"], *, n_tried: int = 1, noise: float = 0.0
) -> float:
    """What the best of `n_tried` results has to exceed to be better than chance.

    Args:
        draws: what random draws reach; higher is better.
        noise: the standard error of a result less the mean of the draws, over examples.

    Returns:
        NaN for fewer than `FEW_DRAWS` draws, or undefined ones.
    """
    k = len(draws)
    if k < FEW_DRAWS or np.isnan(draws).any():
        return math.nan
    largest = float(np.max(draws))
    if k >= DRAWS_PER_TRY * n_tried:
        return largest
    if math.isnan(noise):
        return math.nan
    quantile = float(stdtrit(DEGREES, 1 - ERROR / n_tried))
    spread = math.sqrt(float(np.var(draws, ddof=1)) * (1 + 1 / k) + noise**2)
    return max(largest, float(np.mean(draws)) + quantile * spread)
