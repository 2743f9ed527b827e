"""How many of all edges the circuit of one size keeps when it is pruned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mechassay.circuits.evaluation.metrics import Measured, Scored
from mechassay.results.records import Measure


@dataclass(frozen=True)
class Density:
    """The share of all edges that are live among the best ones.

    Attributes:
        size: edges, or a share of them.
    """

    size: float = 0.1
    name: ClassVar[str] = "density"
    version: ClassVar[int] = 1
    needs_truth: ClassVar[bool] = False

    def measure(self, scored: Scored) -> Measured:
        measures = (
            Measure(
                name="density",
                of=of,
                value=len(circuit) / circuit.graph.n_edges,
                title="live edges",
                meaning="The share of all edges that are live among the best 10 %.",
                n=1,
            )
            for of, circuit in scored.circuits(self.size).items()
        )
        return Measured(tuple(measures))
