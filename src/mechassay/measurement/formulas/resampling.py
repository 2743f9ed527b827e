"""Resamples of whole groups of prompts, as weights of the prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

N_RESAMPLES = 1000


def example_weights(
    groups: Sequence[str], rng: np.random.Generator, n_resamples: int = N_RESAMPLES
) -> tuple[Float[np.ndarray, "resamples n"], int]:
    """How often each resample has each example, and how many groups there are.

    Groups are drawn with replacement, each with all its examples.
    """
    names, member = np.unique(np.asarray(groups), return_inverse=True)
    n = len(names)
    counts = rng.multinomial(n, np.full(n, 1 / n), size=n_resamples).astype(float)
    return counts[:, member], n


def weighted_means(
    weights: Float[np.ndarray, "resamples n"], values: Float[np.ndarray, "n"]
) -> Float[np.ndarray, "resamples"]:
    """The mean of the values in every resample."""
    return weights @ values / weights.sum(axis=1)
