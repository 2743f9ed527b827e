"""Matching pursuit: answers by hand, its slow version, and values out of reach."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from mechassay.errors import BadUsage
from mechassay.features.sae import SAE
from mechassay.saes.pursuit import needed_by, needed_features


def slow(x: np.ndarray, rows: np.ndarray, within: float, most: int) -> int:
    rest, taken = x.copy(), set()
    while rest @ rest > within:
        scores = rows @ rest
        best = int(scores.argmax())
        if scores[best] <= 0:
            return most + 1
        taken.add(best)
        if len(taken) > most:
            return most + 1
        rest = rest - scores[best] * rows[best]
    return len(taken)


def needed(x: list[float], within: float, most: int = 3) -> int:
    return int(needed_features(torch.tensor([x]), torch.eye(3), torch.tensor([within]), most)[0])


def test_orthogonal_rows_by_hand() -> None:
    # |x|^2 = 14: without its parts 9, 4 and 1 it is 5, 1 and 0.
    assert [needed([3.0, 2.0, 1.0], x) for x in (14.0, 5.1, 1.5, 1e-6)] == [0, 1, 2, 3]
    assert needed([3.0, 2.0, 1.0], 0.5, most=2) == 3, "more than 2"
    assert needed([-1.0, 0.0, 0.0], 0.5) == 4, "features are not negative"


def test_the_length_and_the_order_of_rows_do_not_matter() -> None:
    drawn = torch.Generator().manual_seed(0)
    x, rows = torch.randn(20, 6, generator=drawn), torch.randn(15, 6, generator=drawn)
    within = 0.2 * x.square().sum(dim=1)
    found = needed_features(x, rows, within, 12)
    scaled = needed_features(x, rows.flip(0) * torch.arange(1, 16)[:, None], within, 12)
    assert torch.equal(found, scaled) and found.max() > 2


def test_values_one_by_one() -> None:
    drawn = torch.Generator().manual_seed(1)
    x, rows = torch.randn(30, 8, generator=drawn), torch.randn(24, 8, generator=drawn)
    unit = (rows / rows.norm(dim=1, keepdim=True)).double().numpy()
    within = 0.1 * x.square().sum(dim=1)
    found = needed_features(x, rows, within, 10).tolist()
    expected = [
        slow(each, unit, float(w), 10) for each, w in zip(x.double().numpy(), within, strict=True)
    ]
    assert found == expected


def test_a_dictionary_that_loses_nothing_needs_what_it_has() -> None:
    d = 5
    both = torch.cat([torch.eye(d), -torch.eye(d)])
    sae = SAE(both.mT.contiguous(), both, torch.zeros(2 * d), torch.zeros(d))
    h = torch.tensor([[1.0, 0, 0, 0, 0], [1, -2, 0, 0, 0], [3, 1, 2, -1, 0], [0, 0, 0, 0, 4]])
    k, need = needed_by(sae, h, 8)
    assert k.tolist() == [1, 2, 4, 1] and need.tolist() == [1, 2, 4, 1]
    # The units of values do not matter to a dictionary that normalises them.
    normed = replace(sae, normalization="constant_norm_rescale")
    ours, theirs = needed_by(normed, h, 8), needed_by(normed, 7 * h, 8)
    assert torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])


def test_large_values_do_not_set_the_bar() -> None:
    # Five values lose a tenth of their length; a sixth is much larger, and loses nothing.
    d = 6
    sae = SAE(torch.eye(d), torch.eye(d), torch.zeros(d), torch.zeros(d), "topk", k=1)
    small = torch.eye(d)[:5] + 0.1 * torch.eye(d).roll(1, 1)[:5]
    h = torch.cat([small, torch.eye(d)[5:] * 100])
    assert needed_by(sae, h, 4)[1].float().median() == 1


def test_rows_of_another_width_are_refused() -> None:
    with pytest.raises(BadUsage, match="Rows of 3"):
        needed_features(torch.ones(1, 4), torch.eye(3), torch.ones(1), 2)
