"""Token sequences that begin alike, such as a prompt's continuations: what they share is run once.

The sequences are the paths of a tree of tokens. A row of a run has a column for each node, in the
order of the sorted sequences: what follows a node stands right behind it. The depths of a row's
nodes then say all:

    position of node c    depth(c)
    c sees a              a is c or above it: a <= c, and no node behind a, up to c, is as high as a
    in a window of w      depth(c) - depth(a) < w

The forward pass is the one of any batch; masks, position ids and rotary tables alone are others. A
prompt of p tokens with k others in its continuations costs p + k tokens, and no keys are copied.
Several prompts make one tree where what they share is worth more than the attention scores of a
wider row, which are computed and then masked.

The same holds behind a run that is there already, of prompts with an intervention for instance: the
depths go on where its positions end, and its keys and values are the past.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.models.decoder import Context, Decoder
from mechassay.models.forward import Edit, forward, unchanged
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


def token_trees(sequences: Sequence[Tokens], d_model: int, widest: int) -> list[TokenTree]:
    """All sequences as trees, none wider than `widest` or its one sequence.

    Raises:
        BadUsage: an empty sequence.
    """
    rows: list[TokenTree] = []
    last: Tokens = ()
    for member in sorted(range(len(sequences)), key=sequences.__getitem__):
        sequence = sequences[member]
        if not sequence:
            raise BadUsage(f"A sequence of at least one token is needed; number {member} has none.")
        shared = _shared(last, sequence)
        if not rows or not _worth_it(len(rows[-1].tokens), len(sequence), shared, d_model, widest):
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

    To go on from a run of left-padded prompts, put their `position_ids` before the depths, which
    are then counted from the prompt's first token too. Columns of depth 0 at a row's end are
    padding: they see themselves alone.
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
    rotary = {
        kind: table(decoder.embedding[:1], depths) for kind, table in decoder.rotaries.items()
    }
    return Context(depths, rotary, allowed)


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
    rows = token_trees(sequences, decoder.d_model, min(widest, budget))
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
