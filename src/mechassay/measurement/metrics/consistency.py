"""F05 and F07: are circuits told apart the same way by all prompts, and in all groups of prompts?

A matrix X [circuits, prompts] has the objective of every circuit on every prompt. The circuits
are those of several methods and sizes, run on the same prompts.

F05, internal consistency (Cronbach 1951), prompts as items and circuits as persons:

    alpha = k / (k - 1) (1 - sum of the prompts' variances / variance of the sums)

    `page`      alpha, and the correlation of odd with even prompts, stepped up by 2 r / (1 + r)
    `repaired`  the same with an interval over circuits and over many random halves; undefined
                for fewer than ten circuits
F07, invariance over groups of prompts, with circuit means per group
    `page`      mean rank correlation of circuits between groups; share of circuits whose groups
                differ by more than half a standard deviation
    `repaired`  whether scores mean the same in all groups, not only their order: the largest
                difference of two groups' means in units of the spread of circuits, with a test
                of equivalence (two one-sided tests, margin .2; Schuirmann 1987). A difference
                that is not significant is no evidence of invariance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from scipy.stats import f as fisher
from scipy.stats import t as student

from mechassay.circuits.circuit import Circuit
from mechassay.errors import BadUsage
from mechassay.measurement.catalogue import (
    Condition,
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
from mechassay.measurement.metrics.discriminability import cohens_d
from mechassay.measurement.metrics.method_agreement import rank_correlation
from mechassay.results.records import Table
from mechassay.stats.intervals import percentile_interval, resolved_difference

CONSISTENCY, INVARIANCE = "F05", "F07"
REPAIRED_CONSISTENCY = (Condition("alpha_low", ">", 0.7),)
REPAIRED_INVARIANCE = (
    Condition("rank_correlation", ">", 0.9),
    Condition("p_equivalence", "<", 0.05),
)
LEAST_CIRCUITS, LEAST_FOR_RANKS = 10, 5
N_HALVES, N_RESAMPLES = 200, 500
MARGIN = 0.2
"""Difference of groups, in spreads of circuits, that counts as none."""
DIFFERS = 0.5
Matrix = Float[np.ndarray, "circuits prompts"]


def alpha(x: Matrix) -> float:
    """Cronbach's alpha of prompts as items; it may be negative. NaN where circuits do not vary."""
    k, sums = x.shape[1], x.sum(axis=1)
    spread = float(resolved_difference(sums.std(ddof=1), 0.0, np.abs(x).sum(axis=1)))
    if k < 2 or not spread > 0:
        return math.nan
    return k / (k - 1) * (1 - float(x.var(axis=0, ddof=1).sum()) / float(sums.var(ddof=1)))


def split_half(x: Matrix, order: Sequence[int]) -> float:
    """The correlation of two halves of the prompts, stepped up to all of them."""
    halves = [x[:, list(order)[side::2]].mean(axis=1) for side in (0, 1)]
    if any(resolved_difference(half.std(), 0.0, half) == 0 for half in halves):
        return math.nan
    r = float(np.corrcoef(*halves)[0, 1])
    return 2 * r / (1 + r) if r > -1 else math.nan


def internal_consistency(x: Matrix, *, seed: int = 0) -> Measurement:
    """F05 of the objective of circuits on prompts.

    Raises:
        BadUsage: fewer than two circuits or prompts.
    """
    circuits, prompts = x.shape
    if circuits < 2 or prompts < 2:
        raise BadUsage(f"F05 needs two circuits and two prompts; got {circuits} and {prompts}.")
    rng, words = np.random.default_rng(seed), {"least": LEAST_CIRCUITS, "n_halves": N_HALVES}
    page = {
        "alpha": quantity(alpha(x), n=circuits),
        "split_half": quantity(split_half(x, range(prompts)), n=circuits),
    }
    if circuits < LEAST_CIRCUITS:
        none = quantity(None, n=circuits, reason="few")
        return Measurement.of(
            CONSISTENCY,
            page,
            {"alpha": none, "alpha_low": none, "split_half": none},
            REPAIRED_CONSISTENCY,
            flags=[flag("few_circuits", n=circuits)],
            null=null_consistency(prompts, circuits),
            words=words,
        )
    draws = np.array([alpha(x[rng.integers(circuits, size=circuits)]) for _ in range(N_RESAMPLES)])
    ends = percentile_interval(draws, n_groups=circuits)
    halves = [split_half(x, rng.permutation(prompts).tolist()) for _ in range(N_HALVES)]
    repaired = {
        "alpha": quantity(alpha(x), interval=ends, n=circuits),
        "alpha_low": quantity(ends.low, n=circuits),
        "split_half": quantity(float(np.mean(halves)), n=circuits),
    }
    return Measurement.of(
        CONSISTENCY,
        page,
        repaired,
        REPAIRED_CONSISTENCY,
        null=null_consistency(prompts, circuits),
        words=words,
    )


def group_means(
    x: Matrix, labels: Sequence[str]
) -> tuple[list[str], Float[np.ndarray, "circuits groups"]]:
    """The mean of every circuit on the prompts of each label."""
    names = list(dict.fromkeys(labels))
    member = np.array([names.index(label) for label in labels])
    means = np.stack([x[:, member == g].mean(axis=1) for g in range(len(names))], axis=1)
    return names, means


def equivalence(gaps: Float[np.ndarray, "n"], margin: float) -> float:
    """The p-value of two one-sided t tests that the mean of `gaps` lies within the margin."""
    n = len(gaps)
    if n < 2:
        return math.nan
    spread, mean = float(resolved_difference(gaps.std(ddof=1), 0.0, gaps)), float(gaps.mean())
    error = spread / math.sqrt(n)
    if error == 0:
        return 0.0 if abs(mean) < margin else 1.0
    below, above = (mean + margin) / error, (margin - mean) / error
    return float(max(student.sf(below, n - 1), student.sf(above, n - 1)))


def invariance(x: Matrix, labels: Sequence[str]) -> Measurement:
    """F07 of the objective of circuits on prompts of several groups.

    Args:
        labels: the group of each prompt.

    Raises:
        BadUsage: fewer than two groups or two circuits, or not a label a prompt.
    """
    names = list(dict.fromkeys(labels))
    if len(names) < 2 or len(x) < 2 or len(labels) != x.shape[1]:
        raise BadUsage(
            f"F07 needs two circuits on prompts of two groups, a label a prompt; got {len(x)}"
            f" circuits, {len(names)} groups and {len(labels)} labels of {x.shape[1]} prompts."
        )
    names, means = group_means(x, labels)
    circuits = len(x)
    notes = [flag("dif_by_choice", spreads=DIFFERS)]
    pairs = list(combinations(range(len(names)), 2))
    correlations = [rank_correlation(means[:, a], means[:, b]) for a, b in pairs]
    member = np.array([names.index(label) for label in labels])
    differs = [
        any(abs(cohens_d(row[member == a], row[member == b])) > DIFFERS for a, b in pairs)
        for row in x
    ]
    page = {
        "rank_correlation": quantity(float(np.mean(correlations)), n=circuits),
        "dif_share": quantity(float(np.mean(differs)), n=circuits),
    }
    spread = float(resolved_difference(means.mean(axis=1).std(ddof=1), 0.0, means.T))
    gaps = [(a, b, (means[:, a] - means[:, b]) / spread if spread > 0 else None) for a, b in pairs]
    known = [(a, b, gap) for a, b, gap in gaps if gap is not None]
    largest = max((abs(float(gap.mean())) for _, _, gap in known), default=math.nan)
    p = max((equivalence(gap, MARGIN) for _, _, gap in known), default=math.nan)
    mean, reason = float(np.mean(correlations)), ""
    if circuits < LEAST_FOR_RANKS:
        mean, p, reason = math.nan, math.nan, "few"
        notes.append(flag("few_circuits", n=circuits))
    repaired = {
        "rank_correlation": quantity(mean, n=circuits, reason=reason),
        "largest_shift": quantity(largest, n=circuits),
        "p_equivalence": quantity(p, n=circuits, reason=reason),
    }
    rows = [
        {
            "groups": f"{names[a]}, {names[b]}",
            "rank correlation": r,
            "shift": None if gap is None else float(gap.mean()),
        }
        for (a, b, gap), r in zip(gaps, correlations, strict=True)
    ]
    return Measurement.of(
        INVARIANCE,
        page,
        repaired,
        REPAIRED_INVARIANCE,
        flags=notes,
        null=null_invariance(x.shape[1], circuits),
        tables=[Table.of("pairs of groups", ("groups",), rows)],
        words={"least": LEAST_FOR_RANKS, "margin": MARGIN},
    )


# How often the thresholds err


@cache
def null_consistency(
    n: int = 40, circuits: int = 20, n_simulations: int = N_SIMULATIONS, seed: int = 0
) -> NullTable:
    """Rates of F05's conditions; the lower end is that of Feldt (1965)."""

    def draw(rng: np.random.Generator, size: int, spread: float) -> Drawn:
        x = spread * rng.standard_normal((size, circuits, 1)) + rng.standard_normal(
            (size, circuits, n)
        )
        total = x.sum(axis=2).var(axis=1, ddof=1)
        cronbach = n / (n - 1) * (1 - x.var(axis=1, ddof=1).sum(axis=1) / total)
        bound = fisher.ppf(0.975, circuits - 1, (circuits - 1) * (n - 1))
        enough = circuits >= LEAST_CIRCUITS
        low = 1 - (1 - cronbach) * bound if enough else np.full(size, np.nan)
        return {"page": {"alpha": cronbach}, "repaired": {"alpha_low": low}}

    scenarios = (
        Scenario("circuits that do not differ", True, lambda rng, size: draw(rng, size, 0.0)),
        Scenario(
            "circuits that differ as much as prompts do",
            False,
            lambda rng, size: draw(rng, size, 1.0),
        ),
    )
    limits = thresholds(CONSISTENCY, REPAIRED_CONSISTENCY)
    return simulate(scenarios, limits, n, n_simulations=n_simulations, seed=seed)


@cache
def null_invariance(
    n: int = 40, circuits: int = 20, n_simulations: int = N_SIMULATIONS // 2, seed: int = 0
) -> NullTable:
    """Rates of F07's conditions for two groups of prompts."""
    labels = ["a"] * (n // 2) + ["b"] * (n - n // 2)
    member = np.array(labels) == "a"

    def draw(rng: np.random.Generator, size: int, shift: float) -> Drawn:
        r, share, p = (np.full(size, np.nan) for _ in range(3))
        for row in range(size):
            x = 3 * rng.standard_normal((circuits, 1)) + rng.standard_normal((circuits, n))
            x[:, member] += shift * 3
            means = np.stack((x[:, member].mean(axis=1), x[:, ~member].mean(axis=1)), axis=1)
            r[row] = rank_correlation(means[:, 0], means[:, 1])
            share[row] = np.mean([abs(cohens_d(y[member], y[~member])) > DIFFERS for y in x])
            if circuits >= LEAST_FOR_RANKS:
                gap = (means[:, 0] - means[:, 1]) / means.mean(axis=1).std(ddof=1)
                p[row] = equivalence(gap, MARGIN)
        known = r if circuits >= LEAST_FOR_RANKS else np.full(size, np.nan)
        return {
            "page": {"rank_correlation": r, "dif_share": share},
            "repaired": {"rank_correlation": known, "p_equivalence": p},
        }

    scenarios = (
        Scenario(
            "one group is half a spread of circuits higher",
            True,
            lambda rng, size: draw(rng, size, 0.5),
        ),
        Scenario("groups do not differ", False, lambda rng, size: draw(rng, size, 0.0)),
    )
    limits = thresholds(INVARIANCE, REPAIRED_INVARIANCE)
    return simulate(scenarios, limits, n, n_simulations=n_simulations, seed=seed)


SIZES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def circuits_of(inputs: GaugeInputs) -> list[Circuit]:
    """The different circuits of all methods at several sizes, without those that are empty."""
    circuits: dict[Circuit, None] = {}
    for scores in inputs.rankings.values():
        for size in SIZES:
            circuit = scores.top(size, by="magnitude").pruned()
            if len(circuit):
                circuits[circuit] = None
    return list(circuits)


@dataclass(frozen=True)
class InternalConsistency(Gauge):
    """Do prompts tell circuits apart in the same way?"""

    about: ClassVar[PageMetric] = page_metric(CONSISTENCY)

    def measure(self, inputs: GaugeInputs) -> Measurement:
        values = by_counterfactual(inputs, circuits_of(inputs))
        return internal_consistency(values, seed=inputs.seed)

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for `n` prompts, of 20 circuits."""
        return null_consistency(n, 20, n_simulations, seed)


@dataclass(frozen=True)
class GroupInvariance(Gauge):
    """Do circuits score alike in all groups of prompts?"""

    about: ClassVar[PageMetric] = page_metric(INVARIANCE)

    def measure(self, inputs: GaugeInputs) -> Measurement:
        values = by_counterfactual(inputs, circuits_of(inputs))
        return invariance(values, inputs.labels)

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for `n` prompts, of 20 circuits in two groups."""
        return null_invariance(n, 20, n_simulations, seed)
