"""The nearest class mean along what was found: by hand, against a slow loop, planted and random."""

from __future__ import annotations

import torch

from helpers.planted_gym import planted_model, planted_task
from mechassay.gym import evaluate
from mechassay.gym.classification import nearest_class
from mechassay.utils.display import SILENT


def test_the_nearest_mean_by_hand() -> None:
    train = torch.tensor([[0.0], [2.0], [10.0], [12.0]])
    classes = torch.tensor([0, 0, 1, 1])
    values = torch.tensor([[5.9], [6.1], [-3.0], [40.0]])
    # The means are 1 and 11; the boundary is 6.
    assert nearest_class(train, classes, values).tolist() == [0, 1, 0, 1]


def test_it_is_the_slow_loop_whatever_the_sign_the_scale_and_the_shift() -> None:
    generator = torch.Generator().manual_seed(0)
    train = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    values = torch.randn(30, 3, generator=generator, dtype=torch.float64)
    classes = torch.randint(3, (40,), generator=generator)
    slow = [
        min(range(3), key=lambda kind: float((value - train[classes == kind].mean(0)).norm()))
        for value in values
    ]
    assert nearest_class(train, classes, values).tolist() == slow
    moved = nearest_class(7 - 3 * train, classes, 7 - 3 * values)
    assert moved.tolist() == slow


def test_a_planted_direction_tells_types_apart_and_a_random_one_less() -> None:
    odds = evaluate(
        planted_model(),
        planted_task(),
        ("probe", "mean", "random", "vanilla"),
        layers=[0, 1],
        control=False,
        limits={"train": 60, "validation": 40, "test": 40},
        progress=SILENT,
    )
    for method in ("probe", "mean"):
        estimate = odds.classification(method)
        # All of 20 groups are right: the interval is not a point.
        assert estimate.value == 1 and 0.8 < estimate.low < 1
    # The planted direction is large, so that a random one carries some of it.
    random = odds.classification("random")
    assert random.value < 1 and random.low < random.value
    record = odds.record()
    assert record.value("classification_probe") == 1
    row = record.table("methods").where(method="probe").rows()[0]
    assert row["classification"] == 1
    assert record.table("example").rows()[0]["region"] == "noun"
