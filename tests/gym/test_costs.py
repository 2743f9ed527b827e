"""What methods on gym tasks take: draws, kinds of labels, and a model of random weights."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.jobs import SMALL_JOBS
from mechassay.gym.costs import gym_cost
from mechassay.gym.jobs import GymJob
from mechassay.runs.costs import CostStep

JOB: GymJob = replace(SMALL_JOBS["gym"], controls=())
NAME = "gym_small"


def steps_of(job: GymJob) -> dict[str, CostStep]:
    (part,) = gym_cost(job, job.cells(), "cpu").models
    return {step.name: step for step in part.steps}


def test_what_is_trained_is_a_step_and_what_looks_at_values_is_not() -> None:
    assert list(steps_of(JOB)) == [
        *("load", f"{NAME}: values", f"{NAME}: das:steps=3", f"{NAME}: odds")
    ]


@pytest.mark.parametrize("change", [{"controls": ("labels",)}, {"seeds": (0, 1)}])
def test_twice_the_labels_or_draws_train_twice_as_long(change: dict[str, tuple[object]]) -> None:
    das = f"{NAME}: das:steps=3"
    changed = steps_of(replace(JOB, **change))[das].operations
    assert changed == pytest.approx(2 * steps_of(JOB)[das].operations)


def test_every_item_and_fit_is_exchanged_at_every_site() -> None:
    def odds(**fields: object) -> float:
        return steps_of(replace(JOB, **fields))[f"{NAME}: odds"].operations

    both = {"validation_limit": 16, "test_limit": 16}
    assert odds(**both) == pytest.approx(2 * odds())
    one, two, three = (odds(methods=("mean", "random", "pca")[:n]) for n in (1, 2, 3))
    assert three - two == pytest.approx(two - one)
    assert two > one


def test_a_model_of_random_weights_is_held_beside() -> None:
    (plain,) = gym_cost(JOB, JOB.cells(), "cpu").models
    both = replace(JOB, controls=("untrained",))
    (part,) = gym_cost(both, both.cells(), "cpu").models
    assert part.held >= plain.held + plain.size.bytes
    names = [step.name for step in part.steps]
    assert f"{NAME}, untrained: das:steps=3" in names
