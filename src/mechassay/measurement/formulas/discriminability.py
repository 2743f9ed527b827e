"""EX24, audit of a metric: is it steady, and does it tell two configurations apart?

With values a_r, b_r of two configurations over reseeds r, of which the first is known to be better,

    CV = sd(a) / |mean(a)|                d = (mean(a) - mean(b)) / pooled sd          (Cohen's d)

`page`      these; a reseed draws a subsample of the prompts. A metric without noise has no d, and
            one with hardly any has a d as large as one likes.
`repaired`  Hedges's g, d without its bias at few reseeds; the signal-to-noise ratio; the smallest
            reliable difference 1.96 sqrt(2) sd; and the difference itself with an interval over
            prompts, both configurations resampled together. It has to be above 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from jaxtyping import Float

from mechassay.measurement.catalogue import thresholds
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, Drawn, NullTable, Scenario, simulate
from mechassay.measurement.variant import Condition, Flag, Quantity, quantity
from mechassay.records import Table
from mechassay.stats.intervals import Interval
from mechassay.stats.rounding import resolved_difference

ID = "EX24"
REPAIRED = (Condition("cv", "<", 0.05), Condition("difference_low", ">", 0.0))
Reseeds = Float[np.ndarray, "reseeds"]


@dataclass(frozen=True)
class ConfigurationPair:
    """A metric's values for two configurations, of which the first is better.

    Attributes:
        better, worse: over the same reseeds.
        difference: on all prompts, with its interval over them.
    """

    name: str
    better: Reseeds
    worse: Reseeds
    difference: float
    interval: Interval


def coefficient_of_variation(values: Reseeds) -> float:
    """sd / |mean|, with n - 1; NaN at a mean of 0 or for one value."""
    mean = float(resolved_difference(values.mean(), 0.0, values))
    return float(values.std(ddof=1)) / abs(mean) if len(values) > 1 and mean != 0 else math.nan


def pooled_sd(a: Reseeds, b: Float[np.ndarray, "m"]) -> float:
    """The root of the mean of both variances, by their degrees of freedom; 0 where values differ by
    rounding alone.
    """
    n, m = len(a), len(b)
    if n + m < 3:
        return math.nan
    spread = math.sqrt((n * a.var() + m * b.var()) / (n + m - 2))
    return float(resolved_difference(spread, 0.0, np.concatenate((a, b))))


def cohens_d(a: Reseeds, b: Float[np.ndarray, "m"]) -> float:
    """(mean(a) - mean(b)) / pooled sd; NaN where that is 0."""
    sd = pooled_sd(a, b)
    return float(a.mean() - b.mean()) / sd if sd > 0 else math.nan


def hedges_g(a: Reseeds, b: Float[np.ndarray, "m"]) -> float:
    """Cohen's d without its bias at small n: d (1 - 3 / (4 df - 1)) (Hedges 1981)."""
    return cohens_d(a, b) * (1 - 3 / (4 * (len(a) + len(b) - 2) - 1))


def discriminability(
    pairs: Sequence[ConfigurationPair], *, flags: Iterable[Flag] = (), n_prompts: int = 50
) -> Measurement:
    """EX24 of a metric; the first pair of configurations decides, all are in the table."""
    first, notes = pairs[0], list(flags)
    sd = pooled_sd(first.better, first.worse)
    if sd == 0:
        notes.append(Flag("no_noise", "The values do not vary over reseeds: d divides by 0."))
    n = len(first.better)
    cv = coefficient_of_variation(first.better)
    page = {
        "cv": quantity(cv, n=n, reason="the mean is 0, or there is one reseed", better="down"),
        "discriminability_d": quantity(
            cohens_d(first.better, first.worse), n=n, reason="the values do not vary", better="up"
        ),
    }
    rows = [_row(pair) for pair in pairs]
    return Measurement.of(
        ID,
        page,
        _repaired(first, cv, sd, n_prompts),
        REPAIRED,
        flags=notes,
        null=null(n_prompts, n),
        tables=[Table.of("configurations", ("configurations",), rows)],
    )


def _repaired(pair: ConfigurationPair, cv: float, sd: float, n_prompts: int) -> dict[str, Quantity]:
    n, own = len(pair.better), float(pair.better.std(ddof=1)) if len(pair.better) > 1 else math.nan
    still = "the values do not vary"
    gap = abs(float(pair.better.mean() - pair.worse.mean()))
    return {
        "cv": quantity(
            cv,
            n=n,
            reason="the mean is 0, or there is one reseed",
            meaning="Spread over reseeds as a share of the mean; only for scales with a true 0.",
            better="down",
        ),
        "difference": quantity(
            pair.difference,
            interval=pair.interval,
            n=n_prompts,
            meaning="The better configuration less the worse one, interval over prompts.",
            better="up",
        ),
        "difference_low": quantity(
            pair.interval.low, n=n_prompts, reason="one group has no interval"
        ),
        "hedges_g": quantity(
            hedges_g(pair.better, pair.worse), n=n, reason=still, meaning="d without its bias."
        ),
        "snr": quantity(
            gap / sd if sd > 0 else math.nan,
            n=n,
            reason=still,
            meaning="Difference of the configurations over the spread of reseeds.",
            better="up",
        ),
        "minimum_difference": quantity(
            1.96 * math.sqrt(2) * own,
            n=n,
            meaning="The smallest difference of two values that is beyond the reseeds' noise.",
        ),
    }


def _row(pair: ConfigurationPair) -> Mapping[str, float | str]:
    return {
        "configurations": pair.name,
        "better": float(pair.better.mean()),
        "worse": float(pair.worse.mean()),
        "cv": coefficient_of_variation(pair.better),
        "d": cohens_d(pair.better, pair.worse),
        "hedges_g": hedges_g(pair.better, pair.worse),
        "difference": pair.difference,
        "low": pair.interval.low,
        "high": pair.interval.high,
    }


# How often the thresholds err


@cache
def null(
    n: int = 50, reseeds: int = 10, n_simulations: int = N_SIMULATIONS, seed: int = 0
) -> NullTable:
    """Rates of the conditions for `reseeds` subsamples of `n` prompts."""
    scenarios = (
        Scenario(
            "two configurations that are the same, prompts 3 with spread 1",
            True,
            lambda rng, size: _drawn(rng, size, n, reseeds, 0.0),
        ),
        Scenario(
            "the worse one is lower by half a spread of prompts",
            False,
            lambda rng, size: _drawn(rng, size, n, reseeds, 0.5),
        ),
    )
    return simulate(scenarios, thresholds(ID, REPAIRED), n, n_simulations=n_simulations, seed=seed)


def _drawn(rng: np.random.Generator, size: int, n: int, reseeds: int, gap: float) -> Drawn:
    better, worse = (3 - shift + rng.standard_normal((size, n)) for shift in (0.0, gap))
    cv, d = np.empty(size), np.empty(size)
    for row in range(size):
        picks = rng.random((reseeds, n)).argsort(axis=1)[:, : round(0.75 * n)]
        a, b = better[row][picks].mean(axis=1), worse[row][picks].mean(axis=1)
        cv[row], d[row] = coefficient_of_variation(a), cohens_d(a, b)
    differences = better - worse
    low = differences.mean(axis=1) - 1.96 * differences.std(axis=1, ddof=1) / math.sqrt(n)
    return {
        "page": {"cv": cv, "discriminability_d": d},
        "repaired": {"cv": cv, "difference_low": low},
    }
