"""Running circuits in which all readers see the same writers: one forward with masked outputs.

With n_u in {0, 1}^d_model the neurons of writer u that are in, every reader v sees

    x_v = R'_v + sum over writers u that v sees of n_u * (a_u - a'_u),

R' and a' being the streams and outputs of the reference run. Circuits cut by node or by neuron have
all edges out of their writers, but for those into nodes that lead nowhere. They need one stream a
sublayer, not one a reader: the sum of the changes goes from layer to layer beside the reference's
stream. With a post-norm P (Gemma) a layer's heads change the stream by

    P(o' + sum_h n_h * (a_h - a'_h)) - P(o'),

where o' is the sum of the reference's heads and output bias. A head's mask acts on the rows of its
W_O, so that heads are never expanded one by one. All heads of a layer are run together: where few
are live the compiled forward is faster. A writer to which no included writer leads from `input`
keeps its reference value.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.graph import Graph
from mechassay.models.decoder import Decoder, Readout
from mechassay.models.forward import queries_keys_values
from mechassay.models.trace import Contrast


def shared_by_all_readers(
    graph: Graph, edges: Bool[Tensor, "writers readers"], neurons: Bool[Tensor, "writers d_model"]
) -> Bool[Tensor, "writers d_model"] | None:
    """The neurons of live writers, if every live reader sees all of these writers; else None."""
    mask = graph.carrying(edges, neurons)
    live = mask.any(dim=1)
    reads = torch.cat((live, torch.tensor([True])))[graph.reader_owner]
    if not torch.equal(mask, graph.legal & live[:, None] & (reads & live[0])):
        return None
    return neurons.cpu() & live[:, None]


@torch.no_grad()
def run_shared(
    decoder: Decoder, contrast: Contrast, graph: Graph, neurons: Bool[Tensor, "writers d_model"]
) -> Readout:
    """The logits at the last column when all readers see these neurons' changes alone."""
    nodes, reference = neurons.any(dim=1), contrast.other
    if bool(neurons.all()):
        return contrast.clean.readout(decoder)
    if not bool(nodes[0]):
        return reference.readout(decoder)
    keep = neurons.to(reference.embed)
    change = keep[0] * (contrast.clean.embed[:, contrast.start :] - reference.embed)
    for index, layer in enumerate(decoder.layers):
        last = index + 1 == len(decoder.layers)
        before = change[:, -1:] if last else change
        heads, mlp = graph.heads(index), graph.mlp_writer(index)
        after = before
        if bool(nodes[heads].any()):
            after = before + _heads(decoder, contrast, index, change, keep[heads])
        change = after
        if layer.mlp is not None and bool(nodes[mlp]):
            at = reference.layers[index]
            assert at.mlp is not None
            read, n = before if decoder.parallel else after, before.shape[1]
            change = after + keep[mlp] * (layer.mlp(at.middle[:, -n:] + read) - at.mlp[:, -n:])
    return decoder.readout((reference.final[:, -1:] + change)[:, 0])


def _heads(
    decoder: Decoder,
    contrast: Contrast,
    index: int,
    change: Float[Tensor, "batch pos d_model"],
    keep: Float[Tensor, "heads d_model"],
) -> Float[Tensor, "batch written d_model"]:
    """How a layer's masked heads change the stream: at all columns, or at the last in the end."""
    attention, reference = decoder.layers[index].attention, contrast.other.layers[index]
    q, k, v = queries_keys_values(
        decoder,
        index,
        reference.before + change,
        contrast.ctx,
        start=contrast.start,
        past=contrast.clean.layers,
        last_only=index + 1 == len(decoder.layers),
    )
    n = q.shape[2]
    difference = decoder.attend(index, q, k, v, contrast.ctx) - reference.z[:, :, -n:]
    masked = (attention.out * keep[:, None]).flatten(0, 1)
    wrote = F.linear(difference.transpose(1, 2).flatten(2), masked.t())
    if attention.post_norm is None:
        return wrote
    assert reference.attended is not None
    base = reference.attended[:, -n:]
    return attention.post_norm(base + wrote) - attention.post_norm(base)
