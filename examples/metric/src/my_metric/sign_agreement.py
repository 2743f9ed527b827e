"""Sign agreement: on what fraction of prompts do a circuit and the model prefer the same answer?

The threshold is on the lower bound of the interval. A simulation says how often a circuit that
tosses a coin passes, and how often a circuit passes that errs on one prompt of twenty.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from mechassay.circuits import Circuit, evaluate
from mechassay.measurement import Condition, Gauge, GaugeInputs, Measurement, NullTable, Scenario
from mechassay.measurement.catalogue import (
    PageMetric,
    flag,
    quantity,
    read_metric,
    thresholds,
)
from mechassay.measurement.measurement import Drawn, simulate
from mechassay.stats.intervals import proportion_interval

METRIC = read_metric(Path(__file__).with_name("SIGN.yaml"))
FEW = 10
CONDITIONS = (Condition("agreement_low", ">", 0.7),)


def sign_agreement(full: np.ndarray, circuit: np.ndarray, groups: Sequence[str]) -> Measurement:
    """Return the agreement of the logit differences [n] of the model and of a circuit."""
    agrees, n, n_groups = (full > 0) == (circuit > 0), len(full), len(set(groups))
    interval = proportion_interval(agrees.astype(float), groups)
    # If the model always prefers one answer, a circuit with a constant answer agrees.
    low = interval.low if 0 < (full > 0).sum() < n else math.nan
    return Measurement.of(
        METRIC,
        page={},
        repaired={
            "agreement": quantity(float(agrees.mean()), interval=interval, n=n),
            "agreement_low": quantity(low, n=n),
        },
        conditions=CONDITIONS,
        flags=[flag("few_groups", n=n, groups=n_groups)] if n_groups < FEW else [],
        null=rates(n),
    )


@cache
def rates(n: int, n_simulations: int = 400, seed: int = 0) -> NullTable:
    """Return how often circuits of a known worth pass, on `n` prompts in groups of one."""

    def draw(rng: np.random.Generator, size: int, right: float) -> Drawn:
        agrees = (rng.random((size, n)) < right).astype(float)
        groups = [str(i) for i in range(n)]
        low = np.array([proportion_interval(row, groups).low for row in agrees])
        return {"page": {}, "repaired": {"agreement_low": low}}

    scenarios = (
        Scenario("a coin", worthless=True, draw=lambda rng, size: draw(rng, size, 0.5)),
        Scenario(
            "one error in twenty", worthless=False, draw=lambda rng, size: draw(rng, size, 0.95)
        ),
    )
    conditions = thresholds(METRIC, CONDITIONS)
    return simulate(scenarios, conditions, n, n_simulations=n_simulations, seed=seed)


@dataclass(frozen=True)
class SignAgreement(Gauge):
    """Do circuit and model prefer the same answers?"""

    about: ClassVar[PageMetric] = METRIC
    version: ClassVar[int] = 1

    def measure(self, inputs: GaugeInputs) -> Measurement:
        full = Circuit.full(inputs.model.graph)
        differences = evaluate(
            inputs.model,
            [full, inputs.circuit],
            inputs.batch,
            inputs.objective,
            progress=inputs.progress,
        )
        return sign_agreement(*differences, inputs.batch.groups)

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        return rates(n, n_simulations, seed)
