"""Counterparts: shares by hand, chance, and features that write the same for other values."""

from __future__ import annotations

import math

import pytest
import torch

from mechassay.measurement.formulas.counterparts import (
    above,
    correlations,
    counterparts,
    dice,
    found_again,
    paired_correlations,
    symmetric_mean_max,
)
from mechassay.saes.agreement import rows_like, unit_rows


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
