"""Whether a model does a task: compared with the unmodified model, prompt by prompt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mechassay.models.ability import ability_of
from mechassay.models.model import make_model
from mechassay.prompts.batch import NO_TOKEN, Batch
from mechassay.results.preconditions import ABILITY, task_of
from mechassay.results.records import Table
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


def of_two_answers(right: float, exchanged: float, n: int = 40, chance: float = 0.5) -> Table:
    """Pairs of two answers: so often right after their own prompt, and after other prompts."""
    ids = [str(row) for row in range(n)]
    columns = {
        "pair": ids,
        "group": ids,
        "right": [float(row < right * n) for row in range(n)],
        "exchanged": [exchanged] * n,
        "tied": [0.0] * n,
        "chance": [chance] * n,
        "contrast": ids,
    }
    return Table(name=ABILITY, keys=("pair",), columns=columns)


@pytest.mark.parametrize(
    ("right", "exchanged", "case"),
    [
        (1.0, 0.0, "met"),  # Prompts with the other answer have the other answer.
        (0.8, 0.2, "met"),
        (0.8, 0.75, "exchanged"),
        (0.6, 0.0, "not shown"),
        (0.0, 1.0, "worse"),  # Answers and foils are exchanged.
        (0.2, 0.8, "worse"),
        (0.2, 0.25, "below"),
        (0.5, 0.5, "not shown"),
    ],
)
def test_exchanged_prompts_explain_only_what_is_on_their_side_of_guessing(
    right: float, exchanged: float, case: str
) -> None:
    assert task_of(of_two_answers(right, exchanged)).name == case


@pytest.mark.parametrize(
    ("n_right", "n", "case"),
    [(1, 200, "not shown"), (5, 200, "not shown"), (3, 40, "not shown"), (40, 200, "met")],
)
def test_a_few_free_answers_are_no_ability(n_right: int, n: int, case: str) -> None:
    """Guessing is right on none, and so few exchanges may miss an answer that is liked."""
    assert task_of(of_two_answers(n_right / n, 0.0, n, chance=0.0)).name == case


def test_answers_that_no_other_prompt_lacks_exchange_nothing() -> None:
    table = of_two_answers(1.0, float("nan"))
    assert task_of(table).name == "no exchange"
    one = table.model_copy(update={"columns": {**table.columns, "group": ["one"] * 40}})
    assert task_of(one).name == "one group"


def test_contrasts_are_stored_as_numbers() -> None:
    """Tokens of private prompts must not be stored, nor hashes of them."""
    subject = tiny.subject("gpt2", n_pairs=6)
    table = ability_of(subject.model, subject.batch).table()
    assert table.columns["contrast"] == list(range(6))
