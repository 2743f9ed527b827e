"""Counterparts: shares by hand, chance, and features that write the same for other values.

Random dictionaries: what they must not be; prefixes of a dictionary.

Matching pursuit: answers by hand, its slow version, and values out of reach.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from mechassay.errors import BadUsage
from mechassay.features.sae import SAE
from mechassay.saes import SAESettings, plant, prefix_of
from mechassay.saes.feature_matching import (
    above,
    correlations,
    counterparts,
    dice,
    found_again,
    mean_max_cosine,
    needed_by,
    needed_features,
    paired_correlations,
    random_sae,
    rows_like,
    symmetric_mean_max,
    unit_rows,
)
from mechassay.saes.training import initial_rows


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_rows(n: int, d: int, seed: int = 0) -> torch.Tensor:
    return unit_rows(torch.randn(n, d, generator=drawn(seed)))


def test_shares_by_hand() -> None:
    # Three features of four numbers beside two of them: two matches of 3 + 2 features.
    found = counterparts(torch.eye(4)[:3], torch.eye(4)[[2, 0]], drawn())
    assert found is not None and found.hits == 2
    assert found.shared == pytest.approx(4 / 5) == dice(2.0, 3, 2)
    assert sorted(zip(found.rows.tolist(), found.others.tolist(), strict=True)) == [(0, 1), (2, 0)]
    assert above(0.8, 0.2) == pytest.approx(0.75) and math.isnan(above(1.0, 1.0))
    assert above(0.2, 0.2) == 0
    ends = found.above_chance_interval()
    # Clopper and Pearson's for 2 of 2: [.158, 1].
    assert ends.high == pytest.approx(above(4 / 5, found.random_shared))
    assert ends.low == pytest.approx(above(4 / 5 * 0.1581, found.random_shared), abs=1e-3)


def test_no_share_without_two_features() -> None:
    assert counterparts(torch.eye(4)[:1], torch.eye(4), drawn()) is None


def test_an_opposite_feature_is_none() -> None:
    found = counterparts(torch.eye(6), -torch.eye(6), drawn())
    assert found is not None and found.hits == 0


def test_correlations_by_hand() -> None:
    x = torch.tensor([[0.0, 1.0, 5.0], [1.0, 0.0, 5.0], [2.0, 1.0, 5.0]])
    found = correlations(x, x)
    assert found[0, 1] == pytest.approx(0, abs=1e-6) and found[0, 0] == pytest.approx(1)
    assert bool(found[2].isnan().all()), "a feature that never varies"
    assert paired_correlations(x[:, :2], x[:, :2]).tolist() == pytest.approx([1, 1])


def test_features_of_other_values_are_not_the_same() -> None:
    rows = random_rows(20, 16)
    codes = (torch.rand(300, 20, generator=drawn()) < 0.1).float()
    same = counterparts(rows, rows, drawn(), codes=codes, other_codes=codes)
    other = counterparts(rows, rows, drawn(), codes=codes, other_codes=codes[:, range(-1, 19)])
    assert same is not None and other is not None
    assert same.hits == 20 and other.hits == 0


def test_the_largest_of_many_random_cosines_is_far_from_zero() -> None:
    # Stated in the documentation: .15 for 4,096 rows of 576 numbers; .37 for 512 of 64.
    wide = [random_rows(4096, 576, seed) for seed in (1, 2)]
    assert symmetric_mean_max(*wide) == pytest.approx(0.150, abs=0.003)
    narrow = [random_rows(512, 64, seed) for seed in (1, 2)]
    assert symmetric_mean_max(*narrow) == pytest.approx(0.37, abs=0.01)


def test_random_rows_lean_to_where_the_rows_lean() -> None:
    # Rows that lean to one axis: random ones that do not would agree less than chance.
    rows = unit_rows(random_rows(400, 8) + 2 * torch.eye(8)[0])
    like = rows_like(rows, drawn(3))
    assert like.norm(dim=1).tolist() == pytest.approx([1] * 400)
    moment, own = like.mT @ like / 400, rows.mT @ rows / 400
    assert float(moment[0, 0]) == pytest.approx(float(own[0, 0]), abs=0.1)
    assert float(rows_like(random_rows(400, 8), drawn(3)).square().mean(0)[0]) < 0.2


def test_features_that_all_others_have() -> None:
    rows = random_rows(12, 10)
    half = torch.cat((rows[:6], random_rows(6, 10, 5)))
    found, chance = found_again(rows, [rows[torch.randperm(12, generator=drawn())], half], drawn())
    assert found[:6].all() and int(found[6:].sum()) < 6
    assert float(chance.mean()) < 0.5
    found, _ = found_again(rows, [rows], drawn())
    assert found.all()


def test_features_that_others_have_for_other_values() -> None:
    rows = random_rows(20, 16)
    codes = (torch.rand(300, 20, generator=drawn()) < 0.1).float()
    same, _ = found_again(rows, [rows], drawn(), codes=codes, other_codes=[codes])
    assert same.all()
    moved = codes[:, range(-1, 19)]
    other, _ = found_again(rows, [rows, rows], drawn(), codes=codes, other_codes=[codes, moved])
    assert not other.any()
    never, _ = found_again(rows, [rows], drawn(), codes=codes, other_codes=[0 * codes])
    assert not never.any(), "a feature that is never active is no counterpart"


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
