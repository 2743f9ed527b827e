"""Late edges: the fraction of a circuit's edges whose writer is in the upper half of the layers.

The control is the same fraction in a circuit of random paths. The control has `size` edges, and the
circuit has fewer if some of its edges are on no path, so only fractions are compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from mechassay.circuits import Circuit
from mechassay.circuits.evaluation.metrics import Measured, Scored
from mechassay.results.measures import read_measure_texts
from mechassay.utils.settings import Within, checked_settings

TEXTS = read_measure_texts(Path(__file__).with_name("measures.yaml"))["circuits"]


@dataclass(frozen=True)
@checked_settings
class LateEdges:
    """Where in the model the circuit of one size writes.

    Attributes:
        size: number of edges of the circuit, or their fraction of all edges.
    """

    size: Annotated[float, Within(above=0.0)] = 0.01

    name: ClassVar[str] = "late-edges"
    version: ClassVar[int] = 1
    needs_truth: ClassVar[bool] = False

    def measure(self, scored: Scored) -> Measured:
        measures = (
            TEXTS.measure(
                "late_edges",
                late(circuit),
                of=of,
                n=len(circuit),
                n_undefined=int(len(circuit) == 0),
            )
            for of, circuit in scored.circuits(self.size).items()
        )
        return Measured(tuple(measures))


def late(circuit: Circuit) -> float:
    """Return the fraction of late edges; NaN for a circuit without edges."""
    first = circuit.graph.heads(circuit.graph.n_layers // 2).start
    is_late = circuit.edges[first:].sum()
    return float(is_late / circuit.edges.sum()) if len(circuit) else math.nan
