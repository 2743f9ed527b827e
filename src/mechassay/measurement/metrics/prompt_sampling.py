"""F01 and F02: how much a number depends on which prompts it is computed from.

The number is a ratio of means over prompts, r = mean(a) / mean(b): a circuit's faithfulness.
Without a circuit it is the model's objective, a plain mean with b = 1.

F01, bootstrap of prompts: standard error of r over resamples, and as a share of |r|.
    `page`      1,000 resamples of single prompts, percentile interval
    `repaired`  whole groups of prompts, both means together, BCa interval (Efron 1987)

F02, variance over seeds: r on 20 subsets of the prompts (three quarters of them, our choice).
    `page`      variance, CV, and the share of subsets in which r exceeds that of a control, as
                many random edges
    `repaired`  subsets drawn without replacement overlap, so their variance is too small by the
                factor 1 - m/n (Cochran 1977): it is divided by that, and scaled to all n
                prompts. The control is compared over resamples of the prompts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float
from scipy.stats import bootstrap

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods.random import Random
from mechassay.errors import BadUsage
from mechassay.measurement.catalogue import (
    Condition,
    Flag,
    PageMetric,
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
from mechassay.results.records import Table, Values
from mechassay.stats.intervals import Interval, resolved_difference

BOOTSTRAP, SEEDS = "F01", "F02"
REPAIRED_BOOTSTRAP = (Condition("relative_error", "<", 0.1),)
REPAIRED_SEEDS = (Condition("cv", "<", 0.08), Condition("sign_consistency", ">", 0.95))
FEW = 20
"""Prompts below which a bootstrap is rough."""
Numbers = Float[np.ndarray, "n"]


def ratio(a: Any, b: Any) -> Any:
    """mean(a) / mean(b) along the last axis; NaN where that is 0."""
    above, below = (resolved_difference(np.mean(x, axis=-1), 0.0, x) for x in (a, b))
    return np.where(below == 0, np.nan, above / np.where(below == 0, 1, below))


def _checked(a: Numbers, b: Numbers | None) -> Numbers:
    if len(a) < 2:
        raise BadUsage(f"An error over prompts needs two prompts or more; got {len(a)}.")
    return np.ones_like(a, dtype=float) if b is None else b


def prompt_bootstrap(
    a: Numbers,
    b: Numbers | None = None,
    *,
    groups: Sequence[str] = (),
    n_resamples: int = 1000,
    seed: int = 0,
) -> Measurement:
    """F01 of mean(a) / mean(b) over prompts.

    Raises:
        BadUsage: fewer than two prompts.
    """
    below = _checked(a, b)
    n, rng = len(a), np.random.default_rng(seed)
    value = float(ratio(a, below))
    rows = rng.integers(n, size=(n_resamples, n))
    draws = ratio(a[rows], below[rows])
    error = float(draws.std(ddof=1))
    low, high = np.quantile(draws, [0.025, 0.975]) if np.isfinite(draws).all() else (math.nan,) * 2
    page = {
        "standard_error": quantity(error, n=n),
        "ci_low": quantity(float(low), n=n),
        "ci_high": quantity(float(high), n=n),
        "relative_error": quantity(_over(error, value), n=n),
    }
    units = list(groups) or [str(row) for row in range(n)]
    grouped, ends = _bca(a, below, units, n_resamples, seed)
    names = dict.fromkeys(units)
    near_zero = ends.contains(0.0)
    relative = None if near_zero else _over(grouped, value)
    repaired = {
        "value": quantity(value, interval=ends, n=n),
        "standard_error": quantity(grouped, n=len(names)),
        "relative_error": quantity(relative, n=len(names), reason="near_zero" if near_zero else ""),
    }
    flags: list[Flag] = []
    if len(names) < FEW:
        flags.append(flag("few_prompts", n=len(names)))
    if near_zero:
        flags.append(flag("mean_near_zero"))
    return Measurement.of(
        BOOTSTRAP,
        page,
        repaired,
        REPAIRED_BOOTSTRAP,
        flags=flags,
        null=null_bootstrap(n),
        values=Values(
            unit="prompt",
            ids=[str(row) for row in range(n)],
            groups=units,
            columns={"above": a.tolist(), "below": below.tolist()},
        ),
    )


def _over(error: float, value: float) -> float:
    return error / abs(value) if value != 0 else math.nan


def _bca(
    a: Numbers, b: Numbers, units: Sequence[str], n_resamples: int, seed: int
) -> tuple[float, Interval]:
    """The standard error of the ratio of sums over whole groups, and its BCa interval."""
    names, member = np.unique(np.asarray(units), return_inverse=True)
    if len(names) < 3:
        return math.nan, Interval(math.nan, math.nan)
    above, below = (np.bincount(member, weights=x, minlength=len(names)) for x in (a, b))
    value = float(ratio(above, below))
    if np.allclose(above, value * below, rtol=1e-9, atol=0):
        # The same in all groups: a bootstrap has nothing to work with.
        return 0.0, Interval(value, value)
    drawn = bootstrap(
        (above, below),
        lambda x, y, axis=-1: np.sum(x, axis=axis) / np.sum(y, axis=axis),
        paired=True,
        vectorized=True,
        n_resamples=n_resamples,
        method="BCa",
        rng=np.random.default_rng(seed),
    )
    ends = drawn.confidence_interval
    return float(drawn.standard_error), Interval(float(ends.low), float(ends.high))


def seed_variance(
    a: Numbers,
    b: Numbers | None = None,
    *,
    control: Numbers | None = None,
    n_subsets: int = 20,
    share: float = 0.75,
    seed: int = 0,
) -> Measurement:
    """F02 of mean(a) / mean(b) over prompts.

    Args:
        control: what `a` is of a control on the same prompts, for the sign of the difference.
        share: of the prompts that a subset has.

    Raises:
        BadUsage: fewer than two prompts, or subsets of none or all of them.
    """
    below, n = _checked(a, b), len(a)
    size = round(share * n)
    if not 0 < size < n:
        raise BadUsage(f"A subset has some of {n} prompts, not all; got a share of {share}.")
    rng = np.random.default_rng(seed)
    rows = rng.random((n_subsets, n)).argsort(axis=1)[:, :size]
    values = ratio(a[rows], below[rows])
    variance, value = float(values.var(ddof=1)), float(ratio(a, below))
    signs = resampled = quantity(None, n=n_subsets)
    if control is not None:
        wins = values - ratio(control[rows], below[rows]) > 0
        signs = quantity(float(wins.mean()), n=n_subsets)
        again = rng.integers(n, size=(1000, n))
        gaps = ratio(a[again], below[again]) - ratio(control[again], below[again])
        resampled = quantity(float(np.mean(gaps > 0)), n=n)
    full = math.sqrt(variance / (1 - size / n) * size / n)
    page = {
        "variance": quantity(variance, n=n_subsets),
        "cv": quantity(_over(math.sqrt(variance), value), n=n_subsets),
        "sign_consistency": signs,
    }
    repaired = {
        "value": quantity(value, n=n),
        "standard_error": quantity(full, n=n_subsets),
        "cv": quantity(_over(full, value), n=n_subsets),
        "sign_consistency": resampled,
    }
    overlap = flag("subsets_overlap", size=size, n=n, factor=1 - size / n)
    table = Table.of(
        "subsets", ("subset",), ({"subset": i, "value": float(x)} for i, x in enumerate(values))
    )
    return Measurement.of(
        SEEDS,
        page,
        repaired,
        REPAIRED_SEEDS,
        flags=[overlap],
        null=null_seeds(n, n_subsets),
        tables=[table],
    )


# How often the thresholds err


NOTHING = "prompts that average 0, with spread 1.5"
SOMETHING = "prompts that average 3, with spread 1.5"


@cache
def null_bootstrap(n: int = 40, n_simulations: int = N_SIMULATIONS, seed: int = 0) -> NullTable:
    """Rates of F01's conditions for `n` prompts; the standard error is that of theory."""

    def drawn(mean: float) -> Any:
        def draw(rng: np.random.Generator, size: int) -> Drawn:
            x = mean + 1.5 * rng.standard_normal((size, n))
            relative = x.std(axis=1, ddof=1) / math.sqrt(n) / np.abs(x.mean(axis=1))
            known = np.where(relative < 1 / 1.96, relative, np.nan)
            return {"page": {"relative_error": relative}, "repaired": {"relative_error": known}}

        return draw

    scenarios = (Scenario(NOTHING, True, drawn(0.0)), Scenario(SOMETHING, False, drawn(3.0)))
    limits = thresholds(BOOTSTRAP, REPAIRED_BOOTSTRAP)
    return simulate(scenarios, limits, n, n_simulations=n_simulations, seed=seed)


@cache
def null_seeds(
    n: int = 40, n_subsets: int = 20, n_simulations: int = N_SIMULATIONS, seed: int = 0
) -> NullTable:
    """Rates of F02's conditions for subsets of `n` prompts, against a control that averages 0."""
    size = round(0.75 * n)

    def drawn(mean: float) -> Any:
        def draw(rng: np.random.Generator, simulations: int) -> Drawn:
            cv, wins, full = (np.empty(simulations) for _ in range(3))
            for row in range(simulations):
                x, other = mean + 1.5 * rng.standard_normal(n), 1.5 * rng.standard_normal(n)
                rows = rng.random((n_subsets, n)).argsort(axis=1)[:, :size]
                values, sd = x[rows].mean(axis=1), (x - other).std(ddof=1) / math.sqrt(n)
                cv[row] = values.std(ddof=1) / abs(x.mean())
                full[row] = cv[row] * math.sqrt(size / n / (1 - size / n))
                # The share of resamples that exceed the control, by the normal distribution.
                gaps = (x - other).mean() + sd * rng.standard_normal(200)
                wins[row] = np.mean(gaps > 0)
            return {"page": {"cv": cv}, "repaired": {"cv": full, "sign_consistency": wins}}

        return draw

    scenarios = (Scenario(NOTHING, True, drawn(0.0)), Scenario(SOMETHING, False, drawn(3.0)))
    limits = thresholds(SEEDS, REPAIRED_SEEDS)
    return simulate(scenarios, limits, n, n_simulations=n_simulations, seed=seed)


Parts = tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"] | None, Float[np.ndarray, "n"] | None]


def prompt_parts(inputs: GaugeInputs) -> Parts:
    """Above and below the line of a circuit's faithfulness, and above it of as many random edges;
    without a circuit, the model's objective.
    """
    graph = inputs.model.graph
    full = Circuit.full(graph)
    if not inputs.has("circuit"):
        return by_counterfactual(inputs, [full])[0], None, None
    random = Random(seed=inputs.seed).draw(graph).top(len(inputs.circuit))
    arms = [full, Circuit.empty(graph), inputs.circuit, random]
    values = by_counterfactual(inputs, arms)
    return values[2] - values[1], values[0] - values[1], values[3] - values[1]


@dataclass(frozen=True)
class PromptBootstrap(Gauge):
    """How much a number depends on its prompts: its standard error over resamples."""

    n_resamples: int = 1000

    about: ClassVar[PageMetric] = page_metric(BOOTSTRAP)
    uses: ClassVar[tuple[str, ...]] = ("circuit",)

    def measure(self, inputs: GaugeInputs) -> Measurement:
        above, below, _ = prompt_parts(inputs)
        return prompt_bootstrap(
            above,
            below,
            groups=inputs.batch.groups,
            n_resamples=self.n_resamples,
            seed=inputs.seed,
        )

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for `n` prompts."""
        return null_bootstrap(n, n_simulations, seed)


@dataclass(frozen=True)
class SeedVariance(Gauge):
    """How much a number varies over random subsets of its prompts."""

    n_subsets: int = 20
    share: float = 0.75

    about: ClassVar[PageMetric] = page_metric(SEEDS)
    uses: ClassVar[tuple[str, ...]] = ("circuit",)

    def measure(self, inputs: GaugeInputs) -> Measurement:
        above, below, control = prompt_parts(inputs)
        return seed_variance(
            above,
            below,
            control=control,
            n_subsets=self.n_subsets,
            share=self.share,
            seed=inputs.seed,
        )

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for `n` prompts, of which each subset draws some."""
        return null_seeds(n, self.n_subsets, n_simulations, seed)
