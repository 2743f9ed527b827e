"""EX24, audit of a metric: is it steady, and does it tell two configurations apart?

With values a_r, b_r of two configurations over reseeds r, the first of which is known as better,

    CV = sd(a) / |mean(a)|            d = (mean(a) - mean(b)) / pooled sd            (Cohen's d)

`page`      these; a reseed draws a subsample of the prompts. A metric without noise has no d,
            and one with hardly any has a d as large as one likes.
`repaired`  Hedges's g, d without its bias at few reseeds; the signal-to-noise ratio; the
            smallest reliable difference 1.96 sqrt(2) sd; and the difference itself with an
            interval over prompts, both configurations resampled together. It has to be above 0.

The pairs of configurations are

    circuit   ablation recovery of the circuit, and of as many edges drawn at random
    sae       logit-difference recovery with the site's values replaced by their reconstruction,
              and by one whose decoder rows are permuted

Reseeds are subsamples of the prompts, the same for both configurations. All prompts are run
once: the value of a subsample is that of its prompts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Annotated, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods.random import Random
from mechassay.errors import BadUsage
from mechassay.features.featurizer import Featurizer
from mechassay.interventions.intervene import intervene
from mechassay.measurement.catalogue import (
    Condition,
    Flag,
    PageMetric,
    Quantity,
    VariantName,
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
from mechassay.measurement.metrics.circuit_runs import by_counterfactual
from mechassay.models.objectives import least_size
from mechassay.results.records import Table
from mechassay.stats.intervals import (
    Interval,
    example_weights,
    percentile_interval,
    resolved_difference,
)
from mechassay.utils.settings import Within, checked_settings

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
        notes.append(flag("no_noise"))
    n = len(first.better)
    cv = coefficient_of_variation(first.better)
    page = {
        "cv": quantity(cv, n=n),
        "discriminability_d": quantity(cohens_d(first.better, first.worse), n=n),
    }
    rows = [
        {
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
        for pair in pairs
    ]
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
    gap = abs(float(pair.better.mean() - pair.worse.mean()))
    return {
        "cv": quantity(cv, n=n),
        "difference": quantity(pair.difference, interval=pair.interval, n=n_prompts),
        "difference_low": quantity(pair.interval.low, n=n_prompts),
        "hedges_g": quantity(hedges_g(pair.better, pair.worse), n=n),
        "snr": quantity(gap / sd if sd > 0 else math.nan, n=n),
        "minimum_difference": quantity(1.96 * math.sqrt(2) * own, n=n),
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


Means = Float[np.ndarray, "resamples parts"]


@dataclass(frozen=True, eq=False)
class Reconstruct:
    """A site's value in the words of a featurizer: decode(encode(b)).

    Attributes:
        order: of the features between encoding and decoding; None leaves them in theirs.
    """

    featurizer: Featurizer
    order: Int[Tensor, "k"] | None = None

    needs_source: bool = field(default=False, init=False, repr=False)
    keeps_equal: bool = field(default=False, init=False, repr=False)

    def __call__(self, base: Tensor, source: Tensor | None) -> Tensor:
        features = self.featurizer.encode(base)
        if self.order is not None:
            features = features[:, self.order.to(features.device)]
        return self.featurizer.decode(features).to(base.dtype)


@dataclass(frozen=True)
@checked_settings
class Audit(Gauge):
    """Is a metric steady over reseeds, and does it tell a good configuration from a bad one?

    Attributes:
        n_reseeds: subsamples of the prompts.
        share: of the prompts in each.
    """

    n_reseeds: Annotated[int, Within(2)] = 10
    share: Annotated[float, Within(above=0, below=1)] = 0.75

    about: ClassVar[PageMetric] = page_metric(ID)
    default_n: ClassVar[int] = 50
    score: ClassVar[Mapping[VariantName, str]] = MappingProxyType(
        {"page": "discriminability_d", "repaired": "difference_low"}
    )

    def measure(self, inputs: GaugeInputs) -> Measurement:
        pairs: list[ConfigurationPair] = []
        flags: list[Flag] = []
        if inputs.has("circuit"):
            pairs.append(self._circuits(inputs))
            size = inputs.circuit.size
            if not 0.005 <= size <= 0.02:
                flags.append(flag("other_size", size=size))
        if inputs.has("sae"):
            pairs.append(self._dictionaries(inputs))
        return discriminability(pairs, flags=flags, n_prompts=len(inputs.batch))

    def _circuits(self, inputs: GaugeInputs) -> ConfigurationPair:
        circuit, graph = inputs.circuit, inputs.model.graph
        random = Random(seed=inputs.seed).draw(graph).top(len(circuit))
        arms = [Circuit.full(graph), Circuit.empty(graph), circuit, random]
        parts = by_counterfactual(inputs, arms)

        def of(place: int) -> Callable[[Means], np.ndarray]:
            def share(means: Means) -> np.ndarray:
                gaps = resolved_difference(
                    means[:, 0], means[:, 1], parts[:2], least=least_size(inputs.objective.name)
                )
                return (means[:, place] - means[:, 1]) / np.where(gaps == 0, np.nan, gaps)

            return share

        name = f"circuit of {len(circuit)} edges, as many random edges"
        return self._pair(name, inputs, parts, of(2), of(3))

    def _dictionaries(self, inputs: GaugeInputs) -> ConfigurationPair:
        model, batch, site = inputs.model, inputs.batch, inputs.site
        width = self._width(inputs)
        order = torch.from_numpy(np.random.default_rng(inputs.seed).permutation(width))

        def output(change: Reconstruct) -> Float[np.ndarray, "n"]:
            final = intervene(model, batch, {site: change}).final
            with torch.no_grad():
                values = inputs.objective(model.decoder.readout(final), batch)
            return values.double().cpu().numpy()

        full = by_counterfactual(inputs, [Circuit.full(model.graph)])[0]
        parts = np.stack(
            (full, output(Reconstruct(inputs.sae)), output(Reconstruct(inputs.sae, order)))
        )
        name = "dictionary, its decoder rows permuted"

        def kept(place: int) -> Callable[[Means], np.ndarray]:
            def share(means: Means) -> np.ndarray:
                whole = resolved_difference(means[:, 0], 0.0, full)
                return means[:, place] / np.where(whole == 0, np.nan, whole)

            return share

        return self._pair(name, inputs, parts, kept(1), kept(2))

    def _width(self, inputs: GaugeInputs) -> int:
        """How many features the dictionary has."""
        width = inputs.site.check(inputs.model).width(inputs.model.decoder)
        nothing = torch.zeros((1, width), device=inputs.model.device, dtype=inputs.model.dtype)
        try:
            return inputs.sae.encode(nothing).shape[1]
        except RuntimeError:
            raise BadUsage(
                f"The dictionary does not take the {width} numbers of {inputs.site}."
            ) from None

    def _pair(
        self,
        name: str,
        inputs: GaugeInputs,
        parts: Float[np.ndarray, "parts n"],
        better: Callable[[Means], np.ndarray],
        worse: Callable[[Means], np.ndarray],
    ) -> ConfigurationPair:
        n = parts.shape[1]
        rng = np.random.default_rng(inputs.seed)
        rows = rng.random((self.n_reseeds, n)).argsort(axis=1)[:, : max(2, round(self.share * n))]
        means = parts[:, rows].mean(axis=2).T
        weights, n_groups = example_weights(inputs.batch.groups, rng)
        drawn = weights @ parts.T / weights.sum(axis=1, keepdims=True)
        whole = parts.mean(axis=1)[None]
        return ConfigurationPair(
            name,
            better(means),
            worse(means),
            float((better(whole) - worse(whole))[0]),
            percentile_interval(better(drawn) - worse(drawn), n_groups=n_groups),
        )

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for `n` prompts, of which each reseed draws some."""
        return null(n, self.n_reseeds, n_simulations, seed)
