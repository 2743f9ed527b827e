"""One run of a batch under interventions at several sites together, beside its base run.

The base run is made once; the intervened one is run from the first changed site and column on. A
row that no intervention changes is the base run's own, to the last bit, not a recomputed one.

A `Branch` is some prompts under one intervention: one site, or several together. All branches of
a run share the base run's values and go through the layers in stacks, ordered by their first
site. Changes at one place are made together.

Labels of several tokens are written after the prompts, so that one run scores them whole
(`InterchangeBatch.teacher_forced`); interventions stay at the prompts' tokens.

    log p(label) = sum_j log p(token_j | prompt, tokens before it)        teacher-forced, in nats
    written      = every token_j is the argmax there: what greedy decoding writes

Only final streams of the columns before the tokens are needed. Logits are made for some rows at
a time, as each has as many numbers as the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechassay.errors import BadUsage
from mechassay.interventions.intervention import (
    Intervention,
    Interventions,
    Placed,
    by_site,
    changed_values,
    check_interventions,
    of_rows,
    place_together,
)
from mechassay.interventions.site import Site
from mechassay.models.decoder import Context, Decoder
from mechassay.models.forward import Place, Trace, forward, trace
from mechassay.models.memory import (
    byte_budget,
    out_of_memory_is_an_error,
    suffix_bytes,
    token_budget,
    trace_bytes,
)
from mechassay.models.model import Model
from mechassay.models.patched_forward import Entry, Stack, TokenEdit, suffix_forward
from mechassay.prompts.batch import NO_TOKEN
from mechassay.prompts.interchange_batch import InterchangeBatch, InterchangesLike
from mechassay.utils.arguments import checked
from mechassay.utils.display import NOTEBOOK_ROWS, Advance, OneLine, Tabular, html_facts, html_table


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
                values_of = _site_of(site, value, at[inside], column[inside])
                out = outs[number]
                if out is None:
                    out = outs[number] = values_of.new_zeros((len(row), values_of.shape[1]))
                out.index_copy_(0, inside, values_of)
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


LOGIT_ROWS = 512
"""Rows of logits held at once."""


class LabelScores(NamedTuple):
    """Of each row, its label's log-probability in nats, and whether it is written greedily."""

    log_probs: Float[Tensor, "n"]
    written: Bool[Tensor, "n"]


def score_labels(
    decoder: Decoder, final: Float[Tensor, "n m d_model"], targets: Int[Tensor, "n m"]
) -> LabelScores:
    """Scores of labels given final streams; `NO_TOKEN` has no part in them.

    A row without any token has NaN, and is not written.
    """
    real = targets != NO_TOKEN
    streams, tokens = final[real], targets[real]
    log_probs = final.new_zeros(targets.shape, dtype=torch.float64)
    best = torch.ones_like(real)
    tensors: list[Tensor] = []
    right: list[Tensor] = []
    for part, token in zip(streams.split(LOGIT_ROWS), tokens.split(LOGIT_ROWS), strict=True):
        logits = decoder.readout(part).all()
        tensors.append(logits.gather(1, token[:, None])[:, 0] - logits.logsumexp(dim=1))
        right.append(logits.argmax(dim=1) == token)
    if tensors:
        log_probs[real] = torch.cat(tensors).double()
        best[real] = torch.cat(right)
    some = real.any(dim=1)
    total = log_probs.sum(dim=1).masked_fill(~some, float("nan"))
    return LabelScores(total, best.all(dim=1) & some)


def divergences(
    decoder: Decoder, base: Float[Tensor, "n d_model"], other: Float[Tensor, "n d_model"]
) -> Float[Tensor, "n"]:
    """KL(P_base || P_other) of next tokens, in nats, of final streams."""
    tensors: list[Tensor] = []
    for ours, theirs in zip(base.split(LOGIT_ROWS), other.split(LOGIT_ROWS), strict=True):
        p, q = (decoder.readout(x).all().log_softmax(dim=1) for x in (ours, theirs))
        tensors.append((p.exp() * (p - q)).sum(dim=1).double())
    return torch.cat(tensors) if tensors else base.new_zeros(0, dtype=torch.float64)


@dataclass(frozen=True, eq=False, repr=False)
class Intervened(OneLine, Tabular):
    """What a batch says with and without interventions; n rows, in the batch's order.

    Attributes:
        sites: where, as they are spelled.
        base_final, final: final streams at the prompts' last tokens.
        log_probs, base_log_probs: of the labels, in nats, with and without.
        other_log_probs, other_base_log_probs: of the base's own labels; NaN where not known.
        written, base_written: whether the label is what greedy decoding writes.
        changed: rows that some intervention changed at all.
    """

    sites: tuple[str, ...]
    decoder: Decoder
    ids: tuple[str, ...]
    groups: tuple[str, ...]
    base_final: Float[Tensor, "n d_model"]
    final: Float[Tensor, "n d_model"]
    log_probs: Float[Tensor, "n"]
    base_log_probs: Float[Tensor, "n"]
    other_log_probs: Float[Tensor, "n"]
    other_base_log_probs: Float[Tensor, "n"]
    written: Bool[Tensor, "n"]
    base_written: Bool[Tensor, "n"]
    changed: Bool[Tensor, "n"]

    def __len__(self) -> int:
        return len(self.ids)

    def repr_fields(self) -> dict[str, Any]:
        share = float(self.written.double().mean())
        return {"n": len(self), "sites": self.sites, "labels_written": share}

    @property
    def logits(self) -> Float[Tensor, "n vocab"]:
        """Of the next token after each prompt, with the interventions."""
        return self.decoder.readout(self.final).all()

    @property
    def log_odds(self) -> Float[Tensor, "n"]:
        """log p(base label) / p(label) without minus with the interventions: how far they move the
        odds towards the label (Arora et al. 2024, eq. 4). NaN where the base label is not known.
        """
        before = self.other_base_log_probs - self.base_log_probs
        return before - (self.other_log_probs - self.log_probs)

    @property
    def kl(self) -> Float[Tensor, "n"]:
        """KL(P_without || P_with) of the next token, in nats."""
        return divergences(self.decoder, self.base_final, self.final)

    def columns(self) -> dict[str, list[Any]]:
        """A row an interchange: log-probabilities in nats, with and without."""
        tensors = {
            "label_log_prob": self.log_probs,
            "label_log_prob_without": self.base_log_probs,
            "log_odds": self.log_odds,
            "kl": self.kl,
            "label_written": self.written,
            "label_written_without": self.base_written,
        }
        plain = {name: x.detach().cpu().tolist() for name, x in tensors.items()}
        return {"id": list(self.ids), "group": list(self.groups), **plain}

    def _repr_html_(self) -> str:
        columns = self.columns()
        rows = [
            [f"{x:.3g}" if isinstance(x, float) else x for x in row]
            for row in list(zip(*columns.values(), strict=True))[:NOTEBOOK_ROWS]
        ]
        more = f"{len(self) - NOTEBOOK_ROWS:,} more rows" if len(self) > NOTEBOOK_ROWS else ""
        return html_facts(", ".join(self.sites), {}, html_table(list(columns), rows, more))


@checked
def intervene(
    model: Model,
    pairs: InterchangesLike,
    interventions: Interventions,
    *,
    gradients: bool = False,
) -> Intervened:
    """Run the base prompts of pairs with interventions at several sites together.

        run = ma.intervene(model, pairs, {"resid.9@last": ma.Interchange()})

    Args:
        model: a loaded model, see `load_model`.
        pairs: pairs, a `Batch` or an `InterchangeBatch`. The base prompt of a `Pair` is its clean
            prompt, the source is its counterfactual prompt.
        interventions: by site, or by its spelling: `Interchange`, `Add`, `Ablate`, `Replace` or
            `Scale`.
        gradients: let gradients flow to tensors of the interventions; the pairs then have to fit
            into memory as a whole.

    Returns:
        For each row the log-probability of the label in nats, with and without the interventions,
        whether the model writes the label, and the final stream [n, d_model] at the last token.

    Raises:
        BadUsage, UnknownName: a site that the model or the pairs do not have, an intervention
            that returns another shape, gradients under inference mode.
        BadPairs: a prompt without such a token; prompts that cannot be compared.
        NonFinite: an intervention returns NaN.
        OutOfMemory: not enough memory for one row.
    """
    chosen = check_interventions(model, by_site(interventions))
    if gradients:
        check_gradients_allowed("intervene(gradients=True)")
    ready = model.interchanges(pairs)
    budget = token_budget(trace_bytes(model.decoder), ready.base.shape[1], model.device)
    chunks = [(list(range(len(ready))), ready)] if gradients else list(ready.chunks(budget))
    parts: list[Intervened] = []
    with torch.set_grad_enabled(gradients), out_of_memory_is_an_error("Intervening"):
        parts = [_intervened(model, chunk, of_rows(ready, chosen, rows)) for rows, chunk in chunks]
    order = torch.tensor([row for rows, _ in chunks for row in rows]).argsort()
    return _joined(parts, order)


def _intervened(
    model: Model, batch: InterchangeBatch, interventions: Mapping[Site, Intervention]
) -> Intervened:
    forced = batch.teacher_forced()
    base, final, changed = run_together(model, forced, interventions)
    targets = forced.targets
    after, before = (score_labels(model.decoder, x, targets) for x in (final, base))
    other = torch.full((2, len(batch)), float("nan"), dtype=torch.float64, device=model.device)
    if batch.base_labels is not None:
        other = _of_base_labels(model, batch, interventions, base, final)
    # The first label token is predicted in the prompt's last column.
    at = torch.arange(len(batch), device=model.device), -forced.label_lengths.clamp(min=1)
    return Intervened(
        tuple(map(str, interventions)),
        model.decoder,
        batch.ids,
        batch.groups,
        base[at],
        final[at],
        after.log_probs,
        before.log_probs,
        other[0],
        other[1],
        after.written,
        before.written,
        changed,
    )


def _of_base_labels(
    model: Model,
    batch: InterchangeBatch,
    interventions: Mapping[Site, Intervention],
    base: Tensor,
    final: Tensor,
) -> Float[Tensor, "2 n"]:
    """Log-probabilities of the base's own labels, with and without; NaN where not known.

    Labels of one token are read from the run that is there already.
    """
    assert batch.base_labels is not None
    known = (batch.base_labels != NO_TOKEN).any(dim=1)
    if not bool(known.any()):
        return torch.full((2, len(batch)), float("nan"), dtype=torch.float64, device=known.device)
    if batch.labels.shape[1] > 1 or batch.base_labels.shape[1] > 1:
        rows = known.nonzero()[:, 0]
        forced = batch.select(rows).teacher_forced(base_labels=True)
        base, final, _ = run_together(model, forced, of_rows(batch, interventions, rows))
        targets = forced.targets
    else:
        targets = batch.base_labels[known]
        base, final = base[known], final[known]
    scores = torch.stack([score_labels(model.decoder, x, targets).log_probs for x in (final, base)])
    out = scores.new_full((2, len(batch)), float("nan"))
    return out.index_copy(1, known.nonzero()[:, 0], scores)


def run_together(
    model: Model, forced: InterchangeBatch, interventions: Mapping[Site, Intervention]
) -> tuple[Float[Tensor, "n m d_model"], Float[Tensor, "n m d_model"], Bool[Tensor, "n"]]:
    """Final streams of a teacher-forced batch at the columns that labels are read at, without and
    with interventions, and which rows these changed.
    """
    base = BaseRun.of(model, forced.base, forced.base_mask)
    read = forced.labels.shape[1]
    placed = place_together(forced, interventions)
    sources = source_values(model, forced, placed)
    changed = torch.zeros(len(forced), dtype=torch.bool, device=model.device)
    branch = joint_branch(placed, watched(placed, list(interventions.values()), sources, changed))
    final = base.final(read)
    if branch is not None:
        [run] = base.run([branch], read=read)
        new = final.index_copy(0, branch.prompts, run)
        final = torch.where(changed[:, None, None], new, final)
    return base.final(read), final, changed


def joint_branch(
    placed: Sequence[Placed], new: Sequence[Callable[[Tensor], Tensor]]
) -> Branch | None:
    """The changes of several sites as one branch of those rows that something is done to; None if
    there are none. The others stay the base run's.
    """
    rows = torch.stack([~place.null for place in placed]).any(dim=0).nonzero()[:, 0]
    if not len(rows):
        return None
    where = torch.zeros_like(placed[0].null, dtype=torch.long).index_copy(
        0, rows, torch.arange(len(rows), device=rows.device)
    )
    changes = (
        Change(place.site, where[place.row], place.base, function)
        for place, function in zip(placed, new, strict=True)
        if len(place.row)
    )
    return Branch(rows, tuple(changes))


def source_values(
    model: Model, batch: InterchangeBatch, placed: Sequence[Placed]
) -> list[Float[Tensor, "t d"] | None]:
    """The sources' values at the sites that read them."""
    wanted = [(place.site, place.row, place.source) for place in placed if place.source is not None]
    source_values_of = iter(
        site_values(model, batch.source, batch.source_mask, wanted) if wanted else ()
    )
    return [None if place.source is None else next(source_values_of) for place in placed]


def watched(
    placed: Sequence[Placed],
    interventions: Sequence[Intervention],
    sources: Sequence[Tensor | None],
    changed: Bool[Tensor, "n"],
) -> list[Callable[[Tensor], Tensor]]:
    """Interventions as functions of values, which note the rows that they change."""

    def of(place: Placed, intervention: Intervention, source: Tensor | None) -> Any:
        def new(values: Tensor) -> Tensor:
            made = changed_values(place.site, intervention, values, source)
            rows = place.row[(made != values).any(dim=1)]
            changed.index_fill_(0, rows, True)
            return made

        return new

    return [of(*parts) for parts in zip(placed, interventions, sources, strict=True)]


def _joined(parts: Sequence[Intervened], order: Tensor) -> Intervened:
    """The parts of a batch as one, its rows in their order."""
    first = parts[0]
    names = [name for name, x in vars(first).items() if isinstance(x, Tensor)]
    tensors = {
        name: torch.cat([getattr(part, name) for part in parts])[order.to(first.final.device)]
        for name in names
    }
    rows: list[int] = order.tolist()

    def some(name: str) -> tuple[str, ...]:
        every = [text for part in parts for text in getattr(part, name)]
        return tuple(every[row] for row in rows)

    return replace(first, **tensors, ids=some("ids"), groups=some("groups"))
