"""Random dictionaries: what they must not be."""

from __future__ import annotations

import pytest
import torch

from mechassay.saes import SAESettings, plant, random_sae
from mechassay.saes.agreement import mean_max_cosine, unit_rows
from mechassay.saes.trained import initial_rows


@pytest.mark.parametrize("seed", [0, 1])
def test_random_rows_are_neither_where_a_training_begins_nor_what_is_planted(seed: int) -> None:
    planted = plant(seed=seed)
    n, d = planted.coarse.shape
    random = random_sae(d, n, 3, torch.zeros(d), seed=seed)
    again = random_sae(d, n, 3, torch.zeros(d), seed=seed)
    assert torch.equal(random.w_dec, again.w_dec)
    for rows in (initial_rows(d, SAESettings(n_features=n, k=3, seed=seed)), planted.coarse):
        # The defect: a cosine of 1, as a seed draws the same rows everywhere.
        assert mean_max_cosine(random.w_dec, unit_rows(rows)) < 0.6
