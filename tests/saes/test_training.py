"""Training: planted dictionaries are found, a killed training ends with the same bits.

Dead features come back, and the others find more for it.

An SAE of ours on disk: it says who trained it, and is read again.

The trainer of dictionaries: trains once, keeps what it trained, refuses what is no setting.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import mechassay.saes.training as trainer_module
import mechassay.saes.training as training
from helpers.planted import ACTIVE, D, N, Planted, explained, planted
from mechassay.errors import BadFile, BadUsage, NonFinite, UnknownName
from mechassay.features import Architecture
from mechassay.features.sae import SAE
from mechassay.saes import (
    DictionaryTrainer,
    SAESettings,
    TrainedSAE,
    load_sae,
    provenance_of,
    save_sae,
    train_sae,
)
from mechassay.saes.architectures import ARCHITECTURES, JumpReLULearner, Learner
from mechassay.saes.feature_matching import seed_agreement
from mechassay.saes.training import DeadFeatures
from mechassay.utils.display import SILENT


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
    monkeypatch.setattr("mechassay.utils.checkpoint.EVERY_SECONDS", 0.0)
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


def test_dead_features_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the features begin with a bias under which no value activates them."""
    store, directions = planted(2000)
    truth = SAE(directions.mT.contiguous(), directions, torch.zeros(N), torch.zeros(D))
    begin = Learner.__init__

    def hopeless(self: Any, settings: SAESettings, initial: Tensor) -> None:
        begin(self, settings, initial)
        with torch.no_grad():
            self.b_enc[::2] = -1e3

    monkeypatch.setattr(Learner, "__init__", hopeless)
    settings = SAESettings(
        n_features=N, k=ACTIVE, steps=300, batch_size=128, dead_after=1000, lr=1e-2
    )
    without = train_sae(store, replace(settings, revived=0.0), progress=SILENT)
    helped = train_sae(store, settings, progress=SILENT)
    assert int(without.dead[-1]) >= N // 2 > 6 > int(helped.dead[-1])
    assert explained(helped.sae, store.held) > explained(without.sae, store.held) + 0.1
    found = [seed_agreement(truth, each.sae).shared for each in (without, helped)]
    assert found[0] < 0.6 and found[1] > 0.75


def test_a_feature_is_drawn_again_from_what_is_not_explained() -> None:
    """One of two features is dead: its row becomes the direction that the other does not write."""
    settings = SAESettings("jumprelu", 2, steps=10, dead_after=5, revived=0.5)
    learner = JumpReLULearner(settings, torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
    optimiser = torch.optim.Adam(learner.parameters())
    x = torch.tensor([[2.0, 0.0, 0.0], [0.0, 3.0, 0.0]])
    learner.code(x, 0).decoded.sum().backward()
    optimiser.step()
    with torch.no_grad():
        learner.encoder.copy_(torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]))
        learner.decoder.copy_(learner.encoder)
        learner.b_enc.copy_(torch.tensor([0.0, -7.0]))
        learner.b_dec.zero_()
    dead = DeadFeatures(learner, optimiser)
    dead.seen(5, torch.tensor([True, False]))
    assert dead.count == 1
    dead.revive(9, x, torch.Generator())  # among the last steps, which leave them
    assert dead.count == 1
    dead.revive(0, x, torch.Generator())
    assert dead.count == 0 and dead.idle.tolist() == [0, 0]
    assert learner.decoder[1].tolist() == [0, 1, 0]
    assert learner.encoder[1].tolist() == [0, 0.5, 0] and learner.encoder[0].tolist() == [1, 0, 0]
    assert learner.b_enc.tolist() == [0, 0]
    assert float(learner.log_threshold[1].detach()) == pytest.approx(learner.log_initial)
    for parameter in (learner.encoder, learner.decoder, learner.b_enc, learner.log_threshold):
        assert not optimiser.state[parameter]["exp_avg"][1].any()


def test_features_of_another_dictionary_are_not_drawn_again() -> None:
    learner = JumpReLULearner(SAESettings("jumprelu", 4, steps=10, dead_after=5), torch.eye(4))
    columns = torch.eye(4)[:, [3, 2]]
    learner.begin_with(columns)
    dead = DeadFeatures(learner, torch.optim.Adam(learner.parameters()))
    dead.seen(5, torch.tensor([False, True, False, True]))
    dead.revive(0, torch.tensor([[0.0, 3.0, 0.0, 0.0]]), torch.Generator())
    # The first one is dead and was begun with; in its place another would pass for it.
    assert dead.idle.tolist() == [5, 0, 0, 0] and dead.count == 1
    assert torch.equal(learner.encoder[:2].detach(), columns.mT)


def test_what_is_saved_says_who_trained_it(tmp_path: Path) -> None:
    store, _ = planted(1000)
    settings = SAESettings(n_features=N, k=ACTIVE, steps=5, batch_size=128)
    found = train_sae(store, settings, progress=SILENT)
    folder = found.save(tmp_path / "sae")
    again = load_sae(folder)
    assert torch.equal(again.encode(store.held), found.sae.encode(store.held))
    told = provenance_of(folder)
    assert told["trained_by"].startswith("mechassay ")
    assert told["settings"]["lr"] == 3e-3 and told["values_seen"] == 5 * 128
    config = json.loads((folder / "cfg.json").read_text())
    assert config["metadata"]["hook_name"] == "blocks.1.hook_resid_post"
    whole = TrainedSAE.load(folder)
    assert torch.equal(whole.losses, found.losses) and torch.equal(whole.dead, found.dead)
    assert torch.equal(whole.initial, found.initial)


def test_an_sae_of_others_is_refused(tmp_path: Path) -> None:
    store, _ = planted(300)
    found = train_sae(store, SAESettings(n_features=N, k=1, steps=1, batch_size=9), progress=SILENT)
    found.save(tmp_path)
    save_sae(found.sae, tmp_path)
    with pytest.raises(BadFile, match="does not say how it was trained"):
        TrainedSAE.load(tmp_path)
    (tmp_path / "training.safetensors").unlink()
    with pytest.raises(BadFile, match="no such file"):
        TrainedSAE.load(tmp_path)


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


def test_mistakes_are_one_line_of_trainer(tmp_path: Path) -> None:
    store, _ = planted(300)
    trainer = DictionaryTrainer(store, SETTINGS, tmp_path)
    with pytest.raises(UnknownName, match="Did you mean 'n_features'"):
        trainer.train(n_feature=3)
    with pytest.raises(BadUsage, match="got k=0"):
        trainer.train(k=0)
    save_sae(trainer.train().sae, tmp_path / "plain")
    with pytest.raises(BadFile, match="no such file"):
        TrainedSAE.load(tmp_path / "plain")
