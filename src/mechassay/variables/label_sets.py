"""What is written after an interchange, where several labels are right.

    right = the tokens that greedy decoding writes are one of the labels

Teacher forcing shows whether one given label is written. Of many, what is written is decoded token
by token, with the interchange in place, and compared with each: all sites are run together for each
token of the longest label. Only the first tokens count, as many as the label has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mechassay.alignment import encode, tokenizer_of
from mechassay.interchange import InterchangeBatch
from mechassay.interchange_pairs import InterchangePair
from mechassay.interventions.intervention import Interchange
from mechassay.interventions.labels import ROWS
from mechassay.interventions.site import LAST, Site
from mechassay.interventions.sweep import SiteRuns
from mechassay.models.memory import out_of_memory_is_an_error, token_budget, trace_bytes
from mechassay.models.model import Model
from mechassay.progress import SILENT, Progress

Label = tuple[int, ...]
LabelSet = frozenset[Label]


def label_sets(
    model: Model, pairs: Sequence[InterchangePair], batch: InterchangeBatch
) -> list[LabelSet]:
    """All right labels of each pair as tokens that follow its base in the batch.

    Labels are tokenized together with the base; one that changes the base's own tokens beyond
    those that the batch has cut cannot follow it, and is left out.
    """
    tokenizer = tokenizer_of("label_sets", model)
    assert tokenizer is not None
    texts = list(dict.fromkeys(pair.base + label for pair in pairs for label in pair.labels))
    tokens = dict(zip(texts, encode(tokenizer, texts), strict=True))
    last, begin = batch.column(LAST)[0], batch.base.shape[1] - batch.base_lengths
    ends = zip(begin.tolist(), (last + 1).tolist(), strict=True)
    bases = [tuple(row[a:b]) for row, (a, b) in zip(batch.base.tolist(), ends, strict=True)]
    sets: list[LabelSet] = []
    for pair, base in zip(pairs, bases, strict=True):
        whole = [(*model.prepend, *tokens[pair.base + label]) for label in pair.labels]
        sets.append(frozenset(x[len(base) :] for x in whole if x[: len(base)] == base) - {()})
    return sets


@torch.no_grad()
def written_after(
    model: Model,
    batch: InterchangeBatch,
    how: Mapping[Site, Interchange],
    n: int,
    *,
    progress: Progress = SILENT,
) -> Int[Tensor, "rows sites_and_base n"]:
    """The n tokens that greedy decoding writes: of each base as it is, then after an interchange
    at each site alone, which stays in place.

    A base is run once for each beginning that something has written after it.
    """
    said = batch.base.new_zeros((len(batch), 1 + len(how), 0))
    total = n * len(batch) * len(how)
    with (
        progress.track("decoding", total) as advance,
        out_of_memory_is_an_error("Decoding after an interchange"),
    ):
        for step in range(n):
            row = torch.arange(len(batch), device=said.device)
            row = row[:, None, None].expand(*said.shape[:2], 1)
            # A row of `begun` is a base and what was written after it; `which` is each cell's.
            begun, which = torch.unique(
                torch.cat((row, said), dim=2).flatten(0, 1), dim=0, return_inverse=True
            )
            following = _next_tokens(model, batch, begun[:, 0], begun[:, 1:], how)
            which = which.view(said.shape[:2])
            at = torch.arange(1 + len(how), device=said.device)
            said = torch.cat((said, following[which, at][:, :, None]), dim=2)
            advance(total * (step + 1) // n - total * step // n)
    return said


def _next_tokens(
    model: Model,
    batch: InterchangeBatch,
    rows: Int[Tensor, "k"],
    beginnings: Int[Tensor, "k j"],
    how: Mapping[Site, Interchange],
) -> Int[Tensor, "k sites_and_base"]:
    """The likeliest token after each base and beginning: as it is, then after each interchange."""
    # The next token is not known yet: any one takes its place, and is not read.
    labels = torch.cat((beginnings, beginnings.new_zeros((len(rows), 1))), dim=1)
    begun = replace(batch.select(rows), labels=labels, base_labels=None)
    budget = token_budget(trace_bytes(model.decoder), begun.base.shape[1], model.device)
    out = rows.new_zeros((len(rows), 1 + len(how)))
    for some, chunk in begun.chunks(budget):
        runs = SiteRuns.of(model, chunk.teacher_forced(), how, lambda done: None)
        best = runs.base.new_zeros(len(some), dtype=torch.long)
        for part in torch.arange(len(some)).split(ROWS):
            best[part] = model.decoder.readout(runs.base[part, -1]).all().argmax(dim=1)
        out[some] = best[:, None].expand(-1, out.shape[1])
        for site, (there, finals) in enumerate(zip(runs.rows, runs.finals, strict=True)):
            if len(there):
                kept = runs.changed[site, there]
                found = model.decoder.readout(finals[:, -1]).all().argmax(dim=1)
                at = torch.tensor(some, device=out.device)[there]
                out[at[kept], 1 + site] = found[kept]
    return out


def any_written(
    model: Model,
    batch: InterchangeBatch,
    sets: Sequence[LabelSet],
    how: Mapping[Site, Interchange],
    *,
    progress: Progress = SILENT,
) -> tuple[Bool[np.ndarray, "n"], Bool[np.ndarray, "n k"]]:
    """Whether one of the right labels is written: without an interchange, and after each alone."""
    longest = max(len(label) for labels in sets for label in labels)
    written = written_after(model, batch, how, longest, progress=progress).tolist()
    right = np.array(
        [
            [any(tuple(tokens[: len(x)]) == x for x in labels) for tokens in row]
            for row, labels in zip(written, sets, strict=True)
        ]
    )
    return right[:, 0], right[:, 1:]
