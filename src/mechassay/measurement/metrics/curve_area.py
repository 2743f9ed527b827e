"""MIB, faithfulness curve: one number for circuits of all sizes, in three definitions.

One ranking of edges is measured. With f(t) the faithfulness of the circuit that keeps a share t
of the edges, t = .001 ... 1,

    `page`      f = m(C) / m(N) of logit differences without a corrupted baseline; edges kept in
                the order of layers, not of importance; edges become heads, other heads their
                means. CPR = int f dt and CMD = int (1 - f) dt by the trapezoidal rule from .001
                to 1, so that CMD = .999 - CPR says nothing new, and may be negative.
    `mib`       the benchmark's: f = (m(C) - m(0)) / (m(N) - m(0)); edges by score, and
                CMD with |1 - f|
    `repaired`  ours (profile strict of `faithfulness_curve`), over sizes and over their
                logarithm. CPR has to be above the mean of random rankings of two kinds, single
                edges and paths, and beyond what another such ranking may reach (`stats.chance`)

Of the page's area, 80 % belong to sizes above .2 and 5 % to those below .05: circuits that do
nothing below .2 reach .85, and f = t reaches .5.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.chance import against_chance
from mechassay.circuits.evaluation.curve import FaithfulnessCurve
from mechassay.circuits.evaluation.faithfulness import faithfulness_curve, run_controls
from mechassay.circuits.series import FRACTIONS
from mechassay.measurement.catalogue import (
    Condition,
    Flag,
    PageMetric,
    Quantity,
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
from mechassay.measurement.metrics.circuit_runs import by_means, head_writers, only_heads
from mechassay.models.graph import Graph
from mechassay.results.records import Table
from mechassay.stats.chance import FEW_DRAWS, chance_limit
from mechassay.stats.intervals import BootstrapEstimate, resolved_difference, trapezoid

ID = "MIB"
REPAIRED = (
    Condition("cpr_above_edges_low", ">", 0.0),
    Condition("cpr_above_paths_low", ">", 0.0),
    Condition("cpr_above_chance", ">", 0.0),
)
SMALL, LITTLE = 0.1, 0.5
"""Sizes that count as small, and a faithfulness that counts as little."""
Faithfulness = Float[np.ndarray, "*lead sizes"]


def _area(f: Faithfulness, sizes: Sequence[float]) -> Float[np.ndarray, "*lead"]:
    areas = trapezoid(np.atleast_2d(f), np.asarray(sizes, dtype=float))
    return areas.reshape(f.shape[:-1])


def page_cpr(f: Faithfulness, sizes: Sequence[float] = FRACTIONS) -> Float[np.ndarray, "*lead"]:
    """The area under f, not normalised."""
    return _area(f, sizes)


def page_cmd(f: Faithfulness, sizes: Sequence[float] = FRACTIONS) -> Float[np.ndarray, "*lead"]:
    """The area between f and 1, with its sign."""
    return _area(1 - f, sizes)


def curve_area(
    page_f: Float[np.ndarray, "sizes"],
    repaired: Mapping[str, Quantity],
    *,
    mib: Mapping[str, Quantity],
    sizes: Sequence[float] = FRACTIONS,
    n: int = 0,
    flags: Sequence[Flag] = (),
    strict_f: Mapping[float, float] | None = None,
) -> Measurement:
    """The areas of a ranking.

    Args:
        page_f: faithfulness of the page at each size; NaN where it is undefined.
        repaired: our areas, with the differences from both random rankings and their lower ends.
        mib: the benchmark's areas.
        n: prompts.
        strict_f: faithfulness of the repaired curve by size, to be drawn beside the page's.
    """
    small = page_f[np.asarray(sizes) <= SMALL]
    cpr = float(page_cpr(page_f, sizes))
    notes = list(flags)
    if cpr > 0.5 and np.all(small < LITTLE):
        notes.append(flag("nothing_at_small_sizes", little=LITTLE, small=SMALL))
    if np.any(page_f > 1):
        notes.append(flag("above_1"))
    step = float(np.diff(page_f).max()) if len(page_f) > 1 else math.nan
    page = {
        "cpr": quantity(cpr, n=n),
        "cmd": quantity(float(page_cmd(page_f, sizes)), n=n),
        "least_f": quantity(float(page_f.min()), n=n),
        "largest_step": quantity(step, n=n),
    }
    rows = ({"size": size, "f": float(f)} for size, f in zip(sizes, page_f, strict=True))
    strict_rows = [{"size": size, "f": f} for size, f in (strict_f or {}).items()]
    return Measurement.of(
        ID,
        page,
        {**repaired, **{f"mib_{name}": area for name, area in mib.items()}},
        REPAIRED,
        flags=notes,
        null=null(n or 40),
        tables=[
            Table.of("published faithfulness", ("size",), rows),
            Table.of("faithfulness", ("size",), strict_rows),
        ],
    )


# How often the thresholds err


@cache
def null(n: int = 40, n_simulations: int = N_SIMULATIONS, seed: int = 0) -> NullTable:
    """Rates of the conditions for `n` prompts, each with its own noise of .5 at every size."""
    sizes = np.asarray(FRACTIONS)

    def draw(rng: np.random.Generator, size: int, f: np.ndarray) -> Drawn:
        noise = 0.5 / np.sqrt(n)
        own = f + noise * rng.standard_normal((size, len(sizes)))
        own[:, -1] = 1
        # The spread of the gap of two areas whose points have this noise.
        widths = np.diff(sizes)
        weights = (np.append(widths, 0) + np.insert(widths, 0, 0)) / 2
        spread = noise * np.sqrt(2 * (weights[:-1] ** 2).sum())

        def random_area() -> np.ndarray:
            random = sizes + noise * rng.standard_normal((size, len(sizes)))
            random[:, -1] = 1
            return page_cpr(random)

        area = page_cpr(own)
        lows = {f"{name}_low": area - random_area() - 1.96 * spread for name in RANDOM}
        drawn = np.stack([random_area() for _ in range(FEW_DRAWS)], axis=1)
        reach = np.array([chance_limit(areas, noise=spread) for areas in drawn])
        lows["cpr_above_chance"] = area - reach
        return {"page": {"cpr": page_cpr(own)}, "repaired": lows}

    scenarios = (
        Scenario(
            "a ranking like a random one, of which a share t of the edges keeps t",
            True,
            lambda rng, size: draw(rng, size, sizes),
        ),
        Scenario(
            "circuits that do all from a hundredth of the edges on",
            False,
            lambda rng, size: draw(rng, size, np.where(sizes < 0.01, 0.0, 1.0)),
        ),
    )
    limits = thresholds(ID, REPAIRED)
    return simulate(scenarios, limits, n, n_simulations=n_simulations, seed=seed)


RANDOM = {"cpr_above_edges": "random", "cpr_above_paths": "random-paths"}
"""The controls that a ranking has to be above, as the record of a curve calls them."""


def heads_in_layer_order(graph: Graph, size: float) -> Bool[Tensor, "writers"]:
    """The heads at the ends of the first edges, by layer of their writer, then of their reader."""
    n = max(1, int(size * graph.n_edges))
    writers, readers = (x[:n] for x in graph.legal.nonzero(as_tuple=True))
    owners = graph.reader_owner[readers]
    kept = torch.zeros(graph.n_writers + 1, dtype=torch.bool)
    kept[writers], kept[owners] = True, True
    return kept[:-1] & head_writers(graph)


@dataclass(frozen=True)
class FaithfulnessArea(Gauge):
    """How faithful are circuits of all sizes, in one number?"""

    about: ClassVar[PageMetric] = page_metric(ID)
    version: ClassVar[int] = 3

    def measure(self, inputs: GaugeInputs) -> Measurement:
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
            "cpr": _area_quantity(ours["value"].cpr, n),
            "cmd": _area_quantity(ours["magnitude"].cmd, n),
            "log_cpr": _area_quantity(ours["value"].log_cpr, n),
        }
        record = strict.record()
        for name, control in RANDOM.items():
            gap = record.measure("cpr", f"difference:{control}")
            value, low = (math.nan, math.nan) if gap is None else (gap.value, gap.low)
            repaired |= {name: quantity(value, n=n), f"{name}_low": quantity(low, n=n)}
        limits = against_chance(record, "cpr").limits.values()
        above = strict.cpr - max(limits, default=math.nan)
        repaired["cpr_above_chance"] = quantity(above, n=n)
        mib = {
            "cpr": _area_quantity(theirs["value"].cpr, n),
            "cmd": _area_quantity(theirs["magnitude"].cmd, n),
        }
        drawn = dict(zip(strict.fractions, strict.faithfulness["value"].tolist(), strict=True))
        notes = [flag("not_ranked")]
        return curve_area(self._page(inputs), repaired, mib=mib, n=n, flags=notes, strict_f=drawn)

    def _page(self, inputs: GaugeInputs) -> Float[np.ndarray, "sizes"]:
        graph = inputs.model.graph
        kept = [only_heads(graph, heads_in_layer_order(graph, size)) for size in FRACTIONS]
        values = by_means(inputs, [Circuit.full(graph), *kept])
        whole = float(resolved_difference(values[0].mean(), 0.0, values[0]))
        return values[1:].mean(axis=1) / (whole if whole != 0 else np.nan)

    def rates(self, n: int, n_simulations: int, seed: int) -> NullTable:
        """Return the rates for `n` prompts."""
        return null(n, n_simulations, seed)


def _area_quantity(estimate: BootstrapEstimate | None, n: int) -> Quantity:
    if estimate is None:
        return quantity(None, n=n)
    return quantity(estimate.value, interval=estimate.interval, n=n)
