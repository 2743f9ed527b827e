"""Runs of circuits for metrics of measurement: whole heads, and base metrics and their noise.

The page has circuits of heads alone: everything else of the model (the input, MLPs) stays. Here
a head belongs to a circuit if it is live in it. A head is ablated by the mean of what it wrote
over all real tokens of other prompts.

Base metrics are those whose reliability is measured (`run_base`):

    logit-diff          mean objective of the model
    probe-accuracy      share of prompts, clean and counterfactual, that a linear probe of the
                        stream tells apart; it is trained on the train prompts
    ablation-recovery   (m(C) - m(0)) / (m(N) - m(0)) of the circuit in question

A run has prompts in some order, cut into batches of some size: what it varies in is the noise of
measuring. Its value is a function of means over prompts, so that resamples need no new run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.circuits.circuit import Circuit
from mechassay.circuits.evaluation.ablation import ablate
from mechassay.circuits.evaluation.faithfulness import evaluate
from mechassay.errors import BadUsage, one_of
from mechassay.features.probes import logistic_weights
from mechassay.interventions.intervene import site_values
from mechassay.interventions.site import Site
from mechassay.measurement.metric import GaugeInputs
from mechassay.models.graph import Graph
from mechassay.models.objectives import least_size
from mechassay.prompts.batch import Batch
from mechassay.stats.intervals import resolved_difference
from mechassay.utils.display import SILENT


def head_writers(graph: Graph) -> Bool[Tensor, "writers"]:
    """Which writers are heads."""
    out = torch.zeros(graph.n_writers, dtype=torch.bool)
    for layer in range(graph.n_layers):
        out[graph.heads(layer)] = True
    return out


def heads_of(circuit: Circuit) -> Bool[Tensor, "writers"]:
    """The heads that are live in a circuit."""
    return circuit.live() & head_writers(circuit.graph)


def named_heads(graph: Graph, heads: Bool[Tensor, "writers"]) -> list[tuple[int, int]]:
    """Heads as layers and numbers."""
    return [
        (layer, head)
        for layer in range(graph.n_layers)
        for head in range(graph.n_heads)
        if bool(heads[graph.head(layer, head)])
    ]


def without_heads(graph: Graph, heads: Bool[Tensor, "writers"]) -> Circuit:
    """All edges out of what is none of these heads."""
    return Circuit.of_nodes(graph, ~heads)


def only_heads(graph: Graph, heads: Bool[Tensor, "writers"]) -> Circuit:
    """All edges out of these heads, and out of what is no head."""
    return Circuit.of_nodes(graph, heads | ~head_writers(graph))


def by_means(inputs: GaugeInputs, circuits: Sequence[Circuit]) -> Float[np.ndarray, "circuits n"]:
    """The objective of circuits where ablated edges carry means of the train prompts."""
    model = inputs.model
    batch = ablate(model, inputs.batch, "mean", data=inputs.train, progress=inputs.progress)
    return evaluate(model, circuits, batch, inputs.objective, progress=inputs.progress)


def by_counterfactual(
    inputs: GaugeInputs, circuits: Sequence[Circuit]
) -> Float[np.ndarray, "circuits n"]:
    """The objective of circuits where ablated edges carry the counterfactual run."""
    return evaluate(
        inputs.model, circuits, inputs.batch, inputs.objective, progress=inputs.progress
    )


BaseName = Literal["logit-diff", "probe-accuracy", "ablation-recovery"]
BASE_NAMES: tuple[BaseName, ...] = get_args(BaseName)
L2 = 1.0
LARGEST_BATCH = 16
Rows = Int[np.ndarray, "k"]


@dataclass(frozen=True, eq=False)
class BaseScores:
    """A metric's numbers for every prompt.

    Attributes:
        parts: whose means over prompts make the value.
        ranking: what prompts are ranked by.
        of: the value, from the means of the parts.
    """

    parts: Float[np.ndarray, "parts n"]
    ranking: Float[np.ndarray, "n"]
    of: Callable[[Float[np.ndarray, "parts"]], float]

    def value(self, rows: Rows | None = None) -> float:
        """The value over some prompts; over all by default."""
        parts = self.parts if rows is None else self.parts[:, rows]
        return self.of(parts.mean(axis=1))

    def sampling_se(self, rng: np.random.Generator, n_resamples: int = 1000) -> float:
        """The standard error over prompts, by resampling them; NaN where a resample has none."""
        n = self.parts.shape[1]
        values = [self.value(rng.integers(n, size=n)) for _ in range(n_resamples)]
        return float(np.std(values, ddof=1))


def _mean(means: Float[np.ndarray, "parts"]) -> float:
    return float(means[0])


def _recovery(
    ends: Float[np.ndarray, "2 n"], least: float, means: Float[np.ndarray, "parts"]
) -> float:
    full, empty, circuit = means.tolist()
    gap = float(resolved_difference(full, empty, ends, least=least))
    return (circuit - empty) / gap if gap != 0 else math.nan


def run_base(
    name: str,
    inputs: GaugeInputs,
    rows: Rows,
    rng: np.random.Generator,
    *,
    train_share: float = 1.0,
) -> BaseScores:
    """Run a metric on some prompts, in that order, in batches of random size.

    Args:
        train_share: of the train prompts that a probe is trained on, drawn at random.

    Raises:
        UnknownName: no such metric. BadUsage: there is no circuit, or a probe has no train prompts.
    """
    chosen = one_of("base metric", name, BASE_NAMES)
    batch = inputs.batch.select(rows.tolist())
    pieces = _pieces(len(batch), rng)
    if chosen == "probe-accuracy":
        site = probe_site(inputs)
        weights, bias = _probe(inputs, site, rng, train_share)
        margins = np.concatenate(
            [_margins(inputs, batch.select(piece), site, weights, bias) for piece in pieces], axis=1
        )
        return BaseScores((margins > 0).mean(axis=0)[None], margins.sum(axis=0), _mean)
    graph = inputs.model.graph
    circuits = [Circuit.full(graph)]
    if chosen == "ablation-recovery":
        circuits += [Circuit.empty(graph), inputs.circuit]
    values = np.concatenate(
        [
            evaluate(inputs.model, circuits, batch.select(piece), inputs.objective, progress=SILENT)
            for piece in pieces
        ],
        axis=1,
    )
    if len(circuits) == 1:
        return BaseScores(values, values[-1], _mean)
    recovery = partial(_recovery, values[:2], least_size(inputs.objective.name))
    return BaseScores(values, values[-1], recovery)


def _pieces(n: int, rng: np.random.Generator) -> list[list[int]]:
    """Rows in order, cut into batches of one random size."""
    size = int(rng.integers(1, LARGEST_BATCH + 1))
    return [list(range(begin, min(begin + size, n))) for begin in range(0, n, size)]


def probe_site(inputs: GaugeInputs) -> Site:
    """The site that was given, or the stream after the middle block, at the last token."""
    if inputs.has("site"):
        return inputs.site
    return Site((inputs.model.graph.n_layers - 1) // 2)


def _values(inputs: GaugeInputs, batch: Batch, site: Site) -> tuple[Tensor, Tensor]:
    """The site's values at the last token of the clean and of the counterfactual prompts."""
    rows = torch.arange(len(batch), device=batch.clean.device)
    columns = torch.full_like(rows, batch.n_tokens - 1)
    made = [
        site_values(inputs.model, tokens, batch.mask, [(site, rows, columns)])[0]
        for tokens in (batch.clean, batch.counterfactual)
    ]
    return made[0].double().cpu(), made[1].double().cpu()


def _probe(
    inputs: GaugeInputs, site: Site, rng: np.random.Generator, share: float
) -> tuple[Float[Tensor, "d"], float]:
    train = inputs.train
    n = max(2, round(share * len(train)))
    if len(train) < 2:
        raise BadUsage(f"A probe needs two train pairs or more; got {len(train)}.")
    some = train.select(rng.permutation(len(train))[:n].tolist())
    clean, other = _values(inputs, some, site)
    classes = torch.cat(
        (torch.ones(n, dtype=torch.float32), torch.zeros(n, dtype=torch.float32))
    ).long()
    weights, bias = logistic_weights(torch.cat((clean, other)), classes, L2)
    return weights[0], float(bias[0])


def _margins(
    inputs: GaugeInputs, batch: Batch, site: Site, weights: Tensor, bias: float
) -> Float[np.ndarray, "2 n"]:
    """How far the probe is right, of clean and counterfactual prompts."""
    clean, other = _values(inputs, batch, site)
    return torch.stack((clean @ weights + bias, -(other @ weights + bias))).numpy()
