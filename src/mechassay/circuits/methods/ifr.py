"""Information flow routes: how much of what a reader sees lies along what each writer wrote.

With a_v the residual stream at reader v and a_u what writer u added to it (Ferrando and Voita 2024;
as edge scores Mueller et al. 2025, eq. 5):

    prox[u, v] = max(|a_v|_1 - |a_v - a_u|_1, 0)
    importance[u, v] = prox[u, v] / sum_u' prox[u', v],

the mean over the real positions of a prompt, then over examples. Only clean runs are used: no
counterfactual, no objective, no gradient. Importances of a reader's in-edges sum to 1, so readers
cannot be compared: circuits are grown from the logits (`EdgeScores.greedy`). The query, key and
value readers of all heads of a layer see one stream and have the same importances.

Biases of W_O and learned positions are in a_v but belong to no writer. The L1 norm depends on the
basis: weights are taken as they are, neither folded nor centred. Deviations from MIB's code:

- A position where all proximities are 0, which makes their scores NaN, is left out of the mean, and
  so is an example that has no other; `provenance` counts such positions by stream. A reader that
  has none but these is not scored (NaN).
- Behind a post-norm (Gemma) a head adds its share of the normed sum, w * o_h / rms(sum of heads).
  Their code takes o_h itself, which never enters the stream.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.circuits.methods.method import Method, ScoreInputs, provenance_of, resumable_sum
from mechassay.circuits.scores import EdgeScores
from mechassay.models.decoder import Norm, at_least_fp32
from mechassay.models.forward import Trace
from mechassay.models.graph import Graph
from mechassay.models.memory import token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.prompts.batch import Batch
from mechassay.utils.checkpoint import key_of


@dataclass(frozen=True)
class InformationFlowRoutes(Method[EdgeScores]):
    """Importance of each writer to each reader's input, by L1 proximity."""

    name: ClassVar[str] = "ifr"
    selection: ClassVar[str] = "greedy"

    @torch.no_grad()
    def find_scores(self, inputs: ScoreInputs) -> EdgeScores:
        """Find shares in [0, 1], which are no drops and do not depend on the objective."""
        model, batch = inputs.model, inputs.batch
        budget = token_budget(trace_bytes(model.decoder), batch.n_tokens, model.device)
        about = provenance_of(self, inputs)
        about["selection"] = self.selection
        sums = resumable_sum(
            self.name,
            key_of({**about, "budget": budget, "graph": model.graph.fingerprint}),
            _Shares.zeros(model)._asdict(),
            ((len(rows), chunk) for rows, chunk in batch.chunks(budget)),
            lambda chunk, into: _Shares(**into).add(model, chunk),
            n_units=len(batch),
            progress=inputs.progress,
            checkpoint=inputs.checkpoint,
        )
        return _Shares(**sums).scores(model.graph, about)

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """Return the clean run, and about as much again for the distances."""
        return 2.0 * n_pairs


class _Shares(NamedTuple):
    """Sums over examples: importances, examples and undefined positions of each stream."""

    shares: Float[Tensor, "streams writers"]
    examples: Float[Tensor, "streams"]
    undefined: Int[Tensor, "streams"]

    @staticmethod
    def zeros(model: Model) -> _Shares:
        n_streams = len(model.graph.stages())
        zeros = torch.zeros((), dtype=model.accumulator, device=model.device).new_zeros
        undefined = zeros(n_streams, dtype=torch.long)
        return _Shares(zeros(n_streams, model.graph.n_writers), zeros(n_streams), undefined)

    def add(self, model: Model, chunk: Batch) -> None:
        taken, _ = model.run(chunk)
        # What the readers of each stage see.
        seen: list[Tensor] = []
        for layer in taken.layers:
            seen += [layer.before] if layer.mlp is None else [layer.before, layer.middle]
        seen.append(taken.final)
        streams = torch.stack([at_least_fp32(stream[chunk.mask]) for stream in seen], dim=1)
        near = proximities(streams, _written(model, taken, chunk.mask), model.graph)
        total = near.sum(-1)
        # NaN, of activations that overflow, counts as defined and is refused in the end.
        defined = total != 0
        example = chunk.mask.nonzero()[:, 0]
        positions = total.new_zeros(len(chunk), total.shape[1]).index_add_(
            0, example, defined.to(total.dtype)
        )
        weights = torch.where(defined, 1 / (total * positions[example]), 0.0)
        self.shares.add_(torch.einsum("ts,tsw->sw", weights, near))
        self.examples.add_((positions > 0).sum(0))
        self.undefined.add_((~defined).sum(0))

    def scores(self, graph: Graph, about: dict[str, Any]) -> EdgeScores:
        """Means over examples, copied to all readers of a stream."""
        stages = graph.stages()
        sizes = torch.tensor([readers.stop - readers.start for readers in stages])
        stream_of = torch.repeat_interleave(sizes)
        means = (self.shares / self.examples.clamp(min=1)[:, None]).cpu()
        names = [graph.reader_name(readers.start).partition(".")[0] for readers in stages]
        counts = zip(names, self.undefined.tolist(), strict=True)
        left_out = {name: count for name, count in counts if count}
        scores = EdgeScores.of(
            graph, means[stream_of].T, {**about, "undefined_positions": left_out}
        )
        unscored = (self.examples == 0).cpu()[stream_of]
        return replace(scores, values=scores.values.masked_fill(unscored, float("nan")))


def proximities(
    streams: Float[Tensor, "tokens streams d_model"],
    written: Iterable[tuple[slice, Tensor]],
    graph: Graph,
) -> Float[Tensor, "tokens streams writers"]:
    """max(|a_v|_1 - |a_v - a_u|_1, 0) of every stream and each writer that it holds, else 0.

    Args:
        streams: what the readers of each of `graph.stages()` see.
        written: runs of writers that are seen together, and their vectors [tokens, n, d_model].
    """
    visible = [int(graph.visible[readers.start]) for readers in graph.stages()]
    near = streams.new_zeros(streams.shape[0], streams.shape[1], graph.n_writers)
    # The norm as a distance from 0: summed in the same order, so that a writer of zeros is at
    # exactly 0.
    norms = torch.cdist(streams, streams.new_zeros(len(streams), 1, streams.shape[2]), p=1.0)
    for writers, vectors in written:
        first = bisect_left(visible, writers.stop)
        distances = torch.cdist(streams[:, first:], vectors, p=1.0)
        near[:, first:, writers] = (norms[:, first:] - distances).clamp(min=0)
    return near


def _written(
    model: Model, taken: Trace, real: Bool[Tensor, "batch pos"]
) -> Iterator[tuple[slice, Float[Tensor, "tokens n d_model"]]]:
    """What was added to the stream at real tokens: by the input, each layer's heads and its MLP."""
    decoder, graph = model.decoder, model.graph
    yield slice(0, 1), at_least_fp32(taken.embed[real])[:, None]
    for index, layer in enumerate(taken.layers):
        z = layer.z.transpose(1, 2)[real][:, :, None]
        heads = at_least_fp32(decoder.head_outputs(index, z).squeeze(2)).transpose(0, 1)
        post_norm = decoder.layers[index].attention.post_norm
        if post_norm is not None and layer.attended is not None:
            heads = normed_share(post_norm, heads, layer.attended[real][:, None])
        yield graph.heads(index), heads
        if layer.mlp is not None:
            writer = graph.mlp_writer(index)
            yield slice(writer, writer + 1), at_least_fp32(layer.mlp[real])[:, None]


def normed_share(
    norm: Norm, part: Float[Tensor, "tokens n d_model"], total: Float[Tensor, "tokens 1 d_model"]
) -> Tensor:
    """What a part of `total` contributes to norm(total), whose scale is that of `total`."""
    if norm.centred:
        part = part - part.mean(-1, keepdim=True)
    return part * norm.statistics(total).rscale * norm.weight.to(part.dtype)
