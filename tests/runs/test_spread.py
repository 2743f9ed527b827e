"""Parts of a cell in two processes: what one process gives, with a device each."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from helpers.spread_parts import dies, objective_of_empty, refuses, tiny_model, where
from mechassay.circuits import EAP, evaluate
from mechassay.circuits.circuit import Circuit
from mechassay.circuits.methods.exact_patching import ExactPatching
from mechassay.circuits.methods.method import Method
from mechassay.circuits.methods.stability import score_in_parts
from mechassay.errors import MechassayError
from mechassay.models.computing import computing
from mechassay.prompts.batch import Batch
from mechassay.runs.folder import RunFolder
from mechassay.runs.job import Bench
from mechassay.runs.spread import Spread
from mechassay.testing.tiny import subject
from mechassay.utils.display import SILENT

SPREAD = Spread(("cpu", "cpu:0", "cpu:1"), partial(tiny_model, "llama"))
"""Two processes beside this one."""


def many_pairs() -> Batch:
    generator = torch.Generator().manual_seed(0)
    clean, other = torch.randint(1, 30, (2, 16, 7), generator=generator).tolist()
    return Batch.from_tokens(clean, other, answers=[3] * 16, foils=[4] * 16)


@pytest.mark.guard
def test_parts_come_back_in_order_from_processes_with_a_device_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DEVICE_OF_PART", "cpu")
    with computing("on"), SPREAD.started(subject("llama", torch.float64).model) as everywhere:
        done = list(everywhere(where, range(9)))
    assert [item for item, *_ in done] == list(range(9))
    here = [item for item, process, *_ in done if process == os.getpid()]
    assert here == [0, 3, 6]
    # Each process has its own device: no two share one, and none has two.
    processes = {(process, device) for _, process, device, _, _ in done}
    assert {device for _, device in processes} <= {"cpu", "cpu:0", "cpu:1"}
    assert len({process for process, _ in processes}) == len(processes)
    assert len({device for _, device in processes}) == len(processes) >= 2
    assert {how for *_, how, _ in done} == {"on"}
    assert {threads for *_, threads in done} == {torch.get_num_threads()}


@pytest.mark.guard
def test_pairs_in_two_processes_give_what_one_gives() -> None:
    model, pairs = subject("llama", torch.float64).model, many_pairs()
    whole = evaluate(model, Circuit.empty(model.graph), pairs, progress=SILENT)
    assert float(abs(whole).max()) > 1e-3
    parts = [pairs.select(range(begin, begin + 4)) for begin in range(0, 16, 4)]
    sent = [replace(part, alignment={}) for part in parts]
    with SPREAD.started(model) as everywhere:
        values = torch.cat(list(everywhere(objective_of_empty, sent)))
    torch.testing.assert_close(values, torch.from_numpy(whole), atol=1e-10, rtol=1e-10)


@pytest.mark.guard
@pytest.mark.parametrize("method", [EAP(), ExactPatching()])
def test_scores_in_two_processes_are_those_of_one(method: Method, tmp_path: Path) -> None:
    model, pairs = subject("llama", torch.float64).model, many_pairs()
    here = score_in_parts(method, model, pairs, progress=SILENT)
    apart = score_in_parts(method, model, pairs, progress=SILENT, spread=SPREAD)
    assert float(here.scores.values.nan_to_num().abs().max()) > 1e-3
    assert len(here.parts) == 8
    torch.testing.assert_close(
        apart.scores.values, here.scores.values, equal_nan=True, rtol=0, atol=0
    )
    assert (apart.parts == here.parts).all()


@pytest.mark.guard
def test_a_part_that_fails_ends_the_cell() -> None:
    model = subject("llama", torch.float64).model
    with pytest.raises(ValueError, match="no part 1"), SPREAD.started(model) as everywhere:
        list(everywhere(refuses, range(3)))
    dead = pytest.raises(MechassayError, match="ended without a word")
    with dead, SPREAD.started(model) as everywhere:
        list(everywhere(dies, range(3)))


def test_a_worker_with_one_device_does_its_cells_alone(tmp_path: Path) -> None:
    about = {"dtype": "float64", "prepend_bos": False}
    for devices in ((), ("cpu",)):
        assert Bench(RunFolder(tmp_path), devices=devices).spread("truth-ioi", **about) is None
    spread = Bench(RunFolder(tmp_path), devices=("cpu", "cpu:0")).spread("truth-ioi", **about)
    assert spread is not None and spread.devices == ("cpu", "cpu:0")
    model = spread.load(device="cpu")
    assert (model.name, model.dtype) == ("truth-ioi", torch.float64)
