"""Writing on after prompts, token by token, with cached keys and values.

    the prompts are run once; then each step runs one column, whose past are the keys and values of
    all columns before it:   x_t = embed(token_t),   token_t+1 ~ softmax(logits(x_t) / temperature)

Greedy writing takes the likeliest token. Sampling takes the first token at which the sum of
probabilities reaches a uniform number; the numbers of all rows and steps are drawn at once, so that
a row's tokens do not depend on when other rows end. Gradients are not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.models.decoder import Decoder, at_least_fp32
from mechassay.models.forward import Edit, LayerTrace, forward, unchanged

ROWS_OF_LOGITS = 64

StepEdits = Callable[[int], Edit]
"""The first column that a pass runs -> the edit of that pass: 0 for the prompts, which are as many
columns as they have, and then one column after the other.
"""


def never_edited(start: int) -> Edit:
    """No pass is edited."""
    return unchanged


@torch.no_grad()
def generate(
    decoder: Decoder,
    tokens: Int[Tensor, "batch pos"],
    mask: Bool[Tensor, "batch pos"],
    n: int,
    *,
    end: Collection[int] = (),
    generator: torch.Generator | None = None,
    temperature: float = 1.0,
    edits: StepEdits = never_edited,
) -> Int[Tensor, "batch steps"]:
    """What the model writes after each of a left-padded batch of prompts.

    Args:
        tokens, mask: the prompts, each of which ends in the last column.
        n: the most tokens to write.
        end: ids of end-of-text; a row that has written one is done.
        generator: on the CPU; without one, writing is greedy.
        temperature: divides the logits where tokens are sampled.
        edits: what is changed in each pass, see `forward`; the final stream is their last value,
            as the stream before a layer behind the last.

    Returns:
        Token ids, at most `n` a row: fewer where all rows are done before. A row that is done goes
        on with the token that ended it.

    Raises:
        BadUsage: nothing to write, a temperature that is not above 0, a prompt without a token,
            prompts that with `n` tokens are longer than the model's positions.
    """
    _check(decoder, mask, n, temperature)
    n_batch, width = tokens.shape
    # One column fewer than prompts and text: what is written last is not run.
    whole = decoder.context(torch.cat((mask, mask.new_ones(n_batch, n - 1)), dim=1))
    uniform = None
    if generator is not None:
        # In (0, 1]: a token of probability 0 is never the first to reach such a number.
        uniform = 1 - torch.rand(n_batch, n, generator=generator, dtype=torch.float64)
        dtype = torch.promote_types(decoder.embedding.dtype, torch.float32)
        uniform = uniform.to(tokens.device, dtype)
    ends = torch.tensor(sorted(end), dtype=torch.long, device=tokens.device)
    done = torch.zeros(n_batch, dtype=torch.bool, device=tokens.device)
    past: list[LayerTrace] = []
    new, start, written = tokens, 0, list[Tensor]()
    for step in range(n):
        ctx, kept = whole.beginning(width + step), list[LayerTrace]()
        x, edit = decoder.add_positions(decoder.embed(new), ctx, start), edits(start)
        stream = forward(
            decoder,
            x,
            ctx,
            start=start,
            past=past,
            # Edits see all columns in the last layer too.
            last_only=edits is never_edited,
            edit=edit,
            keep=kept,
        )
        stream = edit("stream", len(decoder.layers), stream)
        drawn = None if uniform is None else uniform[:, step]
        chosen = _next_tokens(decoder, stream[:, -1], drawn, temperature)
        if written:
            chosen = torch.where(done, written[-1], chosen)
        written.append(chosen)
        done = done | torch.isin(chosen, ends)
        if bool(done.all()):
            break
        new, start, past = chosen[:, None], width + step, kept
    return torch.stack(written, dim=1)


def until_end(row: list[int], end: Collection[int]) -> list[int]:
    """A written row up to its first end-of-text token, without it."""
    stop = next((place for place, token in enumerate(row) if token in end), len(row))
    return row[:stop]


def _next_tokens(
    decoder: Decoder,
    stream: Float[Tensor, "batch d_model"],
    uniform: Float[Tensor, "batch"] | None,
    temperature: float,
) -> Int[Tensor, "batch"]:
    """The next token of each row, some rows of logits at a time."""
    chosen: list[Tensor] = []
    for begin in range(0, len(stream), ROWS_OF_LOGITS):
        rows = slice(begin, begin + ROWS_OF_LOGITS)
        logits = decoder.readout(stream[rows]).all()
        if uniform is None:
            chosen.append(logits.argmax(dim=-1))
            continue
        summed = (at_least_fp32(logits) / temperature).softmax(dim=-1).cumsum(dim=-1)
        chosen.append(torch.searchsorted(summed, uniform[rows, None] * summed[:, -1:]).squeeze(1))
    return torch.cat(chosen)


def _check(decoder: Decoder, mask: Bool[Tensor, "batch pos"], n: int, temperature: float) -> None:
    if n < 1:
        raise BadUsage(f"generate writes at least one token; got n={n}.")
    if not temperature > 0:
        raise BadUsage(f"temperature must be above 0; got {temperature}.")
    lengths = mask.sum(dim=1)
    if not bool(lengths.all()):
        row = int((lengths == 0).nonzero()[0])
        raise BadUsage(f"generate needs prompts of at least one token; row {row} has none.")
    longest = int(lengths.max()) + n - 1
    if decoder.positions is not None and longest > len(decoder.positions):
        raise BadUsage(
            f"A prompt of {longest - n + 1:,} tokens and {n:,} written ones need {longest:,}"
            f" positions; the model has {len(decoder.positions):,}."
        )
