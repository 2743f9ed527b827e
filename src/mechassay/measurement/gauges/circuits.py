"""F05 and F07: circuits of several methods and sizes, run on the same prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mechassay.circuits.circuit import Circuit
from mechassay.measurement.formulas import consistency as formula
from mechassay.measurement.gauges.arms import by_counterfactual
from mechassay.measurement.inputs import Inputs
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, NullTable

SIZES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def circuits_of(inputs: Inputs) -> list[Circuit]:
    """The different circuits of all methods at several sizes, without those that are empty."""
    found: dict[Circuit, None] = {}
    for scores in inputs.rankings.values():
        for size in SIZES:
            circuit = scores.top(size, by="magnitude").pruned()
            if len(circuit):
                found[circuit] = None
    return list(found)


@dataclass(frozen=True)
class InternalConsistency:
    """Do prompts tell circuits apart in the same way?"""

    id: ClassVar[str] = formula.CONSISTENCY
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("model", "pairs", "rankings")

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`."""
        values = by_counterfactual(inputs, circuits_of(inputs))
        return formula.internal_consistency(values, seed=inputs.seed)

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is prompts, of 20 circuits."""
        return formula.null_consistency(40 if n is None else n, 20, n_simulations, seed)


@dataclass(frozen=True)
class GroupInvariance:
    """Do circuits score alike in all groups of prompts?"""

    id: ClassVar[str] = formula.INVARIANCE
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("model", "pairs", "rankings", "labels")

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`."""
        values = by_counterfactual(inputs, circuits_of(inputs))
        return formula.invariance(values, inputs.labels)

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is prompts, of 20 circuits in two groups."""
        return formula.null_invariance(40 if n is None else n, 20, n_simulations, seed)
