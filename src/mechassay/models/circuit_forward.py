"""Running a compiled circuit on a batch: only what differs from the reference run.

Differences of what each live writer wrote fill two buffers layer by layer, one for all columns
and one for the last column; each distinct reader's stream is the reference stream plus a sum of
rows. Columns before the first difference of clean and reference prompts are never touched. Examples
whose clean and reference prompts begin alike may share what follows up to where they part, too: a circuit's
keys and values at those columns (`Prefix`) are all that later columns need. See
`circuit_plan` for what is decided beforehand, and `reference` for the slow version of the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.graph import Graph
from mechassay.models.capture import Contrast
from mechassay.models.circuit_plan import ALL, HeadGroup, LayerPlan, Mix, Plan, SlotPlan, compile_circuit
from mechassay.models.decoder import Decoder, Projection, Readout
from mechassay.models.shared_forward import run_shared, shared_by_all_readers

SHARED_ABOVE = 0.4
"""Share of live writers above which running whole sublayers on one stream beats running live heads alone."""


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

    def prefix(self, contrast: Contrast, rows: Int[Tensor, "batch"]) -> Prefix:
        """What examples with these beginnings share; `rows` says which of them each example has."""
        assert self.plan is not None
        return run_prefix(self.decoder, contrast, self.plan, rows)


def circuit_runner(
    decoder: Decoder, graph: Graph, edges: Bool[Tensor, "writers readers"], neurons: Bool[Tensor, "writers d_model"] | None = None
) -> CircuitRunner:
    """The fastest way to run a circuit."""
    shared = None if neurons is None else shared_by_all_readers(graph, edges, neurons)
    if shared is not None and int(shared.any(dim=1).sum()) > SHARED_ABOVE * graph.n_writers:
        return CircuitRunner(decoder, lambda contrast: run_shared(decoder, contrast, graph, shared), None)
    return CircuitRunner(decoder, None, compile_circuit(graph, edges, neurons, post_norm=decoder.has_post_norm))


@torch.no_grad()
def run_circuit(decoder: Decoder, contrast: Contrast, plan: Plan, prefix: Prefix | None = None) -> Readout:
    """The circuit's logits at the last column of a batch.

    Args:
        prefix: what the circuit computed before the contrast's first column, where it is not the clean run's.
    """
    if plan.final is None:
        return contrast.clean.readout(decoder)
    return _Run(decoder, contrast, plan, prefix).readout()


@torch.no_grad()
def run_prefix(decoder: Decoder, contrast: Contrast, plan: Plan, rows: Int[Tensor, "batch"]) -> Prefix:
    """The circuit's keys and values at all columns of beginnings of prompts, for prompts that go on from them.

    What is computed at their last columns alone is computed in vain; it is one column.
    """
    run = _Run(decoder, contrast, plan)
    run.layers()
    return Prefix(contrast.start + run.n_columns, run.parts, rows)


class _Run:
    """One circuit on one batch: two buffers of differences, filled layer by layer."""

    def __init__(self, decoder: Decoder, contrast: Contrast, plan: Plan, prefix: Prefix | None = None) -> None:
        self.decoder, self.contrast, self.plan, self.prefix = decoder, contrast, plan, prefix
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
        return self.decoder.readout(self._stream(self.plan.final, self.reference.final, last=True)[0, :, 0])

    def layers(self) -> None:
        """Everything below the logits."""
        plan = self.plan
        if plan.input_level:
            change = (self._suffix(self.contrast.clean.embed) - self.reference.embed)[None]
            self._write(_masked(change, plan.input_keep), plan.input_level == ALL)
        for index, layer in enumerate(plan.layers):
            self._heads(index, layer)
            if layer.mlp_level:
                self._mlp(index, layer)

    def _suffix(self, x: Tensor) -> Tensor:
        """The columns of a clean tensor [..., columns, d] that the reference run has."""
        return x[..., -self.n_columns :, :]

    def _write(self, difference: Float[Tensor, "n batch pos d_model"], wide: bool) -> None:
        n = len(difference)
        if wide:
            self.wide[self.filled_wide : self.filled_wide + n] = difference
            self.filled_wide += n
        self.last[self.filled_last : self.filled_last + n] = difference[:, :, -1:]
        self.filled_last += n

    def _stream(self, mix: Mix, reference: Float[Tensor, "batch pos d_model"], *, last: bool) -> Float[Tensor, "sums batch read d_model"]:
        buffer = self.last if last else self.wide
        if last:
            reference = reference[:, -1:]
        if not len(buffer):
            return reference.expand(mix.n, *reference.shape)
        return mix(buffer.flatten(1)).view(mix.n, *reference.shape) + reference

    def _heads(self, index: int, layer: LayerPlan) -> None:
        if not len(layer.order):
            return
        attention = self.decoder.layers[index].attention
        reference, clean = self.reference.layers[index], self.contrast.clean.layers[index]
        wide = None if layer.wide is None else attention.norm(self._stream(layer.wide, reference.before, last=False))
        narrow = None if layer.narrow is None else attention.norm(self._stream(layer.narrow, reference.before, last=True))
        order, n_wide = layer.order.to(reference.z.device), layer.n_wide
        changes: list[Tensor] = []
        for last in (False, True):
            heads = order[n_wide:] if last else order[:n_wide]
            columns = slice(-1, None) if last else slice(None)
            change = (self._suffix(clean.z)[:, heads] - reference.z[:, heads])[:, :, columns]
            for group in layer.groups:
                if group.last is last:
                    z = self._attend(index, group, wide, narrow)
                    change[:, group.places.to(heads.device)] = z - reference.z[:, group.heads.to(heads.device)][:, :, columns]
            kept = None if layer.heads_keep is None else (layer.heads_keep[n_wide:] if last else layer.heads_keep[:n_wide])
            changes.append(_masked(self.decoder.head_outputs(index, change, heads), kept))
        if attention.post_norm is None:
            if n_wide:
                self._write(changes[0], wide=True)
            if len(order) > n_wide:
                self._write(changes[1], wide=False)
            return
        assert reference.attended is not None and layer.wide_patterns is not None and layer.last_patterns is not None
        last_changes = torch.cat((changes[0][:, :, -1:], changes[1]))
        for patterns, change, columns in (
            (layer.wide_patterns, changes[0], slice(None)),
            (layer.last_patterns, last_changes, slice(-1, None)),
        ):
            if len(patterns):
                base = reference.attended[:, columns]
                mixed = torch.einsum("ph,hbtd->pbtd", patterns.to(change), change) + base
                self._place(attention.post_norm(mixed) - attention.post_norm(base), wide=columns == slice(None))

    def _place(self, difference: Tensor, *, wide: bool) -> None:
        """Virtual writers: the wide and the last-column buffer hold different ones."""
        n = len(difference)
        if wide:
            self.wide[self.filled_wide : self.filled_wide + n] = difference
            self.filled_wide += n
        else:
            self.last[self.filled_last : self.filled_last + n] = difference
            self.filled_last += n

    def _attend(self, index: int, group: HeadGroup, wide: Tensor | None, narrow: Tensor | None) -> Float[Tensor, "batch n pos d_head"]:
        decoder, ctx = self.decoder, self.contrast.ctx
        attention = decoder.layers[index].attention
        reference, clean = self.reference.layers[index], self.contrast.clean.layers[index]
        heads = group.heads.to(reference.z.device)
        shared = heads // attention.group
        columns = slice(-1, None) if group.last else slice(None)
        old_q, clean_q = reference.q[:, heads][:, :, columns], self._suffix(clean.q)[:, heads][:, :, columns]
        q = self._slot(group.slots[0], attention.q, heads, old_q, clean_q, narrow if group.last else wide, index)
        k = self._slot(
            group.slots[1], attention.k, shared, reference.k[:, shared], clean.k[:, shared], wide, index, part=(index, group.last, 1)
        )
        v = self._slot(
            group.slots[2], attention.v, shared, reference.v[:, shared], clean.v[:, shared], wide, index, part=(index, group.last, 2)
        )
        return decoder.attend(index, q, k, v, ctx)

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
        """Queries, keys or values of a group of heads (`reference` is a fresh copy and is filled in).

        Args:
            part: the name of these keys (1) or values (2) in a `Prefix`; None for queries.
        """
        if len(plan.clean):
            places = plan.clean.to(reference.device)
            reference[:, places] = clean[:, places]
        if len(plan.computed):
            assert streams is not None
            places = plan.computed.to(reference.device)
            chosen = heads[places]
            rows = plan.row.to(reference.device)
            x = streams if len(rows) == len(streams) and bool((plan.row == torch.arange(len(rows))).all()) else streams[rows]
            raw = torch.bmm(x.flatten(1, 2), projection.weight[chosen].transpose(1, 2)).view(len(rows), self.n_batch, x.shape[2], -1)
            if projection.bias is not None:
                raw = raw + projection.bias[chosen][:, None, None]
            start = self.start + self.n_columns - x.shape[2]
            if part is not None and part[2] == 2:
                ready = raw.transpose(0, 1)
            else:
                ready = self.decoder.rotate(index, raw.permute(1, 2, 0, 3), self.contrast.ctx, is_key=part is not None, start=start)
            reference[:, places, -x.shape[2] :] = ready
            if part is not None:
                self.parts[part] = ready
                if self.prefix is not None:
                    before = self.prefix.parts[part]
                    reference[:, places, self.prefix.stop - before.shape[2] : self.prefix.stop] = before[self.prefix.rows]
        return reference

    def _mlp(self, index: int, layer: LayerPlan) -> None:
        reference, clean = self.reference.layers[index], self.contrast.clean.layers[index]
        mlp, wide = self.decoder.layers[index].mlp, layer.mlp_level == ALL
        assert mlp is not None and reference.mlp is not None and clean.mlp is not None
        before = reference.mlp if wide else reference.mlp[:, -1:]
        if layer.mlp_from_clean:
            after = self._suffix(clean.mlp) if wide else clean.mlp[:, -1:]
        else:
            assert layer.mlp is not None
            after = mlp(self._stream(layer.mlp, reference.middle, last=not wide)[0])
        self._write(_masked((after - before)[None], layer.mlp_keep), wide)


def _masked(
    change: Float[Tensor, "n batch pos d_model"], keep: Bool[Tensor, "*writers d_model"] | None
) -> Float[Tensor, "n batch pos d_model"]:
    """What writers change in the stream, by their neurons that are in alone (`change` is overwritten)."""
    return change if keep is None else change.mul_(keep.to(change.device).view(-1, 1, 1, change.shape[-1]))
