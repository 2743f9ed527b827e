"""M09: cores by hand, trainers of known worth, and what really is drawn again."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from mechassay.errors import BadUsage
from mechassay.measurement import measure, null_table
from mechassay.saes import DictionaryTrainer, SAESettings
from mechassay.saes.metrics.core_stability import (
    chance_jaccard,
    core_stability,
    fewest,
    importance,
    jaccard,
    largest,
    page_importance,
)
from mechassay.saes.synthetic import SITE, PlantedTrainer, plant


class Watched:
    """A trainer that notes what it was asked for, and what it gave."""

    def __init__(self, trainer: Any) -> None:
        self.trainer, self.asked, self.gave = trainer, [], []

    def train(self, **asked: Any) -> Any:
        found = self.trainer.train(**asked)
        self.asked.append(asked)
        self.gave.append(found.sae)
        return found


def measured(planted: Any, trainer: Any, metric: str = "M09") -> Any:
    return measure(metric, site=SITE, more={"texts": planted.store(), "trainer": trainer})


def test_importance_by_hand() -> None:
    # One value, x = (3, 0), of a feature along each axis with codes 2 and 0: the error is (1, 0).
    codes, errors, rows = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 0.0]]), torch.eye(2)
    # f dE/df = 2 (1 . 1) 2 / 2; taken out, the error is 3: (9 - 1) / 2.
    assert page_importance(codes, errors, rows).tolist() == [2.0, 0.0]
    assert importance(codes, errors, rows).tolist() == [4.0, 0.0]
    # The defect: of a feature that reconstructs its values exactly the page sees nothing.
    assert page_importance(codes, 0 * errors, rows).tolist() == [0.0, 0.0]
    assert importance(codes, 0 * errors, rows).tolist() == [2.0, 0.0]


def test_cores_by_hand() -> None:
    values = torch.tensor([1.0, 5.0, 0.0, 4.0])
    assert largest(values, 0.5).tolist() == [1, 3] and largest(values, 0.01).tolist() == [1]
    assert fewest(values, 0.9).tolist() == [1, 3] and fewest(values, 0.91).tolist() == [0, 1, 3]
    assert fewest(values * 0, 0.9).tolist() == []
    a, b = frozenset({1, 2, 3}), frozenset({2, 3, 4})
    assert jaccard(a, a) == 1 and jaccard(a, b) == 0.5 and jaccard(a, frozenset({9})) == 0
    assert math.isnan(jaccard(frozenset(), frozenset()))
    # p / (2 - p) at p = .1
    assert chance_jaccard(10, 10, 100) == pytest.approx(0.0526, abs=1e-4)


def test_overlap_above_chance_by_hand() -> None:
    a, b = frozenset(range(10)), frozenset(range(5, 15))
    found = core_stability(
        [a, a], [a, b], 100, torch.eye(4), [torch.eye(4)], torch.arange(2), seed=1
    )
    assert found.page.values == {"core_fraction": 0.1, "mean_overlap": 1.0, "is_stable": 1.0}
    chance = chance_jaccard(10, 10, 100)
    assert found.repaired["overlap"] == pytest.approx(1 / 3)
    assert found.repaired["overlap_above_chance"] == pytest.approx((1 / 3 - chance) / (1 - chance))
    assert found.repaired["kept_share"] == pytest.approx(0.05)
    assert found.repaired["found_again"] == 1


def test_features_that_matter_are_the_core() -> None:
    frequencies = (0.5,) * 5 + (0.002,) * 11
    planted = plant(d=24, n_features=16, frequencies=frequencies, orthogonal=True)
    found = measured(planted, PlantedTrainer(planted))
    assert found.repaired["core_share"] == pytest.approx(5 / 16)
    assert found.repaired["found_again"] == 1


def test_only_cores_are_kept_and_everything_else_is_drawn_again() -> None:
    planted = plant()
    trainer = Watched(PlantedTrainer(planted))
    measured(planted, trainer, "M09:n_cycles=3,n_seeds=3")
    # Once for all, two more cycles of each variant, two other seeds from nothing.
    kept = [asked.get("encoder") for asked in trainer.asked]
    assert [each is None for each in kept] == [True, *[False] * 4, True, True]
    seeds = [asked["seed"] for asked in trainer.asked]
    assert (
        seeds[0] not in seeds[1:] and len(set(seeds[5:])) == 2 and not {*seeds[5:]} & {*seeds[:5]}
    )
    whole = [sorted(asked) for asked in trainer.asked[1:5]]
    assert whole == [["b_enc", "decoder", "encoder", "seed"]] * 2 + [["encoder", "seed"]] * 2
    first = trainer.gave[0]
    for encoder, sae in zip(kept[1:2], trainer.gave[1:2], strict=True):
        m = encoder.shape[1]
        assert 0 < m < first.n_features
        columns = (first.w_enc[:, :, None] == encoder[:, None]).all(0)
        assert columns.any(0).all(), "the core's encoders, unchanged"
        assert torch.equal(sae.w_enc[:, :m], encoder)
        # The page's core keeps all that it has.
        assert torch.equal(sae.w_dec[:m], trainer.asked[1]["decoder"])
        assert columns.any(1).sum() == m and trainer.asked[1]["b_enc"].shape == (m,)
        # The published code changed a copy: no other feature was drawn again.
        others = (first.w_enc[:, :, None] == sae.w_enc[:, None, m:]).all(0)
        assert not bool(others.any())


def test_random_dictionaries_are_stable_on_the_page_alone() -> None:
    planted = plant()
    found = measured(planted, PlantedTrainer(planted, "random"))
    # The defect: what is kept overlaps with itself, whatever it is worth.
    assert found.page["mean_overlap"] > 0.7 > 10 * chance_jaccard(2, 2, 24)
    assert found.flagged("carried_over") and found.flagged("bounded_fraction")
    assert found.repaired["found_again"] < 0.2 and found.passed is False
    good = measured(planted, PlantedTrainer(planted))
    assert good.repaired["found_again"] > 0.9 and good.passed is True
    assert good.page.passed is None, "the page only reports"


def test_a_real_training_keeps_the_core() -> None:
    planted = plant(d=16, n_features=12, active=2.0)
    settings = SAESettings(n_features=16, k=2, steps=60, batch_size=64, lr=1e-2)
    trainer = Watched(DictionaryTrainer(planted.store(), settings))
    found = measured(planted, trainer, "M09:n_cycles=2,n_seeds=2")
    first, page, own = trainer.gave[:3]
    decoder = trainer.asked[1]["decoder"]
    m = len(decoder)
    assert m == 2 and "decoder" not in trainer.asked[2]
    rows = {tuple(row) for row in first.w_dec.tolist()}
    assert {tuple(row) for row in decoder.tolist()} <= rows
    # What is kept moves in training and stays what it is; what is drawn need not come back.
    assert ((page.w_dec[:m] * decoder).sum(1) > 0.9).all()
    assert own.n_features == 16
    assert found.flagged("carried_over") is (found.page["mean_overlap"] > 0)


def test_cores_that_are_dropped_are_not_said_to_be_carried_over() -> None:
    a, b = frozenset({0, 1}), frozenset({2, 3})
    found = core_stability([a, b], [a, b], 4, torch.eye(4), [torch.eye(4)], torch.arange(2))
    assert found.page["mean_overlap"] == 0 and not found.flagged("carried_over")


def test_a_trainer_whose_features_do_nothing() -> None:
    planted = plant()

    class Idle:
        def train(self, *, seed: int = 0, **kept: Any) -> Any:
            found = PlantedTrainer(planted).train(seed=seed).sae
            found.threshold.fill_(1e9)
            return type("Trained", (), {"sae": found})

    found = measured(planted, Idle())
    assert found.repaired["found_again"] is None and found.passed is None
    with pytest.raises(BadUsage, match="n_cycles of at least 2"):
        measured(planted, Idle(), "M09:n_cycles=1")
    with pytest.raises(BadUsage, match="above 0"):
        measured(planted, Idle(), "M09:top_share=0.0")


def test_how_often_thresholds_err() -> None:
    found = null_table("M09", 32, n_simulations=10)
    assert found.false_alarm("repaired") == 0 and found.power("repaired") == 1


def test_features_of_other_values_are_not_found_again() -> None:
    planted = plant(n_features=400, d=32, active=8.0)
    found = measured(planted, PlantedTrainer(planted, "permuted", 0.95), "M09:n_cycles=2")
    # The defect: decoder rows are the same, and are active in other values.
    assert found.repaired["found_again"] < 0.1 and found.passed is False
