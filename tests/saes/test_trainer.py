"""The trainer of dictionaries: trains once, keeps what it trained, refuses what is no setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import mechassay.saes.trainer as trainer_module
from mechassay.errors import BadFile, BadUsage, UnknownName
from mechassay.saes import DictionaryTrainer, SAESettings, TrainedSAE, save_sae
from planted_store import D, N, planted

SETTINGS = SAESettings(n_features=N, k=2, steps=5, batch_size=64)


def test_a_dictionary_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, _ = planted(300)
    trained: list[SAESettings] = []
    real = trainer_module.train_sae

    def counted(store: Any, settings: SAESettings, **rest: Any) -> TrainedSAE:
        trained.append(settings)
        return real(store, settings, **rest)

    monkeypatch.setattr(trainer_module, "train_sae", counted)
    trainer = DictionaryTrainer(store, SETTINGS, tmp_path)
    first, again = trainer.train(seed=1), trainer.train(seed=1)
    assert [each.seed for each in trained] == [1]
    assert torch.equal(first.sae.w_dec, again.sae.w_dec)
    assert torch.equal(first.losses, again.losses) and torch.equal(first.initial, again.initial)
    assert first.provenance == again.provenance
    wider = trainer.train(seed=1, n_features=2 * N)
    assert wider.sae.n_features == 2 * N and len(trained) == 2
    assert len(list(tmp_path.iterdir())) == 2
    fresh = DictionaryTrainer(store, SETTINGS).train(seed=1)
    assert torch.equal(fresh.sae.w_dec, first.sae.w_dec)


def test_features_of_another_dictionary_are_begun_with(tmp_path: Path) -> None:
    store, directions = planted(300)
    trainer = DictionaryTrainer(store, SETTINGS, tmp_path)
    columns = directions[:3].mT
    with_core = trainer.train(encoder=columns, steps=1, lr=1e-12)
    without = trainer.train(steps=1, lr=1e-12)
    assert torch.allclose(with_core.sae.w_enc[:, :3], columns, atol=1e-6)
    assert torch.equal(with_core.sae.w_enc[:, 3:], without.sae.w_enc[:, 3:])
    assert torch.equal(with_core.initial, without.initial)
    rows, biases = -directions[:3], torch.tensor([0.5, 1.0, 1.5])
    whole = trainer.train(encoder=columns, decoder=rows, b_enc=biases, steps=1, lr=1e-12)
    assert torch.allclose(whole.sae.w_dec[:3], rows, atol=1e-6)
    assert torch.allclose(whole.sae.b_enc[:3], biases, atol=1e-5), "in units of values"
    assert torch.equal(whole.sae.w_dec[3:], without.sae.w_dec[3:])
    with pytest.raises(BadUsage, match=f"columns of {D} numbers can be begun with"):
        trainer.train(encoder=columns.mT)


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    store, _ = planted(300)
    trainer = DictionaryTrainer(store, SETTINGS, tmp_path)
    with pytest.raises(UnknownName, match="Did you mean 'n_features'"):
        trainer.train(n_feature=3)
    with pytest.raises(BadUsage, match="got k=0"):
        trainer.train(k=0)
    save_sae(trainer.train().sae, tmp_path / "plain")
    with pytest.raises(BadFile, match="no such file"):
        TrainedSAE.load(tmp_path / "plain")
