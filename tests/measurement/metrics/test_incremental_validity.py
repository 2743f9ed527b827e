"""F08: a constant gain, the best of many baselines, losses."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import ttest_rel

from mechassay.errors import BadUsage
from mechassay.measurement.metric import GaugeInputs
from mechassay.measurement.metrics.incremental_validity import IncrementalValidity, incremental
from mechassay.results.records import Measure, Record, Spec, provenance

TASKS = ["a", "b", "c", "d"]
BASE = np.array([0.1, 0.4, 0.5, 0.9])


def test_agrees_with_students_test() -> None:
    method = BASE + np.array([0.1, 0.3, 0.2, 0.1])
    found = incremental(method, {"old": BASE}, TASKS)
    assert found.page["t"] == pytest.approx(ttest_rel(method, BASE).statistic)
    assert found.page["delta"] == pytest.approx(0.175) and found.page["n_losses"] == 0
    assert found.repaired["d_z"] == pytest.approx(found.page["t"] / 2)


def test_a_constant_gain_is_a_flag() -> None:
    found = incremental(BASE + 0.5, {"old": BASE}, TASKS)
    assert found.flagged("constant_gain") and found.page["t"] is None
    assert found.repaired["delta_low"] == pytest.approx(0.5)


def test_the_best_of_many_random_baselines_hides_a_gain() -> None:
    # The defect: the best baseline of each task is chosen after the fact.
    rng = np.random.default_rng(0)
    tasks = rng.standard_normal(12)
    others = {str(i): tasks + rng.standard_normal(12) for i in range(20)}
    found = incremental(tasks + 1, others, [str(i) for i in range(12)])
    assert found.page["delta"] < 0 < found.repaired["delta"]


def result(model: str, task: str, method: str, cpr: float) -> Record:
    names = {"model": model, "task": task, "method": method}
    return Record(
        kind="circuits",
        specs={**{role: Spec(name=name) for role, name in names.items()}, "model": Spec(name="m")},
        identities={"model": {"weights": model}},
        measures=[Measure(name="cpr", value=cpr)],
        provenance=provenance(device="cpu", dtype="float32", seed=0),
    )


def test_two_models_are_not_two_tasks() -> None:
    """A task counts once, with the mean over its models: gains of .1 and .5 on ioi are .3."""
    rows = {"ioi": {"one": (0.5, 0.4), "two": (0.9, 0.4)}, "mcqa": {"one": (0.6, 0.5)}}
    records = [
        result(model, task, method, value)
        for task, models in rows.items()
        for model, values in models.items()
        for method, value in zip(("new", "old"), values, strict=True)
    ]
    measurement = IncrementalValidity("new").measure(GaugeInputs(more={"records": lambda: records}))
    assert measurement.repaired["delta"] == pytest.approx((0.3 + 0.1) / 2)
    one_task = [record for record in records if record.task.name == "ioi"]
    with pytest.raises(BadUsage, match="got 1 tasks"):
        IncrementalValidity("new").measure(GaugeInputs(more={"records": lambda: one_task}))


def test_no_gain_does_not_pass() -> None:
    found = incremental(BASE[::-1].copy(), {"old": BASE}, TASKS)
    assert found.repaired.passed is False and found.page["n_losses"] == 2
    for method, others in ((BASE[:1], {"old": BASE[:1]}), (BASE, {})):
        with pytest.raises(BadUsage, match="two tasks"):
            incremental(method, others, TASKS[: len(method)])
