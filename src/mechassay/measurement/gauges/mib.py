"""MIB, faithfulness curve: one ranking of edges, in the page's, MIB's and our definition."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.circuits.areas import FRACTIONS
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.curve import FaithfulnessCurve
from mechassay.circuits.faithfulness import faithfulness_curve, run_controls
from mechassay.graph import Graph
from mechassay.measurement.formulas import curve_area as formula
from mechassay.measurement.gauges.arms import by_means, head_writers, only_heads
from mechassay.measurement.inputs import Inputs
from mechassay.measurement.measurement import Measurement
from mechassay.measurement.nulls import N_SIMULATIONS, NullTable
from mechassay.measurement.variant import Flag, Quantity, quantity
from mechassay.stats.intervals import BootstrapEstimate
from mechassay.stats.rounding import resolved_difference

RANDOM = {
    "cpr_above_edges": ("random", "random single edges"),
    "cpr_above_paths": ("random-paths", "random paths"),
}
"""The controls that a ranking has to be above, as the record of a curve calls them."""
UNDEFINED = "the interval of the full less the empty circuit has 0"


def heads_in_layer_order(graph: Graph, size: float) -> Bool[Tensor, "writers"]:
    """The heads at the ends of the first edges, by layer of their writer, then of their reader."""
    n = max(1, int(size * graph.n_edges))
    writers, readers = (x[:n] for x in graph.legal.nonzero(as_tuple=True))
    owners = graph.reader_owner[readers]
    kept = torch.zeros(graph.n_writers + 1, dtype=torch.bool)
    kept[writers], kept[owners] = True, True
    return kept[:-1] & head_writers(graph)


@dataclass(frozen=True)
class FaithfulnessArea:
    """How faithful are circuits of all sizes, in one number?"""

    id: ClassVar[str] = formula.ID
    version: ClassVar[int] = 2
    needs: ClassVar[tuple[str, ...]] = ("model", "pairs", "ranking")

    def measure(self, inputs: Inputs) -> Measurement:
        """See `Gauge.measure`."""
        _, scores = inputs.ranking
        model, batch, n = inputs.model, inputs.batch, len(inputs.batch)
        controls = run_controls(model, batch, inputs.objective, progress=inputs.progress)

        def curve(profile: str) -> FaithfulnessCurve:
            return faithfulness_curve(
                model,
                scores,
                batch,
                inputs.objective,
                profile="strict" if profile == "strict" else "mib-2025",
                controls=controls,
                seed=inputs.seed,
                progress=inputs.progress,
            )

        strict = curve("strict")
        ours, theirs = strict.sweeps, curve("mib-2025").sweeps
        repaired = {
            "cpr": _area(ours["value"].cpr, n, "up", "Performance of circuits of all sizes."),
            "cmd": _area(ours["magnitude"].cmd, n, "down", "Distance from the model."),
            "log_cpr": _area(ours["value"].log_cpr, n, "up", "The same over the log of the size."),
        }
        record = strict.record()
        for name, (control, words) in RANDOM.items():
            gap = record.measure("cpr", f"difference:{control}")
            repaired[name] = quantity(
                gap.value if gap is not None else math.nan,
                n=n,
                reason=UNDEFINED,
                better="up",
                meaning=f"CPR less that of {words}.",
            )
            low = gap.low if gap is not None else math.nan
            repaired[f"{name}_low"] = quantity(low, n=n, reason=UNDEFINED)
        mib = {
            "cpr": _area(theirs["value"].cpr, n, "up", "By the benchmark's arithmetic."),
            "cmd": _area(theirs["magnitude"].cmd, n, "down", "By the benchmark's arithmetic."),
        }
        flag = Flag(
            "not_ranked",
            "The page keeps edges in the order of layers: its curve is the same for all rankings.",
        )
        return formula.curve_area(self._page(inputs), repaired, mib=mib, n=n, flags=[flag])

    def _page(self, inputs: Inputs) -> Float[np.ndarray, "sizes"]:
        graph = inputs.model.graph
        kept = [only_heads(graph, heads_in_layer_order(graph, size)) for size in FRACTIONS]
        values = by_means(inputs, [Circuit.full(graph), *kept])
        whole = float(resolved_difference(values[0].mean(), 0.0, values[0]))
        return values[1:].mean(axis=1) / (whole if whole != 0 else np.nan)

    def null(
        self, n: int | None = None, n_simulations: int = N_SIMULATIONS, seed: int = 0
    ) -> NullTable:
        """See `Gauge.null`; `n` is prompts."""
        return formula.null(40 if n is None else n, n_simulations, seed)


def _area(estimate: BootstrapEstimate | None, n: int, better: str, meaning: str) -> Quantity:
    value = float("nan") if estimate is None else estimate.value
    return quantity(
        value,
        interval=None if estimate is None else estimate.interval,
        n=n,
        reason=UNDEFINED,
        better="up" if better == "up" else "down",
        meaning=meaning,
    )
