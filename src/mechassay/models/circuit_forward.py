"""Running circuits on a batch: only what differs from the reference run is computed.

Of a compiled circuit (`models.circuit_compiler`) only the live writers are run. The differences
of what they wrote fill two buffers layer by layer, one for all columns and one for the last
column. Each distinct reader's stream is the reference stream plus a sum of rows. Columns before
the first difference of clean and reference prompts are never touched. Examples that share more
than that share a circuit's keys and values there (`Prefix`).

A circuit in which all readers see the same writers needs no compiler (`run_shared`): one stream
a sublayer is enough, not one a reader. `circuit_runner` takes it where many writers are live;
where few are, the compiled circuit is faster. `models.hooks_reference` is the slow version of
both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.models.circuit_compiler import (
    ALL,
    HeadGroup,
    LayerPlan,
    Mix,
    Plan,
    SlotPlan,
    compile_circuit,
)
from mechassay.models.decoder import Decoder, Projection, Readout
from mechassay.models.forward import Contrast, queries_keys_values
from mechassay.models.graph import Graph


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
    """The logits at the last column when all readers see these neurons' changes alone.

    With n_u in {0, 1}^d_model the neurons of writer u that are in, every reader v sees

        x_v = R'_v + sum over writers u that v sees of n_u * (a_u - a'_u),

    R' and a' being the streams and outputs of the reference run. Circuits cut by node or by
    neuron have all edges out of their writers, but for those into nodes that lead nowhere. The
    sum of the changes goes from layer to layer beside the reference's stream. With a post-norm
    P (Gemma) a layer's heads change the stream by

        P(o' + sum_h n_h * (a_h - a'_h)) - P(o'),

    where o' is the sum of the reference's heads and output bias. A head's mask acts on the rows
    of its W_O, so that heads are never expanded one by one. All heads of a layer are run
    together. A writer to which no included writer leads from `input` keeps its reference value.
    """
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


SHARED_ABOVE = 0.4
"""Share of live writers above which whole sublayers on one stream beat live heads alone."""


@dataclass(frozen=True, eq=False)
class Prefix:
    """Keys and values that a circuit computed at the columns that several examples share.

    Attributes:
        stop: the first column that they do not share.
        parts: keys and values by layer, kind of head and slot, from the first column of the run on.
        rows: which row of the parts each example continues.
    """

    stop: int
    parts: Mapping[tuple[int, bool, int], Float[Tensor, "prefixes n pos d_head"]]
    rows: Int[Tensor, "batch"]

    def select(self, rows: slice) -> Prefix:
        """For some of the examples."""
        return replace(self, rows=self.rows[rows])


@dataclass(frozen=True, eq=False)
class CircuitRunner:
    """A circuit made ready to run: on a batch's two runs, the logits at its last column."""

    decoder: Decoder
    run: Callable[[Contrast], Readout] | None
    plan: Plan | None

    def __call__(self, contrast: Contrast, prefix: Prefix | None = None) -> Readout:
        if self.run is not None:
            return self.run(contrast)
        assert self.plan is not None
        return run_circuit(self.decoder, contrast, self.plan, prefix)

    @property
    def takes_prefixes(self) -> bool:
        """Whether it can go on from a `Prefix`."""
        return self.plan is not None and self.plan.final is not None

    def prefix(
        self, contrast: Contrast, rows: Int[Tensor, "batch"], before: Prefix | None = None
    ) -> Prefix:
        """What examples with these beginnings share; see `run_prefix`."""
        assert self.plan is not None
        return run_prefix(self.decoder, contrast, self.plan, rows, before)


def circuit_runner(
    decoder: Decoder,
    graph: Graph,
    edges: Bool[Tensor, "writers readers"],
    neurons: Bool[Tensor, "writers d_model"] | None = None,
) -> CircuitRunner:
    """The fastest way to run a circuit."""
    shared = None if neurons is None else shared_by_all_readers(graph, edges, neurons)
    if shared is not None and int(shared.any(dim=1).sum()) > SHARED_ABOVE * graph.n_writers:
        return CircuitRunner(
            decoder, lambda contrast: run_shared(decoder, contrast, graph, shared), None
        )
    plan = compile_circuit(graph, edges, neurons, post_norm=decoder.has_post_norm)
    return CircuitRunner(decoder, None, plan.to(decoder.embedding.device, decoder.embedding.dtype))


@torch.no_grad()
def run_circuit(
    decoder: Decoder, contrast: Contrast, plan: Plan, prefix: Prefix | None = None
) -> Readout:
    """The circuit's logits at the last column of a batch, after a `prefix` if given."""
    if plan.final is None:
        return contrast.clean.readout(decoder)
    return _CircuitRun(decoder, contrast, plan, prefix).readout()


@torch.no_grad()
def run_prefix(
    decoder: Decoder,
    contrast: Contrast,
    plan: Plan,
    rows: Int[Tensor, "batch"],
    before: Prefix | None = None,
) -> Prefix:
    """A circuit's keys and values at the columns of prefixes, which go on from others (`before`).

    `rows` says which of the prefixes each of the prompts has that go on from them.
    """
    run = _CircuitRun(decoder, contrast, plan, before, is_prefix=True)
    run.layers()
    return Prefix(contrast.start + run.n_columns, run.parts, rows)


class _CircuitRun:
    """One circuit on one batch: two buffers of differences, filled layer by layer.

    A prefix has no answer: nothing is done for its last column alone, and keys and values are kept.
    """

    def __init__(
        self,
        decoder: Decoder,
        contrast: Contrast,
        plan: Plan,
        prefix: Prefix | None = None,
        *,
        is_prefix: bool = False,
    ) -> None:
        self.decoder, self.contrast = decoder, contrast
        self.prefix, self.is_prefix = prefix, is_prefix
        self.plan = plan.to(contrast.other.embed.device, contrast.other.embed.dtype)
        self.parts: dict[tuple[int, bool, int], Tensor] = {}
        self.reference, self.start = contrast.other, contrast.start
        embed = contrast.other.embed
        self.n_batch, self.n_columns, self.d_model = embed.shape
        self.wide = embed.new_empty((plan.rows_wide, self.n_batch, self.n_columns, self.d_model))
        self.last = embed.new_empty((plan.rows_last, self.n_batch, 1, self.d_model))
        self.filled_wide = self.filled_last = 0

    def readout(self) -> Readout:
        self.layers()
        assert self.plan.final is not None
        final = self._stream(self.plan.final, self.reference.final, last=True)
        return self.decoder.readout(final[0, :, 0])

    def layers(self) -> None:
        """Everything below the logits."""
        plan, clean, reference = self.plan, self.contrast.clean, self.reference
        if plan.input_level:
            wide = plan.input_level == ALL
            self._difference(clean.embed, reference.embed, plan.input_keep, wide=wide)
        for index, layer in enumerate(plan.layers):
            self._heads(index, layer)
            if layer.mlp_level == ALL or (layer.mlp_level and not self.is_prefix):
                self._mlp(index, layer)

    def _suffix(self, x: Tensor) -> Tensor:
        """The columns of a clean tensor [..., columns, d] that the reference run has."""
        return x[..., -self.n_columns :, :]

    def _room(self, n: int, *, wide: bool) -> Float[Tensor, "n batch read d_model"]:
        """The next rows of the buffer of all columns, or of that of the last one."""
        if wide:
            begin, self.filled_wide = self.filled_wide, self.filled_wide + n
            return self.wide[begin : self.filled_wide]
        begin, self.filled_last = self.filled_last, self.filled_last + n
        return self.last[begin : self.filled_last]

    def _copy_last(self, difference: Float[Tensor, "n batch pos d_model"]) -> None:
        """What is read at all columns is read at the last one, too."""
        if not self.is_prefix:
            self._room(len(difference), wide=False)[:] = difference[:, :, -1:]

    def _difference(
        self, after: Tensor, before: Tensor, keep: Bool[Tensor, "d_model"] | None, *, wide: bool
    ) -> None:
        """What one writer changes, at all columns or at the last one; runs may be longer."""
        room = self._room(1, wide=wide)
        torch.sub(after[:, -room.shape[2] :], before[:, -room.shape[2] :], out=room[0])
        _mask(room, keep)
        if wide:
            self._copy_last(room)

    def _stream(
        self, mix: Mix, reference: Float[Tensor, "batch pos d_model"], *, last: bool
    ) -> Float[Tensor, "sums batch read d_model"]:
        buffer = self.last if last else self.wide
        if last:
            reference = reference[:, -1:]
        if not len(buffer):
            return reference.expand(mix.n, *reference.shape)
        return mix(buffer.flatten(1)).view(mix.n, *reference.shape).add_(reference)

    def _heads(self, index: int, layer: LayerPlan) -> None:
        if not len(layer.order):
            return
        attention, reference = self.decoder.layers[index].attention, self.reference.layers[index]
        wide = narrow = None
        if layer.wide is not None:
            wide = attention.norm(self._stream(layer.wide, reference.before, last=False))
        if self.is_prefix:
            for group in layer.groups:
                if group.last:
                    self._keys_and_values(index, group, wide)
        elif layer.narrow is not None:
            narrow = attention.norm(self._stream(layer.narrow, reference.before, last=True))
        n_wide, n_last = layer.n_wide, 0 if self.is_prefix else len(layer.order) - layer.n_wide
        if attention.post_norm is None:
            if n_wide:
                room = self._room(n_wide, wide=True)
                self._head_changes(index, layer, wide, narrow, room, last=False)
                self._copy_last(room)
            if n_last:
                room = self._room(n_last, wide=False)
                self._head_changes(index, layer, wide, narrow, room, last=True)
            return
        at_all, at_last = (
            buffer.new_empty((n, *buffer.shape[1:]))
            for n, buffer in ((n_wide, self.wide), (n_last, self.last))
        )
        for last, changes in enumerate((at_all, at_last)):
            if len(changes):
                self._head_changes(index, layer, wide, narrow, changes, last=bool(last))
        base, patterns = reference.attended, (layer.wide_patterns, layer.last_patterns)
        assert base is not None and patterns[0] is not None and patterns[1] is not None
        self._place(index, patterns[0], at_all, base, wide=True)
        if not self.is_prefix:
            changes = torch.cat((at_all[:, :, -1:], at_last))
            self._place(index, patterns[1], changes, base[:, -1:], wide=False)

    def _head_changes(
        self,
        index: int,
        layer: LayerPlan,
        wide: Tensor | None,
        narrow: Tensor | None,
        out: Float[Tensor, "n batch read d_model"],
        *,
        last: bool,
    ) -> None:
        """Into `out`: what heads read at all columns, or the last alone, change there."""
        reference, clean = self.reference.layers[index], self.contrast.clean.layers[index]
        chosen = slice(layer.n_wide, None) if last else slice(None, layer.n_wide)
        heads, columns = layer.order[chosen], slice(-1, None) if last else slice(None)
        change = (self._suffix(clean.z)[:, heads] - reference.z[:, heads])[:, :, columns]
        for group in layer.groups:
            if group.last is last:
                z = self._attend(index, group, wide, narrow)
                change[:, group.places] = z - reference.z[:, group.heads][:, :, columns]
        self.decoder.head_outputs(index, change, heads, out=out)
        if layer.heads_keep is not None:
            _mask(out, layer.heads_keep[chosen])

    def _place(
        self,
        index: int,
        patterns: Float[Tensor, "sets heads"],
        change: Float[Tensor, "heads batch read d_model"],
        base: Float[Tensor, "batch read d_model"],
        *,
        wide: bool,
    ) -> None:
        """Virtual writers after a post-norm: the two buffers hold different ones."""
        if len(patterns):
            post_norm = self.decoder.layers[index].attention.post_norm
            assert post_norm is not None
            mixed = torch.einsum("ph,hbtd->pbtd", patterns, change) + base
            torch.sub(post_norm(mixed), post_norm(base), out=self._room(len(patterns), wide=wide))

    def _attend(
        self, index: int, group: HeadGroup, wide: Tensor | None, narrow: Tensor | None
    ) -> Float[Tensor, "batch n pos d_head"]:
        reference, clean = self.reference.layers[index], self.contrast.clean.layers[index]
        heads, columns = group.heads, slice(-1, None) if group.last else slice(None)
        old, new = (x[:, heads][:, :, columns] for x in (reference.q, self._suffix(clean.q)))
        streams, projection = narrow if group.last else wide, self.decoder.layers[index].attention.q
        q = self._slot(group.slots[0], projection, heads, old, new, streams, index)
        k, v = self._keys_and_values(index, group, wide)
        return self.decoder.attend(index, q, k, v, self.contrast.ctx)

    def _keys_and_values(
        self, index: int, group: HeadGroup, wide: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Both [batch, n, all columns, d_head]."""
        attention = self.decoder.layers[index].attention
        reference, clean = self.reference.layers[index], self.contrast.clean.layers[index]
        shared = group.heads // attention.group
        k, v = (
            self._slot(
                group.slots[slot],
                projection,
                shared,
                old[:, shared],
                new[:, shared],
                wide,
                index,
                part=(index, group.last, slot),
            )
            for slot, projection, old, new in (
                (1, attention.k, reference.k, clean.k),
                (2, attention.v, reference.v, clean.v),
            )
        )
        return k, v

    def _slot(
        self,
        plan: SlotPlan,
        projection: Projection,
        heads: Tensor,
        reference: Float[Tensor, "batch n pos d_head"],
        clean: Float[Tensor, "batch n pos d_head"],
        streams: Float[Tensor, "sums batch read d_model"] | None,
        index: int,
        *,
        part: tuple[int, bool, int] | None = None,
    ) -> Float[Tensor, "batch n pos d_head"]:
        """Queries, keys or values of a group of heads, into `reference`, a fresh copy.

        `part` names these keys (1) or values (2) in a `Prefix`; it is None for queries.
        """
        if len(plan.clean):
            reference[:, plan.clean] = clean[:, plan.clean]
        if len(plan.computed):
            assert streams is not None
            places = plan.computed
            raw = streams.new_empty((*streams.shape[1:3], len(places), projection.weight.shape[1]))
            for stream, mine in plan.readers:
                chosen = heads[places[mine]]
                weight = projection.weight[chosen].flatten(0, 1)
                bias = None if projection.bias is None else projection.bias[chosen].flatten()
                projected = F.linear(streams[stream], weight, bias)
                raw[:, :, mine] = projected.unflatten(-1, (len(chosen), -1))
            start = self.start + self.n_columns - raw.shape[1]
            ready = raw.transpose(1, 2)
            if part is None or part[2] != 2:
                ready = self.decoder.rotate(
                    index, raw, self.contrast.ctx, is_key=part is not None, start=start
                )
            reference[:, places, -raw.shape[1] :] = ready
            if part is not None:
                first = self.start
                if self.prefix is not None:
                    before = self.prefix.parts[part]
                    first = self.prefix.stop - before.shape[2]
                    reference[:, places, first : self.prefix.stop] = before[self.prefix.rows]
                if self.is_prefix:
                    self.parts[part] = reference[:, places, first:]
        return reference

    def _mlp(self, index: int, layer: LayerPlan) -> None:
        reference, clean = self.reference.layers[index], self.contrast.clean.layers[index]
        mlp, wide = self.decoder.layers[index].mlp, layer.mlp_level == ALL
        assert mlp is not None and reference.mlp is not None and clean.mlp is not None
        if layer.mlp_from_clean:
            after = clean.mlp
        else:
            assert layer.mlp is not None
            after = mlp(self._stream(layer.mlp, reference.middle, last=not wide)[0])
        self._difference(after, reference.mlp, layer.mlp_keep, wide=wide)


def _mask(
    change: Float[Tensor, "n batch pos d_model"], keep: Bool[Tensor, "*writers d_model"] | None
) -> None:
    """Leave of what writers change in the stream only what their neurons that are in change."""
    if keep is not None:
        change.mul_(keep.view(-1, 1, 1, change.shape[-1]))
