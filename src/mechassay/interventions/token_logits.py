"""Logits of a few tokens at the prompts' last token, without and after each of many plans.

Only rows of the unembedding that are asked for are used; runs are those of `plan_runs`. With the
first tokens of both labels they give the logit difference of a batch:

    D = logit(base label) - logit(label)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechassay.errors import BadPairs
from mechassay.interchange import LAST, InterchangeBatch
from mechassay.interventions.placed import (
    Interventions,
    by_site,
    check_interventions,
    of_rows,
)
from mechassay.interventions.plan_runs import PlanRuns
from mechassay.models.memory import out_of_memory_is_an_error, token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.pairs import NO_TOKEN
from mechassay.progress import BAR, Progress

ROWS = 4096
"""Final vectors that are read out at once."""


class TokenLogits(NamedTuple):
    """Of n rows and t tokens each: without an intervention, and after each of k plans."""

    base: Float[np.ndarray, "n t"]
    after: Float[np.ndarray, "k n t"]


class LogitDifferences(NamedTuple):
    """Of n rows: without an intervention, and after each of k plans."""

    base: Float[np.ndarray, "n"]
    after: Float[np.ndarray, "n k"]


def token_logits(
    model: Model,
    batch: Any,
    plans: Sequence[Interventions],
    tokens: Int[Tensor, "n t"],
    *,
    progress: Progress = BAR,
) -> TokenLogits:
    """The logits of some tokens, in fp64, without and after each plan.

    Args:
        batch: an `InterchangeBatch`, or what one can be made of.
        plans: each an intervention by site, or its spelling; its sites are changed in one run.
        tokens: of each row.

    Raises:
        UnknownName, BadPairs, NonFinite, OutOfMemory: see `intervene`.
    """
    checked = [check_interventions(model, by_site(plan)) for plan in plans]
    ready = model.interchanges(batch)
    budget = token_budget(trace_bytes(model.decoder), ready.base.shape[1], model.device)
    n, t = tokens.shape
    base, after = np.zeros((n, t)), np.zeros((len(plans), n, t))
    with (
        progress.track("intervening", n * len(plans)) as advance,
        torch.no_grad(),
        out_of_memory_is_an_error("Intervening"),
    ):
        for rows, chunk in ready.chunks(budget):
            some = [dict(of_rows(ready, plan, rows)) for plan in checked]
            columns = chunk.column(LAST)[0][:, None]
            runs = PlanRuns.of(model, chunk, some, columns, advance)
            wanted = tokens[rows].to(model.device)
            found = runs.results(lambda x, at, ids=wanted: _logits(model, x[:, 0], ids[at]))
            base[rows], after[:, rows] = found[0].cpu().numpy(), found[1:].cpu().numpy()
    return TokenLogits(base, after)


def logit_differences(
    model: Model,
    batch: Any,
    plans: Sequence[Interventions],
    *,
    progress: Progress = BAR,
) -> LogitDifferences:
    """The logit differences of every row, without and after each plan; see `token_logits`.

    Raises:
        BadPairs: a base label that is not known. Others as `intervene`.
    """
    ready = model.interchanges(batch)
    found = token_logits(model, ready, plans, _first_tokens(ready), progress=progress)
    base, after = (x[..., 0] - x[..., 1] for x in found)
    return LogitDifferences(base, after.T)


def _first_tokens(batch: InterchangeBatch) -> Int[Tensor, "n 2"]:
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


def _logits(
    model: Model, streams: Float[Tensor, "rows d_model"], tokens: Int[Tensor, "rows t"]
) -> Float[Tensor, "rows t"]:
    parts = zip(streams.split(ROWS), tokens.split(ROWS), strict=True)
    return torch.cat([model.decoder.readout(some).at(which).double() for some, which in parts])
