"""Exact edge patching: the drop in the objective when one edge alone carries the counterfactual.

    S[u, v] = mean_examples m(clean) - m(clean with edge (u, v) ablated)

No estimate, and one run per edge; but only the reader v changes, so for an edge (u, v)

  * the clean run is cached, and v's stream is the clean one plus a'_u - a_u;
  * the norm and the projections are computed once for all heads and slots of a layer that a writer is added to;
  * each such reader's head is mixed again on its own, its change is added to the stream, and
    the forward resumes there, many edges stacked in one batch, at the columns that differ.

An edge into the last layers costs next to nothing, and most edges are there: on average less than
half a forward an edge. MIB calls this EActP; no edge is pruned (a reader that lost one edge keeps the rest).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.circuits.checkpoint import checkpointed, key_of
from mechassay.circuits.methods.method import describe
from mechassay.circuits.objectives import Objective, load_objective, signed
from mechassay.circuits.scores import EdgeScores
from mechassay.errors import BadUsage
from mechassay.models.capture import Contrast, resume
from mechassay.models.decoder import Readout
from mechassay.models.memory import out_of_memory_is_an_error, token_budget
from mechassay.models.model import Model
from mechassay.pairs import Batch, Pair
from mechassay.progress import BAR, Progress

STACK_TOKENS = 4096
"""Columns times copies that one resumed forward holds; more gains nothing on a CPU."""


@dataclass(frozen=True)
class ExactPatching:
    """Exact effect of ablating each edge alone.

    Attributes:
        layers: score only edges into these layers' heads and MLPs (None: all, and the logits);
            other edges are NaN. -1 stands for the logits.
    """

    layers: tuple[int, ...] | None = None
    name: ClassVar[str] = "exact"
    version: ClassVar[int] = 1

    @torch.no_grad()
    def score(
        self,
        model: Model,
        pairs: Sequence[Pair] | Batch,
        objective: str | Objective = "logit_diff",
        *,
        progress: Progress = BAR,
        checkpoint: Path | None = None,
    ) -> EdgeScores:
        """See `Method.score`; objectives need not be differentiable."""
        chosen, batch, graph = load_objective(objective), model.batch(pairs), model.graph
        wanted = [*range(graph.n_layers), -1] if self.layers is None else list(self.layers)
        if any(not -1 <= layer < graph.n_layers for layer in wanted):
            raise BadUsage(f"Layers to patch must be between 0 and {graph.n_layers - 1}, or -1 for the logits; got {wanted}.")
        total = torch.zeros(graph.n_writers, graph.n_readers, dtype=model.accumulator, device=model.device)
        budget = token_budget(_bytes_per_token(model), batch.n_tokens, model.device)
        about = describe(self, model, batch, chosen)
        blocks = list(_blocks(model, wanted, min(budget, STACK_TOKENS), batch))
        key = key_of({**about, "blocks": len(blocks), "graph": graph.fingerprint})
        n_edges = sum(block.n_edges for block in blocks)
        with (
            progress.track(self.name, n_edges) as advance,
            out_of_memory_is_an_error(self.name),
            checkpointed(checkpoint, key, {"total": total}) as state,
        ):
            skip, edges, held = state.cursor, None, -1
            for number, block in enumerate(blocks):
                if number >= skip:
                    if edges is None or held != block.rows[0]:
                        edges, held = _Edges(model, Contrast.run(model.decoder, batch.select(block.rows)), chosen), block.rows[0]
                    edges.add(block, total)
                    state.done(number + 1)
                advance(block.n_edges)
        scored = torch.full_like(total, float("nan"))
        for layer in wanted:
            readers = (
                slice(graph.logits, graph.logits + 1)
                if layer == -1
                else slice(graph.slots(layer).start, graph.slots(layer).start + graph.readers_per_layer)
            )
            scored[:, readers] = total[:, readers] / len(batch)
        if self.layers is None:
            return EdgeScores.of(graph, scored, about)
        return EdgeScores(graph, torch.where(graph.legal, scored.float().cpu(), torch.tensor(float("nan"))), about)


class Block(NamedTuple):
    """Some examples, and a run of writers into all readers of one stage (a layer's heads, its MLP, the logits)."""

    rows: list[int]
    layer: int
    kind: str
    writers: range
    n_edges: int


def _blocks(model: Model, layers: Sequence[int], stack_tokens: int, batch: Batch) -> Iterator[Block]:
    graph = model.graph
    for rows, chunk in batch.chunks(max(stack_tokens // 8, batch.n_tokens)):
        columns = len(rows) * (chunk.n_tokens - min(chunk.first_difference(), chunk.n_tokens - 1))
        for layer in layers:
            stages = [("logits", graph.n_writers, 1)] if layer == -1 else [("heads", graph.seen_by_heads(layer), 3 * graph.n_heads)]
            stages += [("mlp", graph.seen_by_mlp(layer), 1)] if layer != -1 and graph.mlp else []
            for kind, seen, readers in stages:
                step = max(1, stack_tokens // (columns * (3 if kind == "heads" else 1)))
                for begin in range(0, seen, step):
                    writers = range(begin, min(begin + step, seen))
                    yield Block(rows, layer, kind, writers, len(writers) * readers * len(rows))


class _Edges:
    """One batch of examples: its clean run, and what each writer changes."""

    def __init__(self, model: Model, contrast: Contrast, objective: Objective) -> None:
        self.model, self.contrast, self.objective = model, contrast, objective
        self.columns = contrast.other.embed.shape[1]
        readout = contrast.clean.readout(model.decoder)
        self.clean = readout if objective.needs_clean else None
        self.baseline = signed(objective, readout, contrast.batch, self.clean)

    def add(self, block: Block, into: Float[Tensor, "writers readers"]) -> None:
        """Add the summed effects of a block's edges to `into`."""
        changes = self._changes(block.writers)
        if block.kind == "logits":
            into[block.writers.start : block.writers.stop, self.model.graph.logits] += self._logits(changes)
        elif block.kind == "mlp":
            into[block.writers.start : block.writers.stop, self.model.graph.mlp_reader(block.layer)] += self._mlp(block.layer, changes)
        else:
            into[block.writers.start : block.writers.stop, self.model.graph.slots(block.layer)] += self._heads(block.layer, changes)

    def _changes(self, writers: range) -> Float[Tensor, "writers batch pos d_model"]:
        """a'_u - a_u in the stream, for a run of writers."""
        graph, decoder, contrast = self.model.graph, self.model.decoder, self.contrast
        out = contrast.other.embed.new_empty((len(writers), *contrast.other.embed.shape))
        for place, writer in enumerate(writers):
            layer, head = divmod(writer - 1, graph.writers_per_layer)
            if writer == 0:
                out[place] = contrast.other.embed - contrast.clean.embed[:, -self.columns :]
            elif head == graph.n_heads:
                clean, other = contrast.clean.layers[layer].mlp, contrast.other.layers[layer].mlp
                assert clean is not None and other is not None
                out[place] = other - clean[:, -self.columns :]
            else:
                clean, other = contrast.clean.layers[layer], contrast.other.layers[layer]
                change = other.z[:, head : head + 1] - clean.z[:, head : head + 1, -self.columns :]
                wrote = decoder.head_outputs(layer, change, slice(head, head + 1))[0]
                out[place] = self._through_post_norm(layer, wrote)
        return out

    def _through_post_norm(self, layer: int, change: Float[Tensor, "*lead batch pos d_model"]) -> Float[Tensor, "*lead batch pos d_model"]:
        post, attended = self.model.decoder.layers[layer].attention.post_norm, self.contrast.clean.layers[layer].attended
        if post is None or attended is None:
            return change
        base = attended[:, -change.shape[-2] :]
        return post(base + change) - post(base)

    def _stream(self, x: Float[Tensor, "batch all_pos d_model"]) -> Float[Tensor, "batch pos d_model"]:
        return x[:, -self.columns :]

    def _drop(self, readout: Readout) -> Float[Tensor, "edges"]:
        """Sum over examples of the objective's drop, for edges stacked edge-major along the batch."""
        n = len(self.baseline)
        copies = len(readout.hidden) // n
        clean = None if self.clean is None else self.clean.repeat(copies)
        values = signed(self.objective, readout, self.contrast.batch.repeat(copies), clean).unflatten(0, (copies, n))
        return (self.baseline - values).to(self.model.accumulator).sum(dim=1)

    def _logits(self, changes: Tensor) -> Tensor:
        final = self.contrast.clean.final[:, -1] + changes[:, :, -1]
        return self._drop(self.model.decoder.readout(final.flatten(0, 1)))

    def _mlp(self, layer: int, changes: Tensor) -> Tensor:
        decoder, clean = self.model.decoder, self.contrast.clean.layers[layer]
        mlp = decoder.layers[layer].mlp
        assert mlp is not None and clean.mlp is not None
        wrote = mlp(self._stream(clean.middle) + changes)
        after = self._after(layer) - self._stream(clean.mlp) + wrote
        return self._resume(layer + 1, after)

    def _heads(self, layer: int, changes: Tensor) -> Float[Tensor, "writers readers"]:
        """Effects on all q, k, v readers of a layer: one norm and projection per writer, one resumed run per edge."""
        decoder, contrast, attention = self.model.decoder, self.contrast, self.model.decoder.layers[layer].attention
        clean, n_heads, start = contrast.clean.layers[layer], attention.n_heads, contrast.start
        times = len(changes)
        ctx = contrast.ctx.repeat(times)
        y = attention.norm(self._stream(clean.before) + changes).flatten(0, 1)
        q = decoder.rotate(layer, attention.q(y), ctx, is_key=False, start=start)
        k = decoder.rotate(layer, attention.k(y), ctx, is_key=True, start=start).repeat_interleave(attention.group, dim=1)
        v = attention.v(y).transpose(1, 2).repeat_interleave(attention.group, dim=1)
        old_q = clean.q[:, :, -self.columns :].repeat(times, 1, 1, 1)
        old_k, old_v = (part.repeat_interleave(attention.group, dim=1).repeat(times, 1, 1, 1) for part in (clean.k, clean.v))
        if start:
            k, v = (torch.cat((old[:, :, :start], new), dim=2) for old, new in ((old_k, k), (old_v, v)))
        effects = changes.new_empty((times, 3, n_heads), dtype=self.model.accumulator)
        old_z = clean.z[:, :, -self.columns :].repeat(times, 1, 1, 1)
        for slot, parts in enumerate(((q, old_k, old_v), (old_q, k, old_v), (old_q, old_k, v))):
            z = decoder.attend(layer, *parts, ctx) - old_z
            wrote = decoder.head_outputs(layer, z).unflatten(1, (times, -1))  # [heads, writers, batch, pos, d_model]
            for head in range(n_heads):
                effects[:, slot, head] = self._after_heads(layer, wrote[head])
        return effects.flatten(1)

    def _after_heads(self, layer: int, change: Float[Tensor, "writers batch pos d_model"]) -> Float[Tensor, "writers"]:
        """Resume after a layer's heads, one of which changed what it writes."""
        clean = self.contrast.clean.layers[layer]
        change = self._through_post_norm(layer, change)
        if self.model.decoder.parallel or clean.mlp is None:
            return self._resume(layer + 1, self._after(layer) + change)
        return self._resume(layer, self._stream(clean.middle) + change, at_mlp=True)

    def _after(self, layer: int) -> Float[Tensor, "batch pos d_model"]:
        """The clean stream after a layer."""
        clean = self.contrast.clean
        return self._stream(clean.layers[layer + 1].before if layer + 1 < len(clean.layers) else clean.final)

    def _resume(self, layer: int, x: Float[Tensor, "writers batch pos d_model"], *, at_mlp: bool = False) -> Tensor:
        contrast = self.contrast
        stack = x.flatten(0, 1)
        if layer == self.model.graph.n_layers:
            return self._drop(self.model.decoder.readout(stack[:, -1]))
        readout = resume(
            self.model.decoder, stack, contrast.ctx.repeat(len(x)), layer=layer, at_mlp=at_mlp, past=contrast.clean, start=contrast.start
        )
        return self._drop(readout)


def _bytes_per_token(model: Model) -> int:
    return 12 * (3 * model.graph.n_heads + 8) * model.decoder.d_model * model.decoder.embedding.element_size()
