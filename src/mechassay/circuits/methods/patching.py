"""Runs that are the clean one but for one change: what exact patching of edges and of nodes share.

The clean run of some examples is cached, and what each writer changes in the stream is known from
the two runs. A change is added to the cached stream where it happens, and the forward resumes
there: many changes stacked in one batch, at the columns that differ, without the prefix and without
the reference run. With a post-norm P (Gemma) a head changes the stream by P(o + a'_u - a_u) - P(o),
where o is the clean sum of the layer's heads and output bias.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.checkpoint import key_of
from mechassay.circuits.methods.method import provenance_of, resumable_sum
from mechassay.circuits.node_scores import Scores
from mechassay.graph import Graph
from mechassay.models.decoder import Readout
from mechassay.models.forward import forward
from mechassay.models.memory import patching_bytes, token_budget
from mechassay.models.model import Model
from mechassay.models.trace import Contrast
from mechassay.objectives import Objective, ObjectiveLike, load_objective, signed
from mechassay.pairs import Batch, PairsLike
from mechassay.progress import BAR, Progress

ScoresT = TypeVar("ScoresT", bound=Scores)


class PatchBatch(NamedTuple):
    """Some examples and a run of writers, patched together at one place; layer -1 is the logits."""

    rows: list[int]
    layer: int
    kind: str
    writers: range
    n_scores: int


class Patching:
    """Some examples: what each writer changes, and what a change does to the objective."""

    def __init__(self, model: Model, contrast: Contrast, objective: Objective) -> None:
        self.model, self.contrast, self.objective = model, contrast, objective
        self.columns = contrast.other.embed.shape[1]
        readout = contrast.clean.readout(model.decoder)
        self.clean = readout if objective.needs_clean else None
        self.baseline = signed(objective, readout, contrast.batch, self.clean)

    def changes(self, writers: range) -> Float[Tensor, "writers batch pos d_model"]:
        """What the stream gains when a writer alone carries its ablated value."""
        graph, decoder, contrast = self.model.graph, self.model.decoder, self.contrast
        out = contrast.other.embed.new_empty((len(writers), *contrast.other.embed.shape))
        for place, writer in enumerate(writers):
            layer, head = divmod(writer - 1, graph.writers_per_layer)
            if writer == 0:
                out[place] = contrast.other.embed - self.stream(contrast.clean.embed)
            elif head == graph.n_heads:
                clean, other = contrast.clean.layers[layer].mlp, contrast.other.layers[layer].mlp
                assert clean is not None and other is not None
                out[place] = other - self.stream(clean)
            else:
                clean, other = contrast.clean.layers[layer], contrast.other.layers[layer]
                change = other.z[:, head : head + 1] - clean.z[:, head : head + 1, -self.columns :]
                wrote = decoder.head_outputs(layer, change, slice(head, head + 1))[0]
                out[place] = self.through_post_norm(layer, wrote)
        return out

    def through_post_norm(
        self, layer: int, change: Float[Tensor, "*lead batch pos d_model"]
    ) -> Float[Tensor, "*lead batch pos d_model"]:
        """What the stream gains when a head writes `change` more."""
        post = self.model.decoder.layers[layer].attention.post_norm
        attended = self.contrast.clean.layers[layer].attended
        if post is None or attended is None:
            return change
        base = self.stream(attended)
        return post(base + change) - post(base)

    def stream(
        self, x: Float[Tensor, "batch all_pos d_model"]
    ) -> Float[Tensor, "batch pos d_model"]:
        """The columns of a clean tensor that the reference run has."""
        return x[:, -self.columns :]

    # The summed drop of the objective when the stream changes somewhere, for several changes.

    def entering(
        self, layer: int, changes: Float[Tensor, "changes batch pos d_model"]
    ) -> Float[Tensor, "changes"]:
        """... before a layer (after the last one where `layer` is their number)."""
        clean = self.contrast.clean
        base = clean.layers[layer].before if layer < len(clean.layers) else clean.final
        return self._resume(layer, self.stream(base) + changes)

    def after_heads(
        self, layer: int, changes: Float[Tensor, "changes batch pos d_model"]
    ) -> Float[Tensor, "changes"]:
        """... right after a layer's heads."""
        clean = self.contrast.clean.layers[layer]
        if self.model.decoder.parallel or clean.mlp is None:
            return self.entering(layer + 1, changes)
        return self._resume(layer, self.stream(clean.middle) + changes, at_mlp=True)

    def at_logits(
        self, changes: Float[Tensor, "changes batch pos d_model"]
    ) -> Float[Tensor, "changes"]:
        """... for the unembedding alone."""
        final = self.contrast.clean.final[:, -1] + changes[:, :, -1]
        return self._drop(self.model.decoder.readout(final.flatten(0, 1)))

    def _resume(
        self, layer: int, x: Float[Tensor, "changes batch pos d_model"], *, at_mlp: bool = False
    ) -> Float[Tensor, "changes"]:
        contrast, decoder = self.contrast, self.model.decoder
        stack = x.flatten(0, 1)
        if layer < self.model.graph.n_layers:
            stack = forward(
                decoder,
                stack,
                contrast.ctx.repeat(len(x)),
                layer=layer,
                at_mlp=at_mlp,
                start=contrast.start,
                past=contrast.clean.layers,
                last_only=True,
            )
        return self._drop(decoder.readout(stack[:, -1]))

    def _drop(self, readout: Readout) -> Float[Tensor, "changes"]:
        """Sum over examples, which are stacked change after change along the batch."""
        n = len(self.baseline)
        copies = len(readout.hidden) // n
        clean = None if self.clean is None else self.clean.repeat(copies)
        values = signed(self.objective, readout, self.contrast.batch.repeat(copies), clean)
        drops = self.baseline - values.unflatten(0, (copies, n))
        return drops.to(self.model.accumulator).sum(dim=1)


def chunks(batch: Batch, stack_tokens: int) -> Iterator[tuple[list[int], int]]:
    """Rows of examples few enough to stack changes, and how many columns of them differ."""
    for rows, chunk in batch.chunks(max(stack_tokens // 8, batch.n_tokens)):
        yield rows, len(rows) * (chunk.n_tokens - min(chunk.first_difference(), chunk.n_tokens - 1))


class PatchingMethod(ABC, Generic[ScoresT]):
    """A method that changes one thing after another in the clean run.

    `stack_tokens` is how many columns times copies one resumed forward holds at most.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    stack_tokens: ClassVar[int] = 4096

    @abstractmethod
    def blocks(self, model: Model, batch: Batch, stack_tokens: int) -> Iterator[PatchBatch]:
        """What is patched together, in the order in which it is done."""

    @abstractmethod
    def add(self, run: Patching, block: PatchBatch, into: Tensor) -> None:
        """Add the summed effects of a block to `into`."""

    @abstractmethod
    def shape(self, graph: Graph) -> tuple[int, ...]:
        """That of `into`."""

    @abstractmethod
    def scores(self, graph: Graph, mean: Tensor, provenance: dict[str, Any]) -> ScoresT:
        """Scores of the mean over all examples."""

    @abstractmethod
    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """See `Method.forwards`."""

    def score(
        self,
        model: Model,
        pairs: PairsLike,
        objective: ObjectiveLike = "logit_diff",
        *,
        progress: Progress = BAR,
        checkpoint: Path | None = None,
    ) -> ScoresT:
        """See `Method.score`; objectives need not be differentiable."""
        chosen, batch = load_objective(objective), model.batch(pairs)
        mean, about = self.effects(model, batch, chosen, progress=progress, checkpoint=checkpoint)
        return self.scores(model.graph, mean, about)

    @torch.no_grad()
    def effects(
        self,
        model: Model,
        batch: Batch,
        objective: Objective,
        *,
        progress: Progress = BAR,
        checkpoint: Path | None = None,
    ) -> tuple[Tensor, dict[str, Any]]:
        """The mean effects over examples, and the provenance of the scores."""
        room = token_budget(patching_bytes(model.decoder), batch.n_tokens, model.device)
        blocks = list(self.blocks(model, batch, min(room, self.stack_tokens)))
        held: dict[int, Patching] = {}

        def add(block: PatchBatch, into: Mapping[str, Tensor]) -> None:
            first = block.rows[0]
            if first not in held:
                held.clear()
                contrast = Contrast.run(model.decoder, batch.select(block.rows))
                held[first] = Patching(model, contrast, objective)
            self.add(held[first], block, into["total"])

        about = provenance_of(self, model, batch, objective)
        zeros = torch.zeros(self.shape(model.graph), dtype=model.accumulator, device=model.device)
        sums = resumable_sum(
            self.name,
            key_of({**about, "blocks": len(blocks), "graph": model.graph.fingerprint}),
            {"total": zeros},
            ((block.n_scores, block) for block in blocks),
            add,
            n_units=sum(block.n_scores for block in blocks),
            progress=progress,
            checkpoint=checkpoint,
        )
        return sums["total"] / len(batch), about
