"""A base run, and its prompts run again under interventions, only from where they change.

A `Branch` is some prompts under one intervention: one site, or several together. All branches of a
run share the base run's values and go through the layers in stacks (`models.suffix_forward`),
ordered by their first site. Changes at one place are made together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.interventions.site import Site
from mechassay.models.decoder import Context, Decoder
from mechassay.models.forward import Place, forward
from mechassay.models.memory import byte_budget, suffix_bytes, token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.models.suffix_forward import Entry, Stack, TokenEdit, suffix_forward
from mechassay.models.trace import Trace, trace
from mechassay.progress import Advance


def _ignored(done: int) -> None: ...


New = Callable[[Tensor], Tensor]
STACK_TOKENS = 4096
"""Tokens of a stack on a CPU: enough for its matrix products, few enough for its caches."""


@dataclass(frozen=True, eq=False)
class Change:
    """A change of a site's values at some tokens of a branch.

    Attributes:
        row: the tokens' rows of the branch.
        column: their columns of the base run; no token twice.
        new: values [n, d] as the run has them, to new ones.
    """

    site: Site
    row: Int[Tensor, "n"]
    column: Int[Tensor, "n"]
    new: New


@dataclass(frozen=True, eq=False)
class Branch:
    """Some prompts of the base run under one intervention."""

    prompts: Int[Tensor, "rows"]
    changes: tuple[Change, ...]

    @property
    def depth(self) -> int:
        """Where its first site comes in the order of the forward pass."""
        return min(change.site.depth for change in self.changes)

    @cached_property
    def first(self) -> Int[Tensor, "rows"]:
        """The first column that changes in each row."""
        least = [_first(change, len(self.prompts)) for change in self.changes]
        return reduce(torch.minimum, least)

    def n_tokens(self, n_columns: int) -> int:
        """Tokens that it runs."""
        return len(self.prompts) * n_columns - int(self.first.sum())


def _first(change: Change, n_rows: int) -> Int[Tensor, "rows"]:
    far = torch.iinfo(change.column.dtype).max
    empty = change.column.new_full((n_rows,), far)
    return empty.scatter_reduce(0, change.row, change.column, "amin")


@dataclass(frozen=True, eq=False)
class BaseRun:
    """The run of some prompts without interventions.

    Attributes:
        trace: what it wrote and read, see `Trace`.
        ctx: its context.
    """

    model: Model
    mask: Bool[Tensor, "n pos"]
    trace: Trace
    ctx: Context

    @staticmethod
    @torch.no_grad()
    def of(model: Model, tokens: Int[Tensor, "n pos"], mask: Bool[Tensor, "n pos"]) -> BaseRun:
        """Run left-padded prompts."""
        tokens, mask = tokens.to(model.device), mask.to(model.device)
        ctx = model.decoder.context(mask)
        return BaseRun(model, mask, trace(model.decoder, model.decoder.embed(tokens), ctx), ctx)

    def __len__(self) -> int:
        return len(self.mask)

    @property
    def n_columns(self) -> int:
        return self.mask.shape[1]

    def values(
        self, site: Site, row: Int[Tensor, "n"], column: Int[Tensor, "n"]
    ) -> Float[Tensor, "n d"]:
        """A site's values at some tokens."""
        layer = self.trace.layers[min(site.place[1], len(self.trace.layers) - 1)]
        if site.part == "heads":
            return _site_of(site, layer.z, row, column)
        if site.part == "mlp":
            assert layer.mlp is not None
            return layer.mlp[row, column]
        last = site.place[1] == len(self.trace.layers)
        return (self.trace.final if last else layer.before)[row, column]

    def final(self, read: int = 1) -> Float[Tensor, "n read d_model"]:
        """The final stream at the last columns."""
        return self.trace.final[:, -read:]

    def run(
        self, branches: Sequence[Branch], *, read: int = 1, advance: Advance = _ignored
    ) -> list[Float[Tensor, "_ read d_model"]]:
        """The final stream of every branch's prompts at the last `read` columns.

        Args:
            advance: told how many rows are done, stack by stack.

        Raises:
            OutOfMemory: not enough memory for one row.
        """
        order = sorted(range(len(branches)), key=lambda i: branches[i].depth)
        outs: dict[int, Tensor] = {}
        for part in self._stacks([branches[i] for i in order]):
            chosen = order[len(outs) : len(outs) + len(part)]
            final = self._stack(part, read)
            sizes = [len(branch.prompts) for branch in part]
            outs |= dict(zip(chosen, final.split(sizes), strict=True))
            advance(sum(sizes))
        return [outs[i] for i in range(len(branches))]

    def _stacks(self, branches: Sequence[Branch]) -> Iterator[Sequence[Branch]]:
        """Cells in order, as many together as memory and caches allow; at least one."""
        device, columns = self.model.device, self.n_columns
        token, row = suffix_bytes(self.model.decoder, columns, gradients=torch.is_grad_enabled())
        budget = byte_budget(token + row // columns, columns, device)
        if device.type == "cpu":
            budget = min(budget, STACK_TOKENS * token)
        begin = used = 0
        for end, branch in enumerate(branches):
            cost = branch.n_tokens(columns) * token + len(branch.prompts) * row
            if end > begin and used + cost > budget:
                yield branches[begin:end]
                begin, used = end, 0
            used += cost
        if begin < len(branches):
            yield branches[begin:]

    def _stack(self, branches: Sequence[Branch], read: int) -> Float[Tensor, "rows read d_model"]:
        sizes = torch.tensor([len(branch.prompts) for branch in branches])
        depths = torch.tensor([branch.depth for branch in branches])
        stack = Stack(
            torch.cat([branch.prompts for branch in branches]),
            torch.cat([branch.first for branch in branches]),
            torch.repeat_interleave(depths, sizes).to(self.model.device),
            self.n_columns,
        )
        begins = [0, *sizes.cumsum(0).tolist()]
        return suffix_forward(
            self.model.decoder,
            self.trace,
            self.ctx,
            stack,
            list(_edits(self.model.decoder, stack, branches, begins)),
            read=read,
        )


def _edits(
    decoder: Decoder, stack: Stack, branches: Sequence[Branch], begins: Sequence[int]
) -> Iterator[TokenEdit]:
    """The changes of all branches as edits of the stack; those at one place are one edit.

    Several changes of one branch at one place come one after the other.
    """
    places: dict[tuple[Entry, int, int], list[tuple[Int[Tensor, "n"], New]]] = {}
    for branch, begin in zip(branches, begins, strict=False):
        seen: dict[tuple[Entry, int], int] = {}
        for change in branch.changes:
            place, layer = change.site.place
            number = seen.get((place, layer), 0)
            seen[place, layer] = number + 1
            tokens = stack.tokens(change.row + begin, change.column)
            new = _of_heads(decoder, change) if change.site.part == "heads" else change.new
            places.setdefault((place, layer, number), []).append((tokens, new))
    for (place, layer, _), changes in places.items():
        if len(changes) == 1:
            yield TokenEdit(place, layer, *changes[0])
            continue
        yield TokenEdit(
            place, layer, torch.cat([tokens for tokens, _ in changes]), _together(changes)
        )


def _together(changes: Sequence[tuple[Int[Tensor, "n"], New]]) -> New:
    sizes = [len(tokens) for tokens, _ in changes]

    def new(values: Tensor) -> Tensor:
        parts = zip(changes, values.split(sizes), strict=True)
        return torch.cat([change(part) for (_, change), part in parts])

    return new


def _of_heads(decoder: Decoder, change: Change) -> New:
    """A change of some heads' mixes as one of all heads' [n, heads, d_head]."""
    n_heads = decoder.layers[change.site.layer].attention.n_heads
    chosen = list(change.site.heads) or list(range(n_heads))

    def new(mixes: Tensor) -> Tensor:
        heads = torch.tensor(chosen, device=mixes.device)
        values = change.new(mixes[:, heads].flatten(1))
        return mixes.index_copy(1, heads, values.unflatten(1, (len(chosen), -1)))

    return new


@torch.no_grad()
def site_values(
    model: Model,
    tokens: Int[Tensor, "n pos"],
    mask: Bool[Tensor, "n pos"],
    wanted: Sequence[tuple[Site, Int[Tensor, "m"], Int[Tensor, "m"]]],
) -> list[Float[Tensor, "m d"]]:
    """What sites have at some tokens of left-padded prompts; nothing else of the run is kept.

    Args:
        wanted: sites, with the rows and columns of the tokens.
    """
    decoder = model.decoder
    tokens, mask = tokens.to(model.device), mask.to(model.device)
    distinct, where = _distinct(tokens, mask)
    outs: list[Tensor | None] = [None] * len(wanted)
    by_place: dict[tuple[str, int], list[int]] = {}
    for number, (site, _, _) in enumerate(wanted):
        by_place.setdefault(site.place, []).append(number)
    room = token_budget(trace_bytes(decoder), tokens.shape[1], model.device)
    step = max(1, room // tokens.shape[1])
    for begin in range(0, len(distinct), step):
        some = distinct[begin : begin + step]

        def keep(place: Place, layer: int, value: Tensor, begin: int = begin) -> Tensor:
            for number in by_place.get((place, layer), ()):
                site, row, column = wanted[number]
                at = where[row] - begin
                inside = ((at >= 0) & (at < len(value))).nonzero()[:, 0]
                found = _site_of(site, value, at[inside], column[inside])
                out = outs[number]
                if out is None:
                    out = outs[number] = found.new_zeros((len(row), found.shape[1]))
                out.index_copy_(0, inside, found)
            return value

        ctx = decoder.context(mask[some])
        x = decoder.add_positions(decoder.embed(tokens[some]), ctx)
        keep("stream", len(decoder.layers), forward(decoder, x, ctx, edit=keep))
    return [out for out in outs if out is not None]


def _site_of(site: Site, value: Tensor, row: Tensor, column: Tensor) -> Float[Tensor, "m d"]:
    if site.part != "heads":
        return value[row, column]
    heads = torch.tensor(list(site.heads) or list(range(value.shape[1])), device=value.device)
    return value[row[:, None], heads[None], column[:, None]].flatten(1)


def _distinct(
    tokens: Int[Tensor, "n pos"], mask: Bool[Tensor, "n pos"]
) -> tuple[Int[Tensor, "some"], Int[Tensor, "n"]]:
    """A row of each distinct prompt, and which of them each prompt is."""
    plain = torch.where(mask, tokens, -1)
    kinds, where = torch.unique(plain, dim=0, return_inverse=True)
    rows = torch.arange(len(tokens), device=tokens.device)
    first = rows.new_full((len(kinds),), len(tokens)).scatter_reduce(0, where, rows, "amin")
    return first, where


def check_gradients_allowed(who: str) -> None:
    """Refuse to take gradients where torch keeps none.

    Raises:
        BadUsage: under `torch.inference_mode()`.
    """
    if torch.is_inference_mode_enabled():
        raise BadUsage(f"{who} needs gradients: call it outside torch.inference_mode().")
