"""The forward pass from interventions on: many rows, each entering at its own layer and column.

A *row* is one prompt of a base run under one intervention. It agrees with the base run before its
first changed column, and everywhere before the place it enters at. So only the columns from its
first on are run, from its place on, with the base run's keys and values for earlier columns:

    place    what a row enters with, the base run's values            what may be edited there
    stream   the stream before a layer (layer L: the final stream)    that stream
    z        the heads' mixes of values                               mixes [n, heads, d_head]
    middle   the stream after attention (blocks in sequence only)     that stream
    mlp      what the MLP writes, after its post-norm if any          what it writes

Rows are ordered by the place they enter at, so the rows that run at a layer are the first ones,
and so are their tokens: all tokens of all rows are one flat list without padding. Only attention
looks at rows. At the last layer only the columns that are read go on after the keys and values.

An edit is a function of the value that its tokens have when the run comes to it; so a row may have
several, at several layers and columns. Gradients flow through what edits return, never through the
base run. A row costs 2 x (columns from its first on) x (layers from its place on) token-layers,
forward and backward, which no exact method can avoid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.models.decoder import Context, Decoder, Layer
from mechassay.models.forward import LayerTrace, Trace

Entry = Literal["stream", "z", "middle", "mlp"]
ENTRIES: tuple[Entry, ...] = get_args(Entry)


def depth_of(place: Entry, layer: int) -> int:
    """Where a place comes in the order of the forward pass."""
    return layer * len(ENTRIES) + ENTRIES.index(place)


@dataclass(frozen=True, eq=False)
class TokenEdit:
    """A change of the values that some tokens of a stack have at one place.

    Attributes:
        tokens: places in the stack's flat list of tokens, see `Stack.tokens`; none twice.
        change: current values [n, d_model], or [n, heads, d_head] at z, to new ones.
    """

    place: Entry
    layer: int
    tokens: Int[Tensor, "n"]
    change: Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Stack:
    """Rows that run together, ordered by the place they enter at.

    Attributes:
        prompt: the row of the base run.
        first: the first changed column.
        depth: the place a row enters at, see `depth_of`; ascending.
        n_columns: columns of the base run.
    """

    prompt: Int[Tensor, "rows"]
    first: Int[Tensor, "rows"]
    depth: Int[Tensor, "rows"]
    n_columns: int

    def __len__(self) -> int:
        return len(self.prompt)

    @cached_property
    def widths(self) -> Int[Tensor, "rows"]:
        """Columns that each row runs."""
        return self.n_columns - self.first

    @cached_property
    def begins(self) -> Int[Tensor, "rows"]:
        """The place of each row's first token in the flat list."""
        return self.widths.cumsum(0) - self.widths

    @cached_property
    def row(self) -> Int[Tensor, "tokens"]:
        """The row of each token."""
        rows = torch.arange(len(self), device=self.prompt.device)
        return torch.repeat_interleave(rows, self.widths)

    @cached_property
    def column(self) -> Int[Tensor, "tokens"]:
        """The column of each token."""
        row = self.row
        places = torch.arange(len(row), device=row.device)
        return places - self.begins[row] + self.first[row]

    @cached_property
    def uniform(self) -> int | None:
        """The first column that all rows share; None if they differ."""
        low, high = (int(x) for x in torch.aminmax(self.first))
        return low if low == high else None

    @cached_property
    def counts(self) -> tuple[list[int], list[int]]:
        """Rows, and tokens, that have entered by each depth."""
        deepest = int(self.depth[-1])
        steps = torch.arange(deepest + 1, device=self.depth.device)
        rows = torch.searchsorted(self.depth, steps, right=True)
        total = torch.cat((self.widths.new_zeros(1), self.widths.cumsum(0)))
        return rows.tolist(), total[rows].tolist()

    def entered(self, depth: int) -> tuple[int, int]:
        """How many rows, and tokens, have entered by a depth."""
        rows, tokens = self.counts
        at = min(depth, len(rows) - 1)
        return (0, 0) if depth < 0 else (rows[at], tokens[at])

    def tokens(self, rows: Int[Tensor, "n"], columns: Int[Tensor, "n"]) -> Int[Tensor, "n"]:
        """The places of some rows' columns in the flat list; columns from the row's first on."""
        return self.begins[rows] + columns - self.first[rows]

    @cached_property
    def reach(self) -> list[int]:
        """Columns that attention must ask for, by rows that run: those of the longest."""
        return self.widths.cummax(0).values.tolist()


def suffix_forward(
    decoder: Decoder,
    base: Trace,
    ctx: Context,
    stack: Stack,
    edits: Sequence[TokenEdit],
    *,
    read: int = 1,
) -> Float[Tensor, "rows read d_model"]:
    """The final stream of a stack's rows at the last `read` columns.

    Args:
        base: a whole run of some prompts, of all columns.
        ctx: the base run's context.
        stack: what is run; a row enters no later than its first edit, at no later a column.
        edits: made in the order given where they share a place.
        read: how many columns; those before a row's first are the base run's.
    """
    run = _SuffixRun(decoder, base, ctx, stack, edits, read)
    layers = len(decoder.layers)
    for layer in range(int(stack.depth[0]) // len(ENTRIES), layers):
        run.layer(layer)
    return run.finish()


class _SuffixRun:
    """The tokens that are running: their stream, and which of the stack's they are."""

    def __init__(
        self,
        decoder: Decoder,
        base: Trace,
        ctx: Context,
        stack: Stack,
        edits: Sequence[TokenEdit],
        read: int,
    ) -> None:
        self.decoder, self.base, self.ctx, self.stack, self.read = decoder, base, ctx, stack, read
        self.edits: dict[tuple[Entry, int], list[TokenEdit]] = {}
        for edit in edits:
            self.edits.setdefault((edit.place, edit.layer), []).append(edit)
        self.x = base.final.new_empty((0, base.final.shape[2]))
        self.n_rows = self.n_tokens = 0
        self.is_read = stack.column >= stack.n_columns - read
        self.all_read = bool(self.is_read.all())
        self.cut = False
        prompt = stack.prompt[stack.row]
        self.prompt = prompt
        position_ids = ctx.position_ids[prompt, stack.column][None]
        rotary = {
            kind: (cos[prompt, stack.column][None], sin[prompt, stack.column][None])
            for kind, (cos, sin) in ctx.rotary.items()
        }
        self.flat = Context(position_ids, rotary, {})
        self.masks = {
            window: None if mask is None else mask[stack.prompt]
            for window, mask in ctx.allowed.items()
        }

    # Which tokens run.

    def _enter(self, depth: int) -> slice:
        """Let rows enter; which of the flat list's tokens they are."""
        before = self.n_tokens
        self.n_rows, self.n_tokens = self.stack.entered(depth)
        return slice(before, self.n_tokens)

    def _of_base(self, values: Tensor, tokens: slice) -> Tensor:
        """Values [prompts, pos, ...] of the base run at entering tokens; where columns are cut, at
        those read.
        """
        some_read = self.cut and not self.all_read
        if self.stack.uniform is None or some_read:
            prompt, column = self.prompt[tokens], self.stack.column[tokens]
            if some_read:
                kept = self.is_read[tokens]
                prompt, column = prompt[kept], column[kept]
            return values[prompt, column]
        width = self.stack.n_columns - self.stack.uniform
        rows = slice(tokens.start // width, tokens.stop // width)
        return values[self.stack.prompt[rows], self.stack.uniform :].flatten(0, 1)

    def _edited(self, place: Entry, layer: int, values: Tensor) -> Tensor:
        """Values of the running tokens after the edits of a place."""
        for edit in self.edits.get((place, layer), ()):
            if self.cut and not self.all_read:
                values = self._changed_where_read(edit, values)
            else:
                new = edit.change(values[edit.tokens])
                values = values.index_copy(0, edit.tokens, new)
        return values

    def _changed_where_read(self, edit: TokenEdit, values: Tensor) -> Tensor:
        """Tokens that nobody reads are gone: their change sees the base run's values, and is not
        made.
        """
        kept = self.is_read[edit.tokens]
        index = (self.is_read.cumsum(0) - 1)[edit.tokens][kept]
        current = self._base_values(edit).index_put((kept.nonzero()[:, 0],), values[index])
        return values.index_copy(0, index, edit.change(current)[kept])

    def _base_values(self, edit: TokenEdit) -> Tensor:
        """The base run's values at the tokens and the place of an edit behind the last layer's
        keys and values.
        """
        past = self.base.layers[-1]
        if edit.place == "stream":
            values = self.base.final
        elif edit.place == "z":
            values = past.z.transpose(1, 2)
        else:
            values = past.middle if edit.place == "middle" else past.mlp
        assert values is not None
        return values[self.prompt[edit.tokens], self.stack.column[edit.tokens]]

    # What runs.

    def layer(self, layer: int) -> None:
        """Run one layer, with the rows that enter in it."""
        part, past, last = (
            self.decoder.layers[layer],
            self.base.layers[layer],
            layer + 1 == len(self.decoder.layers),
        )
        entering = self._enter(depth_of("stream", layer))
        self.x = _joined(self.x, lambda: self._of_base(past.before, entering), entering)
        self.x = self._edited("stream", layer, self.x)
        z = self._mixes(layer, part, past, last=last)
        entering = self._enter(depth_of("z", layer))
        z = _joined(z, lambda: self._of_base(past.z.transpose(1, 2), entering), entering)
        self.x = _joined(self.x, lambda: self._of_base(past.before, entering), entering)
        z = self._edited("z", layer, z)
        before = self.x
        if len(z):
            self.x = self.x + self._attended(layer, part, z)
        if part.mlp is None:
            return
        entering = self._enter(depth_of("middle", layer))
        self.x = _joined(self.x, lambda: self._of_base(past.middle, entering), entering)
        self.x = self._edited("middle", layer, self.x)
        read = before if self.decoder.parallel else self.x
        wrote = part.mlp(read) if len(read) else read
        entering = self._enter(depth_of("mlp", layer))
        base_mlp = past.mlp
        assert base_mlp is not None
        wrote = _joined(wrote, lambda: self._of_base(base_mlp, entering), entering)
        self.x = _joined(self.x, lambda: self._after_attention(layer, past, entering), entering)
        self.x = self.x + self._edited("mlp", layer, wrote)

    def finish(self) -> Float[Tensor, "rows read d_model"]:
        """The final stream where it is read."""
        layers, stack = len(self.decoder.layers), self.stack
        if not self.cut:
            # Nothing ran: every row enters after the last layer.
            self.cut = True
        entering = self._enter(depth_of("stream", layers))
        self.x = _joined(self.x, lambda: self._of_base(self.base.final, entering), entering)
        self.x = self._edited("stream", layers, self.x)
        if len(self.x) == len(stack) * self.read:
            return self.x.unflatten(0, (len(stack), self.read))
        out = self.base.final[stack.prompt, -self.read :]
        columns = stack.column[self.is_read] - (stack.n_columns - self.read)
        return out.index_put((stack.row[self.is_read], columns), self.x)

    def _attended(self, layer: int, part: Layer, z: Tensor) -> Tensor:
        """What attention writes, given mixes [tokens, heads, d_head]."""
        wrote = self.decoder.attention_sum(layer, z.transpose(0, 1)[None])[0]
        post_norm = part.attention.post_norm
        return wrote if post_norm is None else post_norm(wrote)

    def _after_attention(self, layer: int, past: LayerTrace, entering: slice) -> Tensor:
        """The base run's stream between attention and MLP."""
        if not self.decoder.parallel:
            return self._of_base(past.middle, entering)
        z = self._of_base(past.z.transpose(1, 2), entering)
        wrote = self._attended(layer, self.decoder.layers[layer], z)
        return self._of_base(past.before, entering) + wrote

    def _mixes(
        self, layer: int, part: Layer, past: LayerTrace, *, last: bool
    ) -> Float[Tensor, "tokens heads d_head"]:
        """Each head's mixes at the running tokens; at the last layer, at those that are read."""
        attention, stack = part.attention, self.stack
        n, m = self.n_rows, self.n_tokens
        heads, d_head = attention.n_heads, attention.q.weight.shape[1]
        self.cut = last
        if m == 0:
            return self.x.new_empty((0, heads, d_head))
        flat = self._context(slice(0, m))
        y = attention.norm(self.x)
        k = attention.rotate(attention.k(y[None]), flat, is_key=True)[0]
        v = attention.v(y[None])[0].transpose(0, 1)
        row, column = stack.row[:m], stack.column[:m]
        if last and not self.all_read:
            kept = self.is_read[:m].nonzero()[:, 0]
            y, self.x, row, column = y[kept], self.x[kept], row[kept], column[kept]
            if not len(kept):
                return self.x.new_empty((0, heads, d_head))
            flat = self._context(kept)
        q = attention.rotate(attention.q(y[None]), flat, is_key=False)[0]
        keys, values = (self._with_past(*parts) for parts in ((past.k, k), (past.v, v)))
        ctx = Context(
            self.ctx.position_ids,
            {},
            {window: None if mask is None else mask[:n] for window, mask in self.masks.items()},
        )
        width = stack.reach[n - 1]
        width = min(width, self.read) if last else width
        if len(row) == n * width:
            q = q.unflatten(1, (n, width)).transpose(0, 1)
            return attention.attend(q, keys, values, ctx).transpose(1, 2).flatten(0, 1)
        column = column - (stack.n_columns - width)
        asked = q.new_zeros((n, width, heads, d_head))
        asked = asked.index_put((row, column), q.transpose(0, 1))
        mixes = attention.attend(asked.transpose(1, 2), keys, values, ctx)
        return mixes.transpose(1, 2)[row, column]

    def _with_past(
        self, past: Float[Tensor, "prompts kv pos d"], new: Float[Tensor, "kv tokens d"]
    ) -> Float[Tensor, "rows kv pos d"]:
        """Keys or values of all columns of the running rows."""
        stack, n = self.stack, self.n_rows
        if stack.uniform is not None:
            own = new.unflatten(1, (n, -1)).transpose(0, 1)
            start = stack.uniform
            before = past[stack.prompt[:n], :, :start]
            return torch.cat((before, own), dim=2) if start else own
        row, column = stack.row[: self.n_tokens], stack.column[: self.n_tokens]
        whole = past.transpose(1, 2)[stack.prompt[:n]]
        return whole.index_put((row, column), new.transpose(0, 1)).transpose(1, 2)

    def _context(self, tokens: slice | Tensor) -> Context:
        rotary = {
            kind: (cos[:, tokens], sin[:, tokens]) for kind, (cos, sin) in self.flat.rotary.items()
        }
        return Context(self.flat.position_ids[:, tokens], rotary, {})


def _joined(x: Tensor, entering: Callable[[], Tensor], tokens: slice) -> Tensor:
    """Running tokens, then those that enter."""
    if tokens.start == tokens.stop:
        return x
    fresh = entering()
    return torch.cat((x, fresh)) if len(x) else fresh
