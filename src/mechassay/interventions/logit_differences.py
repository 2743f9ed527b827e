"""Logit differences of a batch after many interventions, each at one site or at several together.

    D = logit(base label) - logit(label)          of their first tokens, at the prompts' last token

Bases and sources are run once for all interventions; each of these is then run from the first
changed layer and column on, in stacks with the others. Only two rows of the unembedding are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.errors import BadPairs
from mechassay.interchange import LAST, InterchangeBatch
from mechassay.interventions.base_run import BaseRun
from mechassay.interventions.intervene import joint_branch, source_values, watched
from mechassay.interventions.placed import (
    Interventions,
    by_site,
    check_interventions,
    of_rows,
    place_together,
)
from mechassay.models.memory import out_of_memory_is_an_error, token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.pairs import NO_TOKEN
from mechassay.progress import BAR, Advance, Progress


class LogitDifferences(NamedTuple):
    """Of n rows: without an intervention, and after each of k."""

    base: Float[np.ndarray, "n"]
    after: Float[np.ndarray, "n k"]


def logit_differences(
    model: Model,
    batch: Any,
    interventions: Sequence[Interventions],
    *,
    progress: Progress = BAR,
) -> LogitDifferences:
    """The logit differences of every row, without and after each intervention.

    Args:
        batch: an `InterchangeBatch`, or what one can be made of.
        interventions: each by site, or its spelling; its sites are changed in one run.

    Raises:
        BadPairs: a base label that is not known. Others as `intervene`.
    """
    plans = [check_interventions(model, by_site(each)) for each in interventions]
    ready = model.interchanges(batch)
    tokens = _tokens(ready)
    budget = token_budget(trace_bytes(model.decoder), ready.base.shape[1], model.device)
    out = torch.full((len(ready), 1 + len(plans)), float("nan"), dtype=torch.float64)
    with (
        progress.track("intervening", len(ready) * len(plans)) as advance,
        torch.no_grad(),
        out_of_memory_is_an_error("Intervening"),
    ):
        for rows, chunk in ready.chunks(budget):
            some = [of_rows(ready, plan, rows) for plan in plans]
            out[rows] = _of_chunk(model, chunk, tokens[rows], some, advance).cpu()
    found = out.numpy()
    return LogitDifferences(found[:, 0], found[:, 1:])


def _tokens(batch: InterchangeBatch) -> Int[Tensor, "n 2"]:
    """The first tokens of each base label and label."""
    own = batch.base_labels
    unknown = None if own is None else own[:, 0] == NO_TOKEN
    if own is None or unknown is None or bool(unknown.any()):
        row = 0 if unknown is None else int(unknown.int().argmax())
        raise BadPairs(
            f"A logit difference needs the label of every base (base_labels); pair"
            f" {batch.ids[row]} has none."
        )
    return torch.stack((own[:, 0], batch.labels[:, 0]), dim=1)


def _of_chunk(
    model: Model,
    batch: InterchangeBatch,
    tokens: Int[Tensor, "n 2"],
    plans: Sequence[Any],
    advance: Advance,
) -> Float[Tensor, "n plans_and_base"]:
    base = BaseRun.of(model, batch.base, batch.base_mask)
    placed = [place_together(batch, plan) for plan in plans]
    sources = iter(source_values(model, batch, [each for several in placed for each in several]))
    changed = torch.zeros((len(plans), len(batch)), dtype=torch.bool, device=model.device)
    branches = [
        joint_branch(
            several,
            watched(several, list(plan.values()), list(islice(sources, len(several))), mark),
        )
        for several, plan, mark in zip(placed, plans, changed, strict=True)
    ]
    there = [each for each in branches if each is not None]
    advance(len(plans) * len(batch) - sum(len(each.prompts) for each in there))
    # The prompts' last tokens, from the end of the table: labels may be written after them.
    at = batch.column(LAST)[0] - base.n_columns
    read = -int(at.min())
    finals = base.run(there, read=read, advance=advance)
    every = torch.arange(len(batch), device=at.device)
    out = _difference(model, base.final(read)[every, at], tokens)[:, None].repeat(1, 1 + len(plans))
    numbers = [number for number, each in enumerate(branches, 1) if each is not None]
    for number, branch, final in zip(numbers, there, finals, strict=True):
        rows = branch.prompts
        new = _difference(model, final[every[: len(rows)], at[rows]], tokens[rows])
        # Rows that are left as they were have the base run's number, not a recomputed one.
        out[rows, number] = new.where(changed[number - 1, rows], out[rows, 0])
    return out


def _difference(
    model: Model, stream: Float[Tensor, "n d_model"], tokens: Int[Tensor, "n 2"]
) -> Float[Tensor, "n"]:
    logits = model.decoder.readout(stream).at(tokens).double()
    return logits[:, 0] - logits[:, 1]
