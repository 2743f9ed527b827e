"""Running the decoder and keeping what its nodes wrote and read.

A `Trace` is one forward pass taken apart: what every writer wrote (heads as their mixes z), the
stream every reader saw, and the queries, keys and values. Two runs that agree before some column
share it: the second starts there, with the first one's keys and values as its past.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.models.constants import Constants, constants_of
from mechassay.models.decoder import Context, Decoder, Readout
from mechassay.models.forward import LayerTrace, forward
from mechassay.pairs import Batch


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
        """The run of one prompt as if it were that of `times`, from column `start` on: a view."""

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
        """Every tensor changed: (tensor, axis of its columns), and keys and values."""

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
    """Run the decoder from embeddings of the columns from `start` on, after `past`."""
    layers: list[LayerTrace] = []
    x = decoder.add_positions(embeds, ctx, start)
    final = forward(
        decoder, x, ctx, start=start, past=() if past is None else past.layers, keep=layers
    )
    return Trace(embeds, tuple(layers), final, start)


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
        """Two forwards, the second only over columns that differ; one where there are constants."""
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

    No component is run on these streams, the sums of constants, positions and biases.
    """
    at = ctx.position_ids
    embeds, layers = values.embed_at(at), list[LayerTrace]()

    def given(place: Literal["z", "mlp"], layer: int) -> Tensor:
        return values.z_at(layer, at) if place == "z" else values.mlp_at(layer, at)

    final = forward(decoder, decoder.add_positions(embeds, ctx), ctx, given=given, keep=layers)
    return Trace(embeds, tuple(layers), final)
