"""EAP with integrated gradients at the activations.

Instead of the input, the output of one sublayer s (the embedding, a layer's attention, an MLP)
is set to a'_s + alpha_k (a_s - a'_s), everything before it being clean; gradients are taken in the
network that follows. 2L + 1 sublayers times Z points. Two readings of "averaged over the points":

`paper`     Marks et al. 2025; Mueller et al. 2025, eq. 4: a writer's edges use the gradients of the
            runs in which its own sublayer was interpolated. A layer's heads move together: O(Z L).
`mib-2025`  their code: every edge averages over the runs of ALL sublayers, 1 / (Z (2L + 1)). With
            two exceptions. Under means it interpolates towards zero and multiplies with the
            difference from the mean; here both are the mean. With rotary positions it leaves the
            runs of the input out of edges from the input into the first layer's heads (its gradient
            hooks are blind to the interpolated input); here they are in all edges.

The forward pass resumes at the interpolated sublayer. In the second reading, readers before the
sublayer also receive gradients, through the skip connection alone: the cotangents of all runs are
put into ONE clean pass, each where its sublayer writes, and differentiated once.

MIB's code takes k/Z for k = 1..Z (`points="right"`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from mechassay.circuits.attribution import (
    ReaderGradients,
    Taps,
    contract,
    objective_total,
    tapped_forward,
)
from mechassay.circuits.methods.gradient import (
    EdgeGradientMethod,
    IntegratedMethod,
    Points,
)
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import one_of
from mechassay.graph import Graph
from mechassay.models.decoder import Decoder, NormStatistics
from mechassay.models.model import Model
from mechassay.models.trace import Contrast
from mechassay.objectives import Objective
from mechassay.pairs import Batch

Reading = Literal["paper", "mib-2025"]


@dataclass(frozen=True)
class EAPIGActivations(IntegratedMethod[EdgeScores], EdgeGradientMethod):
    """Edge attribution patching with gradients integrated along each sublayer's output.

    `reading` says which runs an edge averages over; other fields as in `IntegratedMethod`.
    """

    steps: int = 5
    reading: Reading = "paper"
    points: Points = "right"
    backward: str = "plain"
    name: ClassVar[str] = "eap-ig-activations"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("reading", self.reading, get_args(Reading))

    def add(self, model: Model, chunk: Batch, objective: Objective, into: Tensor) -> None:
        contrast = Contrast.run(model.decoder, chunk)
        add_runs = _own_runs if self.reading == "paper" else _all_runs
        add_runs(model, contrast, objective, *self.path, into)

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """See `Method.forwards`: a step at a sublayer resumes half a network on average."""
        return (2.0 + 1.5 * self.steps * len(graph.stages())) * n_pairs


class Sublayer(NamedTuple):
    """An interpolated output: clean and counterfactual values, and the stream without it."""

    kind: Literal["input", "heads", "mlp"]
    layer: int
    writers: slice
    clean: Tensor
    other: Tensor
    rest: Tensor


def _sublayers(model: Model, contrast: Contrast) -> Iterator[Sublayer]:
    decoder, graph, start = model.decoder, model.graph, contrast.start
    embed = contrast.clean.embed[:, start:]
    yield Sublayer("input", 0, slice(0, 1), embed, contrast.other.embed, torch.zeros(()))
    for layer in range(graph.n_layers):
        clean, other = contrast.clean.layers[layer], contrast.other.layers[layer]
        before, z = clean.before[:, start:], clean.z[:, :, start:]
        heads, other_heads = decoder.attention_sum(layer, z), decoder.attention_sum(layer, other.z)
        mlp = None if clean.mlp is None else clean.mlp[:, start:]
        beside = before + mlp if decoder.parallel and mlp is not None else before
        yield Sublayer("heads", layer, graph.heads(layer), heads, other_heads, beside)
        if mlp is not None and other.mlp is not None:
            post = decoder.layers[layer].attention.post_norm
            row = graph.mlp_writer(layer)
            rest = before + (heads if post is None else post(heads))
            yield Sublayer("mlp", layer, slice(row, row + 1), mlp, other.mlp, rest)


@torch.no_grad()
def _runs(
    model: Model,
    contrast: Contrast,
    objective: Objective,
    alphas: Sequence[float],
    weights: Sequence[float],
) -> Iterator[tuple[Sublayer, ReaderGradients]]:
    """The runs of each sublayer, stacked over the points."""
    decoder = model.decoder
    times, columns = len(alphas), contrast.other.embed.shape[1]
    ctx = contrast.ctx.repeat(times)
    for sublayer in _sublayers(model, contrast):
        clean, other = sublayer.clean, sublayer.other
        points = torch.cat([other + alpha * (clean - other) for alpha in alphas])
        post, of_heads = None, sublayer.kind == "heads"
        if of_heads:
            post = decoder.layers[sublayer.layer].attention.post_norm
        at_mlp = of_heads and not decoder.parallel and model.graph.mlp
        layer = sublayer.layer + (sublayer.kind != "input" and not at_mlp)
        with torch.enable_grad():
            if sublayer.kind == "input":
                entry = points.requires_grad_()
                x = decoder.add_positions(entry, ctx, contrast.start)
            else:
                rest = sublayer.rest.repeat(times, 1, 1)
                entry = x = (rest + (points if post is None else post(points))).requires_grad_()
            taps = tapped_forward(
                decoder,
                x,
                ctx,
                start=contrast.start,
                past=contrast.clean,
                layer=layer,
                at_mlp=at_mlp,
            )
            total = objective_total(decoder, objective, taps.readout, contrast, weights)
            gradients = ReaderGradients.of(
                decoder, taps, total, times=times, columns=columns, entry=entry
            )
        at = None if post is None else post.statistics(points)
        taps = _with_post_norms(decoder, contrast, taps, times, sublayer.layer, at)
        yield sublayer, replace(gradients, taps=taps)


def _with_post_norms(
    decoder: Decoder,
    contrast: Contrast,
    taps: Taps,
    times: int,
    layer: int,
    at: NormStatistics | None,
) -> Taps:
    """Post-norms of layers that were not run: clean, except the interpolated one's own (`at`)."""
    post = list(taps.post)
    for index, part in enumerate(decoder.layers):
        norm, attended = part.attention.post_norm, contrast.clean.layers[index].attended
        if norm is None or attended is None or post[index] is not None:
            continue
        if index == layer and at is not None:
            post[index] = at
        else:
            clean = norm.statistics(attended[:, contrast.start :])
            post[index] = NormStatistics(
                clean.xhat.repeat(times, 1, 1), clean.rscale.repeat(times, 1, 1)
            )
    return replace(taps, post=post)


def _own_runs(
    model: Model,
    contrast: Contrast,
    objective: Objective,
    alphas: Sequence[float],
    weights: Sequence[float],
    into: Tensor,
) -> None:
    for sublayer, gradients in _runs(model, contrast, objective, alphas, weights):
        contract(model, contrast, gradients, into, writers=sublayer.writers)


def _all_runs(
    model: Model,
    contrast: Contrast,
    objective: Objective,
    alphas: Sequence[float],
    weights: Sequence[float],
    into: Tensor,
) -> None:
    decoder = model.decoder
    share = 1 / (1 + model.graph.n_layers * (1 + model.graph.mlp))
    columns = contrast.other.embed.shape[1]
    cotangents: list[tuple[Sublayer, Tensor]] = []
    shares = [weight * share for weight in weights]
    for sublayer, gradients in _runs(model, contrast, objective, alphas, shares):
        contract(model, contrast, gradients, into)
        if sublayer.kind != "input":
            assert gradients.entry is not None
            cotangents.append((sublayer, gradients.entry.unflatten(0, (len(alphas), -1)).sum(0)))
    with torch.enable_grad():
        embeds = contrast.clean.embed[:, contrast.start :].detach().requires_grad_()
        x = decoder.add_positions(embeds, contrast.ctx, contrast.start)
        taps = tapped_forward(decoder, x, contrast.ctx, start=contrast.start, past=contrast.clean)
        products: list[Tensor] = []
        for sublayer, cotangent in cotangents:
            around = _around(decoder, taps, sublayer)
            # The last layer has its last column alone: cotangents are zero elsewhere.
            n = min(around.shape[1], cotangent.shape[1])
            products.append((around[:, -n:] * cotangent[:, -n:]).sum())
        total = torch.stack(products).sum()
        gradients = ReaderGradients.of(decoder, taps, total, times=1, columns=columns)
    contract(model, contrast, gradients, into)


def _around(decoder: Decoder, taps: Taps, sublayer: Sublayer) -> Tensor:
    """The stream after a sublayer without what it wrote, in a pass that is being differentiated."""
    layer = sublayer.layer
    before, middle, mlp = taps.before[layer], taps.middle[layer], taps.mlp_out[layer]
    assert before is not None and middle is not None
    if sublayer.kind == "mlp":
        return middle
    return before[:, -mlp.shape[1] :] + mlp if decoder.parallel and mlp is not None else before
