"""Whether the model prefers the answers: compared with the unmodified model, prompt by prompt."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mechassay.circuits.evaluation.curve import Preference, preference_of
from mechassay.testing import tiny


@pytest.mark.few(4)
@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_the_preference_is_that_of_the_unmodified_model(family: str) -> None:
    subject = tiny.subject(family, n_pairs=6)
    batch = subject.batch
    expected: list[float] = []
    for row in range(len(batch)):
        prompt = batch.clean[row][batch.mask[row]]
        with torch.no_grad():
            logits = subject.model.hf(prompt[None]).logits[0, -1]
        answer, foil = (logits[tokens[row][0]] for tokens in (batch.answers, batch.foils))
        expected.append(float(answer > foil))
    own = preference_of(subject.model, batch)
    assert own.right.tolist() == expected
    assert own.chance.tolist() == [0.5] * len(batch)


def test_a_model_at_chance_is_said_to_be_so_and_a_perfect_one_is_not() -> None:
    groups = tuple(map(str, range(40)))
    chance = np.full(40, 0.5)
    assert "not above chance" in Preference(np.arange(40) % 2.0, chance, groups).warnings()[0]
    assert Preference(np.ones(40), chance, groups).warnings() == []
    assert Preference(np.ones(2), chance[:2], groups[:2]).warnings(), "two pairs show nothing"
