"""Is a printed table that of a circuit, or that of the model on corrupted prompts?

A table has some percentiles of a distribution. The distance of a distribution from it is the mean
of

    |ln(percentile here / percentile printed)|

over the percentiles that both have, so that 0.1 is a difference of about 10 % at a typical
percentile. Both are taken to be at least `LEAST_NATS`, the precision of what is printed. Only
percentiles that the sample reaches to are compared (`bootstrap.within_reach`). The table is closer
to the circuit, or to the empty circuit, if the interval of the difference of the two distances
excludes 0: two-way resampling, the same prompts for both. Nothing can be told of another model than
the table's, of a sample that does not reach the 95th percentile, or where the two distances do not
differ by more than their noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from mechassay.models.model import Model
from mechassay.stats.intervals import percentile_interval
from mechassay.stats.two_way import N_RESAMPLES, two_way_draws, within_reach

PERCENTILES = {
    "25%": 0.25,
    "50%": 0.5,
    "75%": 0.75,
    "95%": 0.95,
    "99%": 0.99,
    "99.9%": 0.999,
    "99.99%": 0.9999,
}
NEEDED = "95%"
LEAST_NATS = 0.01
GPT2_SHAPE, GPT2_VOCABULARY = (12, 12, 768), 50257
GPT2_WEIGHTS = (-0.1101, -0.0393, 0.0331)
"""Of the first token's embedding, to four digits: models of this shape are many,
with these numbers just the one (and copies of it).
"""
ATTN_ONLY_SHAPE, ATTN_ONLY_VOCABULARY = (4, 8, 512), 48262


@dataclass(frozen=True)
class Closeness:
    """How far a table is from a circuit and from the empty circuit.

    Attributes:
        why_not: why nothing can be told, else "".
        circuit, empty: the two distances.
        low, high: of the first minus the second; NaN where nothing can be told.
        compared: names of the percentiles.
    """

    why_not: str
    circuit: float = math.nan
    empty: float = math.nan
    low: float = math.nan
    high: float = math.nan
    compared: tuple[str, ...] = ()

    @property
    def closer_to(self) -> str:
        """The circuit, the empty circuit, or that it cannot be told, and why."""
        if self.why_not:
            return f"cannot be told: {self.why_not}"
        if self.low > 0 or self.high < 0:
            return "the empty circuit" if self.low > 0 else "the circuit"
        return "cannot be told: it is about as far from the one as from the other"


def closeness(
    values: Float[np.ndarray, "clean corrupted"],
    empty: Float[np.ndarray, "clean corrupted"],
    printed: Mapping[str, float],
    units: int | float,
    seed: int,
    n_resamples: int = N_RESAMPLES,
) -> Closeness:
    """The distances of a circuit's and the empty circuit's divergences from a printed table.

    Args:
        values, empty: NaN is no pair.
        printed: percentiles by name ("95%").
        units: independent pairs that the grid is worth, see `Design.n_units`.
    """
    names = tuple(
        name for name, p in PERCENTILES.items() if name in printed and within_reach((units,), p)
    )
    if NEEDED not in names:
        return Closeness(
            f"{units:.0f} prompts a side are too few for the {NEEDED[:-1]}th percentile, which"
            " takes 100"
        )
    shares = [PERCENTILES[name] for name in names]
    table = np.array([printed[name] for name in names])
    points = [
        _distance(np.quantile(each[~np.isnan(each)].astype(float), shares)[None], table)[0]
        for each in (values, empty)
    ]
    # The same seed draws the same prompts for both.
    draws = [
        _distance(
            two_way_draws(each, np.random.default_rng(seed), shares, (), n_resamples).percentiles,
            table,
        )
        for each in (values, empty)
    ]
    low, high, _ = percentile_interval(draws[0] - draws[1])
    if math.isnan(low):
        return Closeness("some resamples have no pair")
    return Closeness("", float(points[0]), float(points[1]), low, high, names)


def _distance(
    found: Float[np.ndarray, "draws p"], printed: Float[np.ndarray, "p"]
) -> Float[np.ndarray, "draws"]:
    return np.abs(np.log(np.maximum(found, LEAST_NATS) / np.maximum(printed, LEAST_NATS))).mean(
        axis=1
    )


def other_model(model: Model, task: str) -> str:
    """Why a model is not the one that the paper's table of a task is of; nothing if it is."""
    graph, decoder = model.graph, model.decoder
    shape, words = (graph.n_layers, graph.n_heads, decoder.d_model), decoder.embedding.shape[0]
    if task == "docstring":
        # Its weights are in no checkpoint that we could have compared with.
        same = (shape, words) == (ATTN_ONLY_SHAPE, ATTN_ONLY_VOCABULARY) and not graph.mlp
        return "" if same else f"{model.name} has not the shape of attn-only-4l"
    same = (shape, words) == (GPT2_SHAPE, GPT2_VOCABULARY) and model.family == "gpt2"
    if same:
        weights = decoder.embedding[0, : len(GPT2_WEIGHTS)].float().cpu()
        same = bool(torch.allclose(weights, torch.tensor(GPT2_WEIGHTS), atol=1e-3))
    return "" if same else f"{model.name} is not GPT-2 small"
