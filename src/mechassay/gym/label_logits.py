"""Logits of a few tokens at the prompts' last token, after each of many interventions alone.

Bases and sources are run once for all interventions; each of these is then run from the layer and
the column that it changes on, in stacks with the others. Only rows of the unembedding that are
asked for are used. Some cells are known without running:

    nothing is changed                     the base run's logits, to the last bit
    the last layer, not the last token     the same: nothing reads there
    the last layer, the last token         the final norm and the logits of the changed value
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.interchange import LAST, InterchangeBatch
from mechassay.interventions.base_run import BaseRun, Branch, Change
from mechassay.interventions.intervene import source_values, watched
from mechassay.interventions.intervention import Intervention
from mechassay.interventions.placed import Placed, place
from mechassay.interventions.site import Site
from mechassay.models.memory import out_of_memory_is_an_error, token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.progress import BAR, Advance, Progress

ROWS = 4096
"""Final vectors that are read out at once."""

SiteChange = tuple[Site, Intervention]


class LabelLogits(NamedTuple):
    """Of n rows and t tokens each: without an intervention, and after each of k."""

    base: Float[np.ndarray, "n t"]
    after: Float[np.ndarray, "k n t"]


def label_logits(
    model: Model,
    batch: InterchangeBatch,
    changes: Sequence[SiteChange],
    tokens: Int[Tensor, "n t"],
    *,
    progress: Progress = BAR,
) -> LabelLogits:
    """The logits of some tokens, in fp64, without and after each change of one site.

    Args:
        batch: on the device of the model, see `Model.interchanges`.
        changes: a site may come many times; its source values are taken once.
        tokens: of each row.

    Raises:
        UnknownName, BadPairs, NonFinite, OutOfMemory: see `intervene`.
    """
    n, t = tokens.shape
    base = np.zeros((n, t))
    after = np.zeros((len(changes), n, t))
    budget = token_budget(trace_bytes(model.decoder), batch.base.shape[1], model.device)
    with (
        progress.track("intervening", n * len(changes)) as advance,
        torch.no_grad(),
        out_of_memory_is_an_error("Intervening"),
    ):
        for rows, chunk in batch.chunks(budget):
            some = tokens[rows].to(model.device)
            found = _of_chunk(model, chunk, changes, some, advance).cpu().numpy()
            base[rows], after[:, rows] = found[0], found[1:]
    return LabelLogits(base, after)


def _of_chunk(
    model: Model,
    batch: InterchangeBatch,
    changes: Sequence[SiteChange],
    tokens: Int[Tensor, "n t"],
    advance: Advance,
) -> Float[Tensor, "base_and_changes n t"]:
    run = BaseRun.of(model, batch.base, batch.base_mask)
    last = batch.column(LAST)[0]
    read = run.n_columns - int(last.min())
    placed = {
        key: _that_is_read(model, each, last) for key, each in _placed(batch, changes).items()
    }
    every = list(placed.values())
    sources = dict(zip(placed, source_values(model, batch, every), strict=True))
    changed = torch.zeros((len(changes), len(batch)), dtype=torch.bool, device=model.device)
    branches: list[Branch] = []
    numbers: list[int] = []
    for number, (site, how) in enumerate(changes):
        at = placed[_key(site, how)]
        rows = (~at.null).nonzero()[:, 0]
        if not len(rows):
            continue
        [new] = watched([at], [how], [sources[_key(site, how)]], changed[number])
        where = last.new_zeros(len(batch))
        where[rows] = torch.arange(len(rows), device=model.device)
        branches.append(Branch(rows, (Change(site, where[at.row], at.base, new),)))
        numbers.append(number)
    advance(len(changes) * len(batch) - sum(len(each.prompts) for each in branches))
    finals = run.run(branches, read=read, advance=advance)
    place_of = read - run.n_columns + last
    own = run.final(read)[torch.arange(len(batch), device=model.device), place_of]
    out = _logits(model, own, tokens)[None].repeat(1 + len(changes), 1, 1)
    if branches:
        prompts = torch.cat([each.prompts for each in branches])
        streams = torch.cat(
            [
                final[torch.arange(len(final), device=model.device), place_of[each.prompts]]
                for final, each in zip(finals, branches, strict=True)
            ]
        )
        logits = _logits(model, streams, tokens[prompts])
        sizes = torch.tensor([len(each.prompts) for each in branches])
        number = torch.repeat_interleave(torch.tensor(numbers), sizes).to(model.device)
        kept = changed[number, prompts]
        out[1 + number[kept], prompts[kept]] = logits[kept]
    return out


def _key(site: Site, how: Intervention) -> tuple[Site, bool, bool]:
    return site, how.needs_source, how.keeps_equal


def _placed(
    batch: InterchangeBatch, changes: Sequence[SiteChange]
) -> dict[tuple[Site, bool, bool], Placed]:
    """The tokens of every site, once."""
    found: dict[tuple[Site, bool, bool], Placed] = {}
    for site, how in changes:
        if _key(site, how) not in found:
            found[_key(site, how)] = place(batch, site, how)
    return found


def _that_is_read(model: Model, at: Placed, last: Int[Tensor, "n"]) -> Placed:
    """The site without tokens that nothing reads: of the last stream all but the prompts' last."""
    if at.site.place[1] < len(model.decoder.layers):
        return at
    kept = (at.base == last[at.row]).nonzero()[:, 0]
    row, source = at.row[kept], None if at.source is None else at.source[kept]
    null = torch.ones_like(at.null).index_fill(0, row, False)
    return Placed(at.site, row, at.base[kept], source, null)


def _logits(
    model: Model, streams: Float[Tensor, "rows d_model"], tokens: Int[Tensor, "rows t"]
) -> Float[Tensor, "rows t"]:
    parts = zip(streams.split(ROWS), tokens.split(ROWS), strict=True)
    return torch.cat([model.decoder.readout(some).at(which).double() for some, which in parts])
