"""Running the decoder and keeping what its nodes wrote and read.

A `Trace` is one forward pass taken apart: what every writer wrote (heads as their mixes z,
d_head wide, expanded through W_O only where needed), the stream every reader saw, and the
queries, keys and values. Two runs that agree before some column share it: the second starts
there, with the first one's keys and values as its past (attention is causal).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.models.constants import Constants, constants_of
from mechassay.models.decoder import Context, Decoder, Readout
from mechassay.pairs import Batch


@dataclass(frozen=True, eq=False)
class LayerTrace:
    """One layer of a trace. Positions run from the trace's `start`,
    except in k and v, which have all.

    Attributes:
        before: stream read by the heads.
        middle: stream read by the MLP (`before` itself in parallel blocks).
        q, k, v: ready to attend (normed, rotated); k and v per key/value head.
        z: each head's mix of values.
        attended: sum of heads and output bias before a post-norm; None where there is none.
        mlp: what the MLP wrote; None in attention-only models.
    """

    before: Float[Tensor, "batch pos d_model"]
    middle: Float[Tensor, "batch pos d_model"]
    q: Float[Tensor, "batch heads pos d_head"]
    k: Float[Tensor, "batch kv_heads all_pos d_head"]
    v: Float[Tensor, "batch kv_heads all_pos d_head"]
    z: Float[Tensor, "batch heads pos d_head"]
    attended: Float[Tensor, "batch pos d_model"] | None
    mlp: Float[Tensor, "batch pos d_model"] | None


@dataclass(frozen=True, eq=False)
class Trace:
    """One forward pass, taken apart. `start` is the first column it holds."""

    embed: Float[Tensor, "batch pos d_model"]
    layers: tuple[LayerTrace, ...]
    final: Float[Tensor, "batch pos d_model"]
    start: int = 0

    def readout(self, decoder: Decoder) -> Readout:
        """Logits at the last column."""
        return decoder.readout(self.final[:, -1])

    def one(self, row: int, times: int, start: int) -> Trace:
        """The run of one prompt, as if it were that of `times` prompts,
        from the column `start` on; nothing is copied.
        """

        def cut(x: Tensor, columns: int) -> Tensor:
            x = x[row : row + 1].narrow(columns, start, x.shape[columns] - start)
            return x.expand(times, *x.shape[1:])

        def whole(x: Tensor) -> Tensor:
            return x[row : row + 1].expand(times, *x.shape[1:])

        return self._each(cut, whole, start)

    def beginning(self, stop: int) -> Trace:
        """The columns before `stop` alone; nothing is copied."""
        return self._each(
            lambda x, columns: x.narrow(columns, 0, stop),
            lambda x: x.narrow(2, 0, stop),
            self.start,
        )

    def select(self, rows: Int[Tensor, "some"] | slice) -> Trace:
        """Some of the prompts; a slice copies nothing."""
        return self._each(lambda x, columns: x[rows], lambda x: x[rows], self.start)

    def _each(
        self, change: Callable[[Tensor, int], Tensor], keys: Callable[[Tensor], Tensor], start: int
    ) -> Trace:
        """Every tensor changed: (tensor, axis of its columns),
        and keys and values, which have all columns.
        """

        def layer(each: LayerTrace) -> LayerTrace:
            streams = {
                name: getattr(each, name) for name in ("before", "middle", "attended", "mlp")
            }
            changed = {name: None if x is None else change(x, 1) for name, x in streams.items()}
            heads = {name: change(getattr(each, name), 2) for name in ("q", "z")}
            return replace(each, **changed, **heads, k=keys(each.k), v=keys(each.v))

        return Trace(
            change(self.embed, 1), tuple(map(layer, self.layers)), change(self.final, 1), start
        )


def trace(
    decoder: Decoder,
    embeds: Float[Tensor, "batch pos d_model"],
    ctx: Context,
    *,
    past: Trace | None = None,
    start: int = 0,
) -> Trace:
    """Run the decoder from token embeddings of the columns from `start` on.

    Args:
        embeds: what the `input` node writes at columns `start` to the end.
        ctx: context of the whole batch, all columns.
        past: a trace that agrees before `start`; needed where `start` > 0.
    """
    x = decoder.add_positions(embeds, ctx, start)
    layers: list[LayerTrace] = []
    for index, layer in enumerate(decoder.layers):
        attention = layer.attention
        y = attention.norm(x)
        q = decoder.rotate(index, attention.q(y), ctx, is_key=False, start=start)
        k = decoder.rotate(index, attention.k(y), ctx, is_key=True, start=start)
        v = attention.v(y).transpose(1, 2)
        if start:
            assert past is not None
            k = torch.cat((past.layers[index].k[:, :, :start], k), dim=2)
            v = torch.cat((past.layers[index].v[:, :, :start], v), dim=2)
        z = decoder.attend(index, q, k, v, ctx)
        attended = decoder.attention_sum(index, z)
        wrote = attended if attention.post_norm is None else attention.post_norm(attended)
        middle = x if decoder.parallel else x + wrote
        mlp = None if layer.mlp is None else layer.mlp(middle)
        layers.append(
            LayerTrace(
                x, middle, q, k, v, z, attended if attention.post_norm is not None else None, mlp
            )
        )
        x = x + wrote
        if mlp is not None:
            x = x + mlp
    return Trace(embeds, tuple(layers), x, start)


@torch.no_grad()
def resume(
    decoder: Decoder,
    x: Float[Tensor, "stack pos d_model"],
    ctx: Context,
    *,
    layer: int,
    at_mlp: bool = False,
    past: Trace | None = None,
    start: int = 0,
) -> Readout:
    """Run only what comes after a point of the residual stream;
    many interventions may share a batch.

    Args:
        x: the stream entering `layer` (its MLP, if `at_mlp`) at the columns from `start` on;
            several copies of the batch may be stacked along the first axis.
        ctx: context of the whole stack, all columns.
        past: the run whose keys and values stand before `start`, of one copy of the batch.

    Returns:
        Logits at the last column. The last layer is computed there only.
    """
    for index in range(layer, len(decoder.layers)):
        part = decoder.layers[index]
        attention = part.attention
        last = index == len(decoder.layers) - 1
        wrote = None
        if index > layer or not at_mlp:
            y = attention.norm(x)
            k = decoder.rotate(index, attention.k(y), ctx, is_key=True, start=start)
            v = attention.v(y).transpose(1, 2)
            y = y[:, -1:] if last else y
            q = decoder.rotate(
                index, attention.q(y), ctx, is_key=False, start=start + x.shape[1] - y.shape[1]
            )
            if start:
                assert past is not None
                times = len(x) // len(past.embed)
                k = torch.cat((past.layers[index].k[:, :, :start].repeat(times, 1, 1, 1), k), dim=2)
                v = torch.cat((past.layers[index].v[:, :, :start].repeat(times, 1, 1, 1), v), dim=2)
            wrote = decoder.attention_sum(index, decoder.attend(index, q, k, v, ctx))
            wrote = wrote if attention.post_norm is None else attention.post_norm(wrote)
        x = x[:, -1:] if last else x
        read = x
        if wrote is not None:
            x = x + wrote
        if part.mlp is not None:
            x = x + part.mlp(read if decoder.parallel else x)
    return decoder.readout(x[:, -1])


@dataclass(frozen=True, eq=False)
class Contrast:
    """A clean and a reference run of one batch, the reference from the first column that differs.

    Attributes:
        start: columns before it are the same in both runs.
        clean: the run of the clean prompts, all columns.
        other: what ablated edges carry, columns from `start` on: the run of the counterfactual
            prompts, or constants.
    """

    batch: Batch
    ctx: Context
    start: int
    clean: Trace
    other: Trace

    @staticmethod
    @torch.no_grad()
    def run(decoder: Decoder, batch: Batch) -> Contrast:
        """Two forwards, the second only over the columns that differ;
        one where ablated edges carry constants.
        """
        ctx = decoder.context(batch.mask)
        clean = trace(decoder, decoder.embed(batch.clean), ctx)
        return Contrast.beside(decoder, batch, ctx, clean)

    @staticmethod
    @torch.no_grad()
    def beside(decoder: Decoder, batch: Batch, ctx: Context, clean: Trace) -> Contrast:
        """The contrast with a clean run that is there already."""
        constants = constants_of(batch)
        if constants is not None:
            return Contrast(batch, ctx, 0, clean, constant_trace(decoder, constants, ctx))
        start = min(batch.first_difference(), batch.n_tokens - 1)
        other = trace(
            decoder, decoder.embed(batch.counterfactual[:, start:]), ctx, past=clean, start=start
        )
        return Contrast(batch, ctx, start, clean, other)


def constant_trace(decoder: Decoder, values: Constants, ctx: Context) -> Trace:
    """What readers would see and project if every writer wrote its constant.

    The streams are the sums of the constants (and of positions and biases, which belong to no
    writer); what a writer would compute from them is not looked at.
    """
    at = ctx.position_ids
    embeds = values.embed_at(at)
    x = decoder.add_positions(embeds, ctx)
    layers: list[LayerTrace] = []
    for index, layer in enumerate(decoder.layers):
        attention = layer.attention
        y = attention.norm(x)
        q = decoder.rotate(index, attention.q(y), ctx, is_key=False)
        k = decoder.rotate(index, attention.k(y), ctx, is_key=True)
        v = attention.v(y).transpose(1, 2)
        z = values.z_at(index, at)
        attended = decoder.attention_sum(index, z)
        wrote = attended if attention.post_norm is None else attention.post_norm(attended)
        middle = x if decoder.parallel else x + wrote
        mlp = None if layer.mlp is None else values.mlp_at(index, at)
        layers.append(
            LayerTrace(
                x, middle, q, k, v, z, attended if attention.post_norm is not None else None, mlp
            )
        )
        x = x + wrote
        if mlp is not None:
            x = x + mlp
    return Trace(embeds, tuple(layers), x)
