"""Running circuits on a batch: only what differs from the reference run is computed.

Of a compiled circuit (`models.circuit_compiler`) only the live writers are run. The differences
of what they wrote fill two buffers layer by layer, one for all columns and one for the last
column. Each distinct reader's stream is the reference stream plus a sum of rows. Columns before
the first difference of clean and reference prompts are never touched. Examples that share more
than that share a circuit's keys and values there (`Prefix`), and a long example goes on from its
own (`run_in_spans`).

A circuit in which all readers see the same writers needs no compiler (`run_shared`): one stream
a sublayer is enough, not one a reader. `circuit_runner` takes it where many writers are live;
where few are, the compiled circuit is faster. The tests compare both with hooks on the unmodified
Hugging Face model, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.models.circuit_compiler import (
    ALL,
    LAST,
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
from mechassay.models.spans import LongContrast


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
    difference = attention.attend(q, k, v, contrast.ctx) - reference.z[:, :, -n:]
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
    *,
    in_spans: bool = False,
) -> CircuitRunner:
    """The fastest way to run a circuit; `in_spans`: one that goes on from what it ran before."""
    shared = None
    if neurons is not None and not in_spans:
        shared = shared_by_all_readers(graph, edges, neurons)
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


@torch.no_grad()
def run_in_spans(
    long: LongContrast, runners: Sequence[CircuitRunner]
) -> tuple[Readout, list[Readout]]:
    """The logits at the last column of the clean run, and of circuits that were made for spans.

    From span to span the keys and values of every circuit are kept.
    """
    prefixes: list[Prefix | None] = [None] * len(runners)
    rows = torch.arange(len(long.batch), device=long.batch.clean.device)
    contrasts = long.contrasts()
    for _ in long.spans[:-1]:
        contrast = next(contrasts)
        for number, runner in enumerate(runners):
            if runner.takes_prefixes:
                prefixes[number] = runner.prefix(contrast, rows, prefixes[number])
        del contrast
    contrast = next(contrasts)
    logits = [runner(contrast, prefix) for runner, prefix in zip(runners, prefixes, strict=True)]
    return contrast.clean.readout(long.decoder), logits


class _Changes:
    """What writers change in the stream, a row a writer: at all columns, or at the last alone."""

    def __init__(self, n: int, like: Float[Tensor, "batch pos d_model"]) -> None:
        self.rows = like.new_empty((n, *like.shape))
        self.filled = 0

    def room(self, n: int) -> Float[Tensor, "n batch pos d_model"]:
        """The next rows, to be filled."""
        begin, self.filled = self.filled, self.filled + n
        return self.rows[begin : self.filled]

    def columns(self, x: Float[Tensor, "*lead columns d"]) -> Float[Tensor, "*lead pos d"]:
        """Of a run's values those at the columns of the rows; runs may be longer."""
        return x[..., -self.rows.shape[2] :, :]

    def stream(
        self, mix: Mix, reference: Float[Tensor, "batch columns d_model"]
    ) -> Float[Tensor, "sums batch pos d_model"]:
        """The stream with each sum of changes."""
        reference = self.columns(reference)
        if not len(self.rows):
            return reference.expand(mix.n, *reference.shape)
        return mix(self.rows.flatten(1)).view(mix.n, *reference.shape).add_(reference)


Streams = tuple[Tensor | None, Tensor | None]
"""What a layer's heads read at all columns, and at the last one [sums, batch, pos, d_model]."""


class _CircuitRun:
    """One circuit on one batch: the changes of its writers, filled layer by layer.

    They are kept twice, for readers at all columns and for readers at the last one; `last` says
    which. A prefix has no answer: nothing is done for its last column alone, and keys and values
    are kept.
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
        self.n_columns = embed.shape[1]
        self.changes = (
            _Changes(plan.rows[False], embed),
            _Changes(plan.rows[True], embed[:, -1:]),
        )

    def readout(self) -> Readout:
        self.layers()
        assert self.plan.final is not None
        final = self.changes[True].stream(self.plan.final, self.reference.final)
        return self.decoder.readout(final[0, :, 0])

    def layers(self) -> None:
        """Everything below the logits."""
        plan, clean, reference = self.plan, self.contrast.clean, self.reference
        if plan.input_level:
            last = plan.input_level == LAST
            self._change(clean.embed, reference.embed, plan.input_keep, last=last)
        for index, layer in enumerate(plan.layers):
            self._heads(index, layer)
            if layer.mlp_level == ALL or (layer.mlp_level and not self.is_prefix):
                self._mlp(index, layer)

    def _copy_last(self, change: Float[Tensor, "n batch pos d_model"]) -> None:
        """What is read at all columns is read at the last one, too."""
        if not self.is_prefix:
            self.changes[True].room(len(change))[:] = change[:, :, -1:]

    def _change(
        self, after: Tensor, before: Tensor, keep: Bool[Tensor, "d_model"] | None, *, last: bool
    ) -> None:
        """What one writer changes; runs may be longer."""
        changes = self.changes[last]
        room = changes.room(1)
        torch.sub(changes.columns(after), changes.columns(before), out=room[0])
        _mask(room, keep)
        if not last:
            self._copy_last(room)

    def _heads(self, index: int, layer: LayerPlan) -> None:
        if not any(map(len, layer.heads)):
            return
        attention, reference = self.decoder.layers[index].attention, self.reference.layers[index]
        read = (False,) if self.is_prefix else (False, True)

        def normed(last: bool) -> Tensor | None:
            mix = layer.streams[last] if last in read else None
            if mix is None:
                return None
            return attention.norm(self.changes[last].stream(mix, reference.before))

        streams = normed(False), normed(True)
        if self.is_prefix:
            for group in layer.groups:
                if group.last:
                    self._keys_and_values(index, group, streams)
        if attention.post_norm is not None:
            self._heads_as_sets(index, layer, streams, read)
            return
        for last in read:
            if len(layer.heads[last]):
                room = self.changes[last].room(len(layer.heads[last]))
                self._head_changes(index, layer, streams, room, last=last)
                if not last:
                    self._copy_last(room)

    def _heads_as_sets(
        self, index: int, layer: LayerPlan, streams: Streams, read: Sequence[bool]
    ) -> None:
        """Virtual writers after a post-norm: other ones at all columns than at the last."""
        post_norm = self.decoder.layers[index].attention.post_norm
        attended = self.reference.layers[index].attended
        assert post_norm is not None and attended is not None and layer.patterns is not None
        of_heads: list[Tensor] = []
        for last in read:
            rows = self.changes[last].rows
            of_heads.append(rows.new_empty((len(layer.heads[last]), *rows.shape[1:])))
            if len(layer.heads[last]):
                self._head_changes(index, layer, streams, of_heads[last], last=last)
        for last in read:
            if not len(layer.patterns[last]):
                continue
            base, change = self.changes[last].columns(attended), of_heads[last]
            if last:
                change = torch.cat((of_heads[False][:, :, -1:], change))
            mixed = torch.einsum("ph,hbtd->pbtd", layer.patterns[last], change) + base
            room = self.changes[last].room(len(layer.patterns[last]))
            torch.sub(post_norm(mixed), post_norm(base), out=room)

    def _head_changes(
        self,
        index: int,
        layer: LayerPlan,
        streams: Streams,
        out: Float[Tensor, "n batch pos d_model"],
        *,
        last: bool,
    ) -> None:
        """Into `out`: what heads that are read at all columns, or at the last, change there."""
        reference, clean = self.reference.layers[index], self.contrast.clean.layers[index]
        heads, columns = layer.heads[last], self.changes[last].columns
        change = columns(clean.z).index_select(1, heads)
        change -= columns(reference.z).index_select(1, heads)
        for group in layer.groups:
            if group.last is last:
                z = self._attend(index, group, streams)
                change[:, group.places] = z - columns(reference.z).index_select(1, group.heads)
        self.decoder.head_outputs(index, change, heads, out=out)
        _mask(out, layer.heads_keep[last])

    def _attend(
        self, index: int, group: HeadGroup, streams: Streams
    ) -> Float[Tensor, "batch n pos d_head"]:
        reference, clean = self.reference.layers[index], self.contrast.clean.layers[index]
        columns, attention = self.changes[group.last].columns, self.decoder.layers[index].attention
        old, new = (columns(x).index_select(1, group.heads) for x in (reference.q, clean.q))
        q = self._slot(
            group.slots[0], attention.q, group.heads, old, new, streams[group.last], index
        )
        k, v = self._keys_and_values(index, group, streams)
        return attention.attend(q, k, v, self.contrast.ctx)

    def _keys_and_values(
        self, index: int, group: HeadGroup, streams: Streams
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
                old.index_select(1, shared),
                new.index_select(1, shared),
                streams[False],
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
                raw[:, :, mine] = projection.of_heads(streams[stream], chosen)
            start = self.start + self.n_columns - raw.shape[1]
            ready = raw.transpose(1, 2)
            if part is None or part[2] != 2:
                attention = self.decoder.layers[index].attention
                ready = attention.rotate(
                    raw, self.contrast.ctx, is_key=part is not None, start=start
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
        mlp, last = self.decoder.layers[index].mlp, layer.mlp_level == LAST
        assert mlp is not None and reference.mlp is not None and clean.mlp is not None
        if layer.mlp_from_clean:
            after = clean.mlp
        else:
            assert layer.mlp is not None
            after = mlp(self.changes[last].stream(layer.mlp, reference.middle)[0])
        self._change(after, reference.mlp, layer.mlp_keep, last=last)


def _mask(
    change: Float[Tensor, "n batch pos d_model"], keep: Bool[Tensor, "*writers d_model"] | None
) -> None:
    """Leave of what writers change in the stream only what their neurons that are in change."""
    if keep is not None:
        change.mul_(keep.view(-1, 1, 1, change.shape[-1]))
