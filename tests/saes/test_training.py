"""Training: planted dictionaries are found, a killed training ends with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mechassay.saes.training as training
from mechassay.errors import BadUsage, NonFinite
from mechassay.features.sae import SAE
from mechassay.progress import SILENT
from mechassay.saes import (
    SAESettings,
    TrainedSAE,
    seed_agreement,
    train_sae,
)
from mechassay.saes.architectures import ARCHITECTURES, Architecture
from planted_store import ACTIVE, D, N, Planted, explained, planted


def trained(store: Any, **settings: Any) -> TrainedSAE:
    given = {"n_features": N, "k": ACTIVE, "steps": 60, "batch_size": 128, **settings}
    return train_sae(store, SAESettings(**given), progress=SILENT)


def test_jumprelu_finds_most_of_a_planted_dictionary() -> None:
    store, directions = planted()
    settings = {"l0": 0.05, "lr": 1e-2, "n_features": 32}
    found = trained(store, architecture="jumprelu", steps=400, **settings)
    cosines = directions @ F.normalize(found.sae.w_dec, dim=1).mT
    assert float((cosines.max(dim=1).values > 0.9).double().mean()) > 0.7
    before = directions @ found.initial.mT
    assert float((before.max(dim=1).values > 0.9).double().mean()) < 0.1
    assert explained(found.sae, store.held) > 0.8


def test_topk_finds_a_planted_dictionary() -> None:
    store, directions = planted()
    found = trained(store, steps=400, lr=1e-2, n_features=32)
    truth = SAE(directions.mT.contiguous(), directions, torch.zeros(N), torch.zeros(D))
    before = SAE(found.initial.mT.contiguous(), found.initial, torch.zeros(32), torch.zeros(D))
    agreement = seed_agreement(truth, found.sae)
    assert agreement.shared > 0.9 and seed_agreement(truth, before).shared < 0.2
    assert agreement.random_shared < 0.3
    assert explained(found.sae, store.held) > 0.9
    features = found.sae.encode(store.held)
    assert int((features != 0).sum(1).max()) <= ACTIVE
    assert found.sae.hook == "resid.1" and found.sae.model == "planted"


def test_the_scale_is_folded_in() -> None:
    """Values times ten, moved by a vector, give the same training."""
    store, _ = planted(1000)
    other = Planted(10.0 * store.held + torch.arange(D))
    one, two = trained(store), trained(other)
    assert torch.allclose(one.losses, two.losses, rtol=1e-3)
    assert torch.allclose(one.sae.w_dec, two.sae.w_dec, atol=1e-2)
    assert explained(one.sae, store.held) == pytest.approx(explained(two.sae, other.held), abs=1e-2)
    assert torch.allclose(one.sae.w_dec.norm(dim=1), torch.ones(N), atol=1e-5)


def test_the_loss_is_the_error_that_the_sae_has() -> None:
    store, _ = planted(500)
    found = trained(store, steps=1, batch_size=500, lr=1e-12)
    mean = store.held.mean(0)
    scale = D**0.5 / (store.held - mean).norm(dim=1).mean()
    error = (store.held - found.sae.reconstruct(store.held)) * scale
    assert float(found.losses[0]) == pytest.approx(float(error.square().mean()), rel=1e-4)
    assert torch.allclose(found.sae.w_dec, found.initial, atol=1e-6)


def test_a_seed_gives_one_training_and_another_seed_another() -> None:
    store, _ = planted(1000)
    one, same, other = trained(store), trained(store), trained(store, seed=1)
    assert torch.equal(one.sae.w_enc, same.sae.w_enc)
    assert not torch.equal(one.initial, other.initial)
    state = torch.random.get_rng_state()
    trained(store, steps=2)
    assert torch.equal(torch.random.get_rng_state(), state)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_killed_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, architecture: Architecture
) -> None:
    store, _ = planted(1000)
    settings = SAESettings(architecture, N, ACTIVE, steps=12, batch_size=100, dead_after=150)
    whole = train_sae(store, settings, progress=SILENT)
    monkeypatch.setattr("mechassay.checkpoint.EVERY_SECONDS", 0.0)
    file, real = tmp_path / "training.safetensors", training.SAETraining.differentiate

    def killed(self: Any, step: int, x: Tensor, generator: torch.Generator) -> None:
        if step == 7:
            raise KeyboardInterrupt
        real(self, step, x, generator)

    monkeypatch.setattr(training.SAETraining, "differentiate", killed)
    with pytest.raises(KeyboardInterrupt):
        train_sae(store, settings, checkpoint=file, progress=SILENT)
    done: list[int] = []

    def counted(self: Any, step: int, x: Tensor, generator: torch.Generator) -> None:
        done.append(step)
        real(self, step, x, generator)

    monkeypatch.setattr(training.SAETraining, "differentiate", counted)
    resumed = train_sae(store, settings, checkpoint=file, progress=SILENT)
    assert done == [7, 8, 9, 10, 11] and not file.exists()
    for name in ("w_enc", "w_dec", "b_enc", "b_dec", "threshold"):
        one, two = getattr(resumed.sae, name), getattr(whole.sae, name)
        assert (one is None and two is None) or torch.equal(one, two)
    assert torch.equal(resumed.losses, whole.losses) and torch.equal(resumed.dead, whole.dead)


def test_mistakes_are_one_line() -> None:
    store, _ = planted(100)
    with pytest.raises(BadUsage, match="at most the 100 train values; got 128"):
        trained(store)
    with pytest.raises(BadUsage, match="All values are the same"):
        trained(Planted(torch.ones(200, D)))
    with pytest.raises(NonFinite, match="lower lr"):
        trained(planted(500)[0], lr=1e38)
