"""Random dictionaries: what they must not be; prefixes of a dictionary."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mechassay.errors import BadUsage
from mechassay.features.sae import SAE
from mechassay.saes import SAESettings, plant, prefix_of, random_sae
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


def test_a_prefix_by_hand() -> None:
    eye = torch.eye(3)
    sae = SAE(eye, eye, torch.zeros(3), torch.zeros(3), "topk", k=2)
    h = torch.tensor([[1.0, 2.0, 3.0]])
    assert sae.encode(h).tolist() == [[0, 2, 3]]
    two, one = prefix_of(sae, 2), prefix_of(sae, 1)
    assert two.encode(h).tolist() == [[1, 2]] and two.k == 2
    assert one.reconstruct(h).tolist() == [[1, 0, 0]] and one.k == 1
    jumping = replace(sae, activation="jumprelu", k=None, threshold=torch.tensor([0.5, 2.5, 0.5]))
    assert prefix_of(jumping, 2).encode(h).tolist() == [[1, 0]]
    for n in (0, 4):
        with pytest.raises(BadUsage, match=f"1 to 3 features; got {n}"):
            prefix_of(sae, n)
