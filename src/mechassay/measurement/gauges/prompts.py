"""F01 and F02: errors over prompts of a circuit's faithfulness, or of the model's objective."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods.random import Random
from mechassay.measurement.formulas import prompt_sampling as formula
from mechassay.measurement.gauges.arms import by_counterfactual
from mechassay.measurement.inputs import Inputs
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, NullTable

Parts = tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n"] | None, Float[np.ndarray, "n"] | None]


def prompt_parts(inputs: Inputs) -> Parts:
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
class PromptBootstrap:
    """How much a number depends on its prompts: its standard error over resamples."""

    n_resamples: int = 1000

    id: ClassVar[str] = formula.BOOTSTRAP
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("model", "pairs")
    uses: ClassVar[tuple[str, ...]] = ("circuit",)

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`."""
        above, below, _ = prompt_parts(inputs)
        return formula.prompt_bootstrap(
            above,
            below,
            groups=inputs.batch.groups,
            n_resamples=self.n_resamples,
            seed=inputs.seed,
        )

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is prompts."""
        return formula.null_bootstrap(40 if n is None else n, n_simulations, seed)


@dataclass(frozen=True)
class SeedVariance:
    """How much a number varies over random subsets of its prompts."""

    n_subsets: int = 20
    share: float = 0.75

    id: ClassVar[str] = formula.SEEDS
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("model", "pairs")
    uses: ClassVar[tuple[str, ...]] = ("circuit",)

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`."""
        above, below, control = prompt_parts(inputs)
        return formula.seed_variance(
            above,
            below,
            control=control,
            n_subsets=self.n_subsets,
            share=self.share,
            seed=inputs.seed,
        )

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is prompts."""
        return formula.null_seeds(40 if n is None else n, self.n_subsets, n_simulations, seed)
