"""What is written after an interchange, where several labels are right.

    right = the tokens that greedy decoding writes are one of the labels

Teacher forcing shows whether one given label is written. Of many, what is written is decoded token
by token, with the interchange in place, and compared with each: one run for each token of the
longest label. A label that begins with what another one is counts where it is written.
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
from mechassay.interventions.intervene import run_together
from mechassay.interventions.intervention import Interchange, Intervention
from mechassay.interventions.placed import of_rows
from mechassay.interventions.site import LAST, Site
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
    model: Model, batch: InterchangeBatch, interventions: Mapping[Site, Interchange], n: int
) -> Int[Tensor, "n m"]:
    """The n tokens that greedy decoding writes after each base, with the interventions in place.

    Args:
        interventions: at sites of the prompts; none: the base as it is.
    """
    budget = token_budget(trace_bytes(model.decoder), batch.base.shape[1] + n, model.device)
    out = torch.zeros((len(batch), n), dtype=torch.long, device=model.device)
    plan = dict(interventions) or {Site(0): Interchange(alpha=0.0)}
    with out_of_memory_is_an_error("Writing after an interchange"):
        for rows, chunk in batch.chunks(budget):
            at = torch.tensor(rows, device=model.device)
            out[at] = _written(model, chunk, of_rows(batch, plan, rows), n)
    return out


def _written(
    model: Model, batch: InterchangeBatch, interventions: Mapping[Site, Intervention], n: int
) -> Int[Tensor, "n m"]:
    said = batch.base.new_zeros((len(batch), 0))
    for _ in range(n):
        # The next token is not known yet: any one takes its place, and is not read.
        labels = torch.cat((said, said.new_zeros((len(batch), 1))), dim=1)
        forced = replace(batch, labels=labels, base_labels=None).teacher_forced()
        _, final, _ = run_together(model, forced, interventions)
        next_token = model.decoder.readout(final[:, -1]).all().argmax(dim=1)
        said = torch.cat((said, next_token[:, None]), dim=1)
    return said


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

    def right(interventions: Mapping[Site, Interchange]) -> Bool[np.ndarray, "n"]:
        rows = written_after(model, batch, interventions, longest).tolist()
        pairs = zip(rows, sets, strict=True)
        return np.array([any(tuple(row[: len(x)]) == x for x in labels) for row, labels in pairs])

    with progress.track("decoding", len(how)) as advance:
        base = right({})
        columns: list[np.ndarray] = []
        for site, intervention in how.items():
            columns.append(right({site: intervention}))
            advance(1)
    return base, np.stack(columns, axis=1)
