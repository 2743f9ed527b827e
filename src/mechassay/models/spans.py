"""Long prompts: runs of some columns at a time.

Attention is causal. A run of the columns [a, b) needs keys and values of what is before a, and
nothing else of it; every other part of a layer acts on each column alone. So a run goes from span
to span, and of those that it has passed only keys and values stay.

A backward pass goes from the last span to the first. Let K be the keys and values of all columns,
and m the objective, which the last span alone reads. A span is run again with gradients, and what
is differentiated there is

    m in the last span,   <K[a:b], dm/dK[a:b]> in others,

whose gradients inside of the span are those of m. Its queries read keys and values before a as
well: by these the gradients are added up, and when a span is reached they are whole, because all
columns that read its keys are behind it. What a span costs besides the plain forward and backward
pass is one more forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.models.decoder import Context, Decoder
from mechassay.models.forward import (
    Contrast,
    Edit,
    Place,
    Trace,
    constant_trace,
    constants_of,
    trace,
)
from mechassay.prompts.batch import Batch


@dataclass(frozen=True, eq=False)
class LongContrast:
    """The two runs of a `Contrast` of which the columns of one span are there at a time.

    Attributes:
        start: columns before it are the same in both runs.
        size: most columns of a span.
    """

    decoder: Decoder
    batch: Batch
    ctx: Context
    start: int
    size: int

    @staticmethod
    def of(decoder: Decoder, batch: Batch, size: int) -> LongContrast:
        """Nothing is run yet."""
        start = min(batch.first_difference(), batch.n_tokens - 1)
        return LongContrast(decoder, batch, decoder.context(batch.mask), start, size)

    @property
    def spans(self) -> list[slice]:
        """The columns from `start` on, in parts of about one size."""
        return _spans(self.start, self.batch.n_tokens, self.size)

    @torch.no_grad()
    def shared(self) -> Trace | None:
        """The clean run before `start`, which is both runs' past; None if they share nothing."""
        past = None
        for span in _spans(0, self.start, self.size):
            past = self.clean(span, past).keys_and_values()
        return past

    @torch.no_grad()
    def clean(self, span: slice, past: Trace | None) -> Trace:
        """The clean run at some columns, after those of `past`."""
        embeds, ctx = self.clean_embeds(span), self.context(span)
        return trace(self.decoder, embeds, ctx, past=past, start=span.start)

    @torch.no_grad()
    def other(self, span: slice, past: Trace | None) -> Trace:
        """What ablated edges carry at some columns, after those of `past`."""
        constants, ctx = constants_of(self.batch), self.context(span)
        if constants is not None:
            return constant_trace(self.decoder, constants, ctx, past=past, start=span.start)
        return trace(self.decoder, self.other_embeds(span), ctx, past=past, start=span.start)

    def clean_embeds(self, span: slice) -> Float[Tensor, "batch span d_model"]:
        """What the input writes in the clean run."""
        return self.decoder.embed(self.batch.clean[:, span])

    def other_embeds(self, span: slice) -> Float[Tensor, "batch span d_model"]:
        """What an ablated input writes."""
        constants = constants_of(self.batch)
        if constants is not None:
            return constants.embed_at(self.ctx.position_ids[:, span])
        return self.decoder.embed(self.batch.counterfactual[:, span])

    def context(self, span: slice) -> Context:
        """That of all columns up to the end of a span."""
        return self.ctx.beginning(span.stop)

    def contrast(self, span: slice, clean: Trace, other: Trace) -> Contrast:
        """Of both runs at some columns."""
        return Contrast(self.batch, self.context(span), span.start, clean, other)

    def contrasts(self) -> Iterator[Contrast]:
        """Of the spans in their order; the last one has the answer."""
        clean = other = self.shared()
        for span in self.spans:
            now = self.contrast(span, self.clean(span, clean), self.other(span, other))
            clean, other = now.clean.keys_and_values(), now.other.keys_and_values()
            yield now
            del now


def _spans(start: int, stop: int, size: int) -> list[slice]:
    n = -(-(stop - start) // size)
    ends = [start + (stop - start) * i // max(n, 1) for i in range(n + 1)]
    return [slice(begin, end) for begin, end in pairwise(ends)]


class PastGradients:
    """Gradients by the keys and values of columns before a span, in fp32 at least.

    Attributes:
        held: keys and values of each layer in turn, of columns from `start` on.
    """

    def __init__(self, decoder: Decoder, rows: int, start: int, stop: int) -> None:
        attention, like = decoder.layers[0].attention, decoder.embedding
        shape = (rows, attention.n_heads, stop - start, attention.q.weight.shape[1])
        dtype = torch.promote_types(like.dtype, torch.float32)
        self.start = start
        self.held = [like.new_zeros(shape, dtype=dtype) for _ in range(2 * len(decoder.layers))]

    def watched(self, span: slice, kept: list[Tensor]) -> Edit:
        """An edit of a span's pass, whose backward pass adds the gradients before the span here.

        `kept` is filled with what its layers attend to, in the order of `held`.
        """
        first, before = self.start, span.start

        def edit(place: Place, layer: int, value: Tensor) -> Tensor:
            if place in ("keys", "values"):
                held = self.held[len(kept)]
                kept.append(value)

                def add(gradient: Tensor) -> None:
                    held[:, :, : before - first] += gradient[:, :, first:before]

                if before > first:
                    value.register_hook(add)
            return value

        return edit

    def product(
        self, span: slice, kept: Sequence[Float[Tensor, "stack heads all_pos d_head"]]
    ) -> Tensor:
        """<K, dm/dK> at the columns of a span, with which `kept` ends."""
        columns = slice(span.start - self.start, span.stop - self.start)
        parts = [
            (value[:, :, span.start :] * held[:, :, columns]).sum()
            for value, held in zip(kept, self.held, strict=True)
        ]
        return torch.stack(parts).sum()
