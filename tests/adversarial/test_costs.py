"""What adversarial evaluation takes: pairs of a grid, circuits, controls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers.jobs import SMALL_JOBS
from mechassay.adversarial.costs import adversarial_cost, edges_of
from mechassay.adversarial.jobs import AdversarialJob
from mechassay.circuits.methods.spec import CircuitSpec
from mechassay.errors import BadUsage
from mechassay.runs.costs import CostStep

JOB: AdversarialJob = replace(SMALL_JOBS["adversarial"], n_clean=1000, n_corrupted=1000)


def steps_of(job: AdversarialJob) -> dict[str, CostStep]:
    (part,) = adversarial_cost(job, job.cells(), "cpu").models
    return {step.name: step for step in part.steps}


def test_a_grid_is_a_product() -> None:
    once = steps_of(JOB)["pairs"].operations
    assert steps_of(replace(JOB, n_clean=2000))["pairs"].operations == pytest.approx(
        2 * once, rel=0.1
    )
    both = steps_of(replace(JOB, n_clean=2000, n_corrupted=2000))["pairs"].operations
    assert both == pytest.approx(4 * once, rel=0.1)
    # Matched pairs are as many as prompts.
    matched = replace(JOB, design="matched")
    assert steps_of(matched)["pairs"].operations < once / 100


def test_every_circuit_is_counted_and_controls_have_their_own_number() -> None:
    one, two, three = (
        steps_of(replace(JOB, circuits=("random@0.5", "random@0.4", "random@0.3")[:n]))
        for n in (1, 2, 3)
    )
    grow = [x["pairs"].operations for x in (one, two, three)]
    assert grow[2] - grow[1] == pytest.approx(grow[1] - grow[0])
    more = steps_of(replace(JOB, controls=2 * JOB.controls))
    assert more["pairs"] == steps_of(JOB)["pairs"]
    assert more["controls"].operations > 3 * steps_of(JOB)["controls"].operations


@pytest.mark.parametrize(
    ("text", "n_edges"), [("full", 200), ("empty", 0), ("random@0.5", 100), ("random@30", 30)]
)
def test_edges_of_a_circuit_by_hand(text: str, n_edges: int) -> None:
    assert edges_of(CircuitSpec.parse(text), 200) == n_edges


def test_a_small_circuit_takes_less() -> None:
    small, large, full = (
        steps_of(replace(JOB, circuits=(text,)))["pairs"].operations
        for text in ("random@0.01", "random@0.1", "full")
    )
    assert small < large < full


def test_a_method_that_finds_circuits_is_a_step() -> None:
    job = replace(JOB, circuits=("eap@10", "eap@20"), train_limit=10)
    assert list(steps_of(job)) == ["load", "eap", "pairs", "controls"]
    twice = steps_of(replace(job, train_limit=20))["eap"].operations
    assert twice == pytest.approx(2 * steps_of(job)["eap"].operations)


def test_pairs_that_have_to_be_drawn_first_are_not_known() -> None:
    job = replace(JOB, enumerate_all=True, design="matched")
    with pytest.raises(BadUsage, match="known once they are drawn"):
        adversarial_cost(job, job.cells(), "cpu")
