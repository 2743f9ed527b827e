"""Planted dictionaries: their structure, and dictionaries of the worth they say."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mechassay.errors import BadUsage, UnknownName
from mechassay.saes.feature_matching import seed_agreement, unit_rows
from mechassay.saes.quality import CONTROLS
from mechassay.saes.synthetic import WORTHS, PlantedTrainer, at_cosine, plant


def explained(planted: Any, sae: Any) -> float:
    values = planted.values.flatten(0, 1)
    left = (values - sae.reconstruct(values)).square().sum()
    return 1 - float(left / (values - values.mean(0)).square().sum())


def test_values_are_sums_of_features_with_the_frequencies_that_were_given() -> None:
    shares = (0.5, 0.1, 0.02)
    planted = plant(
        d=8, n_features=3, frequencies=shares, noise=0.0, documents=200, window=50, seed=1
    )
    on = (planted.codes > 0).float().mean((0, 1))
    assert on.tolist() == pytest.approx(shares, abs=0.02)
    assert torch.allclose(planted.values, planted.codes @ planted.directions)
    active = planted.codes[planted.codes > 0]
    assert float(active.min()) >= 1 and float(active.max()) <= 2
    assert plant(d=8, n_features=3, frequencies=shares, seed=1).values.shape == (48, 32, 8)


def test_the_true_encoder_finds_the_codes() -> None:
    planted = plant(noise=0.0)
    found = planted.sae("true").encode(planted.values.flatten(0, 1))
    assert torch.allclose(found, planted.codes.flatten(0, 1), atol=1e-4)


def test_one_kind_of_a_split_feature_is_active_where_the_feature_is() -> None:
    planted = plant(d=48, n_features=6, splits=2, children=3, child_cosine=0.8)
    kinds = planted.codes[:, :, :6].unflatten(2, (2, 3)) > 0
    assert int(kinds.sum(-1).max()) == 1
    assert planted.feature_of.tolist() == [0, 0, 0, 1, 1, 1, 2, 3, 4, 5]
    cosines = (planted.directions[:6] * planted.coarse[planted.feature_of[:6]]).sum(1)
    assert cosines.tolist() == pytest.approx([0.8] * 6, abs=1e-5)
    # A narrow dictionary finds the whole feature.
    codes = planted.coarse_codes[:, :, :2]
    assert torch.equal(codes, planted.codes[:, :, :6].unflatten(2, (2, 3)).sum(-1))


def test_children_are_active_only_with_their_parent() -> None:
    planted = plant(d=48, n_features=6, splits=1, parents=2, children=2)
    children = planted.parent_of >= 0
    assert planted.parent_of[children].tolist() == [1, 1, 2, 2]
    parents = planted.coarse_codes[:, :, planted.parent_of[children]] > 0
    assert not bool((planted.codes[:, :, children] > 0)[~parents].any())
    assert bool((planted.codes[:, :, children] > 0).any())
    assert (planted.feature_of[children] == -1).all()


def test_dictionaries_have_the_worth_that_they_say() -> None:
    planted = plant(orthogonal=True)
    true = planted.sae("true")
    assert explained(planted, true) > 0.99
    again = planted.sae("true", seed=3)
    assert not torch.equal(again.w_dec, true.w_dec)
    assert seed_agreement(true, again).matched == pytest.approx(1, abs=1e-5)
    assert explained(planted, again) > 0.99
    noisy = planted.sae("noisy", cosine=0.8)
    assert (noisy.w_dec * true.w_dec).sum(1).tolist() == pytest.approx([0.8] * 24, abs=1e-4)
    merged = planted.sae("merged")
    assert merged.n_features == 12
    assert (merged.w_dec[0] @ true.w_dec[:3].mT).tolist() == pytest.approx(
        [2**-0.5, 2**-0.5, 0], abs=1e-4
    )
    split = planted.sae("split")
    assert split.n_features == 48 and explained(planted, split) > 0.99
    for worth in ("permuted", "random"):
        assert explained(planted, planted.sae(worth)) < 0.5


def test_there_may_be_more_features_than_numbers() -> None:
    planted = plant(d=64, n_features=96, active=1.0)
    assert len(planted.directions) == 96 and explained(planted, planted.sae("true")) > 0.6
    for worth in WORTHS:
        assert planted.sae(worth, wide=True).d_in == 64


def test_a_store_of_planted_values_is_one_like_any_other() -> None:
    planted = plant(d=8, n_features=4, documents=8, window=4)
    store = planted.store()
    values = torch.cat((store.values("train"), store.values("test")))
    assert torch.equal(values, planted.values.flatten(0, 1))
    assert store.n_rows("test") == 8 and store.rows("test").tolist() == [6] * 4 + [7] * 4
    largest = planted.codes.max(2)
    tokens = torch.cat([store.windows(split).tokens for split in ("train", "test")])
    assert torch.equal(tokens[largest.values > 0], largest.indices[largest.values > 0])
    assert store.key != plant(d=8, n_features=4, documents=8, window=4, seed=1).store().key


def test_a_planted_trainer_keeps_encoders_and_draws_everything_else_again() -> None:
    planted = plant()
    trainer = PlantedTrainer(planted, "noisy", 0.95)
    first = trainer.train(seed=0).sae
    kept = first.w_enc[:, [3, 7]]
    other = trainer.train(seed=1, encoder=kept).sae
    assert torch.equal(other.w_enc[:, :2], kept)
    assert not torch.isclose(other.w_enc[:, 2:, None], first.w_enc[:, None]).all(0).any()
    # The first features are those that the kept encoders read.
    assert bool(((other.w_dec[:2] * first.w_dec[[3, 7]]).sum(1) > 0.8).all())
    worthless = PlantedTrainer(planted, "random")
    a, b = (worthless.train(seed=seed).sae for seed in (0, 1))
    assert seed_agreement(a, b).shared < 0.2


def test_rows_at_a_cosine_are_unit_rows() -> None:
    drawn = torch.Generator().manual_seed(0)
    rows = unit_rows(torch.randn(5, 6, generator=drawn))
    found = at_cosine(rows, 0.3, drawn)
    assert found.norm(dim=1).tolist() == pytest.approx([1] * 5)
    assert (found * rows).sum(1).tolist() == pytest.approx([0.3] * 5, abs=1e-6)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"frequencies": (0.1,)}, "as many frequencies"),
        ({"active": 0.0}, "above 0"),
        ({"splits": 20, "parents": 20}, "splits=20"),
        ({"d": 8, "orthogonal": True}, "orthogonal"),
        ({"documents": 1}, "two documents"),
    ],
)
def test_what_cannot_be_planted_is_said(changes: dict, said: str) -> None:
    with pytest.raises(BadUsage, match=said):
        plant(**changes)


def test_an_unknown_worth_is_said() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'merged'"):
        plant().sae("mergd")  # pyright: ignore[reportArgumentType]
    with pytest.raises(BadUsage, match="between 0 and 1"):
        plant().sae("noisy", cosine=2.0)
    assert set(CONTROLS) <= set(WORTHS)
