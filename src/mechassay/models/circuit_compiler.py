"""Compiling a circuit: what has to be computed, at which columns, from which sums.

In a circuit C every reader v sees

    x_v = R'_v + sum over in-circuit edges (u, v) of n_u * (a^C_u - a'_u),

where R' is the stream of the reference run (which ablated edges carry), a' what was written in it,
and n_u the neurons of u that are in. So only what differs from the reference has to be computed:

  * a writer on no in-circuit path from `input` to `logits` keeps its reference value;
  * a head's query, key or value without live in-edges comes from the reference run's cache;
  * a reader that sees every writer at its clean value comes from the clean run's cache;
  * what only the last column reads is computed at the last column;
  * readers with the same in-edges share one stream;
  * a sum over few writers is a gather, over many a GEMM;
  * what a writer adds is masked by n_u once, before it enters any sum.

All that is decided here once per circuit; `circuit_forward.run_circuit` executes the plan on a
batch. With a post-norm P (Gemma) the heads of a layer enter the stream as P(sum). Each distinct set
p of a layer's heads that some reader sees becomes one virtual writer, P(o' + sum_{h in p} n_h *
(a_h - a'_h)) - P(o'). So a head's neurons are dimensions of what its W_O gives, before P; an MLP's
are those of what enters the stream, after its own post-norm.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.models.graph import Graph

NONE, LAST, ALL = 0, 1, 2
"""At which columns a node's output is read."""

CPU = torch.device("cpu")
GATHER_BELOW = 0.15
"""Share of non-zero coefficients under which a gather beats a GEMM."""


@dataclass(frozen=True, eq=False)
class Mix:
    """Sums of rows of a buffer: one sum per distinct set of in-edges."""

    n: int
    index: Tensor
    offsets: Tensor
    dense: Float[Tensor, "sums rows"] | None

    def __call__(self, buffer: Float[Tensor, "rows width"]) -> Float[Tensor, "sums width"]:
        if self.dense is not None:
            return self.dense @ buffer[: self.dense.shape[1]]
        return F.embedding_bag(self.index, buffer, self.offsets, mode="sum")

    @staticmethod
    def of(rows: np.ndarray) -> Mix:
        """From coefficients [sums, buffer rows] in {0, 1}."""
        used = int(np.flatnonzero(rows.any(axis=0)).max(initial=-1)) + 1
        rows, dense = rows[:, :used], None
        if rows.size and rows.mean() > GATHER_BELOW:
            dense = torch.from_numpy(rows.astype(np.float32))
        offsets = np.concatenate(([0], np.cumsum(rows.sum(axis=1))[:-1]))
        return Mix(len(rows), _index(np.nonzero(rows)[1]), _index(offsets), dense)


@dataclass(frozen=True, eq=False)
class SlotPlan:
    """Places in a group of heads whose queries (keys, values) are clean, or computed.

    `readers` has each sum that is projected from, and which of the computed places read it.
    """

    clean: Tensor
    computed: Tensor
    readers: tuple[tuple[int, Tensor], ...]


@dataclass(frozen=True, eq=False)
class HeadGroup:
    """Heads of one layer read at the same columns; `places` are theirs among all such heads."""

    heads: Tensor
    places: Tensor
    last: bool
    slots: tuple[SlotPlan, SlotPlan, SlotPlan]


@dataclass(frozen=True, eq=False)
class LayerPlan:
    """What one layer has to do. Pairs are of what is read at all columns, and at the last alone.

    Attributes:
        streams: the sums that heads read at all columns, and those read at the last one.
        groups: heads to compute.
        heads: in the order of their rows; at the last column those of both are read.
        patterns: for post-norm layers, sets of heads that are seen as one writer: rows over the
            heads that are read there. None elsewhere: each head is its own writer.
        mlp_from_clean: the MLP's output is the clean run's.
        mlp_level: columns at which the MLP is read.
        mlp: the sum the MLP reads.
        heads_keep, mlp_keep: neurons that are in, of `heads` and of the MLP; None where all are.
    """

    streams: tuple[Mix | None, Mix | None]
    groups: tuple[HeadGroup, ...]
    heads: tuple[Tensor, Tensor]
    patterns: tuple[Float[Tensor, "all_sets all_heads"], Float[Tensor, "sets heads"]] | None
    mlp_level: int
    mlp_from_clean: bool
    mlp: Mix | None
    heads_keep: tuple[Bool[Tensor, "_ d_model"] | None, Bool[Tensor, "_ d_model"] | None]
    mlp_keep: Bool[Tensor, "d_model"] | None


@dataclass(frozen=True, eq=False)
class Plan:
    """A compiled circuit. `final` is None where the logits are the clean run's.

    `rows` are writers whose changes are read at all columns, and at the last one.
    """

    input_level: int
    input_keep: Bool[Tensor, "d_model"] | None
    layers: tuple[LayerPlan, ...]
    final: Mix | None
    rows: tuple[int, int]
    n_live_heads: int
    n_live_mlps: int
    device: torch.device = CPU
    dtype: torch.dtype = torch.float32

    def to(self, device: torch.device, dtype: torch.dtype) -> Plan:
        """The plan for runs on a device, floating-point numbers in a dtype."""
        if (self.device, self.dtype) == (device, dtype):
            return self
        return replace(moved(self, device, dtype), device=device, dtype=dtype)


def moved(value: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """A part of a plan on a device, floating-point numbers in a dtype.

    Each kind of numbers is moved in one copy: a plan has tens of small tensors a layer.
    """
    tensors, places = list(_tensors(value)), dict[int, Tensor]()
    for kind in {x.dtype for x in tensors}:
        alike = [x for x in tensors if x.dtype == kind]
        flat = torch.cat([x.flatten() for x in alike])
        flat = flat.to(device, dtype if kind.is_floating_point else kind)
        parts = flat.split([x.numel() for x in alike])
        places |= {id(x): part.view(x.shape) for x, part in zip(alike, parts, strict=True)}
    return _with_tensors(value, places)


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors of a part of a plan."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for part in cast("tuple[Any, ...]", value):
            yield from _tensors(part)
    elif isinstance(value, Mix | SlotPlan | HeadGroup | LayerPlan | Plan):
        for field in fields(value):
            yield from _tensors(getattr(value, field.name))


def _with_tensors(value: Any, places: Mapping[int, Tensor]) -> Any:
    """A part of a plan with other tensors in their places, by the identity of those it has."""
    if isinstance(value, Tensor):
        return places[id(value)]
    if isinstance(value, tuple):
        return tuple(_with_tensors(part, places) for part in cast("tuple[Any, ...]", value))
    if isinstance(value, Mix | SlotPlan | HeadGroup | LayerPlan | Plan):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        return replace(value, **{name: _with_tensors(x, places) for name, x in parts.items()})
    return value


def compile_circuit(
    graph: Graph,
    edges: Bool[Tensor, "writers readers"],
    neurons: Bool[Tensor, "writers d_model"] | None = None,
    *,
    post_norm: bool = False,
) -> Plan:
    """What running the circuit of `edges` takes, which carry `neurons` (None: all)."""
    mask = graph.carrying(edges, neurons).numpy()
    keep = _Keep(graph.n_writers, neurons)
    clean_reader, clean_writer = _clean(graph, mask, keep.whole)
    level = levels(graph, mask, clean_reader, clean_writer)
    rows = BufferRows(graph.n_writers, post_norm)
    input_level = int(level[0])
    rows.add(np.array([0]), level)
    layers = [
        _plan_layer(graph, layer, mask, level, clean_reader, clean_writer, rows, keep)
        for layer in range(graph.n_layers)
    ]
    final = None
    if not clean_reader[graph.logits]:
        final = Mix.of(rows.combine(mask[:, [graph.logits]], LAST))
    computed = (level > NONE) & ~clean_writer
    mlps = [graph.mlp_writer(layer) for layer in range(graph.n_layers)] if graph.mlp else []
    n_mlps = int(computed[mlps].sum())
    n_heads = int(computed[1:].sum()) - n_mlps
    at_all, at_last = rows.n
    return Plan(input_level, keep.of(0), tuple(layers), final, (at_all, at_last), n_heads, n_mlps)


class _Keep:
    """Which neurons of which writers are in; `whole` at writers that have all of theirs in."""

    def __init__(self, n_writers: int, neurons: Bool[Tensor, "writers d_model"] | None) -> None:
        self.neurons = None if neurons is None else neurons.cpu()
        self.whole = np.ones(n_writers, dtype=bool)
        if self.neurons is not None:
            self.whole = self.neurons.all(dim=1).numpy()

    def of(self, writers: int | np.ndarray) -> Tensor | None:
        """The neurons of one or several writers; None where all of them are in."""
        return None if self.neurons is None or self.whole[writers].all() else self.neurons[writers]


def _clean(graph: Graph, mask: np.ndarray, whole: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Readers that see whole clean writers, and writers all of whose readers are such."""
    readers = np.zeros(graph.n_readers, dtype=bool)
    writers = np.zeros(graph.n_writers + 1, dtype=bool)
    writers[0] = True
    visible, owner = graph.visible.numpy(), graph.reader_owner.numpy()
    for stage in graph.stages():
        seen = int(visible[stage.start])
        if not (writers[:seen] & whole[:seen]).all():
            break
        readers[stage] = mask[:seen, stage].all(axis=0)
        for writer in np.unique(owner[stage]):
            writers[writer] = readers[stage][owner[stage] == writer].all()
    return readers, writers[:-1]


def levels(
    graph: Graph, mask: np.ndarray, clean_reader: np.ndarray, clean_writer: np.ndarray
) -> np.ndarray:
    """At which columns each writer's difference is read, from the logits down."""
    level = np.zeros(graph.n_writers + 1, dtype=np.int8)
    level[-1] = LAST
    owner = graph.reader_owner.numpy()
    for stage in reversed(graph.stages()):
        wanted = level[owner[stage]].copy()
        wanted[clean_reader[stage]] = NONE
        wanted[np.append(clean_writer, False)[owner[stage]]] = NONE
        if stage.stop - stage.start > 1:
            keys_values = wanted[graph.n_heads :]
            keys_values[keys_values > NONE] = ALL
        level[:-1] = np.maximum(level[:-1], (mask[:, stage] * wanted).max(axis=1))
    return level[:-1]


class BufferRows:
    """Which row holds what each writer adds: at all columns, and at the last one."""

    def __init__(self, n_writers: int, post_norm: bool) -> None:
        self.post_norm = post_norm
        self.n = [0, 0]
        self.row_of = np.full((2, n_writers), -1)
        self.patterns: list[tuple[np.ndarray, list[dict[bytes, int]]]] = []

    def add(self, writers: np.ndarray, level: np.ndarray) -> None:
        """Give rows to writers, in the order given; those not read get none."""
        for last, least in enumerate((ALL, LAST)):
            read = writers[level[writers] >= least]
            self.row_of[last, read] = self.n[last] + np.arange(len(read))
            self.n[last] += len(read)

    def add_patterns(self, writers: np.ndarray, sets: Sequence[np.ndarray]) -> None:
        """Give rows to the distinct sets of a post-norm layer's heads (rows over `writers`)."""
        rows: list[dict[bytes, int]] = []
        for last, patterns in enumerate(sets):
            rows.append({row.tobytes(): self.n[last] + i for i, row in enumerate(patterns)})
            self.n[last] += len(patterns)
        self.patterns.append((writers, rows))

    def combine(self, columns: np.ndarray, level: int) -> np.ndarray:
        """Coefficients [readers, buffer rows] of readers, as mask columns [writers, readers]."""
        last = int(level == LAST)
        row_of, out = self.row_of[last], np.zeros((columns.shape[1], self.n[last]), dtype=bool)
        plain = np.flatnonzero(row_of >= 0)
        out[:, row_of[plain]] = columns[plain].T
        for writers, rows in self.patterns:
            for reader, seen in enumerate(columns[writers].T):
                if seen.any():
                    out[reader, rows[last][np.ascontiguousarray(seen).tobytes()]] = True
        return out


def _plan_layer(
    graph: Graph,
    layer: int,
    mask: np.ndarray,
    level: np.ndarray,
    clean_reader: np.ndarray,
    clean_writer: np.ndarray,
    rows: BufferRows,
    keep: _Keep,
) -> LayerPlan:
    heads = np.arange(graph.heads(layer).start, graph.heads(layer).stop)
    by_slot = np.arange(graph.slots(layer).start, graph.slots(layer).stop).reshape(3, -1)
    read = [np.flatnonzero(level[heads] == kind) for kind in (ALL, LAST)]
    writers = heads[np.concatenate(read)]
    places = [np.flatnonzero(~clean_writer[heads[some]]) for some in read]
    computed = [some[place] for some, place in zip(read, places, strict=True)]

    def from_sums(slot: int, group: np.ndarray) -> np.ndarray:
        readers = by_slot[slot, group]
        return readers[mask[:, readers].any(axis=0) & ~clean_reader[readers]]

    # Keys and values are read at all columns, whichever head's they are.
    keys_values = [from_sums(slot, group) for slot in (1, 2) for group in computed]
    readers_at_all = np.concatenate([from_sums(0, computed[0]), *keys_values])
    stream_at_all, row_at_all = _unique(rows, mask, readers_at_all, ALL)
    stream_at_last, row_at_last = _unique(rows, mask, from_sums(0, computed[1]), LAST)
    groups: list[HeadGroup] = []
    for last, group in enumerate(computed):
        if not len(group):
            continue
        slots: list[SlotPlan] = []
        for slot in range(3):
            readers = by_slot[slot, group]
            row = row_at_last if slot == 0 and last else row_at_all
            summed = np.isin(readers, from_sums(slot, group))
            rows_read = np.array([row[reader] for reader in readers[summed]], dtype=int)
            sums = tuple(
                (int(number), _index(np.flatnonzero(rows_read == number)))
                for number in np.unique(rows_read)
            )
            clean = _index(np.flatnonzero(clean_reader[readers]))
            slots.append(SlotPlan(clean, _index(np.flatnonzero(summed)), sums))
        q, k, v = slots
        groups.append(HeadGroup(_index(group), _index(places[last]), bool(last), (q, k, v)))

    patterns = None
    if rows.post_norm:
        below = readers_below(graph, layer, level, clean_reader, clean_writer)
        at_all, at_last = (distinct_sets(mask, writers, below[kind]) for kind in (ALL, LAST))
        rows.add_patterns(writers, (at_all, at_last))
        patterns = (
            torch.from_numpy(at_all[:, : len(read[0])].astype(np.float32)),
            torch.from_numpy(at_last.astype(np.float32)),
        )
    else:
        rows.add(writers, level)

    mlp_level, mlp_from_clean, mlp, mlp_keep = NONE, False, None, None
    if graph.mlp:
        writer, reader = graph.mlp_writer(layer), graph.mlp_reader(layer)
        mlp_level, mlp_from_clean = int(level[writer]), bool(clean_writer[writer])
        mlp_keep = keep.of(writer)
        if mlp_level and not mlp_from_clean:
            mlp = Mix.of(rows.combine(mask[:, [reader]], mlp_level))
        rows.add(np.array([writer]), level)
    return LayerPlan(
        (stream_at_all, stream_at_last),
        tuple(groups),
        (_index(read[0]), _index(read[1])),
        patterns,
        mlp_level,
        mlp_from_clean,
        mlp,
        (keep.of(heads[read[0]]), keep.of(heads[read[1]])),
        mlp_keep,
    )


def readers_below(
    graph: Graph, layer: int, level: np.ndarray, clean_reader: np.ndarray, clean_writer: np.ndarray
) -> dict[int, np.ndarray]:
    """Readers after a layer's heads that will sum writers, by the columns at which they do."""
    first = graph.mlp_reader(layer) if graph.mlp else graph.slots(layer).stop
    below = np.arange(first, graph.n_readers)
    owner = graph.reader_owner.numpy()[below]
    wanted = np.append(level, LAST)[owner]
    wanted[clean_reader[below] | np.append(clean_writer, False)[owner]] = NONE
    place = (below % graph.readers_per_layer) // graph.n_heads
    wanted[(wanted > NONE) & ((place == 1) | (place == 2)) & (below != graph.logits)] = ALL
    return {kind: below[wanted == kind] for kind in (ALL, LAST)}


def distinct_sets(mask: np.ndarray, writers: np.ndarray, readers: np.ndarray) -> np.ndarray:
    """Which of the writers the readers see [sets, writers], each set once, none empty."""
    if not len(readers) or not len(writers):
        return np.zeros((0, len(writers)), dtype=bool)
    sets = np.unique(mask[np.ix_(writers, readers)].T, axis=0)
    return sets[sets.any(axis=1)]


def _unique(
    rows: BufferRows, mask: np.ndarray, readers: np.ndarray, level: int
) -> tuple[Mix | None, dict[int, int]]:
    if not len(readers):
        return None, {}
    distinct, place = np.unique(rows.combine(mask[:, readers], level), axis=0, return_inverse=True)
    return Mix.of(distinct), dict(zip(readers.tolist(), place.flatten().tolist(), strict=True))


def _index(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.int64))
