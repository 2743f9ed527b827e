"""A circuit's run that is kept: leaving out in-edges of a reader costs only what follows it.

Of a circuit C on a batch, `CircuitChanges` keeps what every writer changed against the reference
run, a^C_u - a'_u, and every head's queries, keys and values. With fewer in-edges, a reader v sees

    x_v = R'_v + sum over its in-edges (u, v) of (a^C_u - a'_u),

with R' the reference stream, and the nodes that v reaches along C's edges are computed again. What
a reader sees of writers that v does not reach is summed once for all sets of v's in-edges, which
are stacked as copies of the batch. As in a compiled circuit (`models.circuit_compiler`), nodes that
lead nowhere and columns that nothing reads are left alone, and a node that `input` no longer
reaches writes exactly its reference value.

With a post-norm P (Gemma) the heads p of a layer that a reader sees add P(o' + sum of what they
changed) - P(o') to its stream, with o' the reference's sum of heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.models.circuit_compiler import (
    ALL,
    LAST,
    NONE,
    BufferRows,
    Mix,
    distinct_sets,
    levels,
    moved,
    readers_below,
)
from mechassay.models.decoder import Decoder, Readout
from mechassay.models.forward import Contrast


@dataclass(frozen=True, eq=False)
class _ChangedReaders:
    """Readers that are the same part of some nodes: their places there, and what they see.

    `base` is what they see of writers that do not change, `mix` the sums of those that do; both
    are None for the reader whose in-edges are left out.
    """

    places: Tensor
    readers: Sequence[int]
    base: Float[Tensor, "readers batch pos d_model"] | None
    mix: Mix | None


@dataclass(frozen=True, eq=False)
class _ChangedHeads:
    """Heads of a layer that are read at all columns, or at the last alone."""

    last: bool
    heads: Tensor
    slots: tuple[_ChangedReaders, _ChangedReaders, _ChangedReaders]


@dataclass(frozen=True, eq=False)
class _RouteStage:
    """What is computed again at one stage: heads of a layer (`groups`), or its MLP or the logits.

    `patterns` are sets of a layer's heads whose sum passes a post-norm, at all columns and at the
    last; None without post-norms. `dead` are heads that `input` no longer reaches.
    """

    layer: int
    groups: tuple[_ChangedHeads, ...] = ()
    dead: Tensor | None = None
    patterns: tuple[Tensor, Tensor] | None = None
    slot: _ChangedReaders | None = None
    last: bool = False


@dataclass(frozen=True, eq=False)
class _Route:
    """All that follows a reader (None: `input`), and how many rows hold what is written there.

    `reached` are the writers that `input` reaches.
    """

    steps: tuple[_RouteStage, ...]
    rows: tuple[int, int]
    reached: Bool[np.ndarray, "writers"]


class CircuitChanges:
    """A circuit on a batch, of which in-edges of one reader after the other can be left out."""

    def __init__(
        self, decoder: Decoder, contrast: Contrast, edges: Bool[np.ndarray, "writers readers"]
    ) -> None:
        self.decoder, self.contrast, self.edges = decoder, contrast, edges.copy()
        graph, other = decoder.graph, contrast.other
        self.owner = graph.reader_owner.numpy()
        self.changes = other.embed.new_zeros((graph.n_writers, *other.embed.shape))
        self.changes[0] = contrast.clean.embed[:, -other.embed.shape[1] :] - other.embed
        self.parts: list[tuple[Tensor, Tensor, Tensor]] = []
        """Queries, keys and values of each layer; keys and values of all query heads."""
        for layer, own in zip(decoder.layers, other.layers, strict=True):
            k, v = (x.repeat_interleave(layer.attention.group, dim=1) for x in (own.k, own.v))
            self.parts.append((own.q.clone(), k, v))
        self.routes: dict[tuple[int, bool], _Route] = {}
        route = _RoutePlanner(self, None, dead=False, keep=True).route()
        self.reached = route.reached
        _ChangedRun(self, route, 1, None, keep=True).readout()

    def readouts(
        self, reader: int, sets: Bool[np.ndarray, "writers sets"], n_bytes: int
    ) -> Iterator[Readout]:
        """The logits of the circuits in which a reader keeps these sets of in-edges, one a set.

        Args:
            sets: of those that it has.
            n_bytes: what may be held of what changes; one set at a time if need be.
        """
        like = self.contrast.other.embed
        alive = self._alive(reader, sets)
        hidden = like.new_empty((len(alive), len(like), like.shape[2]))
        for dead in (False, True):
            places = np.flatnonzero(alive != dead)
            if not len(places):
                continue
            route = self._route(reader, dead=dead)
            if dead:
                # All of these are one circuit.
                hidden[places] = _ChangedRun(self, route, 1, None, keep=False).readout().hidden
                continue
            # Streams, queries, keys, values and outputs of a layer's heads beside the rows.
            rows = route.rows[0] + route.rows[1] / like.shape[1] + 6 * self.decoder.n_heads
            step = max(1, int(n_bytes / (rows * like.numel() * like.element_size())))
            for some in np.split(places, range(step, len(places), step)):
                given = self.sums([reader], sets[:, some], like.shape[1])
                run = _ChangedRun(self, route, len(some), given.flatten(0, 1), keep=False)
                hidden[some] = run.readout().hidden.unflatten(0, (len(some), -1))
        for one in hidden:
            yield Readout(one, self.decoder)

    def keep(self, reader: int, writers: Bool[np.ndarray, "writers"]) -> None:
        """Leave a reader these of its in-edges for good."""
        if (self.edges[:, reader] == writers).all():
            return
        dead = not self._alive(reader, writers[:, None])[0]
        route = self._route(reader, dead=dead)
        self.edges[:, reader] = writers
        self.reached = route.reached
        self.changes[torch.from_numpy(~route.reached).to(self.changes.device)] = 0
        given = self.sums([reader], writers[:, None], self.changes.shape[2])[0]
        _ChangedRun(self, route, 1, given, keep=True).readout()
        self.routes.clear()

    def _alive(
        self, reader: int, sets: Bool[np.ndarray, "writers sets"]
    ) -> Bool[np.ndarray, "sets"]:
        """Whether `input` still reaches what a reader feeds; the logits are there anyway."""
        others = self.owner == self.owner[reader]
        others[reader] = False
        if reader == self.decoder.graph.logits or self.edges[self.reached][:, others].any():
            return np.ones(sets.shape[1], dtype=bool)
        return np.logical_or.reduce(sets[self.reached], axis=0)

    def _route(self, reader: int, *, dead: bool) -> _Route:
        if (reader, dead) not in self.routes:
            self.routes = {key: route for key, route in self.routes.items() if key[0] == reader}
            self.routes[reader, dead] = _RoutePlanner(self, reader, dead=dead, keep=False).route()
        return self.routes[reader, dead]

    def sums(
        self, readers: Sequence[int], sets: Bool[np.ndarray, "writers sets"], n_columns: int
    ) -> Float[Tensor, "sets batch pos d_model"]:
        """What readers of one stage see with these sets of in-edges, in the last columns."""
        graph, changes = self.decoder.graph, self.changes
        layers = range(graph.n_layers) if self.decoder.has_post_norm else ()
        plain = sets.copy()
        for layer in layers:
            plain[graph.heads(layer)] = False
        if n_columns < changes.shape[2]:
            used = np.flatnonzero(plain.any(axis=1))
            plain, rows = plain[used], torch.from_numpy(used).to(changes.device)
            changes = changes[:, :, -n_columns:][rows]
        out = self._reference(readers[0])[None, :, -n_columns:].repeat(sets.shape[1], 1, 1, 1)
        if plain.any():
            mix = moved(Mix.of(plain.T), out.device, out.dtype)
            out += mix(changes.flatten(1)).view_as(out)
        for layer in layers:
            patterns = torch.from_numpy(sets[graph.heads(layer)].T).to(out)
            if patterns.any():
                heads = self.changes[graph.heads(layer)][:, :, -n_columns:]
                out += self.post_normed(layer, patterns, heads)
        return out

    def _reference(self, reader: int) -> Float[Tensor, "batch pos d_model"]:
        graph, other = self.decoder.graph, self.contrast.other
        if reader == graph.logits:
            return other.final
        layer, place = divmod(reader, graph.readers_per_layer)
        own = other.layers[layer]
        return own.middle if place == 3 * graph.n_heads else own.before

    def post_normed(
        self,
        layer: int,
        patterns: Float[Tensor, "sets heads"],
        changes: Float[Tensor, "heads stack pos d_model"],
    ) -> Float[Tensor, "sets stack pos d_model"]:
        """What sets of a layer's heads change in the stream, after its post-norm."""
        norm = self.decoder.layers[layer].attention.post_norm
        base = self.contrast.other.layers[layer].attended
        assert norm is not None and base is not None
        base = base[:, -changes.shape[2] :].repeat(changes.shape[1] // len(base), 1, 1)
        return norm(torch.einsum("sh,hbtd->sbtd", patterns, changes) + base) - norm(base)


class _RoutePlanner:
    """What follows one reader of a circuit: nodes in the order of computation.

    If it is `dead`, what it feeds has no in-edges that `input` reaches. If what follows is to be
    kept, readers are summed anew from all writers, and need no base here.
    """

    def __init__(
        self, circuit: CircuitChanges, reader: int | None, *, dead: bool, keep: bool
    ) -> None:
        self.circuit, self.reader, self.keep = circuit, reader, keep
        decoder = circuit.decoder
        self.graph, self.like, self.owner = decoder.graph, circuit.changes, circuit.owner
        self.mask, self.post_norm = circuit.edges, decoder.has_post_norm
        graph = self.graph
        self.unclean = np.zeros(graph.n_readers, dtype=bool), np.zeros(graph.n_writers, dtype=bool)
        self.level = np.append(levels(graph, self.mask, *self.unclean), LAST)
        after = self.mask.copy()
        if dead:
            after[:, reader] = False
        self.reached = np.append(graph.reached(after), True)
        # Of what changes, and of that what is computed.
        self.live = np.zeros(graph.n_writers, dtype=bool)
        self.computed = np.zeros_like(self.level)
        self.rows = BufferRows(graph.n_writers, self.post_norm)
        if reader is None:
            self.live[0] = True

    def route(self) -> _Route:
        steps: list[_RouteStage] = []
        for stage in self.graph.stages():
            readers = np.arange(stage.start, stage.stop)
            hit = self.mask[self.live, stage].any(axis=0) | (readers == self.reader)
            readers = readers[hit & (self.level[self.owner[readers]] > NONE)]
            if len(readers):
                steps.append(self._step(stage, readers))
                written = self.owner[readers]
                self.live[written[written < len(self.live)]] = True
        at_all, at_last = self.rows.n
        return _Route(tuple(steps), (at_all, at_last), self.reached[:-1])

    def _step(self, stage: slice, readers: np.ndarray) -> _RouteStage:
        graph, level = self.graph, self.level
        layer = min(stage.start // graph.readers_per_layer, graph.n_layers - 1)
        nodes = np.unique(self.owner[readers])
        there = nodes[self.reached[nodes]]
        self.computed[there] = level[there]
        if stage.stop - stage.start == 1:
            kind = int(level[nodes[0]])
            slot = self._slot(readers, np.array([0]), kind) if len(there) else None
            if stage.start != graph.logits:
                self.rows.add(there, self.computed)
            return _RouteStage(layer, slot=slot, last=kind == LAST)
        first = graph.heads(layer).start
        groups: list[_ChangedHeads] = []
        for kind in (ALL, LAST):
            heads = there[level[there] == kind] - first
            if not len(heads):
                continue
            slots: list[_ChangedReaders] = []
            for number in range(3):
                mine = heads + graph.slot(layer, number, 0)
                places = np.flatnonzero(np.isin(mine, readers))
                slots.append(self._slot(mine[places], places, ALL if number else kind))
            q, k, v = slots
            groups.append(_ChangedHeads(kind == LAST, self._index(heads), (q, k, v)))
        dead, patterns = self._index(nodes[~self.reached[nodes]] - first), None
        if self.post_norm:
            every = np.arange(first, graph.heads(layer).stop)
            below = readers_below(graph, layer, level[:-1], *self.unclean)
            sets = [distinct_sets(self.mask, every, below[kind]) for kind in (ALL, LAST)]
            self.rows.add_patterns(every, sets)
            self.live[every] = True
            at_all, at_last = (torch.from_numpy(some).to(self.like) for some in sets)
            patterns = at_all, at_last
        else:
            order = [there[level[there] == kind] for kind in (ALL, LAST)]
            self.rows.add(np.concatenate(order), self.computed)
        return _RouteStage(layer, tuple(groups), dead, patterns)

    def _slot(self, readers: np.ndarray, places: np.ndarray, kind: int) -> _ChangedReaders:
        ids, base, mix = readers.tolist(), None, None
        if ids and self.reader not in ids and not self.keep:
            edges, like = self.mask[:, readers], self.like
            mix = moved(Mix.of(self.rows.combine(edges, kind)), like.device, like.dtype)
            width = 1 if kind == LAST else like.shape[2]
            base = self.circuit.sums(ids, edges & ~self.live[:, None], width)
        return _ChangedReaders(self._index(places), ids, base, mix)

    def _index(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(values).to(self.like.device)


class _ChangedRun:
    """What follows one reader, run again on copies of the batch; into the circuit if `keep`."""

    def __init__(
        self,
        circuit: CircuitChanges,
        route: _Route,
        copies: int,
        given: Float[Tensor, "stack pos d_model"] | None,
        *,
        keep: bool,
    ) -> None:
        self.circuit, self.route, self.copies, self.keep = circuit, route, copies, keep
        self.given, self.columns = given, circuit.changes.shape[2]
        ctx = circuit.contrast.ctx
        self.ctx = ctx if copies == 1 else ctx.repeat(copies)
        # What is written, at all columns and at the last one; if it is kept, in the circuit.
        like = circuit.contrast.other.embed
        self.written = tuple(
            like.new_empty((0 if keep else n, copies * len(like), width, like.shape[2]))
            for n, width in zip(route.rows, (self.columns, 1), strict=True)
        )
        self.filled = [0, 0]

    def readout(self) -> Readout:
        circuit = self.circuit
        graph = circuit.decoder.graph
        for step in self.route.steps:
            if step.groups or step.patterns is not None:
                self._heads(step)
            elif step.slot is not None:
                x = self._streams(step.slot, last=step.last)[0]
                if step.slot.readers[0] == graph.logits:
                    return circuit.decoder.readout(x[:, -1])
                self._mlp(step, x)
        # Nothing that changes leads to the logits.
        final = circuit.sums([graph.logits], circuit.edges[:, [graph.logits]], 1)[0, :, 0]
        return circuit.decoder.readout(final.repeat(self.copies, 1))

    def _add(self, change: Float[Tensor, "writers stack pos d_model"], *, last: bool) -> None:
        """Fill rows; what is read at all columns is read at the last one, too."""
        for place in (True,) if last else (False, True):
            self._fill(change, last=place)

    def _fill(self, change: Float[Tensor, "writers stack pos d_model"], *, last: bool) -> None:
        begin, self.filled[last] = self.filled[last], self.filled[last] + len(change)
        rows = self.written[last]
        rows[begin : self.filled[last]] = change[:, :, -rows.shape[2] :]

    def _streams(
        self, slot: _ChangedReaders, *, last: bool
    ) -> Float[Tensor, "readers stack pos d_model"]:
        width = 1 if last else self.columns
        if slot.base is not None and slot.mix is not None and not self.keep:
            base = slot.base[:, None]
            mixed = slot.mix(self.written[last].flatten(1))
            return (mixed.view(len(base), self.copies, *base.shape[2:]) + base).flatten(1, 2)
        if slot.base is None and self.given is not None:
            return self.given[None, :, -width:]
        return self.circuit.sums(slot.readers, self.circuit.edges[:, slot.readers], width)

    def _repeated(self, x: Tensor, axis: int = 0) -> Tensor:
        return x.repeat(*[1] * axis, self.copies, *[1] * (x.ndim - 1 - axis))

    def _heads(self, step: _RouteStage) -> None:
        circuit, decoder, layer = self.circuit, self.circuit.decoder, step.layer
        reference, changes = (
            circuit.contrast.other.layers[layer],
            circuit.changes[decoder.graph.heads(layer)],
        )
        wrote: list[tuple[_ChangedHeads, Tensor]] = []
        for group in step.groups:
            width = 1 if group.last else self.columns
            parts = [self._part(layer, group, slot) for slot in range(3)]
            q, k, v = parts
            z = decoder.layers[layer].attention.attend(q, k, v, self.ctx)
            z = z - self._repeated(reference.z[:, group.heads, -width:])
            change = decoder.head_outputs(layer, z, group.heads)
            wrote.append((group, change))
            if self.keep:
                for place, part in zip(circuit.parts[layer], parts, strict=True):
                    place[:, group.heads, -part.shape[2] :] = part
                changes[group.heads, :, -width:] = change
            elif step.patterns is None:
                self._add(change, last=group.last)
        if self.keep:
            return
        for last, patterns in enumerate(step.patterns or ()):
            if not len(patterns):
                continue
            new = self._repeated(changes[:, :, -1:] if last else changes, 1)
            new[step.dead] = 0
            for group, change in wrote:
                if last or not group.last:
                    new[group.heads] = change[:, :, -new.shape[2] :]
            self._fill(circuit.post_normed(layer, patterns, new), last=bool(last))

    def _part(
        self, layer: int, group: _ChangedHeads, number: int
    ) -> Float[Tensor, "stack heads pos d_head"]:
        """Queries (0), keys (1) or values (2) of a group of heads: those that change are new."""
        decoder, slot = self.circuit.decoder, group.slots[number]
        only_last = group.last and number == 0
        attention = decoder.layers[layer].attention
        old = self.circuit.parts[layer][number][:, group.heads]
        part = self._repeated(old[:, :, -1:] if only_last else old)
        if not slot.readers:
            return part
        x = attention.norm(self._streams(slot, last=only_last))
        projection = (attention.q, attention.k, attention.v)[number]
        heads = group.heads[slot.places] // (1 if number == 0 else attention.group)
        raw = projection.of_own_heads(x, heads)
        begin = self.circuit.contrast.start + self.columns - raw.shape[1]
        ready = raw.transpose(1, 2)
        if number < 2:
            ready = attention.rotate(raw, self.ctx, is_key=number == 1, start=begin)
        part[:, slot.places, -raw.shape[1] :] = ready
        return part

    def _mlp(self, step: _RouteStage, x: Float[Tensor, "stack pos d_model"]) -> None:
        circuit, decoder = self.circuit, self.circuit.decoder
        mlp, reference = decoder.layers[step.layer].mlp, circuit.contrast.other.layers[step.layer]
        assert mlp is not None and reference.mlp is not None
        change = mlp(x) - self._repeated(reference.mlp[:, -x.shape[1] :])
        if self.keep:
            writer = decoder.graph.mlp_writer(step.layer)
            circuit.changes[writer, :, -x.shape[1] :] = change
        else:
            self._add(change[None], last=step.last)
