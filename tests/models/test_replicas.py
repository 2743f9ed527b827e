"""Replicas of a model in two processes beside this one: what one process gives."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.replicas import dies, refuses, tiny_model, where
from mechassay.circuits import EAP, NAP, evaluate, faithfulness_curve, run_controls
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods.exact_patching import ExactPatching
from mechassay.circuits.methods.method import AnyMethod
from mechassay.circuits.methods.stability import score_in_parts
from mechassay.discovery.experiment import CircuitsExperiment
from mechassay.errors import MechassayError, NonFinite
from mechassay.models.computing import computing
from mechassay.models.gradients import backward_model
from mechassay.models.model import Model
from mechassay.models.objectives import load_objective
from mechassay.models.replicas import Replicas
from mechassay.prompts.batch import Batch
from mechassay.runs.executors import Processes
from mechassay.runs.folder import RunFolder
from mechassay.runs.run import run
from mechassay.runs.worker import Worker
from mechassay.testing.tiny import subject
from mechassay.utils.display import SILENT


@pytest.fixture(scope="module")
def replicated() -> Iterator[Model]:
    replicas = Replicas(("cpu", "cpu:0", "cpu:1"), partial(tiny_model, "llama"))
    yield replace(subject("llama", torch.float64).model, replicas=replicas)
    replicas.close()


def many_pairs(n: int = 16) -> Batch:
    generator = torch.Generator().manual_seed(0)
    clean, other = torch.randint(1, 30, (2, n, 7), generator=generator).tolist()
    return Batch.from_tokens(clean, other, answers=[3] * n, foils=[4] * n)


@pytest.mark.guard
def test_items_come_back_in_order_from_processes_with_a_device_each(
    monkeypatch: pytest.MonkeyPatch, replicated: Model
) -> None:
    monkeypatch.setenv("DEVICE_OF_PART", "cpu")
    with computing("on"):
        done = list(replicated.everywhere(where, range(9)))
    assert [item for item, *_ in done] == list(range(9))
    here = [item for item, process, *_ in done if process == os.getpid()]
    assert here == [0, 3, 6]
    # Each process has its own device: no two share one, and none has two.
    processes = {(process, device) for _, process, device, *_ in done}
    assert {device for _, device in processes} <= {"cpu", "cpu:0", "cpu:1"}
    assert len({process for process, _ in processes}) == len(processes)
    assert len({device for _, device in processes}) == len(processes) >= 2
    assert {how for *_, how, _ in done} == {"on"}
    assert {threads for *_, threads in done} == {torch.get_num_threads()}
    # The same processes do the next items, also where a caller asked for no more than there are.
    asked = replicated.everywhere(where, range(9))
    again = {process for _, process, *_ in (next(asked) for _ in range(9))}
    del asked
    assert replicated.replicas is not None and replicated.replicas._pool is not None
    assert again | {process for process, _ in processes} <= {
        os.getpid(),
        *replicated.replicas._pool._processes,
    }
    # They go on computing as this process does now.
    assert {how for *_, how, _ in replicated.everywhere(where, range(9))} == {"auto"}


@pytest.mark.guard
def test_circuits_in_three_processes_give_what_one_gives(replicated: Model) -> None:
    model, pairs = subject("llama", torch.float64).model, many_pairs()
    draw = torch.rand(model.graph.legal.shape, generator=torch.Generator().manual_seed(1))
    half = Circuit(model.graph, model.graph.legal & (draw < 0.5))
    neurons = torch.ones((model.graph.n_writers, model.decoder.d_model), dtype=torch.bool)
    neurons[:, ::3] = False
    circuits = [Circuit.empty(model.graph), half, replace(half, neurons=neurons)]
    for objective in ("logit_diff", "kl"):
        whole = evaluate(model, circuits, pairs, objective, progress=SILENT)
        apart = evaluate(replicated, circuits, pairs, objective, progress=SILENT)
        assert len({round(float(row.mean()), 6) for row in whole}) == 3
        np.testing.assert_allclose(apart, whole, atol=1e-10, rtol=1e-10)
    # What travelled is where it was: arrays that view tensors still hold their numbers.
    owner = model.graph.reader_owner.numpy()
    kept = owner.copy()
    evaluate(replicated, circuits, pairs, progress=SILENT)
    assert (owner == kept).all()
    # Fewer pairs than processes, and one.
    for n in (2, 1):
        few = many_pairs(n)
        np.testing.assert_allclose(
            evaluate(replicated, circuits, few, progress=SILENT),
            evaluate(model, circuits, few, progress=SILENT),
            atol=1e-10,
        )


@pytest.mark.guard
def test_a_curve_in_three_processes_is_that_of_one(replicated: Model) -> None:
    model, pairs = subject("llama", torch.float64).model, many_pairs()
    scores = NAP().score(model, pairs, progress=SILENT)
    areas: list[tuple[float, ...]] = []
    for one in (model, replicated):
        controls = run_controls(one, pairs, seeds=range(2), progress=SILENT)
        curve = faithfulness_curve(one, scores, pairs, controls=controls, progress=SILENT)
        areas.append((curve.cpr, curve.cmd, curve.cma, curve.controls.full.mean()))
    np.testing.assert_allclose(areas[1], areas[0], rtol=1e-9)


@pytest.mark.guard
@pytest.mark.parametrize("method", [EAP(), ExactPatching()])
def test_scores_in_three_processes_are_those_of_one(method: AnyMethod, replicated: Model) -> None:
    model, pairs = subject("llama", torch.float64).model, many_pairs()
    here = score_in_parts(method, model, pairs, progress=SILENT)
    apart = score_in_parts(method, replicated, pairs, progress=SILENT)
    assert float(here.scores.values.nan_to_num().abs().max()) > 1e-3
    assert len(here.parts) == 8
    torch.testing.assert_close(
        apart.scores.values, here.scores.values, equal_nan=True, rtol=0, atol=0
    )
    assert (apart.parts == here.parts).all()


@pytest.mark.guard
def test_a_share_that_fails_ends_the_cell_and_the_next_one_begins_anew(
    monkeypatch: pytest.MonkeyPatch, replicated: Model
) -> None:
    monkeypatch.setenv("DEVICE_OF_PART", "cpu")
    with pytest.raises(ValueError, match="no part 1"):
        list(replicated.everywhere(refuses, range(3)))
    with pytest.raises(MechassayError, match="ended without a word"):
        list(replicated.everywhere(dies, range(3)))
    assert [item for item, *_ in replicated.everywhere(where, range(3))] == [0, 1, 2]


def test_a_value_that_is_not_finite_is_named_by_its_own_pair() -> None:
    """Shares are sorted and split: the pair that is named must be the one."""
    model, pairs = subject("llama", torch.float64).model, many_pairs(5)
    objective = load_objective("logit_diff")

    class Broken:
        name, needs_clean, direction, differentiable = "broken", False, "up", True

        def __call__(self, readout: object, batch: Batch, clean: object) -> torch.Tensor:
            values = objective(readout, batch, clean)
            values[[place for place, name in enumerate(batch.ids) if name == pairs.ids[3]]] = np.nan
            return values

    with pytest.raises(NonFinite, match=f"example {pairs.ids[3]} is nan"):
        evaluate(model, Circuit.empty(model.graph), pairs, Broken(), progress=SILENT)


def test_a_model_that_differentiates_otherwise_has_no_replicas() -> None:
    model = replace(subject("llama", torch.float64).model, replicas=Replicas(("cpu",) * 2, where))
    assert backward_model(model, "plain").replicas is not None
    assert backward_model(model, "relp").replicas is None


def test_a_worker_with_one_device_has_no_replicas(tmp_path: Path) -> None:
    for devices in ((), ("cpu",)):
        assert Worker(RunFolder(tmp_path), devices=devices).model("truth-ioi").replicas is None
    worker = Worker(RunFolder(tmp_path), devices=("cpu", "cpu:0"))
    replicas = worker.model("truth-ioi", dtype="float64").replicas
    assert replicas is not None and replicas.devices == ("cpu", "cpu:0")
    model = replicas.load(device="cpu")
    assert (model.name, model.dtype, model.replicas) == ("truth-ioi", torch.float64, None)


@pytest.mark.guard
def test_a_cell_with_more_workers_than_batches_is_that_of_one_process(tmp_path: Path) -> None:
    experiment = CircuitsExperiment(
        models=("truth-induction",),
        methods=("eap",),
        train_limit=16,
        limit=12,
        random_rankings=5,
    )
    here = run(experiment, tmp_path / "here", progress=SILENT).records[0]
    apart = run(experiment, tmp_path / "apart", executor=Processes(2), progress=SILENT).records[0]
    assert here.spent["localize_cpu_seconds"] > 0
    # Other processes scored parts, and have clocks of their own.
    assert math.isnan(apart.spent["localize_cpu_seconds"])
    for one, other in zip(here.measures, apart.measures, strict=True):
        assert one.name == other.name
        assert other.value == pytest.approx(one.value, rel=1e-5, abs=1e-6, nan_ok=True)
