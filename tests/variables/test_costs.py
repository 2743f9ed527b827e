"""What searches for variables take: steps, sites and pairs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.jobs import SMALL_JOBS
from mechassay.interventions.site import ALL, Site
from mechassay.models.graph import Graph
from mechassay.runs.costs import SHARED, CostStep, ModelSize
from mechassay.variables.costs import site_operations, variables_cost
from mechassay.variables.jobs import VariablesJob

JOB: VariablesJob = replace(
    SMALL_JOBS["variables"], models=("truth-ioi-trained",), variables=("answer",), steps=100
)


def steps_of(job: VariablesJob) -> dict[str, CostStep]:
    (part,) = variables_cost(job, job.cells(), "cpu").models
    return {step.name: step for step in part.steps}


def test_sites_by_hand() -> None:
    size = ModelSize(1000, 600, 400, Graph(3, 1), 10, 4)
    last, everywhere = Site(0, "last"), Site(1, ALL)
    assert site_operations(size, [last], 8) == 2 * 600 * 2 / 3
    assert site_operations(size, [everywhere], 8) == SHARED * 8 * 2 * 600 / 3
    # Twice the sites take twice as long.
    assert site_operations(size, [last] * 2, 8) == 2 * site_operations(size, [last], 8)


def test_steps_of_a_run_and_what_trains() -> None:
    steps = steps_of(JOB)
    assert list(steps) == [
        *("load", "examples", "answer: whole vectors", "answer: full-vector", "answer: das")
    ]
    assert steps["answer: das"].operations > steps["answer: full-vector"].operations


def test_steps_are_counted_each() -> None:
    operations = [
        steps_of(replace(JOB, steps=n))["answer: das"].operations for n in (100, 200, 300)
    ]
    assert operations[2] - operations[1] == pytest.approx(operations[1] - operations[0])
    assert operations[1] > operations[0]


def test_controls_train_again_and_hold_a_second_model() -> None:
    plain = steps_of(replace(JOB, controls=()))["answer: das"]
    random = steps_of(replace(JOB, controls=("random-variable",)))["answer: das"]
    both = steps_of(JOB)["answer: das"]
    (part,) = variables_cost(JOB, JOB.cells(), "cpu").models
    assert both.operations - random.operations == pytest.approx(
        random.operations - plain.operations
    )
    assert random.held == plain.held
    assert both.held == pytest.approx(plain.held + part.size.bytes)


def test_several_numbers_of_features_are_trained_each() -> None:
    one, two = (
        steps_of(replace(JOB, ks=ks, controls=()))["answer: das"].operations
        for ks in ((3,), (3, 4))
    )
    assert 1.9 * one < two < 2 * one
