"""EX1, d-prime: runs the model with and without a circuit, and the circuit alone.

The page ablates the circuit's heads by means; the repaired definition ablates its edges by the
counterfactual run, as all circuits here are, and also runs the circuit alone and the empty one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.necessity import complement
from mechassay.measurement.formulas import dprime as formula
from mechassay.measurement.gauges.arms import by_counterfactual, by_means, heads_of, without_heads
from mechassay.measurement.inputs import Inputs
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, NullTable
from mechassay.measurement.variant import Flag


@dataclass(frozen=True)
class DPrime:
    """Do prompts stay right without the circuit: d', criterion, AUC."""

    id: ClassVar[str] = formula.ID
    version: ClassVar[int] = 1
    needs: ClassVar[tuple[str, ...]] = ("model", "pairs", "circuit")

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`."""
        circuit, graph, batch = inputs.circuit, inputs.model.graph, inputs.batch
        heads = heads_of(circuit)
        flags: list[Flag] = []
        if not bool(heads.any()):
            flags.append(
                Flag("no_heads", "No head is live in the circuit: the page ablates nothing.")
            )
        full = Circuit.full(graph)
        page = by_means(inputs, [full, without_heads(graph, heads)])
        arms = [full, complement(circuit), circuit, Circuit.empty(graph)]
        values = by_counterfactual(inputs, arms)
        return formula.dprime(
            values[0],
            values[1],
            circuit_only=values[2],
            empty=values[3],
            page_full=page[0],
            page_ablated=page[1],
            ids=batch.ids,
            groups=batch.groups,
            seed=inputs.seed,
            flags=flags,
        )

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is prompts."""
        return formula.null(40 if n is None else n, n_simulations, seed)
