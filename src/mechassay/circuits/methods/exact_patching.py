"""Exact patching: the drop in the objective when one edge or one node carries the counterfactual.

    exact          S[u, v] = mean_examples m(clean) - m(clean with edge (u, v) ablated)
    exact-nodes    S[u] = mean_examples m(clean) - m(clean with a'_u on all edges out of u)
    exact-top      exact where an estimate of S[u, v] is largest, or where it is least clear
                   whether it is, and that estimate elsewhere

There is no estimate but in the last, and one run per edge or node. The clean run of some examples
is cached, and what each writer changes in the stream is known from the two runs. A change is
added to the cached stream where it happens, and the forward resumes there: many changes stacked
in one batch, at the columns that differ, without the prefix and without the reference run. With
a post-norm P (Gemma) a head changes the stream by P(o + a'_u - a_u) - P(o), where o is the clean
sum of the layer's heads and output bias.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.circuits.methods.eap import EdgeGradientMethod, edge_estimate
from mechassay.circuits.methods.method import (
    Method,
    ScoreInputs,
    ScoresT,
    provenance_of,
    resumable_sum,
)
from mechassay.circuits.scores import EdgeScores, NodeScores
from mechassay.errors import BadUsage
from mechassay.models.decoder import Decoder, Readout
from mechassay.models.forward import Contrast, forward, queries_keys_values
from mechassay.models.graph import Graph
from mechassay.models.memory import patching_bytes, token_budget
from mechassay.models.model import Model
from mechassay.models.objectives import Objective, signed
from mechassay.prompts.batch import Batch
from mechassay.utils.checkpoint import key_of
from mechassay.utils.settings import Within, checked_settings


class PatchBatch(NamedTuple):
    """Some examples and some writers, patched together at one place; layer -1 is the logits.

    `wanted` says into which readers of the place each writer's change goes; None: into all.
    """

    rows: list[int]
    layer: int
    kind: str
    writers: Sequence[int]
    n_scores: int
    wanted: Bool[Tensor, "writers readers"] | None = None


def _digest(blocks: Sequence[PatchBatch]) -> str:
    """Of what is patched, in its order."""
    digest = hashlib.sha256()
    for block in blocks:
        digest.update(repr((block.rows, block.layer, block.kind, list(block.writers))).encode())
        if block.wanted is not None:
            digest.update(block.wanted.numpy().tobytes())
    return digest.hexdigest()


class Patching:
    """Some examples: what each writer changes, and what a change does to the objective."""

    def __init__(self, model: Model, contrast: Contrast, objective: Objective) -> None:
        self.model, self.contrast, self.objective = model, contrast, objective
        self.columns = contrast.other.embed.shape[1]
        readout = contrast.clean.readout(model.decoder)
        self.clean = readout if objective.needs_clean else None
        self.baseline = signed(objective, readout, contrast.batch, self.clean)

    def changes(self, writers: Sequence[int]) -> Float[Tensor, "writers batch pos d_model"]:
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


class PatchingMethod(Method[ScoresT]):
    """A method that changes one thing after another in the clean run.

    `stack_tokens` is how many columns times copies one resumed forward holds at most.
    """

    mean_of_pairs: ClassVar[bool] = True
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

    def token_bytes(self, decoder: Decoder, width: int) -> int:
        return patching_bytes(decoder)

    def find_scores(self, inputs: ScoreInputs) -> ScoresT:
        """Find the scores; objectives need not be differentiable."""
        return self.scores(inputs.model.graph, *self.effects(inputs))

    @torch.no_grad()
    def effects(
        self, inputs: ScoreInputs, blocks: Callable[[int], Iterator[PatchBatch]] | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """The mean effects over examples, and the provenance of the scores.

        Args:
            blocks: what is patched, by how many tokens may be stacked; `self.blocks` if not given.
        """
        model, batch = inputs.model, inputs.batch
        room = token_budget(
            self.token_bytes(model.decoder, batch.n_tokens), batch.n_tokens, model.device
        )
        stack = min(room, self.stack_tokens)
        todo = list(self.blocks(model, batch, stack) if blocks is None else blocks(stack))
        held: dict[int, Patching] = {}

        def add(block: PatchBatch, into: Mapping[str, Tensor]) -> None:
            first = block.rows[0]
            if first not in held:
                held.clear()
                contrast = Contrast.run(model.decoder, batch.select(block.rows))
                held[first] = Patching(model, contrast, inputs.objective)
            self.add(held[first], block, into["total"])

        about = provenance_of(self, inputs)
        zeros = torch.zeros(self.shape(model.graph), dtype=model.accumulator, device=model.device)
        sums = resumable_sum(
            self.name,
            key_of({**about, "blocks": _digest(todo), "graph": model.graph.fingerprint}),
            {"total": zeros},
            ((block.n_scores, block) for block in todo),
            add,
            n_units=sum(block.n_scores for block in todo),
            progress=inputs.progress,
            checkpoint=inputs.checkpoint,
        )
        return sums["total"] / len(batch), about


class _EdgePatching(PatchingMethod[EdgeScores]):
    """Patching of edges: what is done at a stage, for all of its edges or for some."""

    def blocks(self, model: Model, batch: Batch, stack_tokens: int) -> Iterator[PatchBatch]:
        """Runs of writers into all readers of one stage: a layer's heads, its MLP, the logits."""
        return self._blocks(model, batch, stack_tokens, [*range(model.graph.n_layers), -1])

    def _blocks(
        self,
        model: Model,
        batch: Batch,
        stack_tokens: int,
        layers: Sequence[int],
        edges: Bool[Tensor, "writers readers"] | None = None,
    ) -> Iterator[PatchBatch]:
        """Blocks of the stages of some layers; of `edges` alone, if given."""
        graph = model.graph
        for rows, columns in chunks(batch, stack_tokens):
            for layer in layers:
                if layer == -1:
                    stages = [("logits", graph.n_writers, graph.logits, 1)]
                else:
                    begin = graph.slots(layer).start
                    stages = [("heads", graph.seen_by_heads(layer), begin, 3 * graph.n_heads)]
                    mlp = "mlp", graph.seen_by_mlp(layer), graph.mlp_reader(layer), 1
                    stages += [mlp] * graph.mlp
                for kind, seen, reader, n_readers in stages:
                    wanted, senders = None, torch.arange(seen)
                    if edges is not None:
                        wanted = edges[:seen, reader : reader + n_readers]
                        senders = wanted.any(dim=1).nonzero()[:, 0]
                    # Queries, keys and values of a writer are stacked.
                    step = max(1, stack_tokens // (columns * min(n_readers, 3)))
                    for part in senders.split(step) if len(senders) else ():
                        own = None if wanted is None else wanted[part]
                        n = len(part) * n_readers if own is None else int(own.sum())
                        yield PatchBatch(rows, layer, kind, part.tolist(), n * len(rows), own)

    def add(self, run: Patching, block: PatchBatch, into: Float[Tensor, "writers readers"]) -> None:
        graph, changes = run.model.graph, run.changes(block.writers)
        if block.kind == "logits":
            into[block.writers, graph.logits] += run.at_logits(changes)
        elif block.kind == "mlp":
            into[block.writers, graph.mlp_reader(block.layer)] += _into_mlp(
                run, block.layer, changes
            )
        else:
            effects = _into_heads(run, block.layer, changes, block.wanted)
            into[block.writers, graph.slots(block.layer)] += effects

    def shape(self, graph: Graph) -> tuple[int, ...]:
        return graph.n_writers, graph.n_readers


@dataclass(frozen=True)
class ExactPatching(_EdgePatching):
    """Exact effect of ablating each edge alone.

        S[u, v] = mean_examples m(clean) - m(clean with edge (u, v) ablated)

    Only the reader v changes, so its stream is the clean one plus a'_u - a_u. The norm and the
    projections are computed once for all heads and slots of a layer that a writer is added to;
    each such reader's head is mixed again on its own, its change is added to the stream, and
    the forward resumes there: on average less than half a forward an edge. MIB calls this
    EActP; no edge is pruned.

    With `layers`, only edges into these layers' heads and MLPs (-1: the logits); others are
    NaN.
    """

    layers: tuple[int, ...] | None = None
    name: ClassVar[str] = "exact"

    def blocks(self, model: Model, batch: Batch, stack_tokens: int) -> Iterator[PatchBatch]:
        graph, layers = model.graph, self._layers(model.graph)
        if any(not -1 <= layer < graph.n_layers for layer in layers):
            raise BadUsage(
                f"Layers to patch must be between 0 and {graph.n_layers - 1}, or -1 for the logits;"
                f" got {layers}."
            )
        return self._blocks(model, batch, stack_tokens, layers)

    def scores(self, graph: Graph, mean: Tensor, provenance: dict[str, Any]) -> EdgeScores:
        if self.layers is None:
            return EdgeScores.of(graph, mean, provenance)
        scored = torch.zeros(graph.n_readers, dtype=torch.bool)
        for layer in self.layers:
            begin = graph.logits if layer == -1 else graph.slots(layer).start
            scored[begin : begin + (1 if layer == -1 else graph.readers_per_layer)] = True
        values = torch.where(graph.legal & scored, mean.float().cpu(), torch.nan)
        return EdgeScores(graph, values, provenance)

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """Return two runs, and 0.16 (GPT-2 small) to 0.26 (SmolLM2) forward passes per edge."""
        layers = self._layers(graph)
        into = (
            graph.seen_by_heads(layer) * 3 * graph.n_heads + graph.seen_by_mlp(layer) * graph.mlp
            for layer in layers
            if layer >= 0
        )
        return (2.0 + 0.2 * (sum(into) + graph.n_writers * (-1 in layers))) * n_pairs

    def _layers(self, graph: Graph) -> list[int]:
        return [*range(graph.n_layers), -1] if self.layers is None else list(self.layers)


@dataclass(frozen=True)
@checked_settings
class ExactTop(_EdgePatching):
    """Exact effects of the edges that an estimate ranks highest, and the estimate of all others.

    An estimate of every edge costs a few forwards, and an exact effect of one a part of a
    forward. So the edges that small circuits are made of are exact, in minutes where all of them
    take a day; where the estimate misses an edge it stays missed.

    With `choose="undecided"` the same number of edges is patched where it is least clear whether
    an edge is among the N = `edges` highest. For an estimate s and a second one r of an edge, and
    c the N-th highest |s|, these are the edges with the smallest

        | |s| - c | / |s - r|,

    so first those for which |s| -+ |s - r| spans c. The difference of two estimates says where they
    err, and bounds nothing: along the inputs of `eap-ig-inputs` all other edges move too, which no
    rule of integration accounts for.

    Attributes:
        edges: how many are patched; all if there are fewer.
        estimate: a gradient method, by name and settings; its scores estimate the same effect.
        choose: which are patched: "top", or "undecided", where the second estimate is `eap`
            (`eap-ig-inputs` if that is the first).
    """

    edges: Annotated[int, Within(1)] = 1000
    estimate: str = "eap-ig-inputs"
    choose: Literal["top", "undecided"] = "top"
    name: ClassVar[str] = "exact-top"
    mean_of_pairs: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.inner()

    def find_scores(self, inputs: ScoreInputs) -> EdgeScores:
        """Find the estimate, and the exact effects of the edges that are chosen by it."""
        model, batch = inputs.model, inputs.batch
        layers = [*range(model.graph.n_layers), -1]
        first, *others = (
            method.score(model, batch, inputs.objective, progress=inputs.progress)
            for method in self.inner()
        )
        n = min(self.edges, model.graph.n_edges)
        chosen = first.top(n, by="magnitude").edges
        for other in others:
            size = first.values.abs().double()
            away = (size - size[chosen].min()).abs()
            doubt = (first.values - other.values).abs().double()
            # In the order of doubt / away, and finite at the cut itself.
            share = (doubt / (doubt + away)).nan_to_num(0.0)
            chosen = EdgeScores.of(model.graph, share).top(n).edges
        mean, about = self.effects(
            inputs, lambda room: self._blocks(model, batch, room, layers, chosen)
        )
        values = torch.where(chosen, mean.float().cpu(), first.values)
        return EdgeScores(model.graph, values, {**about, "patched": int(chosen.sum())})

    def scores(self, graph: Graph, mean: Tensor, provenance: dict[str, Any]) -> EdgeScores:
        return EdgeScores.of(graph, mean, provenance)

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """Return the forward passes of the estimate, two runs, and .26 per edge."""
        patched = 2.0 + 0.26 * min(self.edges, graph.n_edges)
        estimated = sum(method.forwards(graph, n_pairs) for method in self.inner())
        return estimated + patched * n_pairs

    def inner(self) -> list[EdgeGradientMethod]:
        """The estimate, and the second one if there is one."""
        first = edge_estimate(self.name, self.estimate)
        if self.choose == "top":
            return [first]
        second = "eap-ig-inputs" if first.name == "eap" else "eap"
        return [first, edge_estimate(self.name, second)]


def _into_mlp(
    run: Patching, layer: int, changes: Float[Tensor, "writers batch pos d_model"]
) -> Float[Tensor, "writers"]:
    mlp, clean = run.model.decoder.layers[layer].mlp, run.contrast.clean.layers[layer]
    assert mlp is not None and clean.mlp is not None
    return run.entering(layer + 1, mlp(run.stream(clean.middle) + changes) - run.stream(clean.mlp))


def _into_heads(
    run: Patching,
    layer: int,
    changes: Float[Tensor, "writers batch pos d_model"],
    wanted: Bool[Tensor, "writers readers"] | None,
) -> Float[Tensor, "writers readers"]:
    """Effects on q, k, v readers of a layer: one projection per writer, one run per edge; 0 where
    none is wanted.
    """
    decoder, contrast = run.model.decoder, run.contrast
    clean, times = contrast.clean.layers[layer], len(changes)
    n_heads, ctx = decoder.n_heads, contrast.ctx.repeat(times)
    x = (run.stream(clean.before) + changes).flatten(0, 1)
    q, k, v = queries_keys_values(
        decoder, layer, x, ctx, start=contrast.start, past=contrast.clean.layers
    )
    old_q, old_z = (x[:, :, -run.columns :].repeat(times, 1, 1, 1) for x in (clean.q, clean.z))
    old_k, old_v = (x.repeat(times, 1, 1, 1) for x in (clean.k, clean.v))
    effects = changes.new_zeros((times, 3, n_heads), dtype=run.model.accumulator)
    for slot, parts in enumerate(((q, old_k, old_v), (old_q, k, old_v), (old_q, old_k, v))):
        z = decoder.layers[layer].attention.attend(*parts, ctx) - old_z
        # [heads, writers, batch, pos, d_model]
        wrote = decoder.head_outputs(layer, z).unflatten(1, (times, -1))
        for head in range(n_heads):
            places = slice(None)
            if wanted is not None:
                places = wanted[:, slot * n_heads + head].nonzero()[:, 0].tolist()
                if not places:
                    continue
            change = run.through_post_norm(layer, wrote[head][places])
            effects[places, slot, head] = run.after_heads(layer, change)
    return effects.flatten(1)


Paths = Literal["all", "direct"]


@dataclass(frozen=True)
@checked_settings
class ExactNodePatching(PatchingMethod[NodeScores]):
    """Exact effect of ablating each node alone, along all paths or its edge to the logits.

        S[u] = mean_examples m(clean) - m(clean with a'_u in place of a_u on all edges out of u)

    With `paths="all"` the change goes along every path: everything after the node is computed
    anew on the changed stream. This is what node attribution (NAP) estimates to first order,
    and what `evaluate` gives for the full circuit without the edges out of u. It is one forward
    a node, resumed where the node writes: at most half a forward a node on average.

    `paths="direct"` changes only what the unembedding sees of the node: the score of the edge
    u->logits. Where the model is linear, the direct effects of all nodes sum to the total
    effect of `input`.

    Deviation from `evaluate`: when `input` carries a constant (`zero`, `mean`), the model is
    still run on it, while in a circuit without edges out of `input` all nodes keep their
    constants.
    """

    paths: Paths = "all"
    name: ClassVar[str] = "exact-nodes"

    def blocks(self, model: Model, batch: Batch, stack_tokens: int) -> Iterator[PatchBatch]:
        """Runs of nodes whose changes enter the stream at the same place."""
        graph = model.graph
        places = [("entering", 0, range(1))]
        for layer in range(graph.n_layers):
            heads = graph.heads(layer)
            places.append(("heads", layer, range(heads.start, heads.stop)))
            if graph.mlp:
                places.append(("entering", layer + 1, range(heads.stop, heads.stop + 1)))
        if self.paths == "direct":
            places = [("logits", -1, range(graph.n_writers))]
        for rows, columns in chunks(batch, stack_tokens):
            step = max(1, stack_tokens // columns)
            for kind, layer, nodes in places:
                for begin in range(0, len(nodes), step):
                    writers = nodes[begin : begin + step]
                    yield PatchBatch(rows, layer, kind, writers, len(writers) * len(rows))

    def add(self, run: Patching, block: PatchBatch, into: Float[Tensor, "writers"]) -> None:
        changes = run.changes(block.writers)
        if block.kind == "logits":
            effects = run.at_logits(changes)
        elif block.kind == "heads":
            effects = run.after_heads(block.layer, changes)
        else:
            effects = run.entering(block.layer, changes)
        into[block.writers] += effects

    def shape(self, graph: Graph) -> tuple[int, ...]:
        return (graph.n_writers,)

    def scores(self, graph: Graph, mean: Tensor, provenance: dict[str, Any]) -> NodeScores:
        return NodeScores.of(graph, mean, provenance)

    def forwards(self, graph: Graph, n_pairs: int) -> float:
        """Return two runs, and 0.3 to 0.5 forward passes per node for effects on all paths."""
        return (2.0 + 0.4 * graph.n_writers * (self.paths == "all")) * n_pairs
