"""Differences that rounding alone may have made: they are 0, and no share divides by them.

Two runs that do the same sums in another order differ, although nothing does. A logit is the end of
a chain of dot products; its error is a random walk of one eps of its size a step, and over a chain
of 2^16 additions, as in a model with 30 blocks and a width of 1,000, it is about 2^8 eps. The
objective's values show how large the logits are that they come from, if not exactly: what counts is
the mean size of the values. The size of their mean is too small a measure, since values of either
sign cancel in it, and their errors do not.

The errors of many examples cancel in part, and the bound does not count on it: two examples may be
the same one. It is 6e-14 of the values' size in float64 and 3e-5 in float32. Half precision errs by
percents, which only an interval over examples can tell from an effect; its logits are summed in
float32, and so is the bound.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, DTypeLike

WALK = 2.0**8
"""Rounding errors, in eps of a number's size, of a random walk over 2^16 additions."""


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
