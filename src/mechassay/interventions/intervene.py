"""One run of a batch under interventions at several sites together, beside its base run.

The base run is made once; the intervened one is run from the first changed site and column on. A
row that no intervention changes is the base run's own, to the last bit, not a recomputed one. Where
labels have several tokens they are written after the prompts, so that one run scores them whole
(`InterchangeBatch.teacher_forced`); interventions stay at the prompts' tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechassay.display import OneLine, Tabular, html_facts, html_table
from mechassay.interchange import InterchangeBatch
from mechassay.interventions.base_run import (
    BaseRun,
    Branch,
    Change,
    check_gradients_allowed,
    site_values,
)
from mechassay.interventions.intervention import Intervention
from mechassay.interventions.labels import divergences, score_labels
from mechassay.interventions.placed import (
    Interventions,
    Placed,
    by_site,
    changed_values,
    check_interventions,
    of_rows,
    place_together,
)
from mechassay.interventions.site import Site
from mechassay.models.decoder import Decoder
from mechassay.models.memory import out_of_memory_is_an_error, token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.pairs import NO_TOKEN

ROWS = 10
"""Rows that a notebook shows."""


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

    def shown(self) -> dict[str, Any]:
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
        told = {name: x.detach().cpu().tolist() for name, x in tensors.items()}
        return {"id": list(self.ids), "group": list(self.groups), **told}

    def _repr_html_(self) -> str:
        columns = self.columns()
        rows = [
            [f"{x:.3g}" if isinstance(x, float) else x for x in row]
            for row in list(zip(*columns.values(), strict=True))[:ROWS]
        ]
        more = f"{len(self) - ROWS:,} more rows" if len(self) > ROWS else ""
        return html_facts(", ".join(self.sites), {}, html_table(list(columns), rows, more))


def intervene(
    model: Model,
    batch: Any,
    interventions: Interventions,
    *,
    gradients: bool = False,
) -> Intervened:
    """Run a batch with interventions at several sites together.

    Args:
        batch: an `InterchangeBatch`, or what one can be made of: pairs, a `Batch`.
        interventions: by site, or its spelling: {"resid.9@last": Interchange()}.
        gradients: let gradients flow to tensors of the interventions; the batch then has to fit
            into memory as a whole.

    Raises:
        BadUsage, UnknownName: a site that the model or the batch does not have, an intervention
            that returns another shape, gradients under inference mode.
        BadPairs: a prompt without such a token; prompts that cannot be compared.
        NonFinite: an intervention returns NaN.
        OutOfMemory: not enough memory for one row.
    """
    chosen = check_interventions(model, by_site(interventions))
    if gradients:
        check_gradients_allowed("intervene(gradients=True)")
    ready = model.interchanges(batch)
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
    rows = torch.stack([~each.null for each in placed]).any(dim=0).nonzero()[:, 0]
    if not len(rows):
        return None
    where = torch.zeros_like(placed[0].null, dtype=torch.long).index_copy(
        0, rows, torch.arange(len(rows), device=rows.device)
    )
    changes = (
        Change(each.site, where[each.row], each.base, function)
        for each, function in zip(placed, new, strict=True)
        if len(each.row)
    )
    return Branch(rows, tuple(changes))


def source_values(
    model: Model, batch: InterchangeBatch, placed: Sequence[Placed]
) -> list[Float[Tensor, "t d"] | None]:
    """The sources' values at the sites that read them."""
    wanted = [(each.site, each.row, each.source) for each in placed if each.source is not None]
    found = iter(site_values(model, batch.source, batch.source_mask, wanted) if wanted else ())
    return [None if each.source is None else next(found) for each in placed]


def watched(
    placed: Sequence[Placed],
    interventions: Sequence[Intervention],
    sources: Sequence[Tensor | None],
    changed: Bool[Tensor, "n"],
) -> list[Callable[[Tensor], Tensor]]:
    """Interventions as functions of values, which note the rows that they change."""

    def of(each: Placed, intervention: Intervention, source: Tensor | None) -> Any:
        def new(values: Tensor) -> Tensor:
            made = changed_values(each.site, intervention, values, source)
            rows = each.row[(made != values).any(dim=1)]
            changed.index_fill_(0, rows, True)
            return made

        return new

    return [of(*each) for each in zip(placed, interventions, sources, strict=True)]


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
