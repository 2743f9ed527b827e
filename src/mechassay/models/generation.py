"""Continuations of prompts: scored together in trees of tokens, or written token by token.

`final_streams` runs sequences that begin alike, such as a prompt's continuations. What they
share is run once: the sequences are the paths of a tree of tokens, and a row of a run has a
column for each node (`tree_context`). The forward pass is the one of any batch; masks, position
ids and rotary tables alone are others. A prompt of p tokens with k others in its continuations
costs p + k tokens, and no keys are copied. Several prompts make one tree where what they share
is worth more than the attention scores of a wider row, which are computed and then masked.

`generate` writes on with cached keys and values. The prompts are run once. Then each step runs
one column, whose past are the keys and values of all columns before it:

    x_t = embed(token_t),   token_t+1 ~ softmax(logits(x_t) / temperature)

Greedy writing takes the likeliest token. Sampling takes the first token at which the sum of
probabilities reaches a uniform number. The numbers of all rows and steps are drawn at once, so
that a row's tokens do not depend on when other rows end. Gradients are not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.models.decoder import Context, Decoder, at_least_fp32
from mechassay.models.forward import Edit, LayerTrace, Place, forward, unchanged
from mechassay.models.memory import stream_bytes, token_budget

Tokens = tuple[int, ...]
SCORES_PER_VECTOR = 2
"""A token's pass through the weights costs as much as about so many attention scores per dimension
of the stream: 24 d^2 operations a layer against 4 d for a score, whose softmax is slow.
"""

WIDEST = 1024
"""Columns of a tree of more than one sequence."""
PADDING, GPU_PADDING = 32, 4096
"""Tokens of padding that cost about as much as another pass through the weights does by itself."""


@dataclass(frozen=True)
class TokenTree:
    """A row of a run: nodes in order, and where each sequence ends.

    Attributes:
        tokens, depths: of each node.
        members: the sequences, by their index.
        columns: the column of each member's last token.
    """

    tokens: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    members: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)

    def add(self, member: int, sequence: Tokens, shared: int) -> None:
        """Put a sequence behind the last one, whose first `shared` tokens it has."""
        self.tokens.extend(sequence[shared:])
        self.depths.extend(range(shared, len(sequence)))
        self.members.append(member)
        self.columns.append(len(self.tokens) - 1)


def token_trees(
    sequences: Sequence[Tokens],
    d_model: int,
    widest: int,
    key: Callable[[int], object] = lambda length: None,
) -> list[TokenTree]:
    """All sequences as trees, none wider than `widest` or its one sequence.

    Args:
        key: of a sequence's length; sequences of a tree have the same one.

    Raises:
        BadUsage: an empty sequence.
    """
    rows: list[TokenTree] = []
    last: Tokens = ()
    for member in sorted(range(len(sequences)), key=sequences.__getitem__):
        sequence = sequences[member]
        if not sequence:
            raise BadUsage(f"A sequence of at least one token is needed; number {member} has none.")
        shared, width = _shared(last, sequence), len(rows[-1].tokens) if rows else 0
        alike = bool(rows) and key(len(last)) == key(len(sequence))
        if not alike or not _worth_it(width, len(sequence), shared, d_model, widest):
            rows.append(TokenTree())
            shared = 0
        rows[-1].add(member, sequence, shared)
        last = sequence
    return rows


def _shared(a: Tokens, b: Tokens) -> int:
    """How many tokens two sequences have in common at their beginnings."""
    if a == b[: len(a)]:
        return len(a)
    return next(place for place, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)


def _worth_it(width: int, length: int, shared: int, d_model: int, widest: int) -> bool:
    """Whether a sequence costs less in the last tree than in one of its own."""
    wider = width + length - shared
    more_scores = wider**2 - width**2 - length**2
    return wider <= widest and shared * SCORES_PER_VECTOR * d_model >= more_scores


def tree_context(decoder: Decoder, depths: Int[Tensor, "row node"]) -> Context:
    """Positions, rotary tables and masks of trees, or rows of several, by the depth of every node.

    A row has the nodes in the order of the sorted sequences: what follows a node stands right
    behind it. The depths of a row's nodes then say all:

        position of node c    depth(c)
        c sees a              a is c or above it: a <= c, and no node behind a, up to c, is as
                              high as a
        in a window of w      depth(c) - depth(a) < w

    The same holds behind a run that is there already, of prompts with an intervention for
    instance. To go on from a run of left-padded prompts, put their `position_ids` before the
    depths, which are then counted from the prompt's first token too; the run's keys and values
    are the past. Columns of depth 0 at a row's end are padding: they see themselves alone.
    """
    column = torch.arange(depths.shape[1], device=depths.device)
    # [row, a, c]: c stands behind a, and not below it.
    closes = (depths[:, None, :] <= depths[:, :, None]) & (column[None, :] > column[:, None])
    end = torch.where(closes.any(2), closes.int().argmax(2), len(column))
    below = (column[:, None] >= column) & (column[:, None] < end[:, None, :])
    distance = depths[:, :, None] - depths[:, None, :]
    windows = {layer.attention.window for layer in decoder.layers}
    allowed = {
        window: (below if window is None else below & (distance < window))[:, None]
        for window in windows
    }
    return Context(depths, decoder.rotary(depths, depths.amax(1) + 1), allowed)


def final_streams(
    decoder: Decoder, sequences: Sequence[Tokens], *, edit: Edit = unchanged
) -> Iterator[tuple[list[int], Float[Tensor, "n d_model"]]]:
    """The residual stream after the last layer at the end of every sequence.

    Args:
        sequences: token ids, whole: each prompt with the beginning of a continuation, say.
        edit: see `forward`; it sees trees, a row each.

    Yields:
        Sequences by their index, and their streams: as many at once as memory allows, similar
        widths together. `decoder.readout` makes logits of them.

    Raises:
        BadUsage: an empty sequence.
        OutOfMemory: the longest sequence alone is too much.
    """
    device, longest = decoder.embedding.device, max(map(len, sequences), default=1)
    widest = max(longest, WIDEST)
    budget = token_budget(stream_bytes(decoder, widest), longest, device)
    rows = token_trees(sequences, decoder.d_model, min(widest, budget), decoder.rotary_key)
    rows.sort(key=lambda row: len(row.tokens))
    slack = PADDING if device.type == "cpu" else GPU_PADDING
    for batch in _batches(rows, budget, slack):
        yield _run_rows(decoder, batch, edit)


def _batches(rows: Sequence[TokenTree], budget: int, slack: int) -> Iterator[list[TokenTree]]:
    """Rows of rising width in batches of at most `budget` tokens, or one row, of which no more than
    `slack` are padding.
    """
    batch: list[TokenTree] = []
    real = 0
    for row in rows:
        width = len(row.tokens)
        padded = width * (len(batch) + 1)
        if batch and (padded > budget or padded - real - width > slack):
            yield batch
            batch, real = [], 0
        batch.append(row)
        real += width
    if batch:
        yield batch


def _run_rows(
    decoder: Decoder, rows: Sequence[TokenTree], edit: Edit
) -> tuple[list[int], Float[Tensor, "n d_model"]]:
    device, width = decoder.embedding.device, max(len(row.tokens) for row in rows)
    tokens, depths = (
        torch.tensor([ids + [0] * (width - len(ids)) for ids in column], device=device)
        for column in ([row.tokens for row in rows], [row.depths for row in rows])
    )
    ctx = tree_context(decoder, depths)
    x = decoder.add_positions(decoder.embed(tokens), ctx)
    streams = forward(decoder, x, ctx, edit=edit)
    places = [number * width + column for number, row in enumerate(rows) for column in row.columns]
    members = [member for row in rows for member in row.members]
    return members, streams.flatten(0, 1)[torch.tensor(places, device=device)]


ROWS_OF_LOGITS = 64
"""Tokens whose logits are in memory at once."""

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
    mask = torch.cat((mask, mask.new_ones(n_batch, n - 1)), dim=1)
    whole = decoder.context(mask)
    lengths = mask.sum(1)
    first, last = int(lengths.min()) - n + 1, int(lengths.max())
    # Where frequencies change with the length of the text, all of it is run for every token.
    again = decoder.rotary_key(first) != decoder.rotary_key(last)
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
        stop, kept = width + step, list[LayerTrace]()
        ctx = decoder.context(mask[:, :stop]) if again else whole.beginning(stop)
        x, edit = decoder.add_positions(decoder.embed(new), ctx, start), edits(start)
        if again and step and edits is not never_edited:
            edit = _by_columns([edits(0), *map(edits, range(width, stop))], [width] + [1] * step)
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
        if again:
            new = torch.cat((new, chosen[:, None]), dim=1)
        else:
            new, start, past = chosen[:, None], stop, kept
    return torch.stack(written, dim=1)


def _by_columns(edits: Sequence[Edit], widths: Sequence[int]) -> Edit:
    """An edit of all columns whose parts, from left to right, are these edits'."""

    def edit(place: Place, layer: int, value: Tensor) -> Tensor:
        axis = -3 if place in ("q", "k", "v") else -2
        parts = zip(edits, value.split(list(widths), dim=axis), strict=True)
        return torch.cat([own(place, layer, part) for own, part in parts], dim=axis)

    return edit


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
    if decoder.longest is not None and longest > decoder.longest:
        raise BadUsage(
            f"A prompt of {longest - n + 1:,} tokens and {n:,} written ones need {longest:,}"
            f" positions; the model has {decoder.longest:,}."
        )
