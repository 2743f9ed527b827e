"""Running circuits of neurons: one forward per circuit, in which every writer's output is masked.

With n_u in {0, 1}^d_model the neurons of writer u that are in, every reader v sees

    x_v = R'_v + sum over writers u that v sees of n_u * (a_u - a'_u),

R' and a' being the streams and outputs of the reference run. All readers see the same masked
change of a writer, so unlike a circuit of edges this is one ordinary forward. It carries the sum
of the changes, D, from layer to layer beside the reference's stream: no neurons give the reference
exactly. With a post-norm P (Gemma) a layer's heads change the stream by

    P(o' + sum_h n_h * (a_h - a'_h)) - P(o'),

where o' is the sum of the reference's heads and output bias. A head's mask acts on the rows of its
W_O, so that heads are never expanded one by one.

A writer that no included writer leads to from `input` keeps its reference value, as in a circuit of
edges. Every reader sees `input`: as soon as one of its neurons is in, all writers are reached, and
without any, none is. (Only references that are not a run of the model tell the difference.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from mechassay.circuits.node_scores import NodeSelection
from mechassay.circuits.objectives import Objective, load_objective
from mechassay.circuits.per_example import objective_per_example
from mechassay.errors import GraphMismatch
from mechassay.models.capture import Contrast
from mechassay.models.decoder import Decoder, Readout
from mechassay.models.model import Model
from mechassay.pairs import Batch, Pair
from mechassay.progress import BAR, Progress


def evaluate_neurons(
    model: Model,
    selection: NodeSelection | Sequence[NodeSelection],
    pairs: Sequence[Pair] | Batch,
    objective: str | Objective = "logit_diff",
    *,
    progress: Progress = BAR,
) -> Float[np.ndarray, "*selections n"]:
    """The objective per example when only the selected neurons carry the clean run; the others carry the counterfactual.

    Several selections share the clean and counterfactual runs of every example.

    Returns:
        float64 values in the order of `pairs`: [n] for one selection, [selections, n] for several.

    Raises:
        GraphMismatch: a selection belongs to another graph or another width than the model's.
        NonFinite: an example's value is NaN or infinite.
        OutOfMemory: one example does not fit.
    """
    selections = [selection] if isinstance(selection, NodeSelection) else list(selection)
    for each in selections:
        if each.graph != model.graph:
            raise GraphMismatch(f"The selection belongs to {each.graph}; the model's graph is {model.graph}.")
        if each.neurons.shape[1] != model.decoder.d_model:
            raise GraphMismatch(f"The selection has {each.neurons.shape[1]} neurons a node; the model has {model.decoder.d_model}.")
    chosen, batch = load_objective(objective), model.batch(pairs)
    runs = [lambda contrast, each=each: run_neurons(model.decoder, contrast, each) for each in selections]
    values = objective_per_example(model, batch, chosen, runs, progress=progress)
    return values[0] if isinstance(selection, NodeSelection) else values


@torch.no_grad()
def run_neurons(decoder: Decoder, contrast: Contrast, selection: NodeSelection) -> Readout:
    """The logits at the last column of a batch when only the selected neurons carry the clean run."""
    graph, nodes = selection.graph, selection.nodes
    reference = contrast.other
    if bool(selection.neurons.all()):
        return contrast.clean.readout(decoder)
    if not bool(nodes[0]):
        return reference.readout(decoder)
    keep = selection.neurons.to(reference.embed)
    change = keep[0] * (contrast.clean.embed[:, contrast.start :] - reference.embed)
    for index, layer in enumerate(decoder.layers):
        last = index + 1 == len(decoder.layers)
        before = change[:, -1:] if last else change
        heads = graph.heads(index)
        after = before + _heads(decoder, contrast, index, change, keep[heads]) if bool(nodes[heads].any()) else before
        change = after
        if layer.mlp is not None and bool(nodes[graph.mlp_writer(index)]):
            at = reference.layers[index]
            assert at.mlp is not None
            read, n = before if decoder.parallel else after, before.shape[1]
            change = after + keep[graph.mlp_writer(index)] * (layer.mlp(at.middle[:, -n:] + read) - at.mlp[:, -n:])
    return decoder.readout((reference.final[:, -1:] + change)[:, 0])


def _heads(
    decoder: Decoder, contrast: Contrast, index: int, change: Float[Tensor, "batch pos d_model"], keep: Float[Tensor, "heads d_model"]
) -> Float[Tensor, "batch written d_model"]:
    """How a layer's masked heads change the stream, at all columns; in the last layer at the last column only."""
    attention, reference, past, start = decoder.layers[index].attention, contrast.other.layers[index], contrast.clean, contrast.start
    y = attention.norm(reference.before + change)
    k = decoder.rotate(index, attention.k(y), contrast.ctx, is_key=True, start=start)
    v = attention.v(y).transpose(1, 2)
    if start:
        k = torch.cat((past.layers[index].k[:, :, :start], k), dim=2)
        v = torch.cat((past.layers[index].v[:, :, :start], v), dim=2)
    if index + 1 == len(decoder.layers):
        y = y[:, -1:]
    n = y.shape[1]
    q = decoder.rotate(index, attention.q(y), contrast.ctx, is_key=False, start=start + change.shape[1] - n)
    difference = decoder.attend(index, q, k, v, contrast.ctx) - reference.z[:, :, -n:]
    masked = (attention.out * keep[:, None]).flatten(0, 1)
    wrote = F.linear(difference.transpose(1, 2).flatten(2), masked.t())
    if attention.post_norm is None:
        return wrote
    assert reference.attended is not None
    base = reference.attended[:, -n:]
    return attention.post_norm(base + wrote) - attention.post_norm(base)
