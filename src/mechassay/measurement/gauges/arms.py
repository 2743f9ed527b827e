"""Circuits as the page runs them: whole heads, and means in place of those that are ablated.

The page has circuits of heads alone: everything else of the model (the input, MLPs) stays. Here a
head belongs to a circuit if it is live in it. A head is ablated by the mean of what it wrote over
all real tokens of other prompts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.circuits.ablation import ablate
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.faithfulness import evaluate
from mechassay.graph import Graph
from mechassay.measurement.inputs import Inputs


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


def by_means(inputs: Inputs, circuits: Sequence[Circuit]) -> Float[np.ndarray, "circuits n"]:
    """The objective of circuits where ablated edges carry means of the train prompts."""
    model = inputs.model
    batch = ablate(model, inputs.batch, "mean", data=inputs.train, progress=inputs.progress)
    return evaluate(model, circuits, batch, inputs.objective, progress=inputs.progress)


def by_counterfactual(
    inputs: Inputs, circuits: Sequence[Circuit]
) -> Float[np.ndarray, "circuits n"]:
    """The objective of circuits where ablated edges carry the counterfactual run."""
    return evaluate(
        inputs.model, circuits, inputs.batch, inputs.objective, progress=inputs.progress
    )
