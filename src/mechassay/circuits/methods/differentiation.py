"""A batch's two runs and the gradients along a path of inputs: whole, or span by span.

An example that is too long to be differentiated whole is differentiated in spans of columns, from
the last to the first (`models.spans`). Scores are sums over columns, so each span adds its own.
If the copies of an example along the path do not fit together, they come in groups, and scores
are sums over these, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from mechassay.circuits.methods.attribution import (
    at_clean_run,
    at_interpolations,
    between,
    objective_total,
    tapped_forward,
)
from mechassay.models.forward import Contrast, LayerTrace, Trace, constants_of, trace
from mechassay.models.memory import GradientShare
from mechassay.models.model import Model
from mechassay.models.objectives import Objective
from mechassay.models.spans import LongContrast, PastGradients
from mechassay.prompts.batch import Batch

Gradients = TypeVar("Gradients")
Quadrature = tuple[tuple[float | Tensor, ...], tuple[float, ...]]
"""Points in [0, 1], each of all examples or [batch, 1, 1], and weights that sum to 1."""


def differentiate(
    model: Model,
    batch: Batch,
    objective: Objective,
    path: Quadrature | None,
    share: GradientShare,
    gradients_of: Callable[..., Gradients],
    add: Callable[[Contrast, Gradients], None],
) -> None:
    """Call `add` with the runs and the gradients of all columns that differ, or of each span.

    Args:
        path: where gradients are taken, see `at_interpolations`; None: at the clean run.
        share: how much is done at once.
        gradients_of: `ReaderGradients.of` or the like.
    """
    parts: list[Quadrature | None] = [path]
    if path is not None:
        begins = range(0, len(path[0]), share.copies)
        groups = [slice(begin, begin + share.copies) for begin in begins]
        parts = [(path[0][group], path[1][group]) for group in groups]
    if not share.holds(batch):
        long = LongContrast.of(model.decoder, batch, max(1, share.tokens // len(batch)))
        for part in parts:
            _SpanRuns(long, part).differentiate(objective, gradients_of, add)
        return
    for part in parts:
        if part is None and not resumes_at_clean_run(batch):
            add(*at_clean_run(model, batch, objective, gradients_of))
        else:
            points = part or ((1.0,), (1.0,))
            add(*at_interpolations(model, batch, objective, *points, gradients_of))


def resumes_at_clean_run(batch: Batch) -> bool:
    """Whether gradients at the clean run are taken in a second one of the columns that differ.

    It costs a forward pass of all columns, and saves a gradient's two of those that are shared.
    """
    return constants_of(batch) is None and 3 * batch.first_difference() > batch.n_tokens


class _SpanRuns:
    """Copies of a batch along a path, span by span; without a path one, which is the clean run."""

    def __init__(self, long: LongContrast, path: Quadrature | None) -> None:
        self.long, self.decoder, self.is_clean = long, long.decoder, path is None
        self.alphas, self.weights = ((1.0,), (1.0,)) if path is None else path
        self.ctx = long.ctx.repeat(len(self.alphas))

    def differentiate(
        self,
        objective: Objective,
        gradients_of: Callable[..., Gradients],
        add: Callable[[Contrast, Gradients], None],
    ) -> None:
        """Differentiate span by span, the last one first; of those behind only gradients stay."""
        decoder, long, times = self.decoder, self.long, len(self.alphas)
        *earlier, last = long.spans
        clean = other = copies = long.shared()
        for span in earlier:
            clean = long.clean(span, clean).keys_and_values()
            other = long.other(span, other).keys_and_values()
            if not self.is_clean:
                copies = self._run(span, copies).keys_and_values()
        copies = clean if self.is_clean else copies
        held = PastGradients(decoder, times * len(long.batch), long.start, last.start)

        def one(span: slice) -> tuple[Contrast, Gradients]:
            layers, kept = list[LayerTrace](), list[Tensor]()
            ctx = self.ctx.beginning(span.stop)
            with torch.enable_grad():
                embeds = self._embeds(span).requires_grad_()
                taps = tapped_forward(
                    decoder,
                    decoder.add_positions(embeds, ctx, span.start),
                    ctx,
                    start=span.start,
                    past=copies,
                    keep=layers if self.is_clean else None,
                    watch=held.watched(span, kept),
                )
                if self.is_clean:
                    stream = taps.stream.detach()
                    run = Trace(embeds.detach(), tuple(layers), stream, span.start)
                else:
                    run = long.clean(span, clean)
                contrast = long.contrast(span, run, long.other(span, other))
                if span is last:
                    total = objective_total(
                        decoder, objective, taps.readout, contrast, self.weights
                    )
                else:
                    total = held.product(span, kept)
                gradients = gradients_of(
                    decoder, taps, total, times=times, columns=span.stop - span.start
                )
            return contrast, gradients

        for span in (last, *reversed(earlier)):
            add(*one(span))

    @torch.no_grad()
    def _embeds(self, span: slice) -> Float[Tensor, "stack span d_model"]:
        clean, other = self.long.clean_embeds(span), self.long.other_embeds(span)
        if self.is_clean:
            return clean
        return torch.cat([between(other, clean, alpha) for alpha in self.alphas])

    @torch.no_grad()
    def _run(self, span: slice, past: Trace | None) -> Trace:
        ctx = self.ctx.beginning(span.stop)
        return trace(self.decoder, self._embeds(span), ctx, past=past, start=span.start)
