"""Whether a model does a task: compared with the unmodified model, prompt by prompt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mechassay.models.ability import ability_of
from mechassay.models.model import make_model
from mechassay.prompts.batch import NO_TOKEN, Batch
from mechassay.testing import tiny


def logits_after(model: torch.nn.Module, batch: Batch, prompts: torch.Tensor) -> np.ndarray:
    """All logits after one prompt of each pair, of the unmodified model."""
    rows: list[np.ndarray] = []
    for row in range(len(batch)):
        with torch.no_grad():
            logits = model(prompts[row][batch.mask[row]][None]).logits[0, -1]
        rows.append(logits.double().numpy())
    return np.array(rows)


def right(logits: np.ndarray, batch: Batch, row: int) -> float:
    best = [
        max(logits[token] for token in tokens[row].tolist() if token != NO_TOKEN)
        for tokens in (batch.answers, batch.foils)
    ]
    return float(best[0] > best[1])


@pytest.mark.few(4)
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_ability_is_that_of_the_unmodified_model(family: str) -> None:
    subject = tiny.subject(family, n_pairs=6)
    batch, hf = subject.batch, subject.model.hf
    clean, other = (logits_after(hf, batch, x) for x in (batch.clean, batch.counterfactual))
    own = ability_of(subject.model, batch)
    n = len(batch)
    assert own.right.tolist() == [right(clean[row], batch, row) for row in range(n)]
    assert own.counterfactual.tolist() == [right(other[row], batch, row) for row in range(n)]
    answers = batch.answers.tolist()
    expected = [
        np.mean(
            [right(clean[k], batch, row) for k in range(n) if answers[k] != answers[row]]
            + [right(other[k], batch, row) for k in range(n) if k != row]
        )
        for row in range(n)
    ]
    assert len(set(batch.groups)) == n and own.exchanged == pytest.approx(expected)
    assert own.chance.tolist() == [0.5] * n


def test_pairs_of_one_group_exchange_nothing_and_ties_count_one_half() -> None:
    subject = tiny.subject("gpt2", n_pairs=6)
    batch = replace(subject.batch, groups=("one",) * 6)
    assert np.isnan(ability_of(subject.model, batch).exchanged).all()
    with torch.no_grad():
        for parameter in subject.model.hf.parameters():
            parameter.zero_()
    own = ability_of(make_model(subject.model.hf), batch)
    assert own.tied.tolist() == [1.0] * 6 and own.right.tolist() == [0.5] * 6
