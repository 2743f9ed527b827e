"""Dead features come back, and the others find more for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mechassay.features.sae import SAE
from mechassay.progress import SILENT
from mechassay.saes import SAESettings, seed_agreement, train_sae
from mechassay.saes.architectures import JumpReLULearner, Learner
from mechassay.saes.dead_features import DeadFeatures
from planted_store import ACTIVE, D, N, explained, planted


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
