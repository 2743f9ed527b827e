"""Differences that rounding alone may have made: they are 0, and no share divides by them.

Two runs that do the same sums in another order differ, although nothing does. A logit is the end of
a chain of dot products; its error is a random walk of one eps of its size a step. Over 2^14
additions, as in 30 blocks of width 576, that is about 2^7 eps. Full and empty circuits of equal
prompts, which have nothing to differ in, differ by at most 80 eps an example in tiny models of five
families and in SmolLM2-135M, in float32 and in float64.

Objectives are differences of logits, or functions of them, so their rounding is that of their
terms. Only values are stored, and their mean size stands for that of the terms. The size of their
mean would be too small: values of either sign cancel in it, and their errors do not. That errors of
many examples cancel in part does not count either, since two examples may be the same one.

The bound is 3e-14 of the values' size in float64 and 2e-5 in float32. Half precision errs by
percents, which only an interval over examples can tell from an effect; its logits are made float32,
and the bound is that of float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, DTypeLike

WALK = 2.0**7
"""The rounding of a random walk over 2^14 additions, in eps of the size of what is added."""


def resolved_difference(
    a: ArrayLike,
    b: ArrayLike,
    values: Float[np.ndarray, "*runs n"],
    *,
    least: float = 0.0,
    dtype: DTypeLike | None = None,
) -> Any:
    """a - b, and exactly 0 where rounding alone may have made it; NaN stays NaN.

    Args:
        a, b: means of values, or of resamples of them, in any shapes that broadcast.
        values: the numbers that these are means of, of all runs: a row a run, a column an example.
            Of an example the largest in magnitude counts.
        least: the size of the numbers that the values are sums of, where that is known and larger:
            1 for a divergence near 0, whose terms p log p are of the order of 1.
        dtype: in which the values were computed; else float32 if it holds all of them exactly, as
            it does what was copied from there to float64, and float64 if not.

    Returns:
        float64, in the shape of a - b.
    """
    rows = np.atleast_2d(np.asarray(values, dtype=float))
    if dtype is None:
        with np.errstate(over="ignore"):
            single = np.array_equal(rows, rows.astype(np.float32), equal_nan=True)
        dtype = np.float32 if single else np.float64
    sizes = np.maximum(np.abs(rows).max(axis=0), least)
    difference = np.subtract(a, b, dtype=float)
    below = np.abs(difference) <= WALK * float(np.finfo(dtype).eps) * sizes.mean()
    return np.where(below, 0.0, difference)
