"""relu SAEs: the weight of their penalty over the steps."""

from __future__ import annotations

import pytest
import torch

from mechassay.saes.agreement import unit_rows
from mechassay.saes.learners.standard import StandardLearner
from mechassay.saes.settings import SAESettings


def penalties(**changes: float) -> list[float]:
    """What a batch is charged at every step, over what a weight of 1 would be."""
    settings = SAESettings(architecture="standard", n_features=12, steps=20, l1=0.5, **changes)
    drawn = torch.Generator().manual_seed(0)
    learner = StandardLearner(settings, unit_rows(torch.randn(12, 8, generator=drawn)))
    x = torch.randn(30, 8, generator=drawn)
    whole = float(learner.read(x).relu().sum(1).mean().detach()) / 8
    found = [learner.code(x, step).penalty for step in range(20)]
    return [float(torch.as_tensor(each).detach()) / whole for each in found]


def test_the_weight_rises_over_the_warmup_and_stays() -> None:
    found = penalties(warmup=0.2, decay=0.5)
    # A fifth of 20 steps: 1/4, 2/4, 3/4 and then all of l1. The defect: it fell with the rate.
    assert found[:4] == pytest.approx([0.125, 0.25, 0.375, 0.5])
    assert found[4:] == pytest.approx([0.5] * 16)
    assert penalties(warmup=0.0) == pytest.approx([0.5] * 20)
