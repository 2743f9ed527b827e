"""M12, adaptive sparsity: has a value as many active features as it needs?

k is how many features of a held-out value are active, x its norm.

`page`      the line k ~ x over all values says what to expect; a value is flagged if |k -
            expected| / expected > t, with t = 2 in the usage line; passes if less than a fifth
            are flagged. A dictionary with the same k for all values, which the metric is meant
            to condemn, lies on the line: 0 are flagged. At t = 2 no value can have too few. Norm
            is no complexity.
`repaired`  need is how many features matching pursuit (Mallat and Zhang 1993) takes until a
            value is as well reconstructed as the dictionary does half of them (`needed_by`). It
            is flagged if k > t need or k < need / t. Adaptivity is the slope of log k over log
            need: 0 at a fixed k, 1 if k is proportional to need. The lower end of its interval
            over documents has to be above 0, and less than a fifth may be flagged. Any other
            measure of complexity can stand for need.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import rankdata

from mechassay.measurement.catalogue import (
    Condition,
    Flag,
    PageMetric,
    Quantity,
    flag,
    page_metric,
    quantity,
    thresholds,
)
from mechassay.measurement.measurement import (
    N_SIMULATIONS,
    Drawn,
    Measurement,
    NullTable,
    Scenario,
    simulate,
)
from mechassay.measurement.metric import Gauge, GaugeInputs
from mechassay.saes.feature_matching import needed_by
from mechassay.saes.metrics.feature_tokens import given_dictionary
from mechassay.stats.intervals import (
    Interval,
    Resamples,
    percentile_interval,
    proportion_interval,
    resolved_difference,
)
from mechassay.utils.settings import Within, checked_settings

ID = "M12"
THRESHOLD = 2.0
SIMULATED = 500
"""Values of a simulation at most; with more, errors are rarer."""
REPAIRED = (Condition("k_mismatch_rate", "<", 0.2), Condition("adaptivity_low", ">", 0.0))
Counts = Float[np.ndarray, "n"]


def expected_k(k: Counts, x: Counts) -> Counts:
    """What the line through k over x says; the mean of k where x does not vary."""
    if not len(k):
        return k
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ (k - k.mean())) / spread if spread > 0 else 0.0
    return k.mean() + slope * centred


def page_deviation(k: Counts, x: Counts) -> Counts:
    """(k - expected) / expected; NaN where nothing is expected."""
    expected = expected_k(k, x)
    return np.divide(k - expected, expected, out=np.full(len(k), np.nan), where=expected != 0)


def mismatch(k: Counts, need: Counts, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    """Which values have more than `threshold` times the features they need, and which less than
    one in `threshold`.
    """
    return k > threshold * need, k * threshold < need


def adaptivity(
    k: Counts, need: Counts, groups: Sequence[str], rng: np.random.Generator
) -> tuple[float, Interval, int]:
    """The slope of log k over log need, its interval over groups, and of how many values.

    NaN where need does not vary. Values without features, or that need none, have no logarithm.
    """
    there = (k > 0) & (need > 0)
    y, x = np.log(k[there]), np.log(need[there])
    n, none = int(there.sum()), (math.nan, Interval(math.nan, math.nan), int(there.sum()))
    if n < 3 or np.ptp(x) == 0:
        return none
    if np.ptp(y) == 0:
        return 0.0, Interval(0.0, 0.0), n
    x, y = x - x.mean(), y - y.mean()
    draws = Resamples(np.asarray(groups)[there].tolist(), rng)
    mean_x, mean_y, xy, xx = draws.means(np.stack((x, y, x * y, x * x))).T
    variances = resolved_difference(xx, mean_x**2, x * x)
    slopes = (xy - mean_x * mean_y) / np.where(variances == 0, np.nan, variances)
    return float(x @ y / (x @ x)), percentile_interval(slopes, n_groups=draws.n_groups), n


def adaptive_sparsity(
    k: Counts,
    norms: Counts,
    need: Counts,
    groups: Sequence[str],
    *,
    threshold: float = THRESHOLD,
    most: int | None = None,
    seed: int = 0,
    flags: Iterable[Flag] = (),
) -> Measurement:
    """M12 of values.

    Args:
        k: active features of each value; norms: its length.
        need: features that it needs.
        groups: of the values, such as their documents.
        most: where `need` ends: a larger one stands for "more than that".
        seed: of the bootstrap.
    """
    n = len(k)
    notes = [*flags, *_flags(k, norms, need, threshold, most)]
    over, under = mismatch(k, need, threshold)
    both = (over | under).astype(float)
    slope, ends, n_slope = adaptivity(k, need, groups, np.random.default_rng(seed))
    varies = bool(n > 2 and np.ptp(k) > 0 and np.ptp(need) > 0)
    repaired = {
        "k_mismatch_rate": quantity(
            float(both.mean()) if n else None,
            interval=proportion_interval(both, groups) if n else None,
            n=n,
        ),
        "over_activation_rate": _mean(over),
        "under_activation_rate": _mean(under),
        "adaptivity": quantity(slope, interval=ends, n=n_slope),
        "adaptivity_low": quantity(ends.low, n=n_slope),
        "need_k_correlation": quantity(
            float(np.corrcoef(rankdata(need), rankdata(k))[0, 1]) if varies else None, n=n
        ),
        "mean_k": _mean(k),
        "mean_need": _mean(need),
    }
    return Measurement.of(
        ID,
        _page(k, norms, threshold),
        repaired,
        REPAIRED,
        flags=notes,
        null=null(min(max(n, 10), SIMULATED)),
        words={"threshold": threshold},
    )


def _flags(
    k: Counts, norms: Counts, need: Counts, threshold: float, most: int | None
) -> Iterable[Flag]:
    if len(k) and np.ptp(k) == 0:
        yield flag("fixed_k", k=k[0])
    if threshold >= 1:
        yield flag("under_unreachable", threshold=threshold)
    if len(k) and (below := int((expected_k(k, norms) <= 0).sum())):
        yield flag("nothing_expected", below=below)
    if none := int((k == 0).sum()):
        yield flag("none_active", none=none, n=len(k))
    if most is not None and (beyond := int((need > most).sum())):
        yield flag("need_not_reached", beyond=beyond, n=len(k), most=most, stands_as=most + 1)


def _page(k: Counts, norms: Counts, threshold: float) -> dict[str, Quantity]:
    deviation = page_deviation(k, norms)
    # To the letter: of a negative expectation the ratio is negative, and never above it.
    expected = expected_k(k, norms)
    flagged = (np.abs(deviation) > threshold) & (expected > 0)
    varies = bool(len(k) > 1 and np.ptp(k) > 0 and np.ptp(norms) > 0)
    return {
        "k_mismatch_rate": _mean(flagged),
        "complexity_k_correlation": quantity(
            float(np.corrcoef(norms, k)[0, 1]) if varies else None, n=len(k)
        ),
        "over_activation_rate": _mean(flagged & (deviation > 0)),
        "under_activation_rate": _mean(flagged & (deviation < 0)),
    }


def _mean(values: np.ndarray) -> Quantity:
    return quantity(float(values.mean()) if len(values) else None, n=len(values))


# How often the thresholds err


@cache
def null(n: int = SIMULATED, n_simulations: int = N_SIMULATIONS // 2, seed: int = 0) -> NullTable:
    """Rates of the conditions for `n` values, at a threshold of 2."""

    def draw(rng: np.random.Generator, size: int, kind: str) -> Drawn:
        names = ("page", "rate", "low")
        drawn = {name: np.empty(size) for name in names}
        for row in range(size):
            need = np.round(32 * np.exp(0.5 * rng.standard_normal(n))).clip(1)
            k = {
                "fixed": np.full(n, 32.0),
                "apart": np.round(32 * np.exp(0.5 * rng.standard_normal(n))).clip(1),
                "follows": np.round(need * np.exp(0.2 * rng.standard_normal(n))).clip(1),
            }[kind]
            norms = np.exp(0.3 * rng.standard_normal(n))
            drawn["page"][row] = (np.abs(page_deviation(k, norms)) > THRESHOLD).mean()
            over, under = mismatch(k, need, THRESHOLD)
            drawn["rate"][row] = (over | under).mean()
            if kind == "fixed":
                drawn["low"][row] = 0.0
            else:
                fit, errors = np.polyfit(np.log(need), np.log(k), 1, cov=True)
                drawn["low"][row] = fit[0] - 1.96 * math.sqrt(errors[0, 0])
        repaired = {"k_mismatch_rate": drawn["rate"], "adaptivity_low": drawn["low"]}
        return {"page": {"k_mismatch_rate": drawn["page"]}, "repaired": repaired}

    scenarios = (
        Scenario(
            "32 features for every value, whatever it needs",
            True,
            lambda rng, size: draw(rng, size, "fixed"),
        ),
        Scenario(
            "numbers of features that have nothing to do with what values need",
            True,
            lambda rng, size: draw(rng, size, "apart"),
        ),
        Scenario(
            "as many features as a value needs, give or take a fifth",
            False,
            lambda rng, size: draw(rng, size, "follows"),
        ),
    )
    limits = thresholds(ID, REPAIRED)
    return simulate(scenarios, limits, n, n_simulations=n_simulations, seed=seed)


TIMES = 4
"""The search for what a value needs ends at so many times the mean number of active features."""


@dataclass(frozen=True)
@checked_settings
class AdaptiveSparsity(Gauge):
    """Has a value as many active features as it needs?

    Attributes:
        mismatch_threshold: of the page a deviation from what is expected; of the repaired variant a
            ratio to what is needed.
        n_values: that are searched, spread evenly over the test documents.
    """

    mismatch_threshold: Annotated[float, Within(above=1)] = THRESHOLD
    n_values: Annotated[int, Within(3)] = 1000

    about: ClassVar[PageMetric] = page_metric(ID)
    default_n: ClassVar[int] = SIMULATED

    def measure(self, inputs: GaugeInputs) -> Measurement:
        sae, store = given_dictionary(inputs)
        total = store.n_rows("test")
        some = (
            torch.linspace(0, total - 1, min(total, self.n_values), dtype=torch.float32)
            .round()
            .long()
        )
        values = store.values("test")[some].float()
        mean_k = float((sae.encode(values) != 0).sum(dim=1).float().mean())
        most = min(sae.n_features, max(8, round(TIMES * mean_k)))
        k, need = needed_by(sae, values, most)
        return adaptive_sparsity(
            k.double().numpy(),
            values.norm(dim=1).double().numpy(),
            need.double().numpy(),
            [str(x) for x in store.rows("test")[some].tolist()],
            threshold=self.mismatch_threshold,
            most=most,
            seed=inputs.seed,
            flags=[flag("position_0")] if store.settings.drop == 0 else (),
        )

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for `n` values."""
        return null(n, n_simulations, seed)
